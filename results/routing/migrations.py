"""What a cell's migrations were and what they cost, from its decision log: specs/ear.md 5.6.

Pure functions of decision records. A migration is a pick with `migrate_from`; it counts as served where the target
began to answer well, which is when the session's binding moved. The trigger rate of one cell carries no interval: the
requests of one session are not independent. What varies between trials is in results/routing/policy_migrations.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from results.records.decisions import DecisionRecord, KvTransfer, transfer_s
from results.statistics.estimates import Estimate, Samples, mean, proportion, unknown

TURNS_AFTER = 3
"""k of the accuracy, which the specification leaves open: the next turns of the session that are looked at.

Beside it the accuracy at the very next turn: more migrations have one than have three, and sessions that migrate late
are not left out.
"""
MIN_COSTED = 5
"""Of fewer migrations a mean has no interval."""
TURNS_LEFT = (0, 1, 2, 5, 10, 20)
"""First turns-left of each row of the cost table."""
NO_THRESHOLD = "the policy states no {}"
COSTS = ("lost_tokens", "transfer_s", "ttft_s")


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
    """`transferred`, `recomputed`, `unneeded` or `failed` as in RoutedOutcome; `unknown`: the router ended first."""
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
    next_cool: bool | None
    """The same of the very next turn."""
    transfer: KvTransfer | None
    """The movement of its KV; None = the router has no transport, or it ended first."""

    @property
    def waited_s(self) -> float | None:
        """From the pick to the target's first byte, the transfer included; None = it was not served."""
        return None if self.moved_s is None else self.moved_s - self.t_s

    @property
    def transfer_s(self) -> float | None:
        """Of a transfer that ended well."""
        return None if self.transfer is None else transfer_s(self.transfer)


@dataclass(frozen=True, slots=True)
class CostRow:
    """Served migrations of sessions with enough turns left."""

    turns_left: str
    """`0`, `2-4`, `20+`."""
    migrations: int
    recomputed: int
    """Of these, those served without KV that came: the lost tokens are theirs alone."""
    lost_tokens: Estimate
    """Mean; from five migrations on with Student's t interval, as all of these."""
    lost_per_turn_left: Estimate
    """The same shared out among the turns left; unknown for 0."""
    ttft_s: Estimate
    transfer_s: Estimate
    """Of those whose KV came."""
    transfer_per_turn_left_s: Estimate
    """The same shared out among the turns left; unknown for 0."""


@dataclass(frozen=True, slots=True)
class Migrations:
    """The microbenchmark's numbers of one cell."""

    requests: Mapping[str, int]
    """Requests by session."""
    asked: int
    """Requests with a pick that wanted to migrate."""
    outcomes: Mapping[str, int]
    """Picks that wanted to migrate, by what came of it."""
    refused: Mapping[str, int]
    """Picks for a session of a hot instance that did not migrate, by the gate that failed."""
    trigger_rate: Estimate
    """asked / requests."""
    accuracy: Estimate
    """Share of the served migrations, k later turns of which were seen, whose target was not hot at any of them; n of
    them were judged. Exact binomial interval, as of the next two."""
    accuracy_next: Estimate
    """The same of the very next turn alone."""
    thrash_rate: Estimate
    """Share of the sessions that migrated which did so again within the cooldown. Anything but 0 is a defect."""
    thrashed: Mapping[str, bool]
    """Per session that migrated: whether it did so again within the cooldown; empty where there is none."""
    turns_after: int
    """k."""
    events: tuple[Migration, ...]
    """In the order of the picks."""
    costs: tuple[CostRow, ...]


