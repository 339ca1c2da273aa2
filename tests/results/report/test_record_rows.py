"""A record as a row of a table: mappings and records inside it are columns of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from msgspec import UNSET, UnsetType

from results.records.estimate import Estimate
from results.report.record_rows import build_frame
from results.statistics.judgement import Verdict


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    counts: Mapping[str, int]
    estimate: Estimate
    verdict: Verdict | None
    simulated: str | UnsetType = UNSET


def test_a_mapping_and_a_record_give_a_column_each_and_what_is_unset_none() -> None:
    frame = build_frame([Row("a", {"sent": 1, "done": 2}, Estimate(0.5, n=3), Verdict.HIGHER)])
    assert list(frame.columns) == [
        "name", "sent", "done", "value", "low", "high", "n", "reason", "basis", "launches", "verdict",
    ]  # fmt: skip
    (row,) = frame.to_dict("records")
    assert (row["done"], row["value"], row["n"], row["verdict"]) == (2, 0.5, 3, "higher")


def test_a_simulated_row_says_so() -> None:
    frame = build_frame([Row("a", {}, Estimate(None), None, "a model")], dtype=object)
    assert frame["simulated"].to_list() == ["a model"]


@pytest.mark.parametrize(
    ("counts", "clash"), [({"name": 1}, "Row.counts .*: name"), ({"low": 2, "n": 1}, "Row.estimate .*: low, n")]
)
def test_a_key_with_the_name_of_a_column_is_refused(counts: Mapping[str, int], clash: str) -> None:
    """It would replace the other column without a word."""
    with pytest.raises(ValueError, match=clash):
        build_frame([Row("a", counts, Estimate(0.5), None)])
