"""Measurements of known truth without files: lognormal latencies per config, load and trial."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from results.connector_tax.measurements import Measurements
from results.connector_tax.summary import CellSummary, Shape
from results.records.estimate import Estimate
from results.records.reference_rates import ReferenceRates
from results.statistics.estimates import Samples
from tests.results.connector_tax.cells import make_cell

SHAPE = Shape(4096, 256)
RATES = ReferenceRates(4.0, 8.0, "", "", rates_per_s=(4.0, 8.0))


@dataclass(frozen=True)
class Truth:
    """One config at one load."""

    config: str
    tax: float = 0.0
    """Of both latencies, against plain's 0.2 s and 10 ms."""
    phase: str = "A"
    rate_per_s: float = 4.0
    shape: Shape = SHAPE
    requests: int = 200
    sigma: float = 0.25
    launch_sigma: float = 0.0
    trials: Sequence[int] = (0,)
    degraded: Mapping[int, str] = field(default_factory=dict)
    """By trial."""


def measurements(truths: Sequence[Truth], seed: int = 0) -> Measurements:
    """The measurements of these cells, drawn from the seed."""
    rng = np.random.default_rng(seed)
    cells: list[CellSummary] = []
    samples: dict[str, Mapping[str, Samples]] = {}
    for truth in truths:
        for trial in truth.trials:
            cell = summary(truth, trial)
            slow = (1 + truth.tax) * float(np.exp(truth.launch_sigma * rng.standard_normal()))
            noise = np.exp(truth.sigma * rng.standard_normal((2, truth.requests)))
            samples[cell.path] = {"ttft_s": 0.2 * slow * noise[0], "tpot_s": 0.01 * slow * noise[1]}
            cells.append(cell)
    return Measurements(cells, lambda cell: samples[cell.path])


def summary(
    truth: Truth, trial: int = 0, *, values: Mapping[str, Any] | None = None, t_start_unix_s: float = 0.0
) -> CellSummary:
    """A cell's summary with just what comparisons read."""
    return make_cell(
        truth.config, truth.rate_per_s, phase=truth.phase, trial=trial, shape=truth.shape,
        degraded=truth.degraded.get(trial, ""), t_start_unix_s=t_start_unix_s, **(values or {}),
    )  # fmt: skip


SEEDS = range(20)
"""Each gives one run; a 95 % interval misses the truth in one of them, and in five or more once in 400 times. One that
misses it in four runs of ten has five or more in 95 of 100 times."""
MANY_SEEDS = range(400)
SIMULATIONS = pytest.mark.parametrize(
    "seeds", [pytest.param(SEEDS, id="20"), pytest.param(MANY_SEEDS, id="400", marks=pytest.mark.long)]
)
"""A few runs each time; 400, which tell 95 % from 91 %, with the long tests."""


def as_promised(hits: Iterable[bool]) -> bool:
    """Whether a statement that should hold for 95 % of the runs holds for as many, less 3 binomial standard errors."""
    found = list(hits)
    assert len(found) >= len(SEEDS)
    return sum(found) >= math.floor(0.95 * len(found) - 3 * math.sqrt(0.95 * 0.05 * len(found)))


def bounds(found: Estimate) -> tuple[float, float]:
    """The interval, which must be there."""
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def covers(found: Estimate, truth: float) -> bool:
    """Whether the truth lies in the interval."""
    low, high = bounds(found)
    return low <= truth <= high
