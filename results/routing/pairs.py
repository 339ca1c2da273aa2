"""Compares policies: every difference with its interval, and who is best on each metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from results.measures import latency
from results.routing.loads import Load, join_load
from results.routing.measurements import Measurements, level_interval, mean_interval, ratio_interval
from results.routing.metrics import HEADLINE, Metric, all_metrics, metric_named
from results.statistics.estimates import LEVEL, Estimate, holm, unknown
from results.statistics.judgement import Verdict, judged
from results.statistics.trials import p_value

ORDER = (
    "round_robin", "load_only", "leastwork", "leastwork_spread", "lmetric", "kv_linear", "kv_aware", "sticky",
    "approach_a", "unified", "unified_spread", "static_pd", "ear",
)  # fmt: skip
"""In the order in which tables and figures show them; policies of other names come after, by name. The first measured
one is the baseline of the others."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One metric of two policies."""

    metric: str
    first: str
    second: str
    difference: Estimate
    """first - second, in the metric's unit."""
    second_value: Estimate
    relative: float | None
    """difference / second's value."""
    verdict: Verdict | None
    """What the interval says of first: of the ratio where there is one, else of the difference. None without an
    interval over trials."""
    common_turns: int | None
    """Turns behind the difference, over all trials; None for a number of whole cells."""
    lost_turns: int | None
    """Turns that only one of the two completed: they are in neither side."""
    p_value: float | None = None
    """Of no effect; None where there is no verdict."""
    ratio: Estimate | None = None
    """first / second of a time or of a ratio of times: the geometric mean over the trials; None for shares."""
    higher_in: int = 0
    """Trials in which first is the higher one."""
    lower_in: int = 0

    def turned(self) -> Pair:
        """The pair of second against first, without `relative` and `second_value`."""
        opposite = {Verdict.HIGHER: Verdict.LOWER, Verdict.LOWER: Verdict.HIGHER}
        return replace(
            self,
            first=self.second,
            second=self.first,
            second_value=unknown("not of this pair"),
            relative=None,
            difference=_turn_estimate(self.difference, lambda value: -value),
            ratio=None if self.ratio is None else _turn_estimate(self.ratio, lambda value: 1 / value),
            verdict=None if self.verdict is None else opposite.get(self.verdict, self.verdict),
            higher_in=self.lower_in,
            lower_in=self.higher_in,
        )


def _turn_estimate(estimate: Estimate, turn: Callable[[float], float]) -> Estimate:
    """`turn` makes a low bound a high one."""
    value, low, high = (None if part is None else turn(part) for part in (estimate.value, estimate.high, estimate.low))
    return replace(estimate, value=value, low=low, high=high)


@dataclass(frozen=True, slots=True)
class TurnPair:
    """One latency of two policies, each turn against itself."""

    series: str
    first: str
    second: str
    median: Estimate
    """Of first - second (s)."""
    faster: Estimate
    """The share of turns that first served in less time."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The best label on one metric, and the others by what their intervals say."""

    metric: str
    best: str
    """The label with the best value, distinguishable from the others or not."""
    value: Estimate
    behind: tuple[str, ...]
    """Distinguishably worse than the best."""
    level: tuple[str, ...]
    """Not distinguishable from it."""
    unjudged: tuple[str, ...]
    """No interval over trials, or not measured."""
    basis: str
    """What the intervals cover."""
    corrected: tuple[str, ...] = ()
    """Those of `behind` that remain after Holm's correction over all comparisons of all metrics."""
    load: str = ""
    """As in Load: only policies under one load are compared."""

    @property
    def title(self) -> str:
        """The metric, and its load where a run has several."""
        return join_load(metric_named(self.metric).title, self.load)

    @property
    def others(self) -> int:
        """How many labels were compared with the best."""
        return len(self.behind) + len(self.level) + len(self.unjudged)

    @property
    def alone(self) -> bool:
        """Whether every other policy is distinguishably worse after the correction for all comparisons (Holm)."""
        return bool(self.behind) and self.corrected == self.behind and not self.level and not self.unjudged


def order_of(label: str, policy: str) -> tuple[int, str]:
    """Sort key of a label."""
    return (ORDER.index(policy) if policy in ORDER else len(ORDER)), label


def value_of(measurements: Measurements, label: str, metric: Metric) -> Estimate:
    """The metric of one label: the mean over its trials, with its interval."""
    return level_interval(measurements.get(label, metric), most=1.0 if metric.unit == "share" else math.inf)


