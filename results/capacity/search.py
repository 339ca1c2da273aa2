"""Which size of a fleet to simulate next, and the answer of the simulated ones. Pure functions of points.

The search doubles the number of instances until one holds the objective, then halves the distance to the largest that
does not. Where sizes below the answer are undecided, it halves down to the fewest of them, and to the fewest that meet
every limit on average. It takes all three to be monotone in the number of instances, and checks the neighbors of its
answer. With pools it looks, for each number of instances, for the split that comes nearest to the objective, by the
sign of the difference of two neighboring splits: there it takes the distance from the objective to have one minimum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from results.capacity.slo import Limit
from results.records.count import format_count
from results.records.estimate import Estimate, unknown
from results.statistics.judgement import Outcome
from results.statistics.launch_fit import estimate_mean_over_launches
from results.statistics.trials import MIN_PAIRED

UNSERVED = 1e3
"""Distance from the objective of a size whose percentile is unserved, before the share of unserved turns is added."""
_PREFERENCE = (Outcome.HOLDS, Outcome.UNDECIDED, Outcome.FAILS)


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """Size of a fleet."""

    instances: int
    """In all."""
    prefill_instances: int = 0
    """0 = every instance does both."""

    @property
    def text(self) -> str:
        if not self.prefill_instances:
            return str(self.instances)
        return f"{self.prefill_instances}P+{self.instances - self.prefill_instances}D"

    @property
    def phrase(self) -> str:
        """With its unit."""
        return f"{self.text} {'instance' if self.instances == 1 else 'instances'}"


@dataclass(frozen=True, slots=True)
class Assessed:
    """One size, over all its traces."""

    outcome: Outcome
    """Outcome of the search's own comparison, whatever the number of traces; reports state `verdict`.

    HOLDS: every trace meets every limit, and so does the upper end of each interval. FAILS: every trace misses one
    limit, or the lower end of its interval does. Never OPEN: a trace misses a limit whose percentile is unserved.
    """
    distance: float
    """The largest logarithm of a value over its limit: below 0 all are met on average."""
    estimates: Mapping[str, Estimate]
    """By name of the limit, in seconds."""
    traces: int

    @property
    def verdict(self) -> Outcome:
        """Outcome of the rule that the size holds the objective: UNDECIDED where `describe_withheld` has a reason."""
        return Outcome.UNDECIDED if describe_withheld(self.traces) else self.outcome


@dataclass(frozen=True, slots=True)
class Search:
    """The range of one policy's search."""

    start: int
    most: int
    pooled: bool = False

    @property
    def least(self) -> int:
        return 2 if self.pooled else 1

    @property
    def end(self) -> int:
        """One more than the most instances that are simulated."""
        return max(self.least, self.most) + 1


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a search so far."""

    fewest: Size | None
    """The fewest instances that hold the objective; None = none of the simulated sizes does."""
    possible: Size | None
    """The fewest instances that may hold it: undecided, or `fewest`. None = every simulated size misses it."""
    not_monotone: tuple[Size, ...]
    """Larger sizes that do not hold it although `fewest` does."""
    unfinished: Size | None
    """The size that the search needs next; None = the search is over."""


def assess(limits: Sequence[Limit], rows: Sequence[Mapping[str, float | None]], served: Sequence[float]) -> Assessed:
    """`rows`: values by limit, one row per trace. `served`: per trace, the share of its turns that completed."""
    estimates = {limit.name: _estimate([row[limit.name] for row in rows]) for limit in limits}
    outcomes = {_judge(limit, [row[limit.name] for row in rows], estimates[limit.name]) for limit in limits}
    outcome = Outcome.UNDECIDED
    if Outcome.FAILS in outcomes:
        outcome = Outcome.FAILS
    elif outcomes == {Outcome.HOLDS}:
        outcome = Outcome.HOLDS
    ratios = []
    for limit in limits:
        value = estimates[limit.name].value
        ratios.append(UNSERVED + 1 - min(served) if value is None else math.log(value / limit.limit_s))
    return Assessed(outcome, max(ratios), estimates, len(rows))


def _estimate(values: Sequence[float | None]) -> Estimate:
    """The geometric mean over the traces, with Student's t interval of the logarithms."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return unknown(f"in {len(values) - len(known)} of {len(values)} traces the turns at it were not completed")
    logs = estimate_mean_over_launches([math.log(value) for value in known])
    if len(known) < MIN_PAIRED:
        why = _describe_few(len(known))
        return replace(logs.transform(math.exp), reason=why)
    basis = None if logs.low is None else f"over {len(known)} traces"
    return replace(logs.transform(math.exp), basis=basis)


def _describe_few(traces: int) -> str:
    return f"{format_count(traces, 'trace', 'traces')}, and an interval takes {MIN_PAIRED}"


def describe_withheld(traces: int) -> str:
    """Why this many traces decide nothing of a size; empty where they may."""
    if traces >= MIN_PAIRED:
        return ""
    return f"{format_count(traces, 'trace', 'traces')}, and a verdict takes {MIN_PAIRED}"


def _judge(limit: Limit, values: Sequence[float | None], estimate: Estimate) -> Outcome:
    met = [value is not None and value <= limit.limit_s for value in values]
    if all(met) and (estimate.high is None or estimate.high <= limit.limit_s):
        return Outcome.HOLDS
    if not any(met) or (estimate.low is not None and estimate.low > limit.limit_s):
        return Outcome.FAILS
    return Outcome.UNDECIDED


