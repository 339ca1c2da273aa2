"""The records Tracon writes: a row each in an append-only JSONL file while a cell runs, the same in Parquet after.

Times ending in `_ns` are `time.perf_counter_ns()` (CLOCK_MONOTONIC: one clock for every process of a host and boot).
A value that was not measured is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

CELL_VERSION = 1


TIMED_OUT = "timed out"
"""How the error of a request begins that its client gave up waiting for: slow, not failed."""


class RequestStatus(StrEnum):
    OK = "ok"
    ERROR = "error"
    """The engine or the connection failed it."""
    DROPPED = "dropped"
    """Never sent: the inflight cap was reached at its time."""
    CUT = "cut"
    """Still in flight when the cell ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """What the load client records of every request, sent on a schedule or replayed from a trace."""

    index: int
    """Position in the schedule or among all turns of the replay, 0-based: the same index is the same prompt in every
    cell."""
    status: RequestStatus
    """How it ended."""
    t_send_ns: int | None
    """Just before the request's first byte is written; connecting, where needed, comes after it. None = never sent."""
    t_first_token_ns: int | None
    """The read that completed the first chunk with a token."""
    t_last_token_ns: int | None
    """The read that completed the last chunk with a token."""
    t_end_ns: int | None
    """Response complete, failed, or cut."""
    input_tokens: int
    """Requested prompt length."""
    output_tokens: int
    """Requested output length."""
    prompt_tokens: int | None
    """As the engine counted."""
    completion_tokens: int | None
    """As the engine counted, else the token ids in the chunks."""
    cached_tokens: int | None
    """Prompt tokens from the prefix cache, as the engine reported in the response's usage."""
    chunks: int
    """Chunks that carried at least one token."""
    http_status: int | None = None
    """None = no response head came."""
    finish_reason: str | None = None
    """As the engine reported, e.g. `length`."""
    error: str | None = None
    """Why it failed, or was never sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord(SentRequest):
    """One request of an open-loop cell: a row of `requests_<phase>_<cell>.jsonl`."""

    warmup: bool
    """Its intended send is before the measured window."""
    t_intended_ns: int
    """When the schedule sends it."""
    inflight_at_send: int
    """Requests in flight just before it."""


@dataclass(frozen=True, slots=True)
class MetricsRecord:
    """One scrape of `/metrics`: a row of `metrics_<phase>_<cell>.jsonl`."""

    t_ns: int
    """Just before the scrape."""
    t_unix_s: float
    """The same moment by the wall clock."""
    moment: str
    """`baseline` (before the first request), `sample` (1 Hz) or `final` (after the last)."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Sample name with its labels other than engine and model_name, e.g. `vllm:num_requests_waiting`."""
    error: str | None = None
    """Why this scrape has no values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One engine step: a row of `engine_step_<phase>_<cell>.jsonl`, worker records joined by `step_id`."""

    t_ns: int
    """Entry of `Scheduler.schedule()`."""
    step_id: int
    """Counts the steps of one engine process."""
    role: str | None = None
    """Role of the ring: `engine`."""
    step_duration_us: float | None = None
    """`Scheduler.schedule()` entry to exit, as specs/connector_tax defines it: not the whole step."""
    build_meta_us: float | None = None
    """The connector's `build_connector_meta`, in the engine."""
    get_finished_us: float | None = None
    """The connector's `get_finished`, in the worker."""
    start_load_kv_us: float | None = None
    """The connector's `start_load_kv`, in the worker."""
    wait_for_save_us: float | None = None
    """The connector's `wait_for_save`, in the worker."""
    exec_us: float | None = None
    """`schedule` exit to `update_from_output` entry."""
    update_us: float | None = None
    """`update_from_output`."""
    engine_step_us: float | None = None
    """`schedule` entry to the exit of `update_from_output` of the same step."""
    period_us: float | None = None
    """Between consecutive `update_from_output` exits while the engine stayed busy."""
    child1_us: float | None = None
    """Callbacks of the first connector inside a MultiConnector: its `build_connector_meta`, `get_finished` and
    `start_load_kv` together."""
    child2_us: float | None = None
    """The same of the second."""
    num_running: int | None = None
    """Requests in the scheduler's running queue."""
    num_waiting: int | None = None
    """Requests in the scheduler's waiting queue."""
    prefill_tokens: int | None = None
    """Prompt tokens scheduled in this step."""
    decode_tokens: int | None = None
    """Output tokens scheduled in this step."""
    scheduled_requests: int | None = None
    """Requests with at least one token in this step."""


