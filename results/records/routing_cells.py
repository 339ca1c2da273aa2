"""The files of a `routing` cell beside its records: its settings, its numbers, and its picks by instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType

from results.records.declaration import decode_versioned, rename_fields
from results.records.estimate import Estimate
from results.records.turns import TraceRecord

CONFIG_VERSION = 2
"""Version of `config.json`."""
NUMBERS_FORMAT = 2
"""Format of `metrics.summary.json` and `breakdown.json`. 2: prompt tokens of transfers are `transfer_prompt_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingConfig:
    """The settings of a cell: `config.json`. A setting that its plan does not have is absent."""

    cell: str
    label: str
    """The policy with its parameters in short: what the cell is called in tables."""
    trial: int
    policy: str
    """Its name, or the path of a Python file with one."""
    parameters: Mapping[str, Any]
    """Parameters of the policy."""
    roles: tuple[str, ...]
    """By instance: `both`, `prefill` or `decode`."""
    moves_kv: bool | UnsetType = UNSET
    """Whether KV moves between its instances; false = targets of migrations and handovers recompute."""
    transfer: Mapping[str, Any] | UnsetType = UNSET
    """Rules of KV transfers: timeout_s, attempts, failures_to_quarantine, window_s, quarantine_s, quarantine_max_s,
    min_tokens, queue, count, priority."""
    reserved_output: int | str | UnsetType = UNSET
    """KV tokens counted for an answer where room is asked for; `max_tokens` = its recorded length."""
    time_scale: float | UnsetType = UNSET
    """Time scale of its replay."""
    kv_cache_memory_bytes: int | UnsetType = UNSET
    """KV cache of its instances; absent = as in `engine`."""
    variation: str | UnsetType = UNSET
    """What of the engine model or the load was changed for it, e.g. `base_s*1.3`; absent = nothing."""
    position: int
    """Position in time among the run's cells, 0-based."""
    replay_seed: int
    """Seed of the replay's prompts."""
    trace_number: int | UnsetType = UNSET
    """Which of the run's traces with that name a simulated cell replays, from 0."""
    instances: int
    """How many."""
    config: str | None
    trace: TraceRecord
    """As the run prepared it."""
    replay: Mapping[str, Any]
    """Keys of the preset: time_scale (each cell has its own), idle_gap_cap_s, think, max_inflight_sessions, on_error,
    max_duration_s, drain_s, request_timeout_s, lateness_p99_s, achieved_ratio, client_cpu_share."""
    router: Mapping[str, Any]
    """Keys of the preset: index, transfer (what differs from the default rules), kv_bytes_per_token."""
    profile: str
    """Model, hardware and scale."""
    model: Mapping[str, Any]
    """Keys of the profile: source, served_name, and vocab_low and vocab_high, between which prompts draw token ids."""
    engine: Mapping[str, Any]
    """Keys of the profile and the preset: kind, max_model_len, extra_args, env and so on; secrets are masked."""
    decode_kv_cache_memory_bytes: int | None
    """KV cache of instances that only decode; None = as every other one."""
    engine_versions: Mapping[str, str]
    """By package."""
    simulated: str | UnsetType = UNSET
    """The model that stood in for engines: nothing was measured. Absent = engines were real."""
    version: int = CONFIG_VERSION
    """Version of this record; one that states none is of version 1."""


def decode_config(raw: bytes) -> RoutingConfig:
    """A `config.json` of any version. Raises UnknownVersion, and one of DAMAGED_JSON where it is damaged."""
    return decode_versioned(raw, RoutingConfig, CONFIG_VERSION, {1: upgrade_config_from_1}, unstated=1)


def upgrade_config_from_1(row: dict[str, Any]) -> dict[str, Any]:
    """Settings of version 1 with the present name of the cell's position."""
    return rename_fields(row, {"place": "position"}) | {"version": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvMovements:
    """The KV movements of a cell; no field where no KV was to be moved."""

    migrations: Mapping[str, int] | UnsetType = UNSET
    """By outcome."""
    handovers: Mapping[str, int] | UnsetType = UNSET
    """By outcome."""
    external_tokens: int | UnsetType | None = UNSET
    """Tokens that arrived; None = no count is known."""
    bytes: int | UnsetType | None = UNSET
    """Bytes that arrived; None = no count is known."""
    uncounted: int | UnsetType = UNSET
    """Transfers that arrived without a count of their tokens."""
    transfer_mean_s: float | UnsetType | None = UNSET
    """From the router's start of a transfer until the KV had arrived; None = none arrived, or no time is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingNumbers:
    """The numbers of a cell: `metrics.summary.json`."""

    format: int = NUMBERS_FORMAT
    """Format of this record; one that states none is of format 1."""
    definitions: str = "docs/analysis.md"
    """The page that defines every number."""
    simulated: str | UnsetType = UNSET
    """The model that stood in for engines: nothing was measured. Absent = engines were real."""
    cell: str
    label: str
    """The policy with its parameters in short: what the cell is called in tables."""
    policy: str
    """Its name."""
    parameters: Mapping[str, Any]
    """Parameters of the policy."""
    trial: int
    counts: Mapping[str, int | None]
    """Turns: turns, completed, failed, dropped, cut; sessions, sessions_done; picks, retried, migrations. None = not
    known."""
    values: Mapping[str, Estimate]
    """By name with its unit, e.g. `ttft_p90_s`, `apc`, `amplification`."""
    degraded: str
    """Why no verdict uses it: a slow client, a replay that ended early, other lengths than asked for; else empty."""
    movements: KvMovements | UnsetType = UNSET
    """Absent where the cell has no decision log."""


@dataclass(frozen=True, slots=True)
class InstanceNumbers:
    """One instance in one cell."""

    instance: str
    """By the router's name."""
    role: str
    """`both`, `prefill` or `decode`."""
    turns: int | None
    """Completed there; None = the turn records cannot be read."""
    failed: int | None
    """Turns that failed there."""
    sessions: int | None
    """Sessions with at least one turn there."""
    values: Mapping[str, Estimate]
    """ttft_p50_s, ttft_p90_s, apc (the engine's counters), apc_usage (as its responses say), kv_usage_max (a share) and
    waiting_p90 of the 1 Hz samples."""
    reasons: Mapping[str, int]
    """Picks of this instance by the reason of the decision."""


@dataclass(frozen=True, slots=True)
class PickCounts:
    """What the router did, counted from its decision log."""

    picks: int
    """Decisions."""
    reasons: Mapping[str, int]
    """By the reason of the decision."""
    by_instance: Mapping[str, Mapping[str, int]]
    """Instance to reason to picks; the instance is empty where a request went nowhere."""
    statuses: Mapping[str, int]
    """How the picks ended: `ok`, `error`, `client_error`, `aborted`, `retried`, `unknown`."""
    migrations: int
    """Picks that asked for a migration."""
    transfers: Mapping[str, int] = field(default_factory=dict)
    """KV movements by what came of them, e.g. `migration transferred`, `handover failed`."""
    transfer_prompt_tokens: int = 0
    """Prompt tokens that the engines were sent to move KV, beside those of the clients' requests."""

    @property
    def handovers(self) -> int:
        """Prompts computed at a prefill instance and taken over by a decode instance."""
        return self.transfers.get("handover transferred", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingBreakdown:
    """A cell by instance, and its picks: `breakdown.json`."""

    format: int = NUMBERS_FORMAT
    """Format of this record; one that states none is of format 1."""
    simulated: str | UnsetType = UNSET
    """The model that stood in for engines: nothing was measured. Absent = engines were real."""
    cell: str
    instances: tuple[InstanceNumbers, ...]
    """In the router's order."""
    picks: PickCounts | None
    """None = the cell has no decision log."""


def decode_breakdown(raw: bytes) -> RoutingBreakdown:
    """The content of a `breakdown.json`. Raises one of DAMAGED_JSON, UnknownVersion for a later format."""
    upgrades = {1: upgrade_breakdown_from_1}
    return decode_versioned(raw, RoutingBreakdown, NUMBERS_FORMAT, upgrades, unstated=1, key="format")


def upgrade_breakdown_from_1(row: dict[str, Any]) -> dict[str, Any]:
    """A breakdown of format 1 with the present names of its picks."""
    return row | {"picks": rename_fields(row["picks"], _NEW_NAMES), "format": 2}


_NEW_NAMES = {"leg_tokens": "transfer_prompt_tokens"}
"""Old name to new."""
