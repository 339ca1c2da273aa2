"""Migrations and what they cost (specs/ear.md 5.6): of one cell from its decision log, and of a policy.

A migration is a pick with `migrate_from`. It is served once the target begins a successful answer, which moves the
session's binding. The rates of one cell carry no interval over sessions: the requests of one session are not
independent. For a policy, from three trials on an interval holds what varies between trials; with fewer it resamples
sessions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from results.records.decisions import DecisionRecord, KvTransfer
from results.records.decisions import transfer_s as seconds_of_transfer
from results.records.estimate import Estimate, unknown
from results.routing.measurements import Measurements, collect_trials, estimate_level_interval, estimate_mean_interval
from results.statistics.estimates import Samples, convert_to_floats, cut_bounds, mean, proportion
from results.statistics.trials import Trial

TURNS_AFTER = 3
"""k of the accuracy, which the specification leaves open: the session's next k turns are checked.

Beside it the accuracy at the very next turn: more migrations have one than have three, and sessions that migrate late
are not left out.
"""
MIN_COSTED = 5
"""A mean over fewer migrations has no interval."""
TURNS_LEFT = (0, 1, 2, 5, 10, 20)
"""First turns-left of each row of the cost table."""
NO_THRESHOLD = "the policy states no {}"
POOLED = ("accuracy", "accuracy_next", "thrash_rate")
"""Rates that pool the cases of all trials."""


@dataclass(frozen=True, slots=True)
class RequestedMigration:
    """One pick that asked to migrate its session. Seconds count from the log's first pick."""

    pick: DecisionRecord
    t_s: float
    moved_s: float | None
    """When the target began its answer and the binding moved; None = it was not served."""
    turns_left: int
    """Turns of the session that were picked after it had moved, to the end of the log."""
    stayed_cool: bool | None
    """The target was not hot at any of the next k turns; None = it was not served, or not all of them were seen."""
    next_cool: bool | None
    """The same of the very next turn."""

    @property
    def session(self) -> str:
        return self.pick.request.session

    @property
    def outcome(self) -> str:
        """`transferred`, `recomputed`, `unneeded`, `failed` as in RoutedOutcome; `unknown`: the router ended first."""
        return (self.pick.outcome.migration if self.pick.outcome else "") or "unknown"

    @property
    def first_byte_s(self) -> float | None:
        return None if self.pick.outcome is None else self.pick.outcome.first_byte_s

    @property
    def waited_s(self) -> float | None:
        """From the pick to the target's first byte, the transfer included; None = it was not served."""
        return None if self.moved_s is None else self.moved_s - self.t_s

    @property
    def transfer(self) -> KvTransfer | None:
        """The movement of its KV; None = the router has no transport, or it ended first."""
        return None if self.pick.outcome is None else self.pick.outcome.transfer

    @property
    def transfer_s(self) -> float | None:
        """None unless the transfer succeeded."""
        return None if self.transfer is None else seconds_of_transfer(self.transfer)

    @property
    def lost_tokens(self) -> int | None:
        """Prompt tokens that the source held by the index and the target had to compute (by the engine's count of
        cached tokens, else the index). None = it was not served."""
        if self.moved_s is None:
            return None
        cached, decision = self.pick.request.cached_tokens, self.pick.decision
        counted = None if self.pick.outcome is None else self.pick.outcome.cached_tokens
        had = cached.get(decision.instance, 0) if counted is None else counted
        return max(0, cached.get(decision.migrate_from, 0) - had)


