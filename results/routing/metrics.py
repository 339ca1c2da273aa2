"""What policies are compared by (specs/ear section 5.1): each metric with its unit and the direction in which it is
better, its value over some of a cell's turns, and its replicates under resampled sessions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from results.measures import latency
from results.measures.latency import Mask
from results.measures.replay_numbers import apc_usage
from results.measures.summary import POINTS, name_percentile
from results.measures.turns import Turns
from results.records.estimate import Estimate
from results.statistics.estimates import Ranks, Samples, compute_weighted_quantiles, mean, percentile

WORKER_POINT = 0.9
"""Quantile of each instance's TTFT, before the median and the maximum over instances."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number per cell."""

    name: str
    """As in `RoutedSummary.values`."""
    title: str
    unit: str
    """`s`, `ms`: shown so; `share`: a fraction, shown in per cent; `x`: a ratio."""
    higher_is_better: bool = False
    series: str = ""
    """Whose turns it is computed from; empty = it is one number of a whole cell."""
    point: str = ""
    """`mean`, `p50`, `p90`, `p99` of the series; `median`, `max` over instances of their p90; or `ratio`."""

    @property
    def is_time(self) -> bool:
        """A time or a ratio of times: two policies are compared by the ratio of theirs."""
        return self.unit in ("s", "ms", "x")

    @property
    def is_of_instances(self) -> bool:
        return self.point in ("median", "max")

    @property
    def quantile(self) -> float:
        """The quantile whose interval it needs samples for; 0 = any number will do."""
        return WORKER_POINT if self.is_of_instances else POINTS.get(self.point, 0.0)

    @property
    def scale(self) -> float:
        """From the value to what is shown."""
        return {"ms": 1e3, "share": 100.0}.get(self.unit, 1.0)

    @property
    def shown_unit(self) -> str:
        return {"share": "%", "x": ""}.get(self.unit, self.unit)

    @property
    def heading(self) -> str:
        """Heading of its column in a table."""
        return f"{self.title} {self.shown_unit}".strip()

    def format_value(self, value: Estimate) -> str:
        """`65.3 [48.0, 82.6] ms`."""
        return f"{value.text(3, self.scale)} {self.shown_unit}".strip()


def _make_latency_metrics() -> Iterable[Metric]:
    for series, of in latency.METRICS.items():
        for point in ("mean", *POINTS):
            title = f"{of.title} {point}"
            yield Metric(name_percentile(series, point), title, of.shown_unit, False, series, point)


_OF_CELLS: tuple[Metric, ...] = (
    Metric("worker_ttft_p90_median_s", "instance TTFT p90, median", "ms", False, "ttft_s", "median"),
    Metric("worker_ttft_p90_max_s", "instance TTFT p90, max", "ms", False, "ttft_s", "max"),
    Metric("apc", "APC", "share", True),
    Metric("apc_usage", "APC (responses)", "share", True, "cached_tokens", "ratio"),
    Metric("amplification", "amplification", "x", False),
    Metric("completed_share", "completed", "share", True),
)

HEADLINE = (
    "ttft_p50_s", "ttft_p90_s", "tpot_p90_s", "e2e_p90_s", "apc", "worker_ttft_p90_median_s", "worker_ttft_p90_max_s",
    "amplification",
)  # fmt: skip
"""What the specification claims its policy wins: the five dimensions of contribution C3, and the medians beside."""


def list_metrics() -> tuple[Metric, ...]:
    """Every metric that a difference of policies is computed of: those of the declared request metrics first."""
    return (*_make_latency_metrics(), *_OF_CELLS)


def find_metric(name: str) -> Metric:
    """Raises KeyError."""
    return {metric.name: metric for metric in list_metrics()}[name]


def find_turns_with(metric: Metric, turns: Turns) -> Mask:
    """Turns that have what the metric needs."""
    has_value = np.isfinite(turns.series(metric.series))
    if metric.point == "ratio":
        has_value &= np.isfinite(turns.prompt_tokens) & turns.completed
    if metric.is_of_instances:
        has_value &= turns.instance != ""
    return np.asarray(has_value, dtype=np.bool_)


def count_fewest_samples(metric: Metric, turns: Turns, used: Mask) -> int:
    """Samples behind the metric's quantile; of several instances, the fewest."""
    if not metric.is_of_instances:
        return int(used.sum())
    return int(np.unique(turns.instance[used].astype(str), return_counts=True)[1].min())


def compute_value_over_turns(metric: Metric, turns: Turns, used: Mask) -> float:
    """The metric of these turns, of which there is at least one."""
    values = turns.series(metric.series)[used]
    if metric.point == "mean":
        return _take_value_or_nan(mean(values))
    if metric.point == "ratio":
        return _take_value_or_nan(apc_usage(turns, used))
    if metric.point in POINTS:
        return _take_value_or_nan(percentile(values, POINTS[metric.point]))
    instances = turns.instance[used]
    served = [percentile(values[instances == one], WORKER_POINT) for one in sorted(set(instances))]
    return compute_value_over_instances(metric.point, served)


def compute_value_over_instances(point: str, p90s: Sequence[Estimate]) -> float:
    """The `median` or `max` of the p90 of every instance that served."""
    values = np.array([p90.value for p90 in p90s], dtype=np.float64)
    return float(np.median(values) if point == "median" else values.max())


def _take_value_or_nan(estimate: Estimate) -> float:
    return math.nan if estimate.value is None else estimate.value


def replicate_metric(metric: Metric, turns: Turns, used: Mask, group: Ranks, weights: Samples) -> Samples:
    """The same with the sessions of each draw (`weights`: draws x groups)."""
    values, groups = turns.series(metric.series)[used], group[used]
    if metric.point == "mean":
        return replicate_ratios(values, np.ones(values.size), groups, weights)
    if metric.point == "ratio":
        return replicate_ratios(values, turns.prompt_tokens[used], groups, weights)
    if metric.point in POINTS:
        return compute_weighted_quantiles(values, POINTS[metric.point], groups, weights)
    instances = turns.instance[used]
    masks = [instances == one for one in sorted(set(instances))]
    each = np.stack([compute_weighted_quantiles(values[mask], WORKER_POINT, groups[mask], weights) for mask in masks])
    served = np.isfinite(each).any(axis=0)
    over = np.full(served.size, np.nan)
    over[served] = (np.nanmax if metric.point == "max" else np.nanmedian)(each[:, served], axis=0)
    return over


def replicate_ratios(top: Samples, bottom: Samples, group: Ranks, weights: Samples) -> Samples:
    """Sum of `top` over sum of `bottom` in each draw: the mean of `top` where `bottom` is 1."""
    groups = weights.shape[1]
    above, below = (weights @ np.bincount(group, weights=part, minlength=groups) for part in (top, bottom))
    quotients: Samples = np.divide(above, below, out=np.full(above.size, np.nan), where=below > 0)
    return quotients
