"""The decision log: what the router knew of a request and of the cluster, what it decided and why, and what came of it.

One `DecisionRecord` per pick, a row of `decisions.jsonl`. It holds everything the policy saw, so that the same pick can
be explained in words, or made again by another policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class InstanceLoad:
    """What the router knew of one instance at a pick. The router's own counters, not the engine's gauges."""

    instance: str
    role: Role = "both"
    available: bool = True
    """It may be picked: healthy, breaker closed, not draining."""
    why_unavailable: str = ""
    num_requests: int = 0
    """BS: requests sent there that have not ended."""
    pending_prefill_tokens: int = 0
    """PP: uncached prompt tokens of requests whose first token has not come back."""
    ongoing_tokens: int = 0
    """OT: prompt tokens of requests that have not ended."""
    ongoing_decode_tokens: int = 0
    """Prompt tokens of requests that are past their first token."""
    kv_capacity_tokens: int | None = None
    free_kv_tokens: int | None = None
    """Capacity less `ongoing_tokens` and asked-for outputs; None where the capacity is not known."""
    assigned: int = 0
    """Sessions ever bound there."""
    active_sessions: int = 0
    """Sessions bound there now."""
    paused_for_s: float = 0.0
    """Back-pressure: not to be picked for so long; 0 = not paused."""


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What the router knew of a request at its pick."""

    request: str
    session: str
    """Empty: it came without a session id."""
    turn: int
    """0-based count of the session's requests this router has seen."""
    input_tokens: int
    max_tokens: int
    block_tokens: int
    """Block size of the prefix index."""
    cached_tokens: Mapping[str, int]
    """Per instance: the longest prefix of the prompt that the index says it holds."""
    owner: str = ""
    """The instance the session is bound to; empty = none."""
    since_migration_s: float | None = None
    """Since the session last migrated: since a request with `migrate_from` was served; None = never."""
    rejects: Mapping[str, int] = field(default_factory=dict)
    """Per instance: admissions in a row it refused this session."""
    tried: tuple[str, ...] = ()
    """Instances that already failed this request: not to be picked again."""
    moving_to: str = ""
    """The instance that a migrating request of the session is on its way to, not served yet; empty = none is."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All instances at one moment, in the order of their names."""

    instances: tuple[InstanceLoad, ...]
    picks: int
    """Picks made so far: what round robin counts by."""
    fallbacks: int = 0
    """Picks so far that the policy said advance its tie-break counter."""


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition that the policy tested."""

    name: str
    value: float
    limit: float
    passed: bool
    text: str
    """The condition in words, e.g. `cached 0.83 of the prompt > 0.5`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One instance as the policy weighed it."""

    instance: str
    score: tuple[float, ...]
    """Compared from left to right, the lowest wins; empty where it was ruled out."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """What the score was made of, by name."""
    ruled_out: str = ""
    """Why it could not be picked; empty = it could."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy decided."""

    policy: str
    instance: str
    """Where the request goes; empty = nowhere, see `reason`."""
    reason: str
    """A short code: which gate, term or path decided, e.g. `affinity`, `fallback`, `cold`, `queue_full`."""
    candidates: tuple[Candidate, ...] = ()
    keys: tuple[str, ...] = ()
    """What the places of the candidates' scores stand for, in their order."""
    gates: tuple[Gate, ...] = ()
    tie_break: str = ""
    """What told equal scores apart; empty = nothing had to."""
    prefill: str = ""
    """With prefill/decode pools: the instance that prefills; `instance` decodes."""
    binds: bool = True
    """The session is bound to `instance` when the request has been served there."""
    migrate_from: str = ""
    """The session migrates: its KV is to be moved from there first. What came of it is in the outcome."""
    advances: bool = False
    """The next pick sees `fallbacks` one higher."""


@dataclass(frozen=True, slots=True)
class RoutedOutcome:
    """What came of a pick."""

    status: str
    """`ok`, `error` (the instance), `client_error` (4xx: the request's own fault), `aborted` (the client left), or
    `retried` (failed before the first byte; the next record of this request says where it went), or `held` (no instance
    had room; as with `retried`)."""
    http_status: int | None = None
    ttft_s: float | None = None
    """Dispatch to the first body byte from the instance."""
    e2e_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    error: str = ""
    migration: str = ""
    """What came of `migrate_from`: `recomputed` (served at the target, which had to compute what it did not hold: no KV
    was moved), or `failed` (it was not served there: the session stays bound as it was). Empty: none was asked for."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One pick: a row of `decisions.jsonl`, written when its outcome is known."""

    seq: int
    """Place among the router's picks, 0-based."""
    t_ns: int
    """`time.perf_counter_ns()` at the pick."""
    decide_us: float
    request: RoutedRequest
    cluster: ClusterView
    decision: Decision
    outcome: RoutedOutcome | None = None
    """None: the router ended first."""
