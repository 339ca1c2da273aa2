"""What a reader sees of the router of a cell: its newest second, a bounded past, and the alarms that follow from both.

Alarms follow from the samples alone, so that the console, `tracon status --json` and a replay of the journal say the
same; the run process can add its own (`RouterSampled.alarms`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from results.records.events import MigrationChanged, RoutedLine, RoutedLoad, RouterSampled
from results.records.live import LiveLatency
from state.bindings import Lives, fold_migration_into_lives, fold_picks_into_lives

ROUTING_SAMPLES = 900
"""Seconds of load terms in the view: 15 minutes."""
ROUTED_LINES = 200
"""Decisions in the view."""
HOT_S = 5.0
"""An instance is hot when in each of this many seconds it ..."""
HOT_FACTOR = 3.0
"""... had more than this many times the mean pending prefill tokens of the others ..."""
HOT_REQUESTS = 2
"""... and at least this many requests: one long prompt alone is no fault of the routing."""
COLD_S = 10.0
"""An instance is cold when for this many seconds it had no request and no pick ..."""
COLD_REQUESTS = 2.0
"""... while the others held at least this many requests each, in the mean."""
ALARM_GONE_S = 10.0
"""An alarm has ended when it was absent for this long: one that flickers is reported once."""
_JITTER_S = 0.5
"""Samples of one second do not come exactly one second apart."""
_SEEN = 0.5
"""The share of a span's seconds that must have been sampled."""

LoadSample = tuple[float, tuple[RoutedLoad, ...]]
"""Unix seconds, and the load terms of every instance."""
LatencySample = tuple[float, LiveLatency]
"""Unix seconds, and what the client saw."""
_Compared = tuple[RoutedLoad, list[RoutedLoad]]
"""An instance and the others of its role in one second."""


class AlarmKind(StrEnum):
    HOT = "hot"
    """It has far more prompt left to prefill than the others, and has had for seconds."""
    COLD = "cold"
    """It gets nothing while the others are loaded."""
    NEVER_REBALANCED = "never rebalanced"
    """It came back, and has had nothing since while the others are loaded."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """What is wrong with the routing to one instance."""

    kind: AlarmKind
    instance: str
    text: str


@dataclass(frozen=True, slots=True)
class Warned:
    """An alarm whose beginning is in the feed and whose end is not yet."""

    kind: AlarmKind
    instance: str
    engine: str
    """What the other events of the run call the instance."""
    text: str
    """As it was when it began."""
    since_unix_s: float
    seen_unix_s: float


@dataclass(frozen=True, slots=True)
class RoutingView:
    """The router of one attempt at one cell."""

    cell: str
    attempt: int
    latest: RouterSampled
    latest_unix_s: float
    history: tuple[LoadSample, ...] = ()
    """Oldest first, at most `ROUTING_SAMPLES`."""
    lines: tuple[RoutedLine, ...] = ()
    """The newest decisions, oldest first, each once, at most `ROUTED_LINES`."""
    latencies: tuple[LatencySample, ...] = ()
    """Latencies of this cell and of those before it, oldest first, at most `ROUTING_SAMPLES`."""
    lives: Lives = field(default_factory=dict)
    """The instances that the cell's sessions were bound to, as far as seen."""
    warned: tuple[Warned, ...] = ()

    @property
    def policy(self) -> str:
        return self.latest.policy

    @property
    def shares(self) -> Mapping[str, float | None]:
        """By instance, its share (0..1) of the picks of its role; of those in `lines` where the router counts none.

        None before the first pick.
        """
        counts, totals = _count_picks(self), Counter[str]()
        for load in self.latest.instances:
            totals[load.role] += counts[load.instance]
        roles = {load.instance: totals[load.role] for load in self.latest.instances}
        return {name: counts[name] / total if total else None for name, total in roles.items()}

    @property
    def alarms(self) -> tuple[str, ...]:
        """What is wrong now: reported by the run process, then derived from the samples."""
        return (*self.latest.alarms, *(alarm.text for alarm in find_alarms(self.history)))