@dataclass(frozen=True, slots=True)
class CostRow:
    """Served migrations of sessions with enough turns left."""

    turns_left: str
    """`0`, `2-4`, `20+`."""
    migrations: int
    """How many."""
    recomputed: int
    """Migrations served without transferred KV: the lost tokens are theirs alone."""
    lost_tokens: Estimate
    """Mean; from five migrations on with Student's t interval, as all of these."""
    lost_per_turn_left: Estimate
    """The same shared out among the turns left; unknown for 0."""
    first_byte_s: Estimate
    """From the pick to the first byte."""
    transfer_s: Estimate
    """Duration of the transfers whose KV came."""
    transfer_per_turn_left_s: Estimate
    """The same shared out among the turns left; unknown for 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationNumbers:
    """The microbenchmark's numbers of one cell."""

    asked: int
    """Requests with a pick that asked to migrate."""
    outcomes: Mapping[str, int]
    """Picks that asked to migrate, by outcome."""
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
    turns_after: int
    """k."""
    costs: tuple[CostRow, ...]
    """Costs of served migrations by the turns left to pay for them; rows without any are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrations(MigrationNumbers):
    """Those numbers, and the migrations that they were computed from."""

    requests: Mapping[str, int]
    """Requests by session."""
    thrashed: Mapping[str, bool]
    """Per session that migrated: whether it did so again within the cooldown; empty where there is none."""
    events: tuple[RequestedMigration, ...]
    """In the order of the picks."""


@dataclass(frozen=True, slots=True)
class PolicyMigrations:
    """The migrations of one label, over the trials that count."""

    label: str
    trials: int
    """Trials that count."""
    requests: int
    """Requests of all trials."""
    asked: int
    """Requests with a pick that asked to migrate."""
    outcomes: Mapping[str, int]
    """Picks that asked to migrate, by outcome."""
    refused: Mapping[str, int]
    """Picks for a session of a hot instance that did not migrate, by the gate that failed."""
    values: Mapping[str, Estimate]
    """trigger_rate, accuracy, accuracy_next, thrash_rate (shares; all but the first of the migrations or sessions of
    all trials, n of them, with exact binomial intervals); waited_transferred_s, waited_recomputed_s: from the pick to
    the first byte of migrations with that outcome."""
    costs: tuple[CostRow, ...]
    """Costs over all trials together."""
    thrashed: tuple[str, ...]
    """Sessions that migrated again within their cooldown."""
    why_none: str
    """Why there is no migration; empty where there is one."""


def find_migrations(
    records: Sequence[DecisionRecord], hot_tokens: float | None, cooldown_s: float | None
) -> Migrations:
    """All numbers of one cell; `records` in any order.

    `hot_tokens`, `cooldown_s`: T_hot and T_cool of its policy; without one, what depends on it is unknown.
    """
    log = sorted(records, key=lambda record: record.seq)
    turns = _find_first_picks(log)
    events = tuple(
        _read_migration(record, log[0].t_ns, turns.get(record.request.session, ()), hot_tokens)
        for record in log
        if record.decision.migrate_from and record.decision.instance
    )
    requests = Counter(dict((record.request.request, record.request.session) for record in log).values())
    thrashed = {} if cooldown_s is None else _find_thrashed_sessions(events, cooldown_s)
    asked = len({event.pick.request.request for event in events})
    not_followed = NO_THRESHOLD.format("T_hot")
    if hot_tokens is not None:
        not_followed = "no served migration was followed by {} of its session"
    no_thrash = "no session migrated" if cooldown_s is not None else NO_THRESHOLD.format("T_cool")
    return Migrations(
        requests=dict(sorted(requests.items())),
        asked=asked,
        outcomes=dict(sorted(Counter(event.outcome for event in events).items())),
        refused=dict(sorted(_count_refusals(log).items())),
        trigger_rate=Estimate(asked / requests.total(), n=requests.total()) if requests else unknown("no requests"),
        accuracy=_estimate_share_of_known(
            (event.stayed_cool for event in events), not_followed.format(f"{TURNS_AFTER} turns")
        ),
        accuracy_next=_estimate_share_of_known((event.next_cool for event in events), not_followed.format("a turn")),
        thrash_rate=_estimate_share_of_known(thrashed.values(), no_thrash),
        thrashed=thrashed,
        turns_after=TURNS_AFTER,
        events=events,
        costs=_make_cost_rows(events),
    )


def _find_first_picks(log: Sequence[DecisionRecord]) -> Mapping[str, list[DecisionRecord]]:
    """Per session the first pick of each of its requests, in order."""
    turns: dict[str, dict[str, DecisionRecord]] = defaultdict(dict)
    for record in log:
        if record.request.session:
            turns[record.request.session].setdefault(record.request.request, record)
    return {session: list(own.values()) for session, own in turns.items()}


def _read_migration(
    record: DecisionRecord, t0_ns: int, turns: Sequence[DecisionRecord], hot_tokens: float | None
) -> RequestedMigration:
    """`turns` of its session."""
    served_ns = find_move_ns(record)
    later = [] if served_ns is None else [turn for turn in turns if turn.t_ns > served_ns]
    pending = [count_pending_at(turn, record.decision.instance) for turn in later[:TURNS_AFTER]]
    return RequestedMigration(
        pick=record,
        t_s=(record.t_ns - t0_ns) / 1e9,
        moved_s=None if served_ns is None else (served_ns - t0_ns) / 1e9,
        turns_left=len(later),
        stayed_cool=_stayed_cool(pending, hot_tokens, TURNS_AFTER),
        next_cool=_stayed_cool(pending[:1], hot_tokens, 1),
    )


def _stayed_cool(pending: Sequence[int | None], hot_tokens: float | None, turns: int) -> bool | None:
    if hot_tokens is None or len(pending) < turns or None in pending:
        return None
    return all(tokens <= hot_tokens for tokens in pending if tokens is not None)


def find_move_ns(record: DecisionRecord) -> int | None:
    """When the target began a successful answer, which moves the binding; None = it did not."""
    outcome = record.outcome
    if outcome is None or outcome.first_byte_s is None or outcome.migration == "failed":
        return None
    return record.t_ns + round(record.decide_us * 1e3 + outcome.first_byte_s * 1e9)


def count_pending_at(record: DecisionRecord, instance: str) -> int | None:
    """Prompt tokens pending at an instance at a pick; None = it was not in the view."""
    loads = record.cluster.instances
    return next((load.pending_prefill_tokens for load in loads if load.instance == instance), None)


def _count_refusals(log: Iterable[DecisionRecord]) -> Counter[str]:
    refused: Counter[str] = Counter()
    for record in log:
        gates = record.decision.gates
        if not record.decision.migrate_from and any(gate.name == "hot" and gate.passed for gate in gates):
            refused[next((gate.name for gate in gates if not gate.passed), "none")] += 1
    return refused


def _find_thrashed_sessions(events: Iterable[RequestedMigration], cooldown_s: float) -> dict[str, bool]:
    moves: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.moved_s is not None:
            moves[event.session].append(event.moved_s)
    return {
        session: any(later - earlier < cooldown_s for earlier, later in pairwise(sorted(times)))
        for session, times in moves.items()
    }


def _estimate_share_of_known(flags: Iterable[bool | None], reason: str) -> Estimate:
    """`reason`: why none is known."""
    known = [flag for flag in flags if flag is not None]
    return proportion(sum(known), len(known), reason)


def _make_cost_rows(events: Iterable[RequestedMigration]) -> tuple[CostRow, ...]:
    served = [event for event in events if event.moved_s is not None]
    rows = []
    for low, end in zip(TURNS_LEFT, (*TURNS_LEFT[1:], None), strict=True):
        own = [event for event in served if event.turns_left >= low and (end is None or event.turns_left < end)]
        if own:
            rows.append(_make_cost_row(own, low, end))
    return tuple(rows)


def _make_cost_row(own: Sequence[RequestedMigration], low: int, end: int | None) -> CostRow:
    recomputed = [event for event in own if event.outcome == "recomputed"]
    lost = convert_to_floats(event.lost_tokens if event.outcome == "recomputed" else None for event in own)
    took_s = convert_to_floats(event.transfer_s for event in own)
    left = convert_to_floats(event.turns_left for event in own)
    name = str(low) if end == low + 1 else f"{low}-{(end or 0) - 1}"
    none_left = unknown("no turns were left")
    return CostRow(
        turns_left=f"{low}+" if end is None else name,
        migrations=len(own),
        recomputed=len(recomputed),
        lost_tokens=_estimate_mean_cost(lost),
        lost_per_turn_left=_estimate_mean_cost(lost / left) if low else none_left,
        first_byte_s=_estimate_mean_cost(convert_to_floats(event.first_byte_s for event in own)),
        transfer_s=_estimate_mean_cost(took_s),
        transfer_per_turn_left_s=_estimate_mean_cost(took_s / left) if low else none_left,
    )


def _estimate_mean_cost(values: Samples) -> Estimate:
    """The mean of what cannot be below zero."""
    cost = mean(values)
    if cost.low is None:
        return cost
    if cost.n < MIN_COSTED:
        return Estimate(cost.value, n=cost.n, reason=f"{cost.n} have no interval (needs {MIN_COSTED})")
    return cut_bounds(cost)


def summarize_migrations(
    label: str, by_trial: Mapping[int, Migrations], parameters: Mapping[str, object], measurements: Measurements
) -> PolicyMigrations:
    cells = by_trial.values()
    events = [event for cell in cells for event in cell.events]
    thrashed = (session for cell in cells for session, again in cell.thrashed.items() if again)
    return PolicyMigrations(
        label=label,
        trials=len(by_trial),
        requests=sum(sum(cell.requests.values()) for cell in cells),
        asked=sum(cell.asked for cell in cells),
        outcomes=_sum_counts(cell.outcomes for cell in cells),
        refused=_sum_counts(cell.refused for cell in cells),
        values=_measure_rates(label, by_trial, measurements),
        costs=_make_cost_rows(events),
        thrashed=tuple(dict.fromkeys(thrashed)),
        why_none="" if events else _explain_no_migration(by_trial, parameters),
    )


def _measure_rates(label: str, by_trial: Mapping[int, Migrations], measurements: Measurements) -> dict[str, Estimate]:
    first = next(iter(by_trial.values()), None)
    why = {name: "no log" if first is None else getattr(first, name).reason or "" for name in POOLED}
    events = [event for cell in by_trial.values() for event in cell.events]
    thrashed = (again for cell in by_trial.values() for again in cell.thrashed.values())
    triggered = collect_trials(
        {trial: _measure_trigger_rate(cell, measurements) for trial, cell in by_trial.items()}, "no requests"
    )
    return {
        "trigger_rate": estimate_level_interval(measurements.withhold(triggered, label), most=1.0),
        "accuracy": _estimate_share_of_known((event.stayed_cool for event in events), why["accuracy"]),
        "accuracy_next": _estimate_share_of_known((event.next_cool for event in events), why["accuracy_next"]),
        "thrash_rate": _estimate_share_of_known(thrashed, why["thrash_rate"]),
        **{
            f"waited_{name}_s": _measure_waited_s(label, by_trial, name, measurements)
            for name in ("transferred", "recomputed")
        },
    }


def _measure_trigger_rate(cell: Migrations, measurements: Measurements) -> Trial | None:
    asked = Counter(dict((event.pick.request.request, event.session) for event in cell.events).values())
    top = convert_to_floats(asked[session] for session in cell.requests)
    return measurements.measure_ratio_of_rows(list(cell.requests), top, convert_to_floats(cell.requests.values()))


def _measure_waited_s(
    label: str, by_trial: Mapping[int, Migrations], outcome: str, measurements: Measurements
) -> Estimate:
    waited = {
        trial: measure_mean_wait([event for event in cell.events if event.outcome == outcome], measurements)
        for trial, cell in by_trial.items()
    }
    return estimate_mean_interval(measurements.withhold(collect_trials(waited, f"no migration was {outcome}"), label))


def measure_mean_wait(events: Sequence[RequestedMigration], measurements: Measurements) -> Trial | None:
    """Mean time from the pick to the first byte of those that were served; None where none was."""
    waited_s = convert_to_floats(event.waited_s for event in events)
    return measurements.measure_mean_of_rows([event.session for event in events], waited_s)


def _explain_no_migration(by_trial: Mapping[int, Migrations], parameters: Mapping[str, object]) -> str:
    if "hot_tokens" not in parameters:
        return "the policy does not migrate"
    if parameters.get("migration") is False:
        return "migration is switched off"
    if not by_trial:
        return "no decision log of a cell that counts can be read"
    refused = _sum_counts(cell.refused for cell in by_trial.values())
    if not refused:
        return f"no session's instance had more than {parameters['hot_tokens']} prompt tokens pending (T_hot) at a pick"
    return f"every time that a session's instance was hot it stayed: {format_counts(refused)}"


def format_counts(counts: Mapping[str, int]) -> str:
    """`a 3, b 1`, the most frequent first."""
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _sum_counts(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))
