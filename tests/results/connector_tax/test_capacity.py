"""The rate that a config sustains, its highest throughput and its goodput, against plain's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from results.connector_tax.capacity import CapacityCost, make_capacity_table, measure_capacity, measure_goodput
from results.connector_tax.saturation import judge_cells
from results.connector_tax.slo import Slo
from results.connector_tax.summary import CellSummary
from results.records.estimate import Estimate
from results.records.layout import ConfigLayout
from results.statistics.estimates import ALL_AGREE
from results.statistics.judgement import Verdict
from tests.results.connector_tax.cells import make_cell
from tests.results.connector_tax.synthetic import Behavior, Cell, Load, write_cell

GOODPUT = {"plain": 10.0, "nixl_both": 7.0}


def sweep(config: str, trial: int, peak_per_s: float, rates: tuple[float, ...] = (4, 8, 16)) -> list[CellSummary]:
    """Rates of which those above the peak are saturated."""
    return [
        make_cell(
            config, rate, trial=trial, cohort_ratio=min(1.0, peak_per_s / rate), waiting_p50=0.0,
            effective_throughput_per_s=min(rate, peak_per_s),
        )
        for rate in rates
    ]  # fmt: skip


def measure(cells: list[CellSummary], *, goodput: bool = False) -> dict[str, CapacityCost]:
    saturation = {cell.path: judged for cell in cells for judged in judge_cells([cell])}
    found = measure_capacity(cells, saturation, (lambda cell: Estimate(GOODPUT[cell.config])) if goodput else None)
    return {capacity.config: capacity for capacity in found}


def test_a_config_sustains_the_rate_below_its_first_saturated_one() -> None:
    found = measure([*sweep("plain", 0, 9.0), *sweep("nixl_both", 0, 6.0)])
    assert (found["plain"].sustained_per_s, found["plain"].next_per_s) == ((8,), (16,))
    assert (found["nixl_both"].sustained_per_s, found["nixl_both"].next_per_s) == ((4,), (8,))
    assert found["nixl_both"].peak_per_s.value == 6.0


def test_one_launch_costs_no_capacity_and_three_that_agree_do() -> None:
    one = measure([*sweep("plain", 0, 9.0), *sweep("nixl_both", 0, 6.0)])["nixl_both"].peak_change
    assert one is not None
    assert one.change.value == pytest.approx(-1 / 3)
    assert one.verdict is None
    assert "one launch per config" in one.withheld
    peaks = ((9.0, 6.0), (9.3, 6.3), (8.8, 5.7))
    cells = [
        cell
        for trial, (plain, nixl) in enumerate(peaks)
        for cell in (*sweep("plain", trial, plain), *sweep("nixl_both", trial, nixl))
    ]
    three = measure(cells)["nixl_both"].peak_change
    assert three is not None
    assert three.verdict == Verdict.LOWER
    assert three.change.high is not None
    assert three.change.high < 0


def test_configs_are_compared_with_plain_together() -> None:
    """By itself the change is lower (t = 4.7 with 2 degrees of freedom); among three configs chance may give it."""

    def compare(*configs: str) -> Verdict | None:
        peaks = enumerate((9.0, 8.0, 7.8))
        cells = [
            cell
            for trial, peak in peaks
            for cell in (*sweep("plain", trial, 10.0), *(one for name in configs for one in sweep(name, trial, peak)))
        ]
        found = measure(cells)["nixl_both"].peak_change
        assert found is not None
        assert found.change.value == pytest.approx(-0.52 / 3)
        return found.verdict

    assert compare("nixl_both") == Verdict.LOWER
    assert compare("nixl_both", "noop_connector", "lmcache_only") == Verdict.NOT_DISTINGUISHABLE


def test_plain_under_its_second_name_is_the_noise_floor_beside_the_verdicts() -> None:
    peaks = ((9.0, 9.2, 6.0), (9.3, 9.1, 6.3), (8.8, 9.0, 5.7))
    names = ("plain", "plain_again", "nixl_both")
    cells = [cell for trial, own in enumerate(peaks) for name, peak in zip(names, own, strict=True)
             for cell in sweep(name, trial, peak)]  # fmt: skip
    found = measure(cells)
    floor, ours = found["plain_again"].peak_change, found["nixl_both"].peak_change
    assert floor is not None
    assert ours is not None
    assert floor.change.value == pytest.approx((0.2 / 9.0 - 0.2 / 9.3 + 0.2 / 8.8) / 3)
    assert floor.change.low is not None
    assert (floor.verdict, ours.verdict) == (None, Verdict.LOWER)
    without = measure([cell for cell in cells if cell.config != "plain_again"])["nixl_both"].peak_change
    assert without == ours, "the floor is no member of the family"
    (row,) = (row for row in make_capacity_table(list(found.values()), Slo()).rows if row[0] == "plain_again")
    assert "(no verdict: the noise floor)" in str(row)
    assert measure(sweep("plain", 0, 9.0) + sweep("plain_again", 0, 9.0))["plain_again"].peak_change is not None


def test_a_config_that_never_saturates_has_no_peak() -> None:
    found = measure([*sweep("plain", 0, 99.0), *sweep("nixl_both", 0, 9.0)])
    assert found["plain"].peak_per_s.value is None
    assert found["plain"].peak_per_s.reason == "nothing saturated up to the highest rate measured"
    assert found["nixl_both"].peak_change is not None
    assert found["nixl_both"].peak_change.change.value is None
    rows = {row[0]: row[1] for row in make_capacity_table(list(found.values()), Slo()).rows}
    assert rows == {"plain": "at least 16", "nixl_both": "8 (saturated at 16)"}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"ttft_p90_s": (0.1, 0.2, 0.9)}, "criteria 1 and 2 did not fire at the highest rate (16 req/s)"),
        ({"waiting_p50": (0.0, 9.0, 0.0)}, "criteria 1 and 2 did not fire at the highest rate (16 req/s)"),
        ({}, "nothing saturated up to the highest rate measured"),
    ],
)
def test_what_was_sent_is_no_highest_throughput(values: Mapping[str, Sequence[float]], reason: str) -> None:
    """A TTFT that grows, or a lower rate with a queue, does not say that no more would come back."""
    cells = []
    for config in ("plain", "nixl_both"):
        for place, rate in enumerate((4.0, 8.0, 16.0)):
            own: dict[str, Any] = {"cohort_ratio": 1.0, "waiting_p50": 0.0, "effective_throughput_per_s": rate - 0.1}
            own |= {name: series[place] for name, series in values.items()}
            cells.append(make_cell(config, rate, **own))
    saturation = {judged.cell: judged for judged in judge_cells(cells)}
    assert any(judged.saturated for judged in saturation.values()) == bool(values)
    rows = measure_capacity(cells, saturation, None)
    for row in rows:
        assert row.peak_per_s.value is None
        assert row.peak_per_s.low == pytest.approx(15.9)
        assert reason in str(row.peak_per_s.reason)
    assert rows[1].peak_change is not None
    assert rows[1].peak_change.change.value is None
    assert {row[2].split(" (")[0] for row in make_capacity_table(rows, Slo()).rows} == {">= 15.90"}


def test_one_launch_below_its_limit_leaves_a_lower_bound_of_all() -> None:
    """Those that reached their limit are the slower ones."""
    cells = [cell for trial, peak in enumerate((9.0, 12.0, 99.0)) for cell in sweep("plain", trial, peak)]
    peak = measure(cells)["plain"].peak_per_s
    assert peak.value is None
    assert peak.low == pytest.approx((9 + 12 + 16) / 3)
    assert "the highest rate (16 req/s) in 1 of 3 launches" in str(peak.reason)


@pytest.mark.parametrize("degraded", [True, False], ids=["degraded", "not measured"])
def test_rates_above_the_highest_that_counts_are_named(degraded: bool) -> None:
    beyond = "; higher ones were not measured, or are degraded"

    def sweep_short(trial: int, peak_per_s: float) -> list[CellSummary]:
        cells = sweep("nixl_both", trial, peak_per_s)
        return [*cells[:-1], replace(cells[-1], degraded="slow client")] if degraded else cells[:-1]

    def ask(*cells: CellSummary) -> str | None:
        return measure([*sweep("plain", 0, 99.0), *cells])["nixl_both"].peak_per_s.reason

    assert ask(*sweep_short(0, 99.0)) == f"nothing saturated up to 8 req/s, the highest rate measured{beyond}"
    two = ask(*sweep_short(0, 99.0), *sweep("nixl_both", 1, 99.0))
    assert two == f"nothing saturated up to 8 req/s, the highest rate measured in 1 of 2 launches{beyond}"
    bound = ask(*sweep_short(0, 99.0), *sweep("nixl_both", 1, 9.0))
    assert bound is not None
    assert bound.endswith(f"did not fire at the highest rate (8 req/s) in 1 of 2 launches{beyond}")


def test_a_launch_without_throughput_is_named_beside_those_that_have_one() -> None:
    lost = [make_cell("plain", rate, trial=3, cohort_ratio=0.5, waiting_p50=0.0, effective_throughput_per_s=None)
            for rate in (4.0, 8.0, 16.0)]  # fmt: skip
    cells = [cell for trial, peak in enumerate((9.0, 9.3, 8.8)) for cell in sweep("plain", trial, peak)]
    peak = measure([*cells, *lost])["plain"].peak_per_s
    assert peak.value == pytest.approx(27.1 / 3)
    assert peak.reason == "1 of 4 launches have no throughput: lost"
    assert measure(lost)["plain"].peak_per_s.reason == "no cell has a throughput: lost"


def test_goodput_is_shown_where_there_is_an_objective() -> None:
    found = measure([*sweep("plain", 0, 9.0), *sweep("nixl_both", 0, 6.0)], goodput=True)
    change = found["nixl_both"].goodput_change
    assert change is not None
    assert change.change.value == pytest.approx(-0.3)
    without, with_ = (make_capacity_table(list(found.values()), slo) for slo in (Slo(), Slo(ttft_s=0.5)))
    assert "slo.ttft_s" in without.note
    assert len(with_.columns) == len(without.columns) + 2
    assert "TTFT <= 500 ms" in with_.note


def test_goodput_is_compared_at_the_rates_that_both_measured() -> None:
    """At plain's best rate the config's client fell behind: that costs the config no goodput."""

    def compare(degraded: Sequence[float]) -> CapacityCost:
        cells = [
            replace(cell, degraded="slow client") if config == "nixl_both" and cell.rate_per_s in degraded else cell
            for trial in range(3)
            for config in ("plain", "nixl_both")
            for cell in sweep(config, trial, 99.0)
        ]
        saturation = {judged.cell: judged for judged in judge_cells(cells)}
        rows = measure_capacity(cells, saturation, lambda cell: Estimate(min(cell.rate_per_s, 12.0) + 0.1 * cell.trial))
        return next(row for row in rows if row.config == "nixl_both")

    some = compare([16.0])
    assert some.goodput_per_s is not None
    assert some.goodput_per_s.value == pytest.approx(8.1)
    assert some.goodput_change is not None
    assert some.goodput_change.change.value == 0.0
    assert some.goodput_change.verdict != Verdict.LOWER
    none = compare([4.0, 8.0]).goodput_change
    assert none is not None
    assert none.change.value == 0.0, "16 req/s is the best rate of both"


@pytest.mark.parametrize("trials", [1, 3])
def test_a_plain_without_goodput_gives_no_ratio_and_says_so(monkeypatch: pytest.MonkeyPatch, trials: int) -> None:
    """An objective that no request met: 0 / 0 would be called not distinguishable."""
    monkeypatch.setitem(GOODPUT, "plain", 0.0)
    cells = [cell for trial in range(trials) for name in GOODPUT for cell in sweep(name, trial, 9.0)]
    change = measure(cells, goodput=True)["nixl_both"].goodput_change
    assert change is not None
    assert (change.change.value, change.verdict) == (None, None)
    where = "" if trials == 1 else " in 3 of 3 launches"
    assert change.change.reason == change.withheld == f"that of plain is 0{where}: no ratio to it"


def test_launches_that_agree_to_the_last_digit_give_goodput_and_capacity_no_interval() -> None:
    cells = [cell for trial in range(3) for cell in (*sweep("plain", trial, 9.0), *sweep("nixl_both", trial, 6.0))]
    found = measure(cells, goodput=True)["nixl_both"]
    assert found.goodput_per_s is not None
    for known in (found.peak_per_s, found.goodput_per_s):
        assert (known.low, known.high, known.reason) == (None, None, ALL_AGREE)
    for change in (found.peak_change, found.goodput_change):
        assert change is not None
        assert (change.change.low, change.verdict, change.withheld) == (None, None, ALL_AGREE)


def test_goodput_counts_requests_that_meet_both_limits(tmp_path: Path) -> None:
    truth = Behavior(ttft_p50_s=0.2, tpot_p50_s=0.01)
    path = write_cell(ConfigLayout(tmp_path / "results" / "20260131_plain"), Cell("plain", truth, Load(requests=1000)))
    all_of_them = measure_goodput(path, Slo(ttft_s=9.0, tpot_s=9.0))
    assert all_of_them.value == pytest.approx(4.0)
    half = measure_goodput(path, Slo(ttft_s=0.2)).value
    quarter = measure_goodput(path, Slo(ttft_s=0.2, tpot_s=0.01)).value
    assert half == pytest.approx(2.0, abs=0.2)
    assert quarter == pytest.approx(1.0, abs=0.2)
