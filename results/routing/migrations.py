"""What a cell's migrations were and what they cost, from its decision log: specs/ear.md 5.6 and the data of figure 10.

Pure functions of decision records. A migration is a pick with `migrate_from`; it counts as served where the target
began to answer well, which is when the session's binding moved. Rates carry no interval: the requests of one session
are not independent, so what varies has to be seen between trials.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from results.decisions import DecisionRecord
from results.routing.record import EngineSample
from results.statistics import Estimate, Samples, mean, unknown

TURNS_AFTER = 3
"""k of the accuracy, which the specification leaves open: the next turns of the session that are looked at."""
TURNS_LEFT = (0, 1, 2, 5, 10, 20)
"""First turns-left of each row of the cost table."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One pick that wanted its session moved. Seconds count from the log's first pick."""

    request: str
    session: str
    turn: int
    t_s: float
    source: str
    target: str
    outcome: str
    """`recomputed`, `failed`, ... as in RoutedOutcome; `unknown`: the router ended first."""
    moved_s: float | None
    """When the target began to answer, and the binding moved; None = it was not served."""
    source_pending_tokens: int | None
    """Prompt tokens pending there at the pick; None = it was not in the view."""
    target_pending_tokens: int | None
    context_tokens: int
    """Prompt tokens of the request."""
    lost_tokens: int | None
    """What it cost: prompt tokens that the source held by the index and the target had to compute (by the engine's
    count of cached tokens, else the index). None = it was not served."""
    ttft_s: float | None
    turns_left: int
    """Turns of the session that were picked after it had moved, to the end of the log."""
    stayed_cool: bool | None
    """The target was not hot at any of the next k turns; None = it was not served, or not all of them were seen."""


@dataclass(frozen=True, slots=True)
class CostRow:
    """Served migrations of sessions with so many turns left."""

    turns_left: str
    """`0`, `2-4`, `20+`."""
    migrations: int
    lost_tokens: Estimate
    """Mean with Student's t interval over these migrations."""
    lost_per_turn_left: Estimate
    """The same shared out among the turns left; unknown for 0."""
    ttft_s: Estimate


@dataclass(frozen=True, slots=True)
class Migrations:
    """The microbenchmark's numbers of one cell."""

    requests: int
    asked: int
    """Requests with a pick that wanted to migrate."""
    outcomes: Mapping[str, int]
    """Picks that wanted to migrate, by what came of it."""
    refused: Mapping[str, int]
    """Picks for a session of a hot instance that did not migrate, by the gate that failed."""
    trigger_rate: Estimate
    """asked / requests."""
    accuracy: Estimate
    """Share of the served migrations, k later turns of which were seen, whose target was not hot at any of them."""
    thrash_rate: Estimate
    """Share of the sessions that migrated which did so again within the cooldown. Anything but 0 is a defect."""
    turns_after: int
    """k."""
    events: tuple[Migration, ...]
    """In the order of the picks."""
    costs: tuple[CostRow, ...]


def migrations(
    records: Sequence[DecisionRecord], hot_tokens: int, cooldown_s: float, turns_after: int = TURNS_AFTER
) -> Migrations:
    """All numbers of one cell; `records` in any order. The thresholds are those of its policy (T_hot, T_cool)."""
    log = sorted(records, key=lambda record: record.seq)
    t0_ns = log[0].t_ns if log else 0
    turns = _turns(log)
    events = tuple(_event(record, t0_ns, turns, hot_tokens, turns_after) for record in log if _wants(record))
    requests = len({record.request.request for record in log})
    asked = len({event.request for event in events})
    return Migrations(
        requests=requests,
        asked=asked,
        outcomes=dict(sorted(Counter(event.outcome for event in events).items())),
        refused=dict(sorted(_refused(log).items())),
        trigger_rate=_share(asked, requests, "no requests"),
        accuracy=_accuracy(events, turns_after),
        thrash_rate=_thrash(events, cooldown_s),
        turns_after=turns_after,
        events=events,
        costs=costs(events),
    )