def fold_sample_into_routing(
    before: RoutingView | None,
    event: RouterSampled,
    t_unix_s: float,
    attempt: int,
    failed: Container[tuple[str, str]] = (),
) -> RoutingView:
    """The view after one more second. Another cell, or another attempt at it, has a new router and starts empty.

    `failed`: (migration, target) of its migrations that are known to have failed.
    """
    latencies = () if before is None else before.latencies
    if before is None or (before.cell, before.attempt) != (event.cell, attempt):
        before = RoutingView(event.cell, attempt, event, t_unix_s)
    known = set(before.lines)
    new = sorted({*event.latest} - known, key=lambda line: (line.t_unix_s, line.request))
    history = (*before.history[1 - ROUTING_SAMPLES :], (t_unix_s, event.instances))
    return replace(
        before,
        latest=event,
        latest_unix_s=t_unix_s,
        history=history,
        lines=(*before.lines, *new)[-ROUTED_LINES:],
        latencies=(*latencies[1 - ROUTING_SAMPLES :], (t_unix_s, event.latency)),
        lives=fold_picks_into_lives(before.lives, new, failed),
        warned=_update_warned(before.warned, find_alarms(history), event.instances, t_unix_s),
    )


def fold_migration_into_routing(
    before: RoutingView | None, event: MigrationChanged, attempt: int
) -> RoutingView | None:
    """The view after a step of a migration; one of another cell or attempt changes nothing."""
    if before is None or (before.cell, before.attempt) != (event.cell, attempt):
        return before
    lives = fold_migration_into_lives(before.lives, event)
    return before if lives is before.lives else replace(before, lives=lives)


def find_begun_and_ended(
    before: RoutingView | None, after: RoutingView
) -> tuple[tuple[Warned, ...], tuple[Warned, ...]]:
    """The alarms that began and that ended in the newest second; those of an earlier router do not end."""
    same = before is not None and (before.cell, before.attempt) == (after.cell, after.attempt)
    known = before.warned if before is not None and same else ()
    old, new = ({(each.kind, each.instance) for each in warned} for warned in (known, after.warned))
    begun = tuple(each for each in after.warned if (each.kind, each.instance) not in old)
    return begun, tuple(each for each in known if (each.kind, each.instance) not in new)


def _update_warned(
    before: tuple[Warned, ...], now: Sequence[Alarm], loads: Sequence[RoutedLoad], t_unix_s: float
) -> tuple[Warned, ...]:
    present = {(alarm.kind, alarm.instance) for alarm in now}
    stay = [
        replace(each, seen_unix_s=t_unix_s) if (each.kind, each.instance) in present else each
        for each in before
        if (each.kind, each.instance) in present or t_unix_s - each.seen_unix_s < ALARM_GONE_S
    ]
    known = {(each.kind, each.instance) for each in stay}
    engines = {load.instance: load.engine or load.instance for load in loads}
    new = (alarm for alarm in now if (alarm.kind, alarm.instance) not in known)
    return (
        *stay,
        *(Warned(each.kind, each.instance, engines[each.instance], each.text, t_unix_s, t_unix_s) for each in new),
    )


def make_routing_json(routing: RoutingView) -> dict[str, Any]:
    """The router as JSON values: the part `routing` of `tracon status --json`."""
    shares = routing.shares
    loads = routing.latest.instances
    return {
        "t_unix_s": routing.latest_unix_s,
        "cell": routing.cell,
        "attempt": routing.attempt,
        "policy": routing.policy,
        "instances": [{**asdict(load), "share_of_picks": shares[load.instance]} for load in loads],
        "sessions": routing.latest.sessions,
        "decisions": dict(routing.latest.decisions),
        "latency": asdict(routing.latest.latency),
        "latest": [asdict(line) for line in routing.latest.latest],
        "alarms": list(routing.alarms),
        "sessions_moved": sum(len(stays) > 1 for stays in routing.lives.values()),
    }


