"""What the pages of the worked examples that were measured twice say of `tracon compare`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from results.registry import compare_runs
from results.report.comparison import Change

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "docs/examples"
TWICE = sorted(path.parent.parent for path in EXAMPLES.glob("*/again/comparable.json"))


def read_words(page: Path) -> str:
    return " ".join(page.read_text(encoding="utf-8").split())


@pytest.mark.parametrize("example", TWICE, ids=lambda example: example.name)
def test_the_page_quotes_the_sentence_that_compare_prints(example: Path) -> None:
    comparison = compare_runs(example, example / "again")
    assert comparison.answer in read_words(example / "README.md")
    assert comparison.opposite == (), "the page says that no verdict is opposite"


def test_ear_measured_twice_is_as_its_pages_say() -> None:
    example = EXAMPLES / "ear-cpu-tiny"
    comparison = compare_runs(example, example / "again")
    assert comparison.answer in read_words(ROOT / "docs/analysis.md")
    assert len(comparison.disjoint) == 4, "four are disjoint"
    assert comparison.disjoint_by_chance == pytest.approx(2.2, abs=0.05)


def list_taxes(changes: Iterable[Change]) -> list[Change]:
    return [change for change in changes if "tax" in change.key]


def test_connector_tax_measured_twice_compares_latencies_and_taxes_at_equal_rates() -> None:
    example = EXAMPLES / "connector-tax-cpu-tiny"
    comparison = compare_runs(example, example / "again")
    assert comparison.disjoint == ()
    judged = [change for change in comparison.changes if change.p is not None]
    taxes = list_taxes(judged)
    assert (len(judged) - len(taxes), len(taxes)) == (82, 62)
    at_own_rate = [change for change in taxes if change.key["req/s"] == "16"]
    assert len(at_own_rate) == 42
    assert all("2048x" in change.key["shape"] for change in at_own_rate)
    others = [change for change in taxes if change not in at_own_rate]
    assert {(change.key["reference"], change.key_in_second["reference"], change.key["req/s"]) for change in others} == {
        ("ref_load", "ref_safe", "64")
    }
    assert sum(change.key["shape"] == "512x32" for change in others) == 14


def test_connector_tax_on_another_host_has_other_latencies_and_no_disjoint_tax() -> None:
    example = EXAMPLES / "connector-tax-cpu-tiny"
    comparison = compare_runs(example, example / "other-host")
    assert comparison.opposite == ()
    judged = [change for change in comparison.changes if change.p is not None]
    taxes = list_taxes(judged)
    assert (len(judged) - len(taxes), len(taxes)) == (190, 146)
    assert sum(change.key["req/s"] == "32" for change in taxes) == 84
    assert len(comparison.disjoint) == 119
    assert list_taxes(comparison.disjoint) == []