def costs(events: Iterable[Migration], first: Sequence[int] = TURNS_LEFT) -> tuple[CostRow, ...]:
    """What served migrations cost against the turns that were left to pay for it; rows without any are left out."""
    served = [event for event in events if event.moved_s is not None]
    rows = []
    for low, end in zip(first, (*first[1:], None), strict=True):
        own = [event for event in served if event.turns_left >= low and (end is None or event.turns_left < end)]
        if own:
            rows.append(_cost_row(own, low, end))
    return tuple(rows)


def _cost_row(own: Sequence[Migration], low: int, end: int | None) -> CostRow:
    lost = np.array([np.nan if event.lost_tokens is None else event.lost_tokens for event in own], dtype=np.float64)
    left = np.array([event.turns_left for event in own], dtype=np.float64)
    ttft = [np.nan if event.ttft_s is None else event.ttft_s for event in own]
    return CostRow(
        turns_left=f"{low}+" if end is None else str(low) if end == low + 1 else f"{low}-{end - 1}",
        migrations=len(own),
        lost_tokens=mean(lost),
        lost_per_turn_left=mean(lost[left > 0] / left[left > 0]) if (left > 0).any() else unknown("no turns were left"),
        ttft_s=mean(ttft),
    )


@dataclass(frozen=True, slots=True)
class PendingSeries:
    """Prompt tokens pending at one instance, as the router counted them. Seconds count from the log's first pick."""

    instance: str
    t_s: Samples
    tokens: Samples


@dataclass(frozen=True, slots=True)
class Arrow:
    """One migration in figure 10."""

    t_s: float
    source: str
    target: str
    session: str
    served: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """Figure 10: pending prefill per instance over time, and the migrations."""

    series: tuple[PendingSeries, ...]
    """By instance name."""
    arrows: tuple[Arrow, ...]


def timeline(records: Sequence[DecisionRecord], samples: Iterable[EngineSample] = ()) -> Timeline:
    """From the view of every pick and, between picks, from the 1 Hz `samples` of the same cell."""
    log = sorted(records, key=lambda record: record.seq)
    points: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in log:
        for load in record.cluster.instances:
            points[load.instance].append((record.t_ns, load.pending_prefill_tokens))
    for sample in samples:
        if sample.pending_prefill_tokens is not None:
            points[sample.instance].append((sample.t_ns, sample.pending_prefill_tokens))
    t0_ns = log[0].t_ns if log else min((found[0][0] for found in points.values()), default=0)
    arrows = (
        Arrow(
            (record.t_ns - t0_ns) / 1e9,
            record.decision.migrate_from,
            record.decision.instance,
            record.request.session,
            _moved_ns(record) is not None,
        )
        for record in log
        if _wants(record)
    )
    return Timeline(tuple(_series(name, points[name], t0_ns) for name in sorted(points)), tuple(arrows))


def heat(found: Timeline, edges_s: Samples) -> Samples:
    """The most tokens pending between each two of `edges_s`, instances x bins; NaN where nothing was seen."""
    grid = np.full((len(found.series), max(len(edges_s) - 1, 0)), np.nan)
    for row, series in enumerate(found.series):
        places = np.searchsorted(edges_s, series.t_s, side="right") - 1
        inside = (places >= 0) & (places < grid.shape[1])
        np.fmax.at(grid[row], places[inside], series.tokens[inside])
    return grid


def _series(name: str, points: list[tuple[int, int]], t0_ns: int) -> PendingSeries:
    points.sort()
    return PendingSeries(
        name,
        np.array([(t_ns - t0_ns) / 1e9 for t_ns, _ in points], dtype=np.float64),
        np.array([tokens for _, tokens in points], dtype=np.float64),
    )


def _wants(record: DecisionRecord) -> bool:
    return bool(record.decision.migrate_from and record.decision.instance)


