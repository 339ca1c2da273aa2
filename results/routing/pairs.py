"""Compares policies: every difference with its interval, and who is best on each metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

from results.measures import latency
from results.records.estimate import Estimate, unknown
from results.routing.loads import Load, join_load
from results.routing.measurements import (
    Measurements,
    estimate_level_interval,
    estimate_mean_interval,
    estimate_ratio_interval,
)
from results.routing.metrics import HEADLINE, Metric, find_metric, list_metrics
from results.statistics.blocks import Together
from results.statistics.estimates import ALL_AGREE
from results.statistics.judgement import Verdict, judged
from results.statistics.pairwise import judge_against_best
from results.statistics.trials import MIN_PAIRED, Measured, p_value

ORDER = (
    "round_robin", "load_only", "leastwork", "leastwork_spread", "lmetric", "kv_linear", "kv_aware", "sticky",
    "approach_a", "unified", "unified_spread", "static_pd", "ear",
)  # fmt: skip
"""In the order in which tables and figures show them; policies of other names come after, by name. The first measured
one is the baseline of the others."""


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """One metric of two policies."""

    metric: str
    """Its name with its unit, e.g. `ttft_p90_s`."""
    first: str
    """Label of a policy."""
    second: str
    """Label of the policy that it is compared with."""
    difference: Estimate
    """first - second, in the metric's unit."""


@dataclass(frozen=True, slots=True)
class Pair(MetricDifference):
    """One metric of two policies, and what the difference says."""

    second_value: Estimate
    """The metric of second."""
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
    """p of no effect; None where there is no verdict."""
    ratio: Estimate | None = None
    """first / second of a time or of a ratio of times: the geometric mean over the trials; None for shares."""
    higher_in: int = 0
    """Trials in which first is the higher one."""
    lower_in: int = 0
    """Trials in which first is the lower one."""

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
    """The latency, e.g. `ttft_s`."""
    first: str
    """Label of a policy."""
    second: str
    """Label of the policy that it is compared with."""
    median: Estimate
    """Median of first - second (s)."""
    faster: Estimate
    """The share of turns that first served in less time."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The best label on one metric, and the others by what their intervals say."""

    metric: str
    """Its name with its unit, e.g. `ttft_p90_s`."""
    best: str
    """The label that is better than every other in the trials and turns of both, distinguishable or not; below three
    trials the one with the best value."""
    value: Estimate
    """The metric of the best."""
    behind: tuple[str, ...]
    """Distinguishably worse than the best, by bounds that hold for every two labels of the metric at once."""
    level: tuple[str, ...]
    """Not distinguishable from it."""
    unjudged: tuple[str, ...]
    """Not measured in three trials, or compared by nothing."""
    why: str = ""
    """Why `unjudged` has labels; empty where it has none."""
    load: str = ""
    """As in Load: only policies under one load are compared."""
    losses: Mapping[str, Estimate] = field(default_factory=dict)
    """By how much each of `level` is worse than the best, by the bounds that hold for every two labels at once: a share
    of the best's time, or a difference of shares."""

    @property
    def title(self) -> str:
        """The metric, and its load where a run has several."""
        return join_load(find_metric(self.metric).title, self.load)

    @property
    def others(self) -> int:
        """How many labels were compared with the best."""
        return len(self.behind) + len(self.level) + len(self.unjudged)

    @property
    def alone(self) -> bool:
        """Whether every other policy is distinguishably worse."""
        return bool(self.behind) and not self.level and not self.unjudged


def make_sort_key(label: str, policy: str) -> tuple[int, str]:
    """Sort key of a label."""
    return (ORDER.index(policy) if policy in ORDER else len(ORDER)), label


def estimate_metric(measurements: Measurements, label: str, metric: Metric) -> Estimate:
    """The metric of one label: the mean over its trials, with its interval."""
    return estimate_level_interval(measurements.get(label, metric), most=1.0 if metric.unit == "share" else math.inf)


def compare_labels(
    measurements: Measurements, labels: Sequence[str], metrics: Collection[Metric] | None = None
) -> tuple[Pair, ...]:
    """Each of `metrics` (None = all) of every two labels, the later one in `labels` against the earlier."""
    return tuple(
        compare_two(measurements, second, first, metric)
        for first, second in combinations(labels, 2)
        for metric in (list_metrics() if metrics is None else metrics)
    )


def compare_two(measurements: Measurements, first: str, second: str, metric: Metric) -> Pair:
    """One metric of two labels."""
    measured = measurements.difference(first, second, metric)
    difference = estimate_mean_interval(measured)
    tested, ratio, verdict = measured, None, judged(difference)
    if metric.is_time:
        tested = measurements.log_ratio(first, second, metric)
        ratio = estimate_ratio_interval(tested)
        verdict = judged(ratio, 1.0)
    base = estimate_metric(measurements, second, metric)
    common: tuple[int | None, int | None] = (None, None)
    if metric.series in latency.METRICS:
        common = measurements.common_turns(first, second, metric.series)
    relative = difference.value / base.value if difference.value is not None and base.value else None
    p = None if verdict is None else p_value(tested)
    above, below = (sum(sign * one.value > 0 for one in tested.trials.values()) for sign in (1, -1))
    return Pair(metric.name, first, second, difference, base, relative, verdict, *common, p, ratio, above, below)


