"""Which size of a fleet to simulate next, and the answer of the simulated ones. Pure functions of points.

The search doubles the number of instances until one holds the objective, then halves the distance to the largest that
does not. It takes "holds" to be monotone in the number of instances, and checks that at the neighbors of its answer.
With pools it looks, for each number of instances, for the split that comes nearest to the objective, by the sign of the
difference of two neighboring splits: there it takes the distance from the objective to have one minimum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from results.capacity.slo import Limit
from results.records.count import format_count
from results.records.estimate import Estimate, unknown
from results.statistics.judgement import Outcome
from results.statistics.launch_fit import mean_over_launches
from results.statistics.trials import MIN_PAIRED

UNSERVED = 1e3
"""Distance from the objective of a size whose percentile is unserved, before the share of unserved turns is added."""


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """Of a fleet."""

    instances: int
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
    """Of the rule that the size holds the objective.

    HOLDS: every trace meets every limit, and so does the upper end of each interval. FAILS: every trace misses one
    limit, or the lower end of its interval does. Never OPEN: a trace misses a limit whose percentile is unserved.
    """
    distance: float
    """The largest logarithm of a value over its limit: below 0 all are met on average."""
    estimates: Mapping[str, Estimate]
    """By name of the limit, in seconds."""


@dataclass(frozen=True, slots=True)
class Search:
    """The range of one policy's search."""

    start: int
    most: int
    pooled: bool = False

    @property
    def least(self) -> int:
        return 2 if self.pooled else 1


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a search so far."""

    fewest: Size | None
    """The fewest instances that hold the objective; None = none of the simulated sizes does."""
    possible: Size | None
    """The fewest instances that may hold it: the sizes from here to `fewest` are undecided."""
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
    return Assessed(outcome, max(ratios), estimates)


def _estimate(values: Sequence[float | None]) -> Estimate:
    """The geometric mean over the traces, with Student's t interval of the logarithms."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return unknown(f"in {len(values) - len(known)} of {len(values)} traces the turns at it were not completed")
    logs = mean_over_launches([math.log(value) for value in known])
    if len(known) < MIN_PAIRED:
        why = f"{format_count(len(known), 'trace', 'traces')}, and an interval takes {MIN_PAIRED}"
        return replace(logs.transform(math.exp), reason=why)
    basis = None if logs.low is None else f"over {len(known)} traces"
    return replace(logs.transform(math.exp), basis=basis)


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
    known: dict[int, Outcome] = {}
    while (count := _choose_count(search, known)) is not None:
        outcome, wanted = _settle_count(search, points, count, visited)
        if outcome is None:
            return tuple(visited), wanted
        known[count] = outcome
    return tuple(visited), None


def answer(search: Search, points: Mapping[Size, Assessed]) -> Answer:
    """The answer of the points, whether or not the search is over."""
    _, unfinished = trace_path(search, points)
    holding = sorted(size for size, point in points.items() if point.outcome is Outcome.HOLDS)
    if not holding:
        undecided = sorted(size for size, point in points.items() if point.outcome is Outcome.UNDECIDED)
        return Answer(None, undecided[0] if undecided else None, (), unfinished)
    fewest = holding[0]
    best = {size.instances: best_split(points, size.instances) for size in points}
    larger = (size for count, size in sorted(best.items()) if count > fewest.instances)
    failing = tuple(size for size in larger if points[size].outcome is not Outcome.HOLDS)
    possible = fewest
    while (below := best.get(possible.instances - 1)) and points[below].outcome is Outcome.UNDECIDED:
        possible = below
    return Answer(fewest, possible, failing, unfinished)


def estimate_needed(search: Search, known: Answer, points: Mapping[Size, Assessed], traces: int) -> Estimate:
    """The fewest instances at which the mean of each percentile meets its limit, with the interval over the traces.

    Fewer than the interval's miss the objective, its upper end holds it, and what is between is undecided.
    """
    if known.unfinished is not None:
        return unknown("the search is not over", traces)
    if known.fewest is None or known.possible is None:
        return unknown(f"no size of up to {Size(search.most).phrase} holds the objective", traces)
    low, high = known.possible.instances, known.fewest.instances
    counts = {size.instances for size in points if low <= size.instances <= high}
    value = min((count for count in counts if points[best_split(points, count)].distance <= 0), default=high)
    held = points[known.fewest].estimates.values()
    if all(one.low is None for one in held):
        return Estimate(value, n=traces, reason=next(one.reason for one in held), launches=traces)
    return Estimate(value, low, high, traces, basis=f"over {traces} traces", launches=traces)


def best_split(points: Mapping[Size, Assessed], count: int) -> Size:
    """Of the sizes with this many instances, the one that holds the objective, else the nearest to it."""
    splits = [size for size in points if size.instances == count]
    return min(splits, key=lambda size: (points[size].outcome is not Outcome.HOLDS, points[size].distance))


def _choose_count(search: Search, known: Mapping[int, Outcome]) -> int | None:
    """The number of instances to settle next; None = the answer and its neighbors are known."""
    holding = [count for count, outcome in known.items() if outcome is Outcome.HOLDS]
    if not holding:
        largest = max(known, default=0)
        if not largest:
            return max(search.least, min(search.start, search.most))
        return None if largest >= search.most else min(search.most, 2 * largest)
    fewest = min(holding)
    below = max((count for count in known if count < fewest), default=search.least - 1)
    if fewest - below > 1:
        return (below + fewest) // 2
    undecided = fewest - 1
    while known.get(undecided) is Outcome.UNDECIDED:
        undecided -= 1
    for count in (fewest + 1, fewest - 2, undecided):
        if search.least <= count <= search.most and count not in known:
            return count
    return None


def _settle_count(
    search: Search, points: Mapping[Size, Assessed], count: int, visited: dict[Size, None]
) -> tuple[Outcome | None, Size | None]:
    """The outcome of this many instances, or the size that must be simulated first."""
    if not search.pooled:
        size = Size(count)
        if size not in points:
            return None, size
        visited[size] = None
        return points[size].outcome, None
    low, high = 1, count - 1
    while True:
        middle = (low + high) // 2
        for prefill in dict.fromkeys((middle, min(middle + 1, high))):
            size = Size(count, prefill)
            if size not in points:
                return None, size
            visited[size] = None
            if points[size].outcome is Outcome.HOLDS:
                return Outcome.HOLDS, None
        if low == high:
            return points[Size(count, low)].outcome, None
        if points[Size(count, middle)].distance <= points[Size(count, middle + 1)].distance:
            high = middle
        else:
            low = middle + 1
