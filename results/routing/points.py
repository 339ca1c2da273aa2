"""A metric of some of a cell's turns, and its replicates under resampled sessions. Pure functions of columns."""

from __future__ import annotations

import numpy as np

from results.measures.summary import POINTS
from results.measures.turns import Mask, Turns
from results.routing.metrics import Metric
from results.statistics.estimates import Ranks, Samples
from results.statistics.estimates import weighted_quantiles as quantiles

WORKER_POINT = 0.9
"""Of each instance's TTFT, before the median and the maximum over instances."""


def has(turns: Turns, metric: Metric) -> Mask:
    """Turns that say what the metric needs."""
    found = np.isfinite(getattr(turns, metric.series))
    if metric.point == "ratio":
        found &= np.isfinite(turns.prompt_tokens) & turns.completed
    if metric.point in ("median", "max"):
        found &= turns.instance != ""
    return np.asarray(found, dtype=np.bool_)


def quantile_of(metric: Metric) -> float:
    """The quantile whose interval the metric needs samples for; 0 = any number will do."""
    return WORKER_POINT if metric.point in ("median", "max") else POINTS.get(metric.point, 0.0)


def fewest(turns: Turns, metric: Metric, used: Mask) -> int:
    """Samples behind that quantile; of several instances, the fewest."""
    if metric.point not in ("median", "max"):
        return int(used.sum())
    where = turns.instance[used]
    return min(int((where == one).sum()) for one in set(where))


def point_value(turns: Turns, metric: Metric, used: Mask) -> float:
    """The metric of these turns, of which there is at least one."""
    values: Samples = getattr(turns, metric.series)[used]
    if metric.point == "mean":
        return float(values.mean())
    if metric.point == "ratio":
        return float(values.sum() / turns.prompt_tokens[used].sum())
    if metric.point in POINTS:
        return float(np.quantile(values, POINTS[metric.point]))
    where = turns.instance[used]
    found = [float(np.quantile(values[where == one], WORKER_POINT)) for one in sorted(set(where))]
    return float(np.median(found) if metric.point == "median" else max(found))


def replicates(turns: Turns, metric: Metric, used: Mask, group: Ranks, weights: Samples) -> Samples:
    """The same with the sessions of each draw."""
    values: Samples = getattr(turns, metric.series)[used]
    groups = group[used]
    if metric.point == "mean":
        return means(values, groups, weights)
    if metric.point == "ratio":
        return ratios(values, turns.prompt_tokens[used], groups, weights)
    if metric.point in POINTS:
        return quantiles(values, POINTS[metric.point], groups, weights)
    where = turns.instance[used]
    each = np.stack(
        [quantiles(values[where == one], WORKER_POINT, groups[where == one], weights) for one in sorted(set(where))]
    )
    served = np.isfinite(each)
    found = np.where(served, each, -np.inf).max(axis=0) if metric.point == "max" else _medians(each)
    return np.asarray(np.where(served.any(axis=0), found, np.nan), dtype=np.float64)


def _medians(columns: Samples) -> Samples:
    """Of each column's finite values; NaN where there is none."""
    ordered = np.sort(columns, axis=0)  # NaN last
    n = np.isfinite(columns).sum(axis=0)
    at = np.arange(columns.shape[1])
    low, high = (ordered[np.maximum(place, 0), at] for place in ((n - 1) // 2, n // 2 - (n == 0)))
    return np.asarray((low + high) / 2, dtype=np.float64)


def means(values: Samples, group: Ranks, weights: Samples) -> Samples:
    """The mean of each draw."""
    return ratios(values, np.ones(values.size), group, weights)


def ratios(top: Samples, bottom: Samples, group: Ranks, weights: Samples) -> Samples:
    """Sum of `top` over sum of `bottom` in each draw."""
    groups = weights.shape[1]
    above, below = (weights @ np.bincount(group, weights=part, minlength=groups) for part in (top, bottom))
    found: Samples = np.divide(above, below, out=np.full(above.size, np.nan), where=below > 0)
    return found