def _moved_ns(record: DecisionRecord) -> int | None:
    """When the target began to answer well: the moment the binding moved."""
    outcome = record.outcome
    if outcome is None or outcome.ttft_s is None or outcome.migration == "failed":
        return None
    return record.t_ns + round(record.decide_us * 1e3 + outcome.ttft_s * 1e9)


def _turns(log: Sequence[DecisionRecord]) -> Mapping[str, list[DecisionRecord]]:
    """Per session the first pick of each of its requests, in order."""
    found: dict[str, list[DecisionRecord]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    for record in log:
        request = record.request
        if request.session and (request.session, request.request) not in seen:
            seen.add((request.session, request.request))
            found[request.session].append(record)
    return found


def _event(
    record: DecisionRecord,
    t0_ns: int,
    turns: Mapping[str, list[DecisionRecord]],
    hot_tokens: int,
    turns_after: int,
) -> Migration:
    request, made, outcome = record.request, record.decision, record.outcome
    moved_ns = _moved_ns(record)
    later = [] if moved_ns is None else [one for one in turns.get(request.session, ()) if one.t_ns > moved_ns]
    return Migration(
        request=request.request,
        session=request.session,
        turn=request.turn,
        t_s=(record.t_ns - t0_ns) / 1e9,
        source=made.migrate_from,
        target=made.instance,
        outcome="unknown" if outcome is None else outcome.migration or "unknown",
        moved_s=None if moved_ns is None else (moved_ns - t0_ns) / 1e9,
        source_pending_tokens=_pending(record, made.migrate_from),
        target_pending_tokens=_pending(record, made.instance),
        context_tokens=request.input_tokens,
        lost_tokens=None if moved_ns is None else _lost(record),
        ttft_s=None if outcome is None else outcome.ttft_s,
        turns_left=len(later),
        stayed_cool=_stayed_cool(later[:turns_after], made.instance, hot_tokens, turns_after),
    )


def _stayed_cool(later: Sequence[DecisionRecord], target: str, hot_tokens: int, turns_after: int) -> bool | None:
    pending = [_pending(record, target) for record in later]
    if len(pending) < turns_after or None in pending:
        return None
    return all(tokens <= hot_tokens for tokens in pending if tokens is not None)


def _lost(record: DecisionRecord) -> int:
    cached, outcome = record.request.cached_tokens, record.outcome
    counted = None if outcome is None else outcome.cached_tokens
    had = cached.get(record.decision.instance, 0) if counted is None else counted
    return max(0, cached.get(record.decision.migrate_from, 0) - had)


def _pending(record: DecisionRecord, instance: str) -> int | None:
    loads = record.cluster.instances
    return next((load.pending_prefill_tokens for load in loads if load.instance == instance), None)


def _refused(log: Iterable[DecisionRecord]) -> Counter[str]:
    found: Counter[str] = Counter()
    for record in log:
        gates = record.decision.gates
        if not record.decision.migrate_from and any(gate.name == "hot" and gate.passed for gate in gates):
            found[next((gate.name for gate in gates if not gate.passed), "none")] += 1
    return found


def _share(part: int, whole: int, reason: str) -> Estimate:
    return Estimate(part / whole, n=whole) if whole else unknown(reason)


def _accuracy(events: Sequence[Migration], turns_after: int) -> Estimate:
    judged = [event.stayed_cool for event in events if event.stayed_cool is not None]
    return _share(sum(judged), len(judged), f"no served migration was followed by {turns_after} turns of its session")


def _thrash(events: Sequence[Migration], cooldown_s: float) -> Estimate:
    moves: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.moved_s is not None:
            moves[event.session].append(event.moved_s)
    again = sum(
        any(later - earlier < cooldown_s for earlier, later in pairwise(sorted(times))) for times in moves.values()
    )
    return _share(again, len(moves), "no session migrated")
