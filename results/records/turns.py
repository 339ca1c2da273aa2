"""What a cell of the `routing` experiment leaves behind: one policy, one trial, fresh engines.

RUN/results/<date>_<policy>/trial_<n>/
  config.json            RoutingConfig: its settings
  metrics.jsonl          a TurnRecord per replayed turn (+ .parquet)
  decisions.jsonl        a DecisionRecord per pick
  instance_events.jsonl  an InstanceEvent per change at an instance; a simulated cell has none
  engines.jsonl          an EngineSample per instance and second
  metrics.summary.json   RoutingNumbers
  breakdown.json         RoutingBreakdown: numbers by instance, picks by reason
  apc.json               a CounterSpan per instance: its own counters of prompt and cached tokens, before and after
  gpu_util.csv           samples of every GPU of the host at 1 Hz; only its header and a reason where there is no GPU
  cell.json              RoutingCell, written last: the commit mark
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from results.records.declaration import Upgrade, decode_versioned, rename_fields
from results.records.plan import RENAMED_RULES
from results.records.schemas import SentRequest

CELL_VERSION = 3
"""Version of `cell.json`."""


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """`trace.json`, the commit mark of the trace: which one the run replays and what was done to it."""

    file: str
    """The source's name, without its folder; `synth` where it was generated."""
    sha256: str
    """Checksum of trace.jsonl."""
    format: str
    """Format of the source."""
    requests: int
    """Turns that are replayed."""
    sessions: int
    """Sessions that are replayed."""
    input_tokens: int
    """Tokens of all prompts."""
    output_tokens: int
    """Tokens of all answers."""
    span_s: float
    """From the first recorded send to the last, before the replay's time scale."""
    block_tokens: int
    """Block size of its hashes."""
    tokens_factor: float
    """Factor on every token count."""
    turns_dropped: int
    """Turns left out because they do not fit an engine (`max_tokens`)."""
    max_tokens: int
    """The longest prompt with its answer that an engine takes."""
    name: str = ""
    """Which of the run's traces; empty = the one that policies replay unless they name another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord(SentRequest):
    """One replayed turn: a row of `metrics.jsonl`. A turn can also be `cut` before its send, when the replay ends, and
    `dropped` when a failed turn has ended its session."""

    request: str
    """The `x-request-id` it was sent with: joins it to its decisions."""
    session: str
    """As in the trace."""
    agent: str
    """As in the trace; empty = its session has one agent."""
    turn: int
    """As in the trace, within its session."""
    t_due_ns: int | None
    """When it was due: what it waited for had ended and its think time was over. None = that never came."""
    reusable_any_tokens: int
    """The trace's own bound at the engine's block size: prefix seen before in any session."""
    reusable_intra_tokens: int
    """The same within the turn's own session."""
    inflight_sessions: int
    """Sessions begun and not ended at its send."""
    instance: str = ""
    """The response's `x-tracon-instance`; empty = it did not come through a router."""
    session_delay_s: float = 0.0
    """How long max_inflight_sessions held its session back; the same for all turns of a session that began."""
    simulated: bool | UnsetType = UNSET
    """True = the engines are a model, and nothing was measured; absent = they are real."""


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One second of one instance."""

    t_ns: int
    """`time.perf_counter_ns()` of the run process."""
    instance: str
    """By the router's name."""
    running: float | None
    """Requests, by the engine's gauge."""
    waiting: float | None
    """Requests, by the engine's gauge."""
    kv_usage: float | None
    """0..1, by the engine's gauge."""
    pending_prefill_tokens: int | None
    """The router's counter."""
    num_requests: int | None
    """The router's counter."""
    simulated: bool | UnsetType = UNSET
    """True = the instance is a model, and nothing was measured; absent = it is real."""