def migrations(
    records: Sequence[DecisionRecord],
    hot_tokens: int | None,
    cooldown_s: float | None,
    turns_after: int = TURNS_AFTER,
) -> Migrations:
    """All numbers of one cell; `records` in any order. The thresholds are those of its policy (T_hot, T_cool).

    None = the policy has no such threshold: what it is needed for is unknown.
    """
    log = sorted(records, key=lambda record: record.seq)
    t0_ns = log[0].t_ns if log else 0
    turns = _turns(log)
    events = tuple(_event(record, t0_ns, turns, hot_tokens, turns_after) for record in log if wants_to_move(record))
    requests = Counter(dict((record.request.request, record.request.session) for record in log).values())
    thrashed = {} if cooldown_s is None else _thrashed(events, cooldown_s)
    asked = len({event.request for event in events})
    return Migrations(
        requests=dict(sorted(requests.items())),
        asked=asked,
        outcomes=dict(sorted(Counter(event.outcome for event in events).items())),
        refused=dict(sorted(_refused(log).items())),
        trigger_rate=_share(asked, requests.total(), "no requests"),
        accuracy=accuracy([event.stayed_cool for event in events], _no_accuracy(hot_tokens, f"{turns_after} turns")),
        accuracy_next=accuracy([event.next_cool for event in events], _no_accuracy(hot_tokens, "a turn")),
        thrash_rate=thrash_rate(
            thrashed.values(), "no session migrated" if cooldown_s is not None else NO_THRESHOLD.format("T_cool")
        ),
        thrashed=thrashed,
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
    again = [event.outcome == "recomputed" for event in own]
    lost, took_s, ttft_s = (_floats(getattr(event, name) for event in own) for name in COSTS)
    lost = np.where(again, lost, np.nan)
    left = np.array([event.turns_left for event in own], dtype=np.float64)
    some = left > 0
    none = unknown("no turns were left")
    return CostRow(
        turns_left=f"{low}+" if end is None else str(low) if end == low + 1 else f"{low}-{end - 1}",
        migrations=len(own),
        recomputed=sum(again),
        lost_tokens=_cost(lost),
        lost_per_turn_left=_cost(lost[some] / left[some]) if some.any() else none,
        ttft_s=_cost(ttft_s),
        transfer_s=_cost(took_s),
        transfer_per_turn_left_s=_cost(took_s[some] / left[some]) if some.any() else none,
    )


def _cost(values: Samples) -> Estimate:
    """The mean of what cannot be below zero."""
    found = mean(values)
    if found.low is None:
        return found
    if found.n < MIN_COSTED:
        return Estimate(found.value, n=found.n, reason=f"{found.n} have no interval (needs {MIN_COSTED})")
    return replace(found, low=max(found.low, 0.0))


def _floats(values: Iterable[float | None]) -> Samples:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def wants_to_move(record: DecisionRecord) -> bool:
    """Whether the pick is a migration."""
    return bool(record.decision.migrate_from and record.decision.instance)


def outcome_of(record: DecisionRecord) -> str:
    """What came of a pick that wanted to migrate, in one word."""
    return "unknown" if record.outcome is None else record.outcome.migration or "unknown"


def moved_ns(record: DecisionRecord) -> int | None:
    """When the target began to answer well: the moment the binding moved. The time to it counts from the pick, the
    transfer included."""
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
    hot_tokens: int | None,
    turns_after: int,
) -> Migration:
    request, made, outcome = record.request, record.decision, record.outcome
    served_ns = moved_ns(record)
    later = [] if served_ns is None else [one for one in turns.get(request.session, ()) if one.t_ns > served_ns]
    return Migration(
        request=request.request,
        session=request.session,
        turn=request.turn,
        t_s=(record.t_ns - t0_ns) / 1e9,
        source=made.migrate_from,
        target=made.instance,
        outcome=outcome_of(record),
        moved_s=None if served_ns is None else (served_ns - t0_ns) / 1e9,
        source_pending_tokens=pending_at(record, made.migrate_from),
        target_pending_tokens=pending_at(record, made.instance),
        context_tokens=request.input_tokens,
        lost_tokens=None if served_ns is None else _lost(record),
        ttft_s=None if outcome is None else outcome.ttft_s,
        turns_left=len(later),
        stayed_cool=_stayed_cool(later[:turns_after], made.instance, hot_tokens, turns_after),
        next_cool=_stayed_cool(later[:1], made.instance, hot_tokens, 1),
        transfer=None if outcome is None else outcome.transfer,
    )


def _stayed_cool(later: Sequence[DecisionRecord], target: str, hot_tokens: int | None, turns_after: int) -> bool | None:
    pending = [pending_at(record, target) for record in later]
    if hot_tokens is None or len(pending) < turns_after or None in pending:
        return None
    return all(tokens <= hot_tokens for tokens in pending if tokens is not None)


def _lost(record: DecisionRecord) -> int:
    cached, outcome = record.request.cached_tokens, record.outcome
    counted = None if outcome is None else outcome.cached_tokens
    had = cached.get(record.decision.instance, 0) if counted is None else counted
    return max(0, cached.get(record.decision.migrate_from, 0) - had)


def pending_at(record: DecisionRecord, instance: str) -> int | None:
    """Prompt tokens pending at an instance at a pick; None = it was not in the view."""
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


def accuracy(cool: Iterable[bool | None], reason: str) -> Estimate:
    """Share of the migrations that were judged; `reason`: why none was."""
    judged = [one for one in cool if one is not None]
    return proportion(sum(judged), len(judged), reason)


def thrash_rate(again: Iterable[bool], reason: str) -> Estimate:
    """Share of the sessions that migrated; `reason`: why there is none."""
    known = list(again)
    return proportion(sum(known), len(known), reason)


def _no_accuracy(hot_tokens: int | None, turns: str) -> str:
    if hot_tokens is None:
        return NO_THRESHOLD.format("T_hot")
    return f"no served migration was followed by {turns} of its session"


def _thrashed(events: Iterable[Migration], cooldown_s: float) -> dict[str, bool]:
    moves: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.moved_s is not None:
            moves[event.session].append(event.moved_s)
    return {
        session: any(later - earlier < cooldown_s for earlier, later in pairwise(sorted(times)))
        for session, times in moves.items()
    }