def compare_labels(measurements: Measurements, labels: Sequence[str]) -> tuple[Pair, ...]:
    """Every metric of every two labels, the later one in `labels` against the earlier."""
    return tuple(
        compare_two(measurements, second, first, metric)
        for first, second in combinations(labels, 2)
        for metric in all_metrics()
    )


def compare_two(measurements: Measurements, first: str, second: str, metric: Metric) -> Pair:
    """One metric of two labels."""
    measured = measurements.difference(first, second, metric)
    difference = mean_interval(measured)
    tested, ratio, verdict = measured, None, judged(difference)
    if metric.is_time:
        tested = measurements.log_ratio(first, second, metric)
        ratio = ratio_interval(tested)
        verdict = judged(ratio, 1.0)
    base = value_of(measurements, second, metric)
    common: tuple[int | None, int | None] = (None, None)
    if metric.series in latency.METRICS:
        common = measurements.common_turns(first, second, metric.series)
    relative = difference.value / base.value if difference.value is not None and base.value else None
    p = None if verdict is None else p_value(tested)
    above, below = (sum(sign * one.value > 0 for one in tested.trials.values()) for sign in (1, -1))
    return Pair(metric.name, first, second, difference, base, relative, verdict, *common, p, ratio, above, below)


def pair_of(pairs: Sequence[Pair], first: str, second: str, name: str) -> Pair | None:
    """A metric of first against second, whichever way round the pair was formed; None where there is none."""
    for row in pairs:
        if row.metric == name and {row.first, row.second} == {first, second} and first != second:
            return row if row.first == first else row.turned()
    return None


def difference_of(pairs: Sequence[Pair], first: str, second: str, name: str) -> Estimate:
    """first - second of a metric, whichever way round the pair was formed; unknown where there is none."""
    if not first or not second:
        return unknown("one of the two was not run")
    row = pair_of(pairs, first, second, name)
    return unknown("the two were not compared") if row is None else row.difference


def compare_turns(measurements: Measurements, labels: Sequence[str]) -> tuple[TurnPair, ...]:
    """Every latency of every two labels, turn by turn."""
    return tuple(
        TurnPair(
            series,
            second,
            first,
            mean_interval(measurements.turn_by_turn(second, first, series, "median")),
            level_interval(measurements.turn_by_turn(second, first, series, "faster"), most=1.0),
        )
        for first, second in combinations(labels, 2)
        for series in latency.METRICS
    )


def rank_labels(measurements: Measurements, loads: Sequence[Load], pairs: Sequence[Pair]) -> tuple[Standing, ...]:
    """Who is best under each load on each of HEADLINE; a metric that no policy has is left out."""
    rows = (_rank_by_metric(measurements, load, pairs, metric_named(name)) for load in loads for name in HEADLINE)
    return correct_standings([row for row in rows if row is not None], pairs)


def correct_standings(rows: Sequence[Standing], pairs: Sequence[Pair]) -> tuple[Standing, ...]:
    """The rows with what remains after Holm's correction over every comparison to a best value.

    One without an interval counts with p = 1: else the data would decide how many the correction is for.
    """
    known = {(row.metric, frozenset((row.first, row.second))): row.p_value for row in pairs}
    tested: dict[tuple[str, str], float] = {}
    for row in rows:
        for label in (*row.behind, *row.level, *row.unjudged):
            p = known.get((row.metric, frozenset((row.best, label))))
            tested[row.metric, label] = 1.0 if p is None else p
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return tuple(
        replace(row, corrected=tuple(one for one in row.behind if adjusted[row.metric, one] <= 1 - LEVEL))
        for row in rows
    )


def _rank_by_metric(measurements: Measurements, load: Load, pairs: Sequence[Pair], metric: Metric) -> Standing | None:
    values = {label: value_of(measurements, label, metric) for label in load.labels}
    known = {label: estimate.value for label, estimate in values.items() if estimate.value is not None}
    if not known:
        return None
    sign = -1 if metric.higher_is_better else 1
    best = min(known, key=lambda label: sign * known[label])  # the first of equals, in the order of labels
    worse = Verdict.HIGHER if sign > 0 else Verdict.LOWER
    behind, level, unjudged = list[str](), list[str](), list[str]()
    bases: dict[str, None] = {}
    for label in load.labels:
        if label == best:
            continue
        row = pair_of(pairs, label, best, metric.name)
        if row is None or row.verdict is None:
            unjudged.append(label)
            continue
        (behind if row.verdict == worse else level).append(label)
        bases[row.difference.basis or ""] = None
    basis = "; ".join(bases)
    sides = tuple(behind), tuple(level), tuple(unjudged)
    return Standing(metric.name, best, values[best], *sides, basis, load=load.text)
