"""The description of a trace: what `tracon trace describe --json` prints. None = unknown, `reasons` says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

GIB = 1 << 30

KV_POOL_BYTES = round(0.4 * 96 * GIB)
"""KV pool of an H20 with Qwen3-Coder-30B-A3B in bf16: 40 % of 96 GiB (specs/ear, section 2.1)."""
BYTES_PER_TOKEN = 98_304
"""KV of one token of that model (specs/ear, section 2.1)."""
SHARED_FROM = 3
"""A block used by at least this many sessions is a shared prefix."""

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
TOP_SHARES = (0.01, 0.05, 0.10, 0.25, 0.50)


DEPLOYMENTS: Mapping[str, int] = {"Combined 8C": 8, "4P+4D": 4, "6P+2D": 2}
"""Instances that run decode requests, of eight GPUs with one instance each (specs/ear)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of one quantity. Percentiles: Hyndman and Fan's type 7, numpy's default."""

    n: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """The origin of the reused input tokens. The three shares sum to 1."""

    reused_tokens: float | None = None
    """Input tokens whose whole prefix is in an earlier request of any session: the numerator of `apc_bound_any`."""
    intra_session_share: float | None = None
    """Share of blocks first used by the same session."""
    cross_session_share: float | None = None
    """Share of blocks first used by another session, and used by fewer than `shared_from` sessions."""
    shared_prefix_share: float | None = None
    """Share of blocks first used by another session, and used by at least `shared_from` sessions."""
    shared_from: int
    distinct_blocks: float | None = None
    followed_one_in: int = 1
    """1: every number is exact. k: to stay within memory, one in k of the blocks not known to be common is sampled."""
    standard_error: Mapping[str, float] = field(default_factory=dict)
    """Standard errors of `apc_bound_any` and the shares, by name; empty where every number is exact."""


@dataclass(frozen=True, slots=True)
class TopSessions:
    """The sessions with the most input tokens."""

    top_share: float
    """Share of all sessions, rounded up to whole sessions."""
    sessions: int
    input_share: float
    """Share of all input tokens."""


@dataclass(frozen=True, slots=True)
class Skew:
    """The distribution of input tokens over sessions; empty where the source has no sessions."""

    top: tuple[TopSessions, ...]
    """At TOP_SHARES."""
    curve: tuple[TopSessions, ...]
    """From the largest session to all, evenly spaced in the logarithm of the share."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number of requests of one size that decode at the same time."""

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
    """Share of the requests that are larger than the pool."""


@dataclass(frozen=True, slots=True)
class TraceDescription:
    facts: Mapping[str, Any]
    """The fields of `TraceFacts`."""
    requests: int
    sessions: int
    """Each request counts as one where the source has no sessions."""
    agents: int
    """Main agents and sub-agents, over all sessions."""
    span_s: float
    """From the first recorded send to the last."""
    input_tokens: int
    output_tokens: int
    input_output_ratio: float | None
    apc_bound_any: float | None
    """Share of the input tokens whose whole prefix, including their block, is in an earlier request: the hit rate of an
    infinite cache with the trace's block size."""
    apc_bound_intra: float | None
    """The same within sessions, sub-agents included."""
    reuse: Reuse
    skew: Skew
    lengths: Mapping[str, Spread]
    """`input_tokens`, `output_tokens` per request; `turns`, `session_input_tokens`, `session_span_s` per session;
    `think_s` per turn where the source records it."""
    kv: KvFootprint
    reasons: Mapping[str, str]
    """Name of a value (`reuse.intra_session_share`) to why it is None, missing or limited."""