def find_pair(pairs: Sequence[Pair], first: str, second: str, name: str) -> Pair | None:
    """A metric of first against second, whichever way round the pair was formed; None where there is none."""
    for row in pairs:
        if row.metric == name and {row.first, row.second} == {first, second} and first != second:
            return row if row.first == first else row.turned()
    return None


def find_difference(pairs: Sequence[Pair], first: str, second: str, name: str) -> Estimate:
    """first - second of a metric, whichever way round the pair was formed; unknown where there is none."""
    if not first or not second:
        return unknown("one of the two was not run")
    row = find_pair(pairs, first, second, name)
    return unknown("the two were not compared") if row is None else row.difference


def compare_turns(measurements: Measurements, labels: Sequence[str]) -> tuple[TurnPair, ...]:
    """Every latency of every two labels, turn by turn."""
    return tuple(
        TurnPair(
            series,
            second,
            first,
            estimate_mean_interval(measurements.turn_by_turn(second, first, series, "median")),
            estimate_level_interval(measurements.turn_by_turn(second, first, series, "faster"), most=1.0),
        )
        for first, second in combinations(labels, 2)
        for series in latency.METRICS
    )


def rank_labels(measurements: Measurements, loads: Sequence[Load]) -> tuple[Standing, ...]:
    """Who is best under each load on each of HEADLINE; a metric that no policy has is left out."""
    rows = (_rank_by_metric(measurements, load, find_metric(name)) for load in loads for name in HEADLINE)
    return tuple(row for row in rows if row is not None)


def _rank_by_metric(measurements: Measurements, load: Load, metric: Metric) -> Standing | None:
    values = {label: estimate_metric(measurements, label, metric) for label in load.labels}
    known = {label: estimate.value for label, estimate in values.items() if estimate.value is not None}
    if not known:
        return None
    sign = -1 if metric.higher_is_better else 1
    counted = [label for label in known if _is_comparable(measurements.get(label, metric))]
    first = min(counted or known, key=lambda label: sign * known[label])  # of equals the first, in the order of labels
    best, compared = _find_best(measurements, load.labels, first, metric)
    behind, losses, unjudged = list[str](), dict[str, Estimate](), list[str]()
    for label, bounds in compared.items():
        if isinstance(bounds, str):
            unjudged.append(label)
        elif bounds.low > 0 if sign > 0 else bounds.high < 0:
            behind.append(label)
        else:
            losses[label] = _measure_loss(bounds, metric, len(measurements.get(label, metric).trials))
    why = "; ".join(dict.fromkeys(bounds for bounds in compared.values() if isinstance(bounds, str)))
    names = tuple(behind), tuple(losses), tuple(unjudged)
    return Standing(metric.name, best, values[best], *names, why, load.text, losses)


def _is_comparable(measured: Measured) -> bool:
    """Whether enough trials count, and an interval may rest on them."""
    return len(measured.trials) >= MIN_PAIRED and not measured.no_interval


def _measure_loss(bounds: Together, metric: Metric, trials: int) -> Estimate:
    """How much worse than the best: `bounds` are of the difference to it, of times of their logarithms."""
    low, high = (-bounds.high, -bounds.low) if metric.higher_is_better else (bounds.low, bounds.high)
    loss = Estimate((low + high) / 2, low, high, launches=trials)
    return loss.transform(math.expm1) if metric.is_time else loss


def _find_best(
    measurements: Measurements, labels: Sequence[str], first: str, metric: Metric
) -> tuple[str, dict[str, Together | str]]:
    """From `first` to the label that no other one is better than by the differences that are judged: of the trials and
    turns that both have, so that a policy gains nothing from a slow turn that it failed, or a trial that it lacks."""
    sign = -1 if metric.higher_is_better else 1
    seen: dict[str, dict[str, Together | str]] = {}
    best = first
    while best not in seen:
        seen[best] = _compare_with_best(measurements, [label for label in labels if label != best], best, metric)
        middles = {
            label: sign * (bounds.low + bounds.high)
            for label, bounds in seen[best].items()
            if isinstance(bounds, Together)
        }
        better = min(middles, key=lambda label: middles[label], default=best)
        if middles.get(better, 0.0) >= 0:
            break
        best = better
    return best, seen[best]


def _compare_with_best(
    measurements: Measurements, others: Sequence[str], best: str, metric: Metric
) -> dict[str, Together | str]:
    """Each label's difference to the best (of times: of the logarithms), with its bounds; or why it has none.

    Inside a trial the best one's number is taken from all: the block of the trial absorbs it, whatever it is.
    """
    compute = measurements.log_ratio if metric.is_time else measurements.difference
    measured = {label: compute(label, best, metric) for label in others}
    enough = {label: one for label, one in measured.items() if _is_comparable(one)}
    differences = {label: {trial: one.value for trial, one in each.trials.items()} for label, each in enough.items()}
    zero = dict.fromkeys(sorted({trial for each in enough.values() for trial in each.trials}), 0.0)
    fitted = judge_against_best({best: zero, **differences}, best) if enough else ""
    few = f"fewer than {MIN_PAIRED} trials"

    def judge(label: str) -> Together | str:
        if label not in enough:
            return measured[label].no_interval or measured[label].reason or few
        return fitted if isinstance(fitted, str) else fitted.get(label, ALL_AGREE)

    return {label: judge(label) for label in others}
