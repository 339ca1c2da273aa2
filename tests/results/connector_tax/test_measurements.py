"""What stands for a config at a load: its launches, or nothing where those that are lost were not lost by chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from results.connector_tax.measurements import Load, Measurements
from results.connector_tax.summary import CellSummary
from results.connector_tax.tax import Metric, TaxRow, make_tax_rows
from results.records.estimate import Estimate
from results.statistics.judgement import LENGTHS_REMEDY, Verdict
from tests.results.connector_tax.cells import SHAPE, make_cell
from tests.results.statistics import in_memory

LOAD = Load("A", 4.0, SHAPE)


def measure(cut_trials: set[int], launches: int = 3) -> Measurements:
    """Launches of plain and of one connector, of which some were cut while a fifth of their requests waited."""

    def samples_of(cell: CellSummary) -> dict[str, np.ndarray]:
        times = np.linspace(0.1, 0.2, 100) * (1 + cell.trial / 100)
        if cell.config != "plain" and cell.trial in cut_trials:
            times[80:] = np.inf
        return {"ttft_s": times}

    cells = [make_cell(config, trial=trial) for config in ("plain", "nixl_both") for trial in range(launches)]
    return Measurements(cells, samples_of)


@pytest.mark.parametrize("cut_trials", [{0}, {1, 2}])
def test_a_launch_that_was_cut_is_not_left_out_of_the_others(cut_trials: set[int]) -> None:
    """It was the slowest: without it the config would look faster than it is."""
    measurements = measure(cut_trials)
    found = measurements.get(LOAD, "nixl_both", "ttft_s")
    assert not found.trials
    assert f"in {len(cut_trials)} of 3 launches requests that failed, were cut or timed out leave" in found.reason
    assert set(measurements.get(LOAD, "plain", "ttft_s").trials) == {0, 1, 2}


def test_a_launch_of_which_every_request_failed_is_not_left_out_of_the_others() -> None:
    """It has no sample, and still a bound of the percentile."""
    cells = [make_cell("plain", trial=trial) for trial in range(3)]
    why = "100 of 100 requests failed and have no TTFT"
    cells[1] = replace(cells[1], values={"ttft_p90_s": Estimate(None, low=0.0, n=100, reason=why)})

    def samples_of(cell: CellSummary) -> dict[str, np.ndarray]:
        return {"ttft_s": np.empty(0) if cell.trial == 1 else np.linspace(0.1, 0.2, 100)}

    found = Measurements(cells, samples_of).get(LOAD, "plain", "ttft_s")
    assert not found.trials
    assert "in 1 of 3 launches requests that failed" in found.reason
    assert Measurements(cells[1:2], samples_of).get(LOAD, "plain", "ttft_s").reason == f"plain: {why}"


def test_launches_that_were_not_cut_are_all_there() -> None:
    assert set(measure(set()).get(LOAD, "nixl_both", "ttft_s").trials) == {0, 1, 2}


def tax_with(lost: int, launches: int, lost_by: str = "nixl_both", why: str = "slow client") -> TaxRow:
    """The TTFT tax of a config where the first launches of one side are degraded."""
    degraded = dict.fromkeys(range(lost), why)
    truths = [
        in_memory.Truth(
            config, tax, trials=range(launches), sigma=0.05, launch_sigma=0.02,
            degraded=degraded if config == lost_by else {},
        )
        for config, tax in (("plain", 0.0), ("nixl_both", 0.4))
    ]  # fmt: skip
    rows = make_tax_rows(in_memory.measurements(truths), in_memory.RATES)
    (row,) = (row for row in rows if row.metric == Metric.TTFT_P90)
    return row


@pytest.mark.parametrize(("lost", "launches"), [(1, 4), (2, 8)])
def test_up_to_a_quarter_of_degraded_launches_is_left_out_and_counted(lost: int, launches: int) -> None:
    row = tax_with(lost, launches)
    assert (row.estimate.launches, row.verdict) == (launches - lost, Verdict.HIGHER)
    together = f"over {launches - lost} launches, all configs together"
    assert row.estimate.basis == f"{together}; degraded, so left out: {lost} of {launches} launches of nixl_both"
    assert row.alone is not None
    assert "degraded" not in str(tax_with(0, launches).estimate.basis)


@pytest.mark.parametrize(("lost", "launches"), [(2, 3), (2, 5), (3, 8)])
@pytest.mark.parametrize("lost_by", ["plain", "nixl_both"])
def test_where_more_are_degraded_the_survivors_decide_nothing(lost: int, launches: int, lost_by: str) -> None:
    """A connector that takes the client's CPU degrades its own slow launches."""
    row = tax_with(lost, launches, lost_by)
    assert (row.estimate.value, row.verdict) == (None, None)
    assert row.withheld.startswith(f"{lost} of {launches} launches of {lost_by} are degraded at this load")
    assert row.withheld.endswith("run again with a core left for the load client, or at lower rates")


def test_where_an_engine_changed_lengths_the_remedy_is_another_engine() -> None:
    withheld = tax_with(2, 3, why="3 completions had other lengths than asked for").withheld
    assert withheld.endswith(f"the others may be the faster ones; {LENGTHS_REMEDY}")