STEP_COLUMNS: tuple[str, ...] = tuple(one.name for one in fields(StepRecord))
STEP_FIELDS_US: tuple[str, ...] = tuple(name for name in STEP_COLUMNS if name.endswith("_us"))
"""Durations of a step."""
STEP_SUMS_US = ("connector_total_us", "all_callbacks_us")
"""What the analysis adds up of them (results.measures.step_durations)."""
SAVE_FIELD_US = "wait_for_save_us"
"""Null too where a step did not call it, as most do not."""
CHILD_FIELDS_US = ("child1_us", "child2_us")
"""Null but inside a MultiConnector."""
WORKER_FIELDS_US = ("get_finished_us", "start_load_kv_us", SAVE_FIELD_US, *CHILD_FIELDS_US)
"""What the worker measures, joined to the engine's step by `step_id`."""
STEP_COUNTS: tuple[str, ...] = tuple(name for name in STEP_COLUMNS[3:] if name not in STEP_FIELDS_US)


@dataclass(frozen=True, slots=True)
class CellRecord:
    """`cell_<phase>_<cell>.json`: what was measured and how, so that a folder can be analyzed without the state file.

    It is the commit mark: written last, after every other artifact of the cell is in place.
    """

    cell: str
    config: str
    phase: str
    """`A`, `B` or `Bp` (B')."""
    load: Mapping[str, Any]
    """rate_per_s, input_tokens, output_tokens, seed, arrival, inflight_cap, warmup_s, min_duration_s, min_completed,
    max_duration_s, drain_s."""
    t_start_ns: int
    """Intended time of the first arrival."""
    t_window_start_ns: int
    """End of warm-up."""
    t_window_end_ns: int
    """When sending stopped."""
    t_start_unix_s: float
    """`t_start_ns` by the wall clock."""
    attempt: int
    stop_reason: str
    """`complete`, or `hard_stop` (max_duration_s came before min_completed)."""
    sent: int
    """Requests, warm-up included, as the next three."""
    completed: int
    """Status `ok`."""
    failed: int
    """Status `error`."""
    dropped: int
    """Never sent: the cap on requests in flight was reached."""
    fidelity: Mapping[str, Any]
    """lateness_p50_s, lateness_p90_s, lateness_p99_s, lateness_max_s, achieved_rate_per_s, achieved_ratio, degraded,
    reason."""
    step_timing: Mapping[str, Any]
    """available (bool), reason, unavailable_fields {field: why}, records_lost, worker_join_ratio, batch_queue (steps
    overlap: asynchronous scheduling or pipeline stages), children (classes of a MultiConnector's connectors)."""
    instance: Mapping[str, Any]
    """instance id, url, pid, started_by; settings: what vLLM settled on for it (async_scheduling, cudagraph_mode,
    kv_blocks, kv_capacity_tokens ..), empty where the probe did not run."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """File name to SHA-256, of every file that cannot be made again from another."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """How the load process fared: cut, retried, wrong_length, late_bodies, completed_in_window, realtime."""
    gpu: Mapping[str, Any] = field(default_factory=dict)
    """As `GpuUse` has it: gpus (indices of those that the engine used; all else is of these), utilisation (0..1, mean),
    memory_used_mib (largest sum), clock_mhz and power_w (means), temperature_c (highest), limited {what limited clocks:
    share of the samples}, reason (why none)."""
    version: int = CELL_VERSION


@dataclass(frozen=True, slots=True)
class EngineFault:
    """An engine that died, or a step of it that stalled: a row of the run's `engine_faults.jsonl`."""

    t_unix_s: float
    """When it was noticed."""
    instance: str
    """By the journal's name."""
    config: str
    what: str
    """`death` or `stall`."""
    text: str
    """In words, to follow the instance's name."""
    frame: str = ""
    """Innermost Python frame; empty = not known."""
    signal: str = ""
    """With a death: `SIGSEGV`, or `exit code 1`."""
    last_lines: tuple[str, ...] = ()
    """With a death: the last lines of the engine's log."""
