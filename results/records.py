"""The records Tracon writes: a row each in an append-only JSONL file while a cell runs, the same in Parquet after.

Times ending in `_ns` are `time.perf_counter_ns()` (CLOCK_MONOTONIC: one clock for every process of a host and boot).
A value that was not measured is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class RequestStatus(StrEnum):
    OK = "ok"
    ERROR = "error"
    """The engine or the connection failed it."""
    DROPPED = "dropped"
    """Never sent: the inflight cap was reached at its time."""
    CUT = "cut"
    """Still in flight when the cell ended."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request of an open-loop cell: a row of `requests_<phase>_<cell>.jsonl`."""

    index: int
    """Place in the schedule, 0-based; the same index means the same prompt in every config."""
    status: RequestStatus
    warmup: bool
    """Its intended send lies before the measured window."""
    t_intended_ns: int
    t_send_ns: int | None
    """Taken just before the request's first byte is written; connecting, where needed, comes after it."""
    t_first_token_ns: int | None
    t_last_token_ns: int | None
    t_end_ns: int | None
    """Response complete, failed, or cut."""
    input_tokens: int
    """As asked for."""
    output_tokens: int
    prompt_tokens: int | None
    """As the engine counted."""
    completion_tokens: int | None
    cached_tokens: int | None
    chunks: int
    """Chunks that carried at least one token."""
    inflight_at_send: int
    http_status: int | None = None
    finish_reason: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class MetricsRecord:
    """One scrape of `/metrics`: a row of `metrics_<phase>_<cell>.jsonl`."""

    t_ns: int
    t_unix_s: float
    moment: str
    """`baseline` (before the first request), `sample` (1 Hz) or `final` (after the last)."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Sample name with its labels other than engine and model_name, e.g. `vllm:num_requests_waiting`."""
    error: str | None = None
    """Why this scrape has no values."""


STEP_FIELDS_US = (
    "step_duration_us",
    "build_meta_us",
    "get_finished_us",
    "start_load_kv_us",
    "wait_for_save_us",
    "exec_us",
    "update_us",
    "engine_step_us",
    "period_us",
)
STEP_COUNTS = ("num_running", "num_waiting", "prefill_tokens", "decode_tokens", "scheduled_requests")
STEP_COLUMNS = ("t_ns", "step_id", "role", *STEP_FIELDS_US, *STEP_COUNTS)
"""Columns of `engine_step_<phase>_<cell>.jsonl`, one row per engine step, worker records joined by `step_id`.

- step_duration_us: `Scheduler.schedule()` entry to exit, as the specification defines it (not the whole step)
- engine_step_us: schedule entry to the exit of `update_from_output` of the same step
- exec_us: schedule exit to `update_from_output` entry; update_us: `update_from_output`
- period_us: between consecutive `update_from_output` exits while the engine stayed busy
- build_meta_us (engine), get_finished_us, start_load_kv_us, wait_for_save_us (worker): connector callbacks
"""


@dataclass(frozen=True, slots=True)
class CellRecord:
    """`cell_<phase>_<cell>.json`: what was measured and how, so that a folder can be analysed without the state file.

    It is the commit mark: written last, after every other artifact of the cell is in place.
    """

    cell: str
    config: str
    phase: str
    """`A`, `B` or `Bp` (B')."""
    load: Mapping[str, Any]
    """rate_per_s, input_tokens, output_tokens, seed, arrival, inflight_cap, warmup_s, min_duration_s, min_completed,
    max_duration_s."""
    t_start_ns: int
    t_window_start_ns: int
    """End of warm-up."""
    t_window_end_ns: int
    t_start_unix_s: float
    attempt: int
    stop_reason: str
    """`complete`, or `hard_stop` (max_duration_s came before min_completed)."""
    sent: int
    completed: int
    failed: int
    dropped: int
    fidelity: Mapping[str, Any]
    """lateness_p50_s, lateness_p90_s, lateness_p99_s, lateness_max_s, achieved_rate_per_s, achieved_ratio, degraded,
    reason."""
    step_timing: Mapping[str, Any]
    """available (bool), reason, unavailable_fields {field: why}, records_lost, worker_join_ratio."""
    instance: Mapping[str, Any]
    """instance id, url, pid, started_by, launch number."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """File name to SHA-256, of every file that cannot be made again from another."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """How the load process fared: cut, retried, wrong_length, late_bodies, completed_in_window, realtime."""
    version: int = 1
