"""The first repetitions of each cell beside those that count.

The specification discards the first two repetitions, because the first transfers between two engines set up
connections. Here two requests of each kind do that before the first cell, so this shows what is left of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from results.pd_lifecycle.paired_requests import COMBINED, PLAIN, TTFT, value_of
from results.records.estimate import Estimate
from results.records.lifecycle import LifecycleRecord
from results.statistics.estimates import mean
from results.statistics.launch_fit import estimate_mean_over_launches
from results.statistics.trials import MIN_PAIRED

SERIES = (TTFT, COMBINED, PLAIN, "rdma_transfer", "transfer_total")


@dataclass(frozen=True, slots=True)
class FirstRepetitions:
    series: str
    """Name of a duration."""
    change: Estimate
    """How much longer the first ones take, relative; the mean over the cells of their medians' ratio. Bounds: Student's
    t over the launches, below three over the cells."""
    cells: int
    """Cells that it comes from."""


def compare_first_repetitions(records: Sequence[LifecycleRecord]) -> tuple[FirstRepetitions, ...]:
    """One row per series that has both."""
    cells: dict[tuple[int, ...], list[LifecycleRecord]] = {}
    for record in records:
        if not record.discarded:
            cells.setdefault((record.trial, *record.config.key), []).append(record)
    rows = (_compare_series(name, cells) for name in SERIES)
    return tuple(row for row in rows if row.cells)


def _compare_series(name: str, cells: Mapping[tuple[int, ...], Sequence[LifecycleRecord]]) -> FirstRepetitions:
    logs: dict[int, list[float]] = {}
    for (trial, *_), own in cells.items():
        first = _compute_median(own, name, lambda record: record.warmup)
        others = _compute_median(own, name, lambda record: record.counted)
        if first and others:
            logs.setdefault(trial, []).append(float(np.log(first / others)))
    values = [value for own in logs.values() for value in own]
    over_launches = estimate_mean_over_launches([fmean(own) for own in logs.values()])
    estimate = over_launches if len(logs) >= MIN_PAIRED else mean(values)
    return FirstRepetitions(name, estimate.transform(math.expm1), len(values))


def _compute_median(
    records: Sequence[LifecycleRecord], name: str, chosen: Callable[[LifecycleRecord], bool]
) -> float | None:
    known = [ms for record in records if chosen(record) and (ms := value_of(record, name)) is not None]
    return median(known) if known else None
