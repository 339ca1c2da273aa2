"""What a cell of the `routing` experiment leaves behind: one policy, one trial, fresh engines.

RUN/results/<date>_<policy>/trial_<n>/
  config.json            policy, parameters, trace, replay, engines: what was asked for
  metrics.jsonl          a TurnRecord per replayed turn (+ .parquet)
  decisions.jsonl        a DecisionRecord per pick
  engines.jsonl          an EngineSample per instance and second
  metrics.summary.json   the cell's numbers
  breakdown.json         per instance: requests, tokens, TTFT, APC, decisions by reason
  apc.json               per instance: the engine's own prompt and cached token counters, before and after
  gpu_util.csv           GPU utilisation at 1 Hz; only its header and a reason where there is no GPU
  cell.json              RoutingCell, written last: the commit mark
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results.records import RequestStatus


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One replayed turn. Times ending in `_ns` are `time.perf_counter_ns()`; None = not measured."""

    index: int
    """Place among all turns of the replay, fixed before it starts: the same index is the same turn in every cell."""
    request: str
    """The `x-request-id` it was sent with: joins it to its decisions."""
    session: str
    agent: str
    turn: int
    status: RequestStatus
    """`cut`: in flight or not yet sent when the replay ended; `dropped`: a failed turn had ended its session before."""
    t_due_ns: int | None
    """When it was to be sent: what it waited for had ended and its think time was over. None = that never came."""
    t_send_ns: int | None
    t_first_token_ns: int | None
    t_last_token_ns: int | None
    t_end_ns: int | None
    input_tokens: int
    output_tokens: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    """As the engine reported in the response's usage."""
    reusable_any_tokens: int
    """The trace's own bound at the engine's block size: prefix seen before in any session."""
    reusable_intra_tokens: int
    """The same within the turn's own session."""
    chunks: int
    inflight_sessions: int
    """Sessions begun and not ended at its send."""
    instance: str = ""
    """The response's `x-tracon-instance`; empty = it did not come through a router."""
    http_status: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    session_delay_s: float = 0.0
    """How long max_inflight_sessions held its session back; the same for all turns of a session that began."""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One second of one instance."""

    t_ns: int
    instance: str
    running: float | None
    waiting: float | None
    kv_usage: float | None
    pending_prefill_tokens: int | None
    """The router's counter."""
    num_requests: int | None
    """The router's counter."""


@dataclass(frozen=True, slots=True)
class RoutedEngine:
    """One instance of a cell."""

    instance: str
    role: str
    url: str
    pid: int | None
    started_by: str
    block_tokens: int | None
    kv_capacity_tokens: int | None
    prompt_tokens: float | None
    """What the engine's counters gained over the cell; None where a scrape failed."""
    cached_tokens: float | None
    prompt_tokens_by_source: Mapping[str, float] = field(default_factory=dict)
    """`local_compute`, `local_cache_hit`, `external_kv_transfer`, as the engine names them."""


@dataclass(frozen=True, slots=True)
class RoutingCell:
    """The commit mark of a cell: `cell.json`."""

    cell: str
    label: str
    """The policy with its parameters in short: what the cell is called in tables. Unique among a trial's cells."""
    policy: str
    parameters: Mapping[str, Any]
    trial: int
    place: int
    """Place in time among the run's cells, 0-based."""
    seed: int
    trace: Mapping[str, Any]
    """file, sha256, format, requests, sessions, input_tokens, output_tokens, span_s (after scaling), apc_bound_any,
    apc_bound_intra (both at the engine's block size)."""
    replay: Mapping[str, Any]
    """time_scale, idle_gap_cap_s, max_inflight_sessions, sent, completed, failed, cut, sessions_done, wall_clock_s,
    trace_span_s, amplification, fidelity."""
    engines: tuple[RoutedEngine, ...]
    router: Mapping[str, Any]
    """decide_us_p50, decide_us_p99, picks, retries, index (`approximate` or `events`)."""
    t_start_ns: int
    t_end_ns: int
    t_start_unix_s: float
    attempt: int
    git_commit: str | None
    git_reason: str = ""
    gpu_utilisation: float | None = None
    gpu_reason: str = ""
    checksums: Mapping[str, str] = field(default_factory=dict)
    version: int = 1


@dataclass(frozen=True, slots=True)
class TrialLayout:
    """The folder of one cell."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def decisions(self) -> Path:
        return self.root / "decisions.jsonl"

    @property
    def engines(self) -> Path:
        return self.root / "engines.jsonl"

    @property
    def summary(self) -> Path:
        return self.root / "metrics.summary.json"

    @property
    def breakdown(self) -> Path:
        return self.root / "breakdown.json"

    @property
    def apc(self) -> Path:
        return self.root / "apc.json"

    @property
    def gpu_util(self) -> Path:
        return self.root / "gpu_util.csv"

    @property
    def cell(self) -> Path:
        return self.root / "cell.json"


def trial_layouts(run: Path) -> tuple[TrialLayout, ...]:
    """Every cell folder of a `routing` run, by label and trial."""
    return tuple(TrialLayout(path) for path in sorted((run / "results").glob("*/trial_*")) if path.is_dir())
