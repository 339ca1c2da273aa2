"""Every event as one line that an operator can read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from results.records import events
from results.records.count import format_count
from results.records.events import CellState, InstanceState, RunState, StageState
from results.records.gpu import describe_gpu
from results.records.named_number import list_numbers
from results.records.percent import format_percent
from state.events import Recorded, Unknown
from state.routing import Warned

_SHOWN_NUMBERS = 4


@dataclass(frozen=True, slots=True)
class FeedLine:
    t_unix_s: float
    level: str
    """`info`, `warning` or `error`."""
    subject: str
    """The run, stage, cell, instance or request it is about."""
    text: str


def make_alarm_lines(begun: Iterable[Warned], ended: Iterable[Warned], t_unix_s: float) -> tuple[FeedLine, ...]:
    """A line for each alarm that began, then for each that ended."""
    lines = [FeedLine(t_unix_s, "warning", each.engine, each.text) for each in begun]
    for each in ended:
        lasted_s = each.seen_unix_s - each.since_unix_s + 1.0
        lines.append(FeedLine(t_unix_s, "info", each.engine, f"no longer {each.kind}, after {lasted_s:.0f} s"))
    return tuple(lines)


def make_feed_line(recorded: Recorded) -> FeedLine:
    """The line for an event of any kind."""
    level, subject, text = _describe_event(recorded.event)
    return FeedLine(recorded.t_unix_s, level, subject, text)


def _describe_event(event: events.Event) -> tuple[str, str, str]:
    match event:
        case events.RunPlanned():
            return "info", event.run, _describe_plan(event)
        case events.RunChanged():
            return _RUN_LEVELS.get(event.state, "info"), "run", _join_reason(event.state, event.reason)
        case events.RunTaken():
            dead = f"process {event.dead_pid} on {event.dead_host}, which died"
            return "warning", "run", f"taken over by process {event.pid} on {event.host} from {dead}"
        case events.StageChanged():
            level = "error" if event.state is StageState.FAILED else "info"
            return level, event.stage, _join_reason(event.state, event.reason)
        case events.CellChanged():
            return _describe_cell(event)
        case events.InstanceChanged():
            return _describe_instance(event)
        case _:
            return _describe_rest(event)


def _describe_rest(event: events.Event) -> tuple[str, str, str]:
    match event:
        case events.RequestSubmitted():
            asked = " ".join(part for part in (event.action, event.target) if part)
            by = f" by {event.by}" if event.by else ""
            return "info", f"request {event.request}", _join_reason(f"{asked} requested{by}", event.reason)
        case events.RequestAnswered():
            level, word = ("info", "accepted") if event.accepted else ("warning", "refused")
            return level, f"request {event.request}", _join_reason(word, event.detail)
        case events.Noted():
            return event.level, event.subject, event.text
        case events.PaceChosen():
            return "info", "pace", _describe_pace(event)
        case events.CellProgressed() | events.InstanceSampled() | events.RouterSampled() | events.GpusSampled():
            return "info", *_describe_second(event)
        case events.MigrationChanged():
            return _describe_migration(event)
        case events.LifecycleMeasured():
            return _describe_lifecycle(event)
        case Unknown():
            return "info", event.wire_kind, "an event of a newer Tracon; this one cannot show it"
        case _:
            return "info", event.kind, "an event without a text"


def _describe_second(
    event: events.CellProgressed | events.InstanceSampled | events.RouterSampled | events.GpusSampled,
) -> tuple[str, str]:
    """What comes once a second: subject and text."""
    match event:
        case events.CellProgressed():
            return event.cell, _join_reason(format_percent(event.fraction), event.note)
        case events.InstanceSampled():
            return event.instance, _describe_sample(event)
        case events.RouterSampled():
            return event.cell, _describe_router(event)
        case events.GpusSampled():
            return "GPU", "; ".join(map(describe_gpu, event.samples)) or "none answered"


_RUN_LEVELS: Mapping[RunState, str] = {RunState.FAILED: "error", RunState.INTERRUPTED: "warning"}


def _join_reason(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else str(what)


def _describe_plan(event: events.RunPlanned) -> str:
    plan = event.plan
    cells = format_count(len(plan.cells), "cell", "cells")
    return f"{plan.experiment} on {plan.profile}/{plan.preset}: {cells}, about {plan.estimated_s:.0f} s"


def _describe_cell(event: events.CellChanged) -> tuple[str, str, str]:
    attempt = f" (attempt {event.attempt})" if event.attempt > 1 else ""
    if event.state is CellState.DONE:
        text = _join_reason(f"done{attempt}", ", ".join(islice(list_numbers(event.summary), _SHOWN_NUMBERS)))
        if event.degraded:
            return "warning", event.cell, f"{text}; degraded: {event.degraded}"
        return "info", event.cell, text
    level = "error" if event.state is CellState.FAILED else "info"
    return level, event.cell, _join_reason(f"{event.state}{attempt}", event.reason)


def _describe_instance(event: events.InstanceChanged) -> tuple[str, str, str]:
    level = "error" if event.state is InstanceState.FAILED else "info"
    facts = (f"pid {event.pid}" if event.pid is not None else "", event.url, event.started_by)
    text = " ".join((str(event.state), *(fact for fact in facts if fact)))
    return level, event.instance, _join_reason(text, event.reason)


def _describe_sample(event: events.InstanceSampled) -> str:
    numbers = {
        "ttft_p50_s": event.ttft_p50_s,
        "tpot_p50_s": event.tpot_p50_s,
        "running": event.running,
        "waiting": event.waiting,
        "step_p50_us": event.step_p50_us,
    }
    return ", ".join((*list_numbers(numbers), f"completed {event.completed}/{event.sent}"))


def _describe_router(event: events.RouterSampled) -> str:
    pending = sum(load.pending_prefill_tokens for load in event.instances)
    counts = f"{sum(event.decisions.values())} picks, {event.sessions} sessions, {pending} pending prefill tokens"
    return _join_reason(f"{event.policy} over {len(event.instances)} instances: {counts}", "; ".join(event.alarms))


def _describe_migration(event: events.MigrationChanged) -> tuple[str, str, str]:
    subject = f"session {event.session}"
    way = f"{event.source} -> {event.target or 'nowhere'}"
    more = event.text or event.reason
    match event.phase:
        case "started":
            return "info", subject, _join_reason(f"migrates {way}", more)
        case "done" if event.reason == "recomputed":
            return (
                "warning",
                subject,
                _join_reason(f"served at {event.target} without KV from {event.source}", event.text),
            )
        case "done" if event.reason == "unneeded":
            return "info", subject, _join_reason(f"migrated {way}, no KV had to be moved", event.text)
        case "done":
            return "info", subject, _join_reason(f"migrated {way}", _describe_transfer(event))
        case "failed":
            return "warning", subject, _join_reason(f"did not migrate {way}, it stays", more)
        case "refused":
            reason = ", ".join(dict.fromkeys(part for part in (event.reason, event.text) if part))
            return "info", subject, _join_reason(f"stays at {event.source}, which is hot", reason)
    return "info", subject, _join_reason(f"{event.phase} {way}", more)


def _describe_transfer(event: events.MigrationChanged) -> str:
    tokens = "tokens not counted" if event.external_tokens is None else f"{event.external_tokens} tokens transferred"
    moved = "" if event.bytes is None else f"{_format_three_digits(event.bytes / 1e6)} MB"
    took = "" if event.transfer_s is None else f"in {_format_three_digits(event.transfer_s * 1e3)} ms"
    rest = " ".join(part for part in (moved, took) if part)
    return ", ".join(part for part in (tokens, rest) if part)


def _format_three_digits(value: float) -> str:
    """At least three significant digits; an exponent only below 0.0001."""
    return f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"


def _describe_pace(event: events.PaceChosen) -> str:
    if not event.pace:
        return "cells are simulated as fast as the host can"
    return f"cells are simulated one at a time, {event.pace:g} times as fast as real time"


def _describe_lifecycle(event: events.LifecycleMeasured) -> tuple[str, str, str]:
    size = f"C {event.context_tokens} N {event.new_tokens} O {event.output_tokens} rep {event.repetition}"
    if event.discarded:
        return "warning", event.cell, f"{size} does not count: {event.discarded}"
    e2e = "not measured" if event.e2e_ms is None else f"{event.e2e_ms:.4g} ms"
    return "info", event.cell, f"{size}: {e2e}"
