"""What is said about a trace: what `tracon trace describe --json` prints. None = not known, and `reasons` has why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIB = 1 << 30

KV_POOL_BYTES = round(0.4 * 96 * GIB)
"""What an H20 has left for KV under Qwen3-Coder-30B-A3B in bf16: 40 % of 96 GiB (specs/ear, section 2.1)."""
BYTES_PER_TOKEN = 98_304
"""KV of one token of that model (specs/ear, section 2.1)."""
SHARED_FROM = 3
"""A block that so many sessions use is a shared prefix."""

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
TOP_SHARES = (0.01, 0.05, 0.10, 0.25, 0.50)


@dataclass(frozen=True, slots=True)
class Deployment:
    """How the instances of a system are divided."""

    name: str
    decode_instances: int
    """Instances that hold decoding requests."""


DEPLOYMENTS = (Deployment("Combined 8C", 8), Deployment("4P+4D", 4), Deployment("6P+2D", 2))
"""Eight GPUs, one instance each (specs/ear)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How one quantity varies. Percentiles are Hyndman and Fan's type 7, numpy's default."""

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Reuse:
    """Where the input tokens that were seen before come from. The three shares sum to 1."""

    reused_tokens: float | None
    """Input tokens whose whole prefix an earlier request of any session had: the numerator of `apc_bound_any`."""
    intra_session_share: float | None
    """Blocks that the same session was the first to use."""
    cross_session_share: float | None
    """Blocks that another session was the first to use, and that fewer than `shared_from` sessions use."""
    shared_prefix_share: float | None
    """Blocks that another session was the first to use, and that `shared_from` sessions or more use."""
    shared_from: int
    distinct_blocks: float | None
    followed_one_in: int
    """1: every number is exact. k: of the blocks not known to be common one in k was followed between sessions, to stay
    within memory."""
    standard_error: Mapping[str, float]
    """Of `apc_bound_any` and the shares, by name, where not every block was followed."""


@dataclass(frozen=True, slots=True)
class TopSessions:
    """The sessions with the most input tokens."""

    top_share: float
    """Of all sessions, rounded up to whole ones."""
    sessions: int
    input_share: float
    """Of all input tokens."""


@dataclass(frozen=True, slots=True)
class Skew:
    """How unevenly input tokens are spread over sessions; empty where the source has no sessions."""

    top: tuple[TopSessions, ...]
    """At TOP_SHARES."""
    curve: tuple[TopSessions, ...]
    """From the one largest session to all, evenly spaced by the logarithm of the share."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many requests of one size decode at the same time."""

    percentile: float
    footprint_bytes: float
    """KV of one request at its last output token: (input + output tokens) x bytes per token."""
    per_instance: int
    """Whole footprints in one instance's pool."""
    concurrent: Mapping[str, int]
    """By deployment: per_instance x its decode instances."""


@dataclass(frozen=True, slots=True)
class KvFootprint:
    """KV of single requests against the pool of one instance."""

    kv_pool_bytes: float
    bytes_per_token: float
    mean_bytes: float | None
    capacity: tuple[Capacity, ...]
    """At PERCENTILES of the footprint."""
    larger_than_pool: float | None
    """Share of the requests that no instance can hold at all."""


@dataclass(frozen=True, slots=True)
class TraceDescription:
    """A trace in numbers."""

    facts: Mapping[str, Any]
    """What the source's numbers mean: the fields of `TraceFacts`."""
    requests: int
    sessions: int
    """Where the source has none, each request counts as one."""
    agents: int
    """Main agents and sub-agents, over all sessions."""
    span_s: float
    """From the first recorded send to the last."""
    input_tokens: int
    output_tokens: int
    input_output_ratio: float | None
    apc_bound_any: float | None
    """Share of the input tokens whose whole prefix, up to and with their block, an earlier request had: what an endless
    cache with the trace's own block size would hit."""
    apc_bound_intra: float | None
    """The same where only requests of the same session count, its sub-agents included."""
    reuse: Reuse
    skew: Skew
    lengths: Mapping[str, Spread]
    """`input_tokens`, `output_tokens` per request; `turns`, `session_input_tokens`, `session_span_s` per session;
    `think_s` per turn where the source records it."""
    kv: KvFootprint
    reasons: Mapping[str, str]
    """Why a value above is None or missing, or says less than its name, by that name (`reuse.intra_session_share`)."""
