"""What stands for a config at a load: all its launches, or nothing."""

from __future__ import annotations

import numpy as np
import pytest

from results.connector_tax.measurements import Load, Measurements
from results.measures.summary import CellSummary
from tests.results.connector_tax.cells import SHAPE, make_cell

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
    assert f"in {len(cut_trials)} of 3 launches the percentile lies among requests that were cut" in found.reason
    assert set(measurements.get(LOAD, "plain", "ttft_s").trials) == {0, 1, 2}


def test_launches_that_were_not_cut_are_all_there() -> None:
    assert set(measure(set()).get(LOAD, "nixl_both", "ttft_s").trials) == {0, 1, 2}
