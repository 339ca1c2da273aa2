"""The typed events of a run and their wire form: the vocabulary of the journal.

Every change of a run is one event, appended to the journal in the same transaction as the rows it changes. Live numbers
are bucketed where they arise and reach the journal at 1 Hz per instance; per-token and per-step samples never do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

from results.records.live import LiveLatency
from results.records.migrations import MigrationStep
from state.run import CellState, InstanceState, RunPlan, RunState, StageState

STEP_BUCKETS_US: tuple[float, ...] = (
    100, 200, 400, 600, 800, 1_000, 1_250, 1_500, 2_000, 2_500, 3_000, 4_000, 6_000, 8_000,
    12_000, 16_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
)  # fmt: skip
"""Upper edges of the engine-step histogram; one more bucket holds everything above the last edge."""


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events; `kind` is the wire name."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class RunPlanned(Event):
    """The run exists and its plan is frozen. Always the first event."""

    kind: ClassVar[str] = "run_planned"
    run: str
    plan: RunPlan
    tracon_version: str


@dataclass(frozen=True, slots=True)
class RunChanged(Event):
    kind: ClassVar[str] = "run_changed"
    state: RunState
    reason: str = ""
    pid: int | None = None
    """The run process that made the change."""


@dataclass(frozen=True, slots=True)
class RunTaken(Event):
    """Another process took the run over from one that had died without a word."""

    kind: ClassVar[str] = "run_taken"
    pid: int
    host: str
    dead_pid: int
    dead_host: str
    last_heartbeat_unix_s: float
    """The last sign of life of the dead process: no process ran the run from then on."""


@dataclass(frozen=True, slots=True)
class StageChanged(Event):
    kind: ClassVar[str] = "stage_changed"
    stage: str
    state: StageState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CellChanged(Event):
    kind: ClassVar[str] = "cell_changed"
    cell: str
    state: CellState
    attempt: int = 0
    """1 for the first attempt; 0 where the cell was never tried."""
    reason: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)
    """With DONE: the cell's headline numbers (units in the names), so that a viewer need not open an artifact."""
    degraded: str = ""
    """With DONE: why the client could not keep its schedule; empty when it could."""


@dataclass(frozen=True, slots=True)
class EngineDeath:
    """How an engine ended, as far as its exit code, its log and the kernel show."""

    ended_by: str
    """`SIGSEGV`, `exit code 1`, or `unknown`."""
    process: str = ""
    """vLLM's name of the process that ended first, e.g. `EngineCore`; empty = the main process."""
    pid: int | None = None
    """Of that process; None = not known."""
    frame: str = ""
    """Innermost Python frame of the thread that crashed, from faulthandler; empty = none was written."""
    cause: str = ""
    """The exception that ended it; empty = the log shows none."""
    kernel: str = ""
    """After SIGKILL: what the kernel shows of its OOM killer, or why that could not be read."""
    last_lines: tuple[str, ...] = ()
    """Of its log."""


@dataclass(frozen=True, slots=True)
class InstanceChanged(Event):
    """STARTING is written before the engine is used for anything, so that whichever process takes over can end it."""

    kind: ClassVar[str] = "instance_changed"
    instance: str
    """Unique in the run, e.g. `plain-3`."""
    config: str
    state: InstanceState
    pid: int | None = None
    pgid: int | None = None
    process_start: float | None = None
    """Creation time of `pid` (psutil, seconds since the epoch): tells a reused pid from the engine."""
    boot_id: str = ""
    url: str = ""
    started_by: str = ""
    """`spawn` or `fork_server`, with the executor, e.g. `fork_server/uni`."""
    reason: str = ""
    death: EngineDeath | None = None
    """With FAILED: how it ended; None = it did not end by itself, or an older Tracon wrote this."""


@dataclass(frozen=True, slots=True)
class InstanceSampled(Event):
    """One second of one instance under load. None = not measured in this second."""

    kind: ClassVar[str] = "instance_sampled"
    instance: str
    cell: str
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p90_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    pending_prefill_tokens: int | None = None
    """Prompt tokens of requests sent whose first token has not come back."""
    kv_usage: float | None = None
    """0..1, from the engine's gauge."""
    step_p50_us: float | None = None
    step_p90_us: float | None = None
    step_counts: tuple[int, ...] = ()
    """Engine steps of this second per bucket of STEP_BUCKETS_US, one more for the rest; empty = no step timing."""
    inflight: int = 0
    sent: int = 0
    """Counts since the cell began."""
    completed: int = 0
    failed: int = 0
    dropped: int = 0
    lateness_p99_s: float | None = None


@dataclass(frozen=True, slots=True)
class RoutedLoad:
    """What the router knew of one instance in one second; its own counters, not the engine's gauges."""

    instance: str
    available: bool
    """It may be picked."""
    why: str
    """Why it may not; empty where it may."""
    num_requests: int
    """BS: requests sent there that have not ended."""
    pending_prefill_tokens: int
    """PP: uncached prompt tokens of requests whose first token has not come back."""
    ongoing_tokens: int
    """OT: prompt tokens of requests that have not ended."""
    sessions: int
    """Sessions bound there now."""
    picks: int | None = None
    """Picks that it was part of since the router started; None = not counted per instance."""
    role: str = "both"
    """`both`, `prefill` or `decode`: only instances of one role are compared."""
    engine: str = ""
    """What the other events of the run call it, e.g. `plain-17`; empty = the same."""


@dataclass(frozen=True, slots=True)
class RoutedLine:
    """One pick as the latest decisions show it."""

    t_unix_s: float
    request: str
    session: str
    instance: str
    """Empty: it could go nowhere, see `reason`."""
    reason: str


