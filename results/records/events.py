"""The typed events of a run, as the journal (`state.sqlite`) holds them, and the states that they name.

Every change of a run is one event, appended to the journal in the same transaction as the rows it changes. Live numbers
are bucketed where they arise and reach the journal at 1 Hz per instance; per-token and per-step samples never do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from results.records.gpu import GpuSample
from results.records.live import LiveLatency
from results.records.migrations import MigrationStep
from results.records.plan import RunPlan

STEP_BUCKETS_US: tuple[float, ...] = (
    100, 200, 400, 600, 800, 1_000, 1_250, 1_500, 2_000, 2_500, 3_000, 4_000, 6_000, 8_000,
    12_000, 16_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
)  # fmt: skip
"""Upper edges of the engine-step histogram; one more bucket holds everything above the last edge."""


class RunState(StrEnum):
    PLANNED = "planned"
    RUNNING = "running"
    PAUSED = "paused"
    INTERRUPTED = "interrupted"
    """Stopped or killed before its end; `resume` continues from here."""
    DONE = "done"
    FAILED = "failed"


class StageState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class CellState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


class AttemptState(StrEnum):
    """How one attempt at a cell stands or ended."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"
    """The run was stopped or died in the middle of it; the cell went back to pending."""


class InstanceState(StrEnum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    GONE = "gone"
    FAILED = "failed"
    """It died or never became ready; its processes are gone too."""


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events; `kind` is the wire name."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True, slots=True)
class RunPlanned(Event):
    """The run exists and its plan is frozen. Always the first event."""

    kind: ClassVar[str] = "run_planned"
    run: str
    """Name of its folder."""
    plan: RunPlan
    """As `plan.json` holds it."""
    tracon_version: str
    """Version of the Tracon that made the plan."""


@dataclass(frozen=True, slots=True)
class RunChanged(Event):
    """The run is in another state."""

    kind: ClassVar[str] = "run_changed"
    state: RunState
    """From now on."""
    reason: str = ""
    """Empty = none is needed."""
    pid: int | None = None
    """The run process that made the change."""


@dataclass(frozen=True, slots=True)
class RunTaken(Event):
    """Another process took the run over from one that had died without a word."""

    kind: ClassVar[str] = "run_taken"
    pid: int
    """Process id of the process that runs it now."""
    host: str
    """Host of that process."""
    dead_pid: int
    """Process id of the process that died."""
    dead_host: str
    """Host of the process that died."""
    last_heartbeat_unix_s: float
    """The last sign of life of the dead process: no process ran the run from then on."""


@dataclass(frozen=True, slots=True)
class StageChanged(Event):
    """A stage is in another state."""

    kind: ClassVar[str] = "stage_changed"
    stage: str
    """As the plan names it."""
    state: StageState
    """From now on."""
    reason: str = ""
    """Empty = none is needed."""


@dataclass(frozen=True, slots=True)
class CellChanged(Event):
    """A cell is in another state."""

    kind: ClassVar[str] = "cell_changed"
    cell: str
    state: CellState
    """From now on."""
    attempt: int = 0
    """1 for the first attempt; 0 where the cell was never tried."""
    reason: str = ""
    """Why it failed, was skipped or was interrupted; empty = none is needed."""
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
    """Process id of that process; None = not known."""
    frame: str = ""
    """Innermost Python frame of the thread that crashed, from faulthandler; empty = none was written."""
    cause: str = ""
    """The exception that ended it; empty = the log shows none."""
    kernel: str = ""
    """After SIGKILL: what the kernel shows of its OOM killer, or why that could not be read."""
    last_lines: tuple[str, ...] = ()
    """Last lines of its log."""


SIMULATED = "simulated"
"""`started_by` of an instance that is a model and has no process."""


@dataclass(frozen=True, slots=True)
class InstanceFacts:
    """One launched engine process group."""

    instance: str
    """Unique in the run, e.g. `plain-3`."""
    config: str
    state: InstanceState
    """From now on."""
    pid: int | None = None
    """Process id of its main process; None = as before, or not known."""
    pgid: int | None = None
    """Id of its process group; None = as before, or not known."""
    process_start: float | None = None
    """Creation time of `pid` (psutil, seconds since the epoch)."""
    boot_id: str = ""
    """Boot id of its host since the last boot; empty = as before."""
    url: str = ""
    """Base URL; empty = as before."""
    started_by: str = ""
    """`spawn` or `fork_server`, with the executor, e.g. `fork_server/uni`; `simulated`; empty = as before."""
    reason: str = ""
    """Why it stops or failed; empty = none is needed."""


@dataclass(frozen=True, slots=True)
class InstanceChanged(InstanceFacts, Event):
    """STARTING is written before the engine is used for anything, so that whichever process takes over can end it."""

    kind: ClassVar[str] = "instance_changed"
    death: EngineDeath | None = None
    """With FAILED: how it ended; None = it did not end by itself, or an older Tracon wrote this."""
    start_ticks: int | None = None
    """Start of `pid` in clock ticks since boot: tells a reused pid from the engine; None = as before, or not known."""
    host: str = ""
    """Host of `pid`; empty = as before, or an older Tracon wrote this."""
    pid_namespace: str = ""
    """In which `pid` means something; empty = as before, or not known."""
    devices: tuple[str, ...] = ()
    """GPUs that it uses, as CUDA_VISIBLE_DEVICES names them; empty = as before, or none."""


@dataclass(frozen=True, slots=True)
class InstanceSampled(LiveLatency, Event):
    """One second of one instance under load. None = not measured in this second."""

    kind: ClassVar[str] = "instance_sampled"
    instance: str = field(kw_only=True)
    """As `instance_changed` names it."""
    cell: str = field(kw_only=True)
    """The cell that loads it."""
    running: float | None = None
    """Requests, from the engine's gauge."""
    waiting: float | None = None
    """Requests, from the engine's gauge."""
    pending_prefill_tokens: int | None = None
    """Prompt tokens of requests sent whose first token has not come back."""
    kv_usage: float | None = None
    """0..1, from the engine's gauge."""
    step_p50_us: float | None = None
    """Engine steps of this second."""
    step_p90_us: float | None = None
    """Engine steps of this second."""
    step_counts: tuple[int, ...] = ()
    """Engine steps of this second per bucket of STEP_BUCKETS_US, one more for the rest; empty = no step timing."""
    inflight: int = 0
    """Requests now."""
    sent: int = 0
    """Requests since the cell began, as the next three."""
    completed: int = 0
    """Answered in full."""
    failed: int = 0
    """Failed by engine or connection."""
    dropped: int = 0
    """Never sent: the inflight cap was reached at their time."""
    lateness_p99_s: float | None = None
    """Actual less intended send."""


@dataclass(frozen=True, slots=True)
class RoutedLoad:
    """What the router knew of one instance in one second; its own counters, not the engine's gauges."""

    instance: str
    """By the router's name."""
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
    """Time of the pick."""
    request: str
    """Its `x-request-id`."""
    session: str
    """Empty: it came without a session id."""
    instance: str
    """Empty: it could go nowhere, see `reason`."""
    reason: str
    """The policy's short code."""


@dataclass(frozen=True, slots=True)
class RouterSampled(Event):
    """One second of the router of a running cell."""

    kind: ClassVar[str] = "router_sampled"
    cell: str
    policy: str
    """Its name."""
    instances: tuple[RoutedLoad, ...]
    """All of them, available or not."""
    sessions: int = 0
    """Sessions that are bound to an instance."""
    decisions: Mapping[str, int] = field(default_factory=dict)
    """Picks by reason since the router started."""
    latest: tuple[RoutedLine, ...] = ()
    """The newest picks; those of earlier seconds may be among them again, word for word."""
    alarms: tuple[str, ...] = ()
    """Warnings of the process that runs the cell. The reader derives hot and cold instances (`state.routing`)."""
    latency: LiveLatency = field(default_factory=LiveLatency)
    """What the client saw in the last seconds, over all instances."""


@dataclass(frozen=True, slots=True)
class GpusSampled(Event):
    """What the GPUs did in one second of a measured cell."""

    kind: ClassVar[str] = "gpus_sampled"
    samples: tuple[GpuSample, ...]
    """One of each GPU that engines of the run use, as `gpu.csv` has it."""


@dataclass(frozen=True, slots=True)
class MigrationChanged(MigrationStep, Event):
    """A step in the migration of one session: a line of the feed, and of the migrations table."""

    kind: ClassVar[str] = "migration_changed"
    cell: str = field(kw_only=True)
    t_unix_s: float = field(kw_only=True)
    """When it happened; the journal's own time is up to a second later."""


RESIDUAL_BELOW = 0.05
"""The share of a request's E2E that its phases may leave unexplained (specs/pd_lifecycle, "Success Criteria", 1)."""


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
    """Bandwidth of the write alone."""
    residual_share: float | None = None
    """|e2e - sum of the phases| / e2e: what the client saw beside the stamps."""
    colo_ttft_ms: float | None = None
    """TTFT of the same request on one combined instance."""
    colo_first: bool | None = None
    """That one was sent before the other, not after it; None = not known, or there is none."""
    plain_ttft_ms: float | None = None
    """TTFT of the same request on one combined instance without a connector."""
    plain_first: bool | None = None
    """That one was sent before the handover, not after it; None = not known, or there is none."""
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
    """What an operator reads beside it."""


@dataclass(frozen=True, slots=True)
class PaceChosen(Event):
    """How fast simulated cells pass, from the next start of the run process on. It shapes no number."""

    kind: ClassVar[str] = "pace_chosen"
    pace: float
    """Simulated seconds per second; 0 = as fast as the host can."""


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """What an operator asked for."""

    request: int
    """1, 2, 3 ... in a run."""
    action: str
    """`pause`, `resume`, `stop`, `stop_now`, `skip`, `retry`."""
    target: str = ""
    """For `skip` and `retry`: `cell:ID`, `config:NAME` or `stage:ID`; empty = all that failed (`retry`)."""
    reason: str = ""
    """As the operator gave it."""
    by: str = ""
    """User and process id."""


@dataclass(frozen=True, slots=True)
class RequestSubmitted(OperatorRequest, Event):
    """An operator asked for something."""

    kind: ClassVar[str] = "request_submitted"


@dataclass(frozen=True, slots=True)
class RequestAnswered(Event):
    """The run process has answered an operator's request."""

    kind: ClassVar[str] = "request_answered"
    request: int
    """Its number."""
    accepted: bool
    """It is, or will be, done."""
    detail: str = ""
    """When, or why not."""


@dataclass(frozen=True, slots=True)
class Noted(Event):
    """A line for the feed that changes no state: a warning, a gate's result, what a stage decided."""

    kind: ClassVar[str] = "noted"
    level: str
    """`info`, `warning` or `error`."""
    subject: str
    """What it is about: a stage, cell, config or instance."""
    text: str
    """As an operator reads it."""


EVENTS: tuple[type[Event], ...] = (
    RunPlanned,
    RunChanged,
    RunTaken,
    StageChanged,
    CellChanged,
    InstanceChanged,
    InstanceSampled,
    RouterSampled,
    GpusSampled,
    MigrationChanged,
    LifecycleMeasured,
    CellProgressed,
    PaceChosen,
    RequestSubmitted,
    RequestAnswered,
    Noted,
)
"""All kinds, as they are declared."""