def _count_picks(routing: RoutingView) -> dict[str, int]:
    loads = routing.latest.instances
    if all(load.picks is not None for load in loads):
        return {load.instance: load.picks or 0 for load in loads}
    return {load.instance: sum(line.instance == load.instance for line in routing.lines) for load in loads}


def find_alarms(history: Sequence[LoadSample]) -> tuple[Alarm, ...]:
    """What is wrong at the end of these seconds (oldest first); nothing where too few of them were seen."""
    if not history:
        return ()
    of_each = (_find_alarms_of(history, load.instance) for load in history[-1][1] if load.available)
    return tuple(alarm for of_one in of_each for alarm in of_one)


def _find_alarms_of(history: Sequence[LoadSample], instance: str) -> Iterator[Alarm]:
    hot, cold = _compare_span(history, HOT_S, instance), _compare_span(history, COLD_S, instance)
    if hot and all(_is_far_above(own, others) for own, others in hot):
        own, others = hot[-1]
        pending = (
            f"{own.pending_prefill_tokens} pending prefill tokens, the others {_compute_mean_pending(others):.0f} each"
        )
        yield Alarm(AlarmKind.HOT, instance, f"hot: {instance} has {pending}")
    if not cold or not all(_is_idle_beside_load(own, others) for own, others in cold):
        return
    back_s = _measure_idle_since_return_s(history, instance)
    if back_s is not None:
        text = f"never rebalanced: {instance} came back {back_s:.0f} s ago and has had no request since"
        yield Alarm(AlarmKind.NEVER_REBALANCED, instance, text)
    elif cold[0][0].picks == cold[-1][0].picks:
        text = f"cold: {instance} has had no request for {COLD_S:.0f} s while the others are loaded"
        yield Alarm(AlarmKind.COLD, instance, text)


def _compare_span(history: Sequence[LoadSample], seconds: float, instance: str) -> list[_Compared]:
    """The instance and the others of its role in each of the last `seconds`.

    Empty where one of these seconds lacks the instance or the others, or where too few seconds were sampled.
    """
    end = history[-1][0]
    span: list[_Compared] = []
    for t_unix_s, loads in reversed(history):
        own = _load_of(loads, instance)
        others = [load for load in loads if own and load.available and load.role == own.role and load is not own]
        if own is None or not own.available or not others:
            return []
        span.append((own, others))
        if t_unix_s <= end - seconds + _JITTER_S:
            return span[::-1] if len(span) >= seconds * _SEEN else []
    return []


def _load_of(loads: Sequence[RoutedLoad], instance: str) -> RoutedLoad | None:
    return next((load for load in loads if load.instance == instance), None)


def _compute_mean_pending(loads: Sequence[RoutedLoad]) -> float:
    return sum(load.pending_prefill_tokens for load in loads) / len(loads)


def _is_far_above(own: RoutedLoad, others: Sequence[RoutedLoad]) -> bool:
    return own.num_requests >= HOT_REQUESTS and own.pending_prefill_tokens > HOT_FACTOR * _compute_mean_pending(others)


def _is_idle_beside_load(own: RoutedLoad, others: Sequence[RoutedLoad]) -> bool:
    return own.num_requests == 0 and sum(load.num_requests for load in others) >= COLD_REQUESTS * len(others)


def _measure_idle_since_return_s(history: Sequence[LoadSample], instance: str) -> float | None:
    """Seconds since the instance became available again; None where it was never away, or has had work since."""
    end, loads = history[-1]
    last, back = _load_of(loads, instance), end
    for t_unix_s, earlier in reversed(history):
        own = _load_of(earlier, instance)
        if own is None or last is None:
            return None
        if not own.available:
            return end - back
        if own.num_requests or own.picks != last.picks:
            return None
        back = t_unix_s
    return None