@dataclass(frozen=True, slots=True)
class RoutedEngine:
    """One instance of a cell."""

    instance: str
    """By the router's name."""
    role: str
    """`both`, `prefill` or `decode`."""
    url: str
    """Base URL."""
    pid: int | None
    """None = not started by this run."""
    started_by: str
    """`spawn` or `fork_server`, with the executor."""
    block_tokens: int | None
    """Block size of its KV cache, as it stated before the cell."""
    kv_capacity_tokens: int | None
    """Size of its KV cache, as it stated before the cell."""
    prompt_tokens: float | None
    """What the engine's counters gained over the cell; None where a scrape failed."""
    cached_tokens: float | None
    """The same of its prefix cache hits."""
    prompt_tokens_by_source: Mapping[str, float] = field(default_factory=dict)
    """`local_compute`, `local_cache_hit`, `external_kv_transfer`, as the engine names them."""


@dataclass(frozen=True, slots=True)
class PolicyTrial:
    """What one cell measures: a policy, in one trial."""

    cell: str
    label: str
    """The policy with its parameters in short: what the cell is called in tables. Unique among a trial's cells."""
    policy: str
    """Its name."""
    parameters: Mapping[str, Any]
    """Parameters of the policy."""
    trial: int
    position: int
    """Position in time among the run's cells, 0-based."""


@dataclass(frozen=True, slots=True)
class RoutingCell(PolicyTrial):
    """The commit mark of a cell: `cell.json`."""

    replay_seed: int
    """Seed of the replay's prompts."""
    trace: Mapping[str, Any]
    """file, sha256, format, requests, sessions, input_tokens, output_tokens, span_s (after scaling), apc_bound_any,
    apc_bound_intra (both at the engine's block size), name (empty = the run's own)."""
    replay: Mapping[str, Any]
    """time_scale, idle_gap_cap_s, max_inflight_sessions, sent, completed, failed, cut, sessions_done, wall_clock_s,
    trace_span_s, amplification, fidelity."""
    engines: tuple[RoutedEngine, ...]
    """Its instances."""
    router: Mapping[str, Any]
    """decide_us_p50, decide_us_p99, picks, retries, index (`approximate` or `events`), decision_log (false = none was
    written)."""
    t_start_ns: int
    """Intended start of the first session."""
    t_end_ns: int
    """When the last turn had ended or was cut."""
    t_start_unix_s: float
    """`t_start_ns` by the wall clock."""
    attempt: int
    git_commit: str | None
    """Commit of Tracon's own source; None = not known."""
    git_reason: str = ""
    """Why it is not known, or that the tree differs from it."""
    gpu_utilisation: float | None = None
    """0..1, the mean over all samples of the GPUs that the cell's engines used."""
    gpu_reason: str = ""
    """Why it was not measured."""
    simulated: str = ""
    """The model that stood in for engines: nothing here was measured. Empty = engines were real."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """File name to SHA-256, of every file that cannot be made again from another."""
    kv_cache_memory_bytes: int | None = None
    """KV cache of its instances, where the policy has its own; None = the run's."""
    variation: str = ""
    """What of the engine model or the load was changed for it, e.g. `base_s*1.3`; empty = nothing."""
    version: int = CELL_VERSION

    @property
    def logs_decisions(self) -> bool:
        """False = it was simulated without a decision log, as the run asked."""
        return self.router.get("decision_log") is not False


def upgrade_cell_from_1(row: dict[str, Any]) -> dict[str, Any]:
    """A cell of version 1 with the present names of its transfer rules."""
    router = dict(row["router"])
    if router.get("transfer"):
        router["transfer"] = rename_fields(router["transfer"], RENAMED_RULES)
    return row | {"router": router, "version": 2}


def upgrade_cell_from_2(row: dict[str, Any]) -> dict[str, Any]:
    """A cell of version 2 with the present names of its position and its seed."""
    return rename_fields(row, {"place": "position", "seed": "replay_seed"}) | {"version": 3}


CELL_UPGRADES: Mapping[int, Upgrade] = {1: upgrade_cell_from_1, 2: upgrade_cell_from_2}
"""Upgrades of a RoutingCell, for `decode_versioned`."""


def decode_cell(raw: bytes) -> RoutingCell:
    """A `cell.json` of any version. Raises UnknownVersion, and one of DAMAGED_JSON where it is damaged."""
    return decode_versioned(raw, RoutingCell, CELL_VERSION, CELL_UPGRADES)
