"""The decision log: what the router knew of a request and of the cluster, what it decided and why, and what came of it.

One `DecisionRecord` per pick, a row of `decisions.jsonl`. It holds everything the policy saw, so that the same pick can
be explained in words, or made again by another policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

DECISION_VERSION = 3
"""Version of a row of `decisions.jsonl`; `results.records.rows` reads the older ones."""
Role = Literal["both", "prefill", "decode"]


class InstanceLoad(msgspec.Struct, frozen=True):
    """What the router knew of one instance at a pick. The router's own counters, not the engine's gauges.

    A Struct, as is whatever else a pick makes: ten times as fast as a dataclass.
    """

    instance: str
    """By the router's name."""
    role: Role = "both"
    """Instances of one role are compared."""
    available: bool = True
    """It may be picked: healthy, breaker closed, not draining."""
    why_unavailable: str = ""
    """Empty = it is available."""
    num_requests: int = 0
    """BS: requests sent there that have not ended."""
    pending_prefill_tokens: int = 0
    """PP: uncached prompt tokens of requests whose first token has not come back."""
    ongoing_tokens: int = 0
    """OT: prompt tokens of requests that have not ended."""
    ongoing_decode_tokens: int = 0
    """Prompt tokens of requests that are past their first token."""
    kv_capacity_tokens: int | None = None
    """Size of its KV cache; None = not known."""
    free_kv_tokens: int | None = None
    """Capacity less `ongoing_tokens`, `retained_tokens` and what is reserved for answers; None = capacity not known."""
    retained_tokens: int = 0
    """Prompt tokens whose blocks it holds for another instance (handover, migration), until that has pulled them."""
    assigned: int = 0
    """Sessions ever bound there."""
    active_sessions: int = 0
    """Sessions bound there now."""
    paused_for_s: float = 0.0
    """Back-pressure: not to be picked for this long; 0 = not paused."""


class RoutedRequest(msgspec.Struct, frozen=True):
    """What the router knew of a request at its pick."""

    request: str
    """Its `x-request-id`."""
    session: str
    """Empty: it came without a session id."""
    turn: int
    """0-based count of the session's requests this router has seen."""
    input_tokens: int
    """Prompt length."""
    max_tokens: int
    """Maximum output length, as requested."""
    block_tokens: int
    """Block size of the prefix index."""
    cached_tokens: Mapping[str, int]
    """Per instance: the longest prefix of the prompt that the index says it holds."""
    owner: str = ""
    """The instance the session is bound to; empty = none."""
    since_migration_s: float | None = None
    """Since the session last migrated: since a request with `migrate_from` was served; None = never."""
    rejects: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Per instance: admissions in a row it refused this session."""
    tried: tuple[str, ...] = ()
    """Instances that already failed this request: not to be picked again."""
    moving_to: str = ""
    """The instance that a migrating request of the session is on its way to, not served yet; empty = none is."""
    cut_off: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Per instance that no KV of the owner can be moved to now: why, e.g. a quarantine after failed transfers."""
    min_move_tokens: int = 0
    """Where an instance lacks fewer prompt tokens of what the owner holds, nothing is moved there (the router's rules);
    0 = the record does not say."""
    reserved_tokens: int = 0
    """KV tokens that the router counts for its answer where room is asked for; 0 = its context alone."""


class ClusterView(msgspec.Struct, frozen=True):
    """All instances at one moment, in the order of their names."""

    instances: tuple[InstanceLoad, ...]
    """Every instance, available or not."""
    picks: int
    """Picks made so far: what round robin counts by."""
    fallbacks: int = 0
    """Picks so far that advanced the policy's tie-break counter."""


class Gate(msgspec.Struct, frozen=True):
    """A condition that the policy tested."""

    name: str
    """Short code, e.g. `hot`."""
    value: float
    """What was tested."""
    limit: float
    """What it was tested against."""
    passed: bool
    """Whether the condition held."""
    text: str
    """The condition in words, e.g. `cached 0.83 of the prompt > 0.5`."""


class Candidate(msgspec.Struct, frozen=True):
    """One instance as the policy weighed it."""

    instance: str
    """By the router's name."""
    score: tuple[float, ...]
    """Compared from left to right, the lowest wins; empty where it was ruled out."""
    terms: Mapping[str, float] = msgspec.field(default_factory=dict)
    """What the score was made of, by name."""
    ruled_out: str = ""
    """Why it could not be picked; empty = it could."""


