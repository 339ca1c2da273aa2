"""The values of a cell's summary: their names, percentiles and means, and how they become columns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from results.measures.latency import METRICS
from results.records.estimate import Estimate, unknown
from results.statistics.estimates import Samples, clean, find_order_statistic_ranks, mean, percentiles

POINTS: Mapping[str, float] = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
MOST_LOST = 0.05
"""Largest share of a cell's requests without a value of a series; above it no percentile of the series is given.

With one in twenty, p90 is between p84 and p95 of the others: about what 60 requests leave open.
"""
STEP_POINTS: Mapping[str, float] = {"p50": 0.50, "p90": 0.90}


@dataclass(frozen=True, slots=True)
class Lost:
    """Requests of a cell with neither a value of a series nor a bound of it."""

    failed: int = 0
    """With an error other than a timeout."""
    early: int = 0
    """Cut or timed out before their first token."""
    answered: int = 0
    """Cut or timed out after it."""

    @property
    def count(self) -> int:
        return self.failed + self.early + self.answered

    def describe(self) -> str:
        """What they did."""
        cut = "were cut or timed out" if self.early or self.answered else ""
        when = "" if self.answered or not cut else " before their first token"
        return " or ".join(filter(None, ("failed" if self.failed else "", f"{cut}{when}")))


NONE_LOST = Lost()


def flatten_values(values: Mapping[str, Estimate]) -> dict[str, float | int | None]:
    """The values as columns; those of declared metrics have `_low`, `_high` and `_n` columns beside them."""
    row: dict[str, float | int | None] = {}
    of_metrics = {name_percentile(series, point) for series in METRICS for point in ("mean", *POINTS)}
    for name, estimate in values.items():
        row[name] = estimate.value
        if name in of_metrics:
            row |= make_bounded_columns(name, estimate) | {f"{name}_n": estimate.n}
    return row


def make_bounded_columns(name: str, estimate: Estimate) -> dict[str, float | None]:
    """The value in a column of this name, its bounds in `_low` and `_high` beside it."""
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def name_percentile(series: str, point: str) -> str:
    """`ttft_s`, `p90` -> `ttft_p90_s`: the unit stays last."""
    stem, _, unit = series.rpartition("_")
    return f"{stem}_{point}_{unit}"


def estimate_percentiles(
    series: str, samples: Samples | None, why: str, waited: Samples | None = None, lost: Lost = NONE_LOST
) -> dict[str, Estimate]:
    """Each of POINTS of a series with its interval, by its name; `why`: the reason where there are no samples.

    waited: lower bounds of the infinite samples, whose requests were cut or timed out.
    lost: those without a sample or a bound.
    """
    points = {name_percentile(series, point): p for point, p in POINTS.items()}
    if samples is None:
        return dict.fromkeys(points, unknown(why))
    if lost.count > MOST_LOST * (samples.size + lost.count):
        bounded = np.concatenate((clean(samples), np.empty(0) if waited is None else waited, np.zeros(lost.count)))
        return {name: _bound_lost_percentile(series, bounded, lost, p) for name, p in points.items()}
    if waited is None or not waited.size:
        return dict(zip(points, percentiles(samples, tuple(points.values())), strict=True))
    return {name: _estimate_censored_percentile(clean(samples), waited, p) for name, p in points.items()}


def _bound_lost_percentile(series: str, bounded: Samples, lost: Lost, p: float) -> Estimate:
    """Unknown, with its lower bound. `bounded`: lower bounds of every request, 0 of the lost ones.

    A metric that declares no bound may be below 0, so it has none.
    """
    metric = METRICS[series]
    why = f"{lost.count} of {bounded.size} requests {lost.describe()} and have no {metric.title}"
    low = None if metric.bound is None else float(np.quantile(bounded, p))
    return Estimate(None, low=low, n=int(bounded.size), reason=why)


def _estimate_censored_percentile(known: Samples, waited: Samples, p: float) -> Estimate:
    """The p-quantile of `known` and of requests that took at least `waited`: known where it does not depend on how long
    those took, else between `low` and `high`."""
    n = int(known.size + waited.size)
    slowest = np.sort(np.concatenate((known, np.full(waited.size, np.inf))))
    low_rank, high_rank = find_order_statistic_ranks(n, p)
    position = (n - 1) * p
    least = float(np.quantile(np.concatenate((known, waited)), p))
    most = math.inf
    if math.ceil(position) < known.size:
        most = float(np.interp(position, np.arange(known.size), slowest[: known.size]))
    cut = f"{waited.size} of {n} requests were cut by the end of the drain or timed out"
    if not math.isclose(least, most):
        high = most if math.isfinite(most) else None
        return Estimate(None, least, high, n, f"{cut}: p{p * 100:g} is at least {least:.3g} s")
    low = None if low_rank is None else min(float(slowest[low_rank - 1]), most)
    high = None if high_rank is None else float(slowest[high_rank - 1])
    if high is None or math.isinf(high):
        return Estimate(most, low, None, n, cut)
    return Estimate(most, low, high, n)


def estimate_mean_and_percentiles(series: str, samples: Samples | None, why: str) -> dict[str, Estimate]:
    """The mean first, then as `estimate_percentiles`."""
    first = unknown(why) if samples is None else mean(samples)
    return {name_percentile(series, "mean"): first, **estimate_percentiles(series, samples, why)}