def trace_path(search: Search, points: Mapping[Size, Assessed]) -> tuple[tuple[Size, ...], Size | None]:
    """The sizes of `points` that the search visited, in order, and the size it needs next; None = it is over."""
    visited: dict[Size, None] = {}
    known: dict[int, Assessed] = {}
    while (count := _choose_count(search, known)) is not None:
        point, wanted = _settle_count(search, points, count, visited)
        if point is None:
            return tuple(visited), wanted
        known[count] = point
    return tuple(visited), None


def answer(search: Search, points: Mapping[Size, Assessed]) -> Answer:
    """The answer of the points, whether or not the search is over."""
    _, unfinished = trace_path(search, points)
    best = {count: choose_best_split(points, count) for count in sorted({size.instances for size in points})}
    known = {count: points[size] for count, size in best.items()}
    holding = [count for count, point in known.items() if point.outcome is Outcome.HOLDS]
    fewest = best[holding[0]] if holding else None
    _, undecided = _find_undecided(search, known, holding[0] if holding else search.end)
    failing = tuple(best[count] for count in best if holding and count > holding[0] and count not in holding)
    return Answer(fewest, best.get(undecided, fewest), failing, unfinished)


def estimate_needed(search: Search, known: Answer, points: Mapping[Size, Assessed], traces: int) -> Estimate:
    """The fewest instances at which the mean of each percentile meets its limit, with the interval over the traces.

    Fewer than the interval's miss the objective, its upper end holds it, and nothing between is known to. It has no
    upper end where sizes are undecided and none holds; then `reason` says so.
    """
    if known.unfinished is not None:
        return unknown("the search is not over", traces)
    none_holds = f"no size of up to {Size(search.most).phrase} holds the objective"
    if known.possible is None:
        return unknown(none_holds, traces)
    low, high = known.possible.instances, None if known.fewest is None else known.fewest.instances
    counts = sorted({size.instances for size in points if low <= size.instances < (high or search.end)})
    value = next((count for count in counts if points[choose_best_split(points, count)].distance <= 0), high)
    reason = none_holds if high is None else None
    if traces < MIN_PAIRED:
        few = _describe_few(traces)
        return Estimate(value, n=traces, reason=f"{reason}; {few}" if reason else few, launches=traces)
    if known.fewest is not None and all(one.low is None for one in points[known.fewest].estimates.values()):
        reason = next(one.reason for one in points[known.fewest].estimates.values())
        return Estimate(value, n=traces, reason=reason, launches=traces)
    return Estimate(value, low, high, traces, reason, f"over {traces} traces", traces)


def choose_best_split(points: Mapping[Size, Assessed], count: int) -> Size:
    """Take a size with this many instances that holds the objective, else an undecided one, else the nearest.

    Of several it takes the nearest: a split that misses it for certain may be nearer on average than an undecided one.
    """
    splits = [size for size in points if size.instances == count]
    return min(splits, key=lambda size: (_PREFERENCE.index(points[size].outcome), points[size].distance))


def _choose_count(search: Search, known: Mapping[int, Assessed]) -> int | None:
    """The number of instances to settle next; None = the answer, its neighbors and what is undecided are known."""
    holding = [count for count, point in known.items() if point.outcome is Outcome.HOLDS]
    if not holding:
        largest = max(known, default=0)
        if not largest:
            return max(search.least, min(search.start, search.most))
        return min(search.most, 2 * largest) if largest < search.most else _choose_undecided(search, known, search.end)
    fewest = min(holding)
    below = max((count for count in known if count < fewest), default=search.least - 1)
    if fewest - below > 1:
        return (below + fewest) // 2
    for count in (fewest + 1, fewest - 2):
        if search.least <= count <= search.most and count not in known:
            return count
    return _choose_undecided(search, known, fewest)


def _choose_undecided(search: Search, known: Mapping[int, Assessed], above: int) -> int | None:
    """Halves down to the fewest undecided instances below `above`, then to the fewest that meet it on average."""
    failing, undecided = _find_undecided(search, known, above)
    if undecided - failing > 1:
        return (failing + undecided) // 2
    band = [count for count in known if undecided <= count < above]
    meeting = min((count for count in band if known[count].distance <= 0), default=above)
    missing = max((count for count in band if count < meeting), default=undecided - 1)
    return (missing + meeting) // 2 if meeting - missing > 1 else None


def _find_undecided(search: Search, known: Mapping[int, Assessed], above: int) -> tuple[int, int]:
    """The fewest instances below `above` that are undecided (`above` = none are), after the most below those that are
    known: all of them miss the objective."""
    undecided = (count for count, point in known.items() if count < above and point.outcome is Outcome.UNDECIDED)
    fewest = min(undecided, default=above)
    return max((count for count in known if count < fewest), default=search.least - 1), fewest


def _settle_count(
    search: Search, points: Mapping[Size, Assessed], count: int, visited: dict[Size, None]
) -> tuple[Assessed | None, Size | None]:
    """The best split of this many instances, or the size that must be simulated first."""
    if not search.pooled:
        size = Size(count)
        if size not in points:
            return None, size
        visited[size] = None
        return points[size], None
    low, high = 1, count - 1
    while True:
        middle = (low + high) // 2
        for prefill in dict.fromkeys((middle, min(middle + 1, high))):
            size = Size(count, prefill)
            if size not in points:
                return None, size
            visited[size] = None
            if points[size].outcome is Outcome.HOLDS:
                return points[size], None
        if low == high:
            return points[choose_best_split(points, count)], None
        if points[Size(count, middle)].distance <= points[Size(count, middle + 1)].distance:
            high = middle
        else:
            low = middle + 1