class Decision(msgspec.Struct, frozen=True):
    """What a policy decided."""

    policy: str
    """Its name."""
    instance: str
    """Where the request goes; empty = nowhere, see `reason`."""
    reason: str
    """A short code: which gate, term or path decided, e.g. `affinity`, `fallback`, `cold`, `queue_full`."""
    candidates: tuple[Candidate, ...] = ()
    """Every instance as the policy weighed it."""
    keys: tuple[str, ...] = ()
    """What each of a candidate's scores stands for, in their order."""
    gates: tuple[Gate, ...] = ()
    """Conditions in the order tested."""
    tie_break: str = ""
    """How equal scores were separated; empty = there were none."""
    prefill: str = ""
    """With prefill/decode pools: the instance that prefills; `instance` decodes."""
    binds: bool = True
    """The session is bound to `instance` when the request has been served there."""
    migrate_from: str = ""
    """The session migrates: its KV is to be moved from there first. What came of it is in the outcome."""
    advances: bool = False
    """The next pick sees `fallbacks` one higher."""


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """KV on its way from one instance to another: what the router asked for, and what the engines counted.

    Times are `time.perf_counter_ns()`; 0 = it did not come so far. None = not known, `counted_reason` says why.
    """

    transfer: str
    """Its id: both requests of the transfer carry it."""
    purpose: Literal["migration", "handover"]
    """`migration`: a session's prefix moves, then the request is served; `handover`: a prefill instance computed the
    prompt for the one that decodes."""
    transport: str
    """`mooncake`, `nixl` or `simulated`; empty = it was refused before one was chosen."""
    source: str
    """Instance that holds or computes the KV."""
    target: str
    """Instance that receives it."""
    status: Literal["transferred", "failed", "refused", "unneeded"]
    """`refused`: it was not tried (quarantine, wrong roles, a prompt that cannot be moved); `unneeded`: the target
    lacked less than the rules' `min_tokens` of what the source held."""
    reason: str = ""
    """Why it was not transferred."""
    attempts: int = 0
    """From 1; 0 = refused."""
    prefix_tokens: int = 0
    """Tokens whose KV was to be moved."""
    source_cached_tokens: int | None = None
    """Prefix tokens that the source had in its cache; it computed the rest for the transfer."""
    external_tokens: int | None = None
    """What the target took from the transfer, by its own counter of prompt tokens by source."""
    local_tokens: int | None = None
    """What it had in its own cache."""
    computed_tokens: int | None = None
    """What it computed."""
    bytes: int | None = None
    """Transferred."""
    bytes_from: str = ""
    """`counter` (the connector's own), `tokens` (external tokens x the engine's KV bytes per token) or `log` (copies in
    the transfer log)."""
    blocks: int | None = None
    """External tokens in blocks of the target."""
    counted_by: str = ""
    """Who counted: `counters` (the target's, over the time of the transfer), `log` (the target's transfer log, this
    very request) or `model` (of a simulated engine). Empty: not counted."""
    counted_reason: str = ""
    """Why some of these are not known."""
    t_begin_ns: int = 0
    """The router began with it."""
    t_source_sent_ns: int = 0
    """The router has written the prefill request's last byte to the source; the source may have it already."""
    t_source_done_ns: int = 0
    """The source has answered the prefill request."""
    t_target_sent_ns: int = 0
    """Before the router wrote the decode request's first byte to the target."""
    t_done_ns: int = 0
    """The KV is at the target (migration), or the target has begun to answer (handover); of a failed one, its end."""


def transfer_s(transfer: KvTransfer) -> float | None:
    """From the router's beginning to the KV at the target; None where no KV was transferred."""
    if transfer.status != "transferred" or not transfer.t_begin_ns or not transfer.t_done_ns:
        return None
    return (transfer.t_done_ns - transfer.t_begin_ns) / 1e9


class RoutedOutcome(msgspec.Struct, frozen=True):
    """What came of a pick."""

    status: str
    """`ok`, `error` (the instance), `client_error` (4xx: the request's own fault), `aborted` (the client left), or
    `retried` (failed before the first byte; the next record of this request says where it went), or `held` (no instance
    had room; as with `retried`)."""
    http_status: int | None = None
    """None = no response head came."""
    first_byte_s: float | None = None
    """Pick to the first body byte from the instance; a transfer before it is part of it."""
    last_byte_s: float | None = None
    """Pick to the last body byte; of a pick that failed, to its failure."""
    prompt_tokens: int | None = None
    """By the response's usage."""
    cached_tokens: int | None = None
    """By the response's usage."""
    completion_tokens: int | None = None
    """By the response's usage."""
    error: str = ""
    """Why it failed; empty where it did not."""
    migration: str = ""
    """What came of `migrate_from`: `transferred` (served at the target from KV that was moved there), `recomputed`
    (served there, but it had to compute what it did not hold: no KV came, `transfer` says why), `unneeded` (served
    there, and all but less than `min_tokens` of what the source held was there already), or `failed` (not served there:
    the session stays bound as it was). Empty: none was asked for."""
    transfer: KvTransfer | None = None
    """The KV movement this pick asked for; None = it asked for none, or the router has no transport."""
    kv_wait_s: float | None = None
    """Pick to the end of the wait for KV from another instance, whether it came or not; None = it waited for none."""


class DecisionRecord(msgspec.Struct, frozen=True):
    """One pick: a row of `decisions.jsonl`, written when its outcome is known."""

    seq: int
    """Position among the router's picks, 0-based."""
    t_ns: int
    """`time.perf_counter_ns()` at the pick."""
    decide_us: float
    """Duration of the policy call."""
    request: RoutedRequest
    """What the router knew of the request."""
    cluster: ClusterView
    """What the router knew of the instances."""
    decision: Decision
    """What the policy decided."""
    outcome: RoutedOutcome | None = None
    """None: the router ended first."""
    t_dispatch_ns: int = 0
    """When the pick was made: what the seconds of the outcome count from; 0 = the record does not say."""
    version: int = DECISION_VERSION
    """Version of this record; a row that states none is of version 1."""
    simulated: bool | UnsetType = UNSET
    """True = the instances are a model, and nothing was measured; absent = they are real."""