RoutedLatency = LiveLatency
"""What the client saw in the last seconds, over all instances."""


@dataclass(frozen=True, slots=True)
class RouterSampled(Event):
    """One second of the router of a running cell."""

    kind: ClassVar[str] = "router_sampled"
    cell: str
    policy: str
    instances: tuple[RoutedLoad, ...]
    sessions: int = 0
    """Sessions that are bound to an instance."""
    decisions: Mapping[str, int] = field(default_factory=dict)
    """Picks by reason since the router started."""
    latest: tuple[RoutedLine, ...] = ()
    """The newest picks; those of earlier seconds may be among them again, word for word."""
    alarms: tuple[str, ...] = ()
    """Warnings of the process that runs the cell. The reader derives hot and cold instances (`state.routing`)."""
    latency: LiveLatency = field(default_factory=LiveLatency)


@dataclass(frozen=True, slots=True)
class MigrationChanged(MigrationStep, Event):
    """A step in the migration of one session: a line of the feed, and of the migrations table."""

    kind: ClassVar[str] = "migration_changed"
    cell: str = field(kw_only=True)
    """As the plan names it."""
    t_unix_s: float = field(kw_only=True)
    """When it happened; the journal's own time is up to a second later."""


@dataclass(frozen=True, slots=True)
class LifecycleMeasured(Event):
    """One request of a lifecycle cell, broken down into phases. The record in the run's folder holds its stamps."""

    kind: ClassVar[str] = "lifecycle_measured"
    cell: str
    context_tokens: int
    """C: prompt tokens that the decode instance held before."""
    new_tokens: int
    """N: prompt tokens that the prefill instance computes and moves."""
    output_tokens: int
    """O."""
    repetition: int
    """As in the name of its record."""
    warmup: bool = False
    """One of the first, which no result counts."""
    phases_ms: Mapping[str, float | None] = field(default_factory=dict)
    """By the record's names and in the order they pass, those that add up to the whole; None = not measured."""
    e2e_ms: float | None = None
    """By the client's clock from its send, as `ttft_ms`."""
    ttft_ms: float | None = None
    """By the client's clock from its send, as that of the combined instance."""
    transfer_ms: float | None = None
    """From the end of the prefill to the signal at the decode instance: several phases together."""
    bytes: int | None = None
    """Moved."""
    bandwidth_gbps: float | None = None
    """Of the write alone."""
    residual_share: float | None = None
    """|e2e - sum of the phases| / e2e: what the client saw beside the stamps."""
    colo_ttft_ms: float | None = None
    """TTFT of the same request on one combined instance."""
    colo_first: bool | None = None
    """That one was sent before the other, not after it; None = not known, or there is none."""
    discarded: str = ""
    """Why no result counts it; empty = it counts, unless it is a warm-up."""
    gaps: Mapping[str, str] = field(default_factory=dict)
    """What was not measured, by name, and why."""


@dataclass(frozen=True, slots=True)
class CellProgressed(Event):
    """How far the running cell is, at 1 Hz."""

    kind: ClassVar[str] = "cell_progressed"
    cell: str
    fraction: float
    """0..1 of the cell's expected work."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class RequestSubmitted(Event):
    """An operator asked for something."""

    kind: ClassVar[str] = "request_submitted"
    request: int
    action: str
    """`pause`, `resume`, `stop`, `stop_now`, `skip`, `retry`."""
    target: str = ""
    """For `skip` and `retry`: `cell:ID`, `config:NAME` or `stage:ID`; empty = all that failed (`retry`)."""
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class RequestAnswered(Event):
    kind: ClassVar[str] = "request_answered"
    request: int
    accepted: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Noted(Event):
    """A line for the feed that changes no state: a warning, a gate's result, what a stage decided."""

    kind: ClassVar[str] = "noted"
    level: str
    """`info`, `warning` or `error`."""
    subject: str
    """What it is about: a stage, cell, config or instance."""
    text: str


@dataclass(frozen=True, slots=True)
class Unknown(Event):
    """An event of a newer version: kept, shown, and never an error."""

    kind: ClassVar[str] = "unknown"
    wire_kind: str
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event as the journal holds it."""

    seq: int
    """1, 2, 3 ... without a gap."""
    t_unix_s: float
    t_mono_ns: int
    """`time.perf_counter_ns()` of the writer: durations inside one process's span only."""
    event: Event


KINDS: Mapping[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        RunPlanned,
        RunChanged,
        RunTaken,
        StageChanged,
        CellChanged,
        InstanceChanged,
        InstanceSampled,
        RouterSampled,
        MigrationChanged,
        LifecycleMeasured,
        CellProgressed,
        RequestSubmitted,
        RequestAnswered,
        Noted,
    )
}


LIVE_KINDS: tuple[type[Event], ...] = (InstanceSampled, RouterSampled, CellProgressed)
"""Numbers that come once a second: they change no state, make no feed line, and are not worth waiting for the disk."""


def wire_kind(event: Event) -> str:
    """The name under which the journal keeps the event."""
    return event.wire_kind if isinstance(event, Unknown) else event.kind


def encode(event: Event) -> bytes:
    """The event's body as JSON (its kind travels beside it).

    Text that is no Unicode (an engine's last words may hold any byte) is kept with `?` for what cannot be written.
    """
    body = event.body if isinstance(event, Unknown) else event
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(_writable(msgspec.to_builtins(body)))


def _writable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(item) for item in value]
    return value


def decode(kind: str, body: bytes | str) -> Event:
    """The event of a wire kind and body; a kind this version does not know becomes `Unknown`."""
    cls = KINDS.get(kind)
    if cls is None:
        return Unknown(wire_kind=kind, body=msgspec.json.decode(body))
    return msgspec.json.decode(body, type=cls)
