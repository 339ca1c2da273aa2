"""The files of a `routing` cell are read as the present and older versions write them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from results.records.declaration import UnknownVersion
from results.records.estimate import Estimate
from results.records.routing_cells import (
    InstanceNumbers,
    KvMovements,
    PickCounts,
    RoutingBreakdown,
    RoutingNumbers,
    decode_breakdown,
    upgrade_config_from_1,
)

PICKS = PickCounts(3, {"bound": 1, "cold": 2}, {"e0": {"bound": 1, "cold": 2}}, {"ok": 3}, 0, {}, 7)
BREAKDOWN = RoutingBreakdown(
    cell="trials/EAR/t0",
    instances=(InstanceNumbers("e0", "both", 3, 0, 2, {"apc": Estimate(0.5, n=3)}, {"bound": 1, "cold": 2}),),
    picks=PICKS,
)
NUMBERS = RoutingNumbers(
    cell="trials/EAR/t0", label="EAR", policy="ear", parameters={"hot_tokens": 3000}, trial=0,
    counts={"turns": 3, "picks": None}, values={"apc": Estimate(0.5)}, degraded="",
)  # fmt: skip


def read_back(record: object) -> dict[str, Any]:
    """The JSON object that Tracon writes of the record."""
    row: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(record))
    return row


@pytest.mark.parametrize("breakdown", [BREAKDOWN, replace(BREAKDOWN, picks=None, simulated="h200")])
def test_a_breakdown_is_read_as_it_is_written(breakdown: RoutingBreakdown) -> None:
    assert decode_breakdown(msgspec.json.encode(breakdown)) == breakdown


def test_a_breakdown_of_format_1_has_the_present_names_of_its_picks() -> None:
    row = read_back(BREAKDOWN)
    row["picks"]["leg_tokens"] = row["picks"].pop("transfer_prompt_tokens")
    assert decode_breakdown(msgspec.json.encode(row | {"format": 1})) == BREAKDOWN
    del row["format"]
    assert decode_breakdown(msgspec.json.encode(row)) == BREAKDOWN, "one that states no format is of the first"


@pytest.mark.parametrize("row", [{}, {"format": 1}, {"format": 1, "picks": []}, {"format": 2, "picks": None}])
def test_a_breakdown_without_its_fields_is_damaged(row: dict[str, Any]) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_breakdown(msgspec.json.encode(row))


def test_a_breakdown_of_a_later_format_is_refused_with_those_that_are_read() -> None:
    with pytest.raises(UnknownVersion, match="has format 3; this Tracon reads formats 1 and 2"):
        decode_breakdown(msgspec.json.encode(read_back(BREAKDOWN) | {"format": 3}))


def test_numbers_state_a_simulation_and_movements_only_where_there_are_some() -> None:
    assert {"simulated", "movements"}.isdisjoint(read_back(NUMBERS))
    assert read_back(replace(NUMBERS, movements=KvMovements()))["movements"] == {}, "a log, and no KV was to be moved"
    assert read_back(replace(NUMBERS, simulated="h200"))["simulated"] == "h200"


@pytest.mark.parametrize(
    "movements", [KvMovements(), KvMovements(migrations={"failed": 1}, handovers={}, external_tokens=None, uncounted=0)]
)
def test_numbers_are_read_as_they_are_written(movements: KvMovements) -> None:
    numbers = replace(NUMBERS, movements=movements)
    assert msgspec.json.decode(msgspec.json.encode(numbers), type=RoutingNumbers) == numbers


def test_numbers_of_an_older_version_are_read() -> None:
    row = read_back(NUMBERS) | {"format": 1, "definitions": "docs/routing-analysis.md", "movements": {}}
    del row["values"]["apc"]["launches"]
    numbers = msgspec.json.decode(msgspec.json.encode(row), type=RoutingNumbers)
    assert (numbers.values, numbers.movements) == (NUMBERS.values, KvMovements())


def test_settings_of_version_1_have_the_present_name_of_the_position() -> None:
    row = {"cell": "a", "place": 3, "parameters": {"place": "ring"}}
    assert upgrade_config_from_1(row) == {"cell": "a", "position": 3, "parameters": {"place": "ring"}, "version": 2}
