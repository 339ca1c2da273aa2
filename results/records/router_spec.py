"""The options of a router, as a file: its address, its instances, its policy and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from results.records.decisions import Role
from results.records.declaration import rename_fields
from results.records.plan import RENAMED_RULES
from results.records.spec_rules import Rule, has_user, is_http_url, refuse_problems

ROUTER_SPEC_VERSION = 2
INDEXES = ("approximate", "events")
TRANSPORTS = ("mooncake", "nixl")
KV_ROLES = ("kv_both", "kv_producer", "kv_consumer")
INSTANCE_NAME_LIMIT = 64
PASSWORD = "TRACON_REDIS_PASSWORD"
"""Environment variable: a password in a URL would appear in specs, logs and process lists."""
TABLE_SCHEMES = ("redis", "rediss", "unix")


@dataclass(frozen=True, slots=True)
class KvEndpoint:
    """How an instance's KV can be moved."""

    transport: str
    """`mooncake` or `nixl`: two instances can exchange KV if both have the same."""
    kv_role: str = "kv_both"
    """Its connector's role: `kv_both`, `kv_producer` or `kv_consumer`."""
    bootstrap: str = ""
    """Mooncake: base URL of its bootstrap server. NIXL needs none: the answer to the prefill request names the peer."""
    kv_bytes_per_token: int | None = None
    """None = bytes are known only if the connector counts them."""


@dataclass(frozen=True, slots=True)
class TransferRules:
    """How KV is moved, and when a pair of instances is quarantined."""

    timeout_s: float = 120.0
    """Time limit of one transfer with all its attempts and its wait in the queue, until the target has the KV; also of
    a handover from its decode request to the first byte of the answer (specs/load_floor.md Q1.C: 120 s, not 30)."""
    attempts: int = 2
    """Attempts of one transfer before the target computes the prompt."""
    failures_to_quarantine: int = 3
    """After this many failed transfers of a pair within `window_s` none is tried for `quarantine_s` (Q1.D)."""
    window_s: float = 60.0
    """Failed transfers of a pair count for this long."""
    quarantine_s: float = 10.0
    """After it one transfer is tried as a probe; each failed probe doubles the time, up to `quarantine_max_s`."""
    quarantine_max_s: float = 120.0
    """The longest quarantine."""
    min_tokens: int = 1
    """If the target lacks fewer prompt tokens, it computes them instead of a transfer."""
    queue: int = 1
    """Migrations that may wait at one target behind the running one; further ones move no KV: the target computes."""
    count: bool = True
    """Read the target's counters after each transfer. False = moved tokens are null: for measurements that the engine's
    time for `/metrics` would disturb, and that count otherwise."""
    priority: int | None = None
    """`priority` of a migration's requests, for engines that schedule by priority (lower = sooner): the source is busy,
    and without it the prefill request would wait behind its whole queue. None = not sent."""


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """One instance behind the router."""

    instance: str
    """Its name: in decisions, metrics and the `x-tracon-instance` header."""
    url: str
    """Base URL; a request for `/v1/completions` goes to `<url>/v1/completions`."""
    role: Role = "both"
    """`both`, `prefill` or `decode`."""
    kv_capacity_tokens: int | None = None
    """Size of its KV pool in tokens; None = ask its `/metrics`."""
    block_tokens: int | None = None
    """Its KV block size; None = ask its `/metrics`."""
    kv_events: str = ""
    """ZMQ endpoint that the router binds and the instance publishes KV events to; needed with index `events`."""
    kv_replay: str = ""
    """ZMQ endpoint where the instance replays missed events; empty = missed events are lost."""
    transfer: KvEndpoint | None = None
    """None = its KV cannot be moved."""


@dataclass(frozen=True, slots=True)
class HealthRules:
    """When an instance may not be picked, and how it recovers."""

    probe_interval_s: float = 2.0
    """Interval of GET /health to a healthy instance; an unhealthy one is probed every `open_s`."""
    probe_timeout_s: float = 5.0
    """Longest wait for the answer to a probe."""
    unhealthy_after: int = 3
    """Failed probes in a row (a timeout, or any status but 200) before the instance counts as down. One refused
    connection is enough: no process listens there."""
    failures_to_open: int = 3
    """Failed requests in a row (5xx, cut, no answer in time) before the breaker opens. One failed connection is
    enough. A 5xx counts once another instance serves the request."""
    open_s: float = 1.0
    """Time from the opening of the breaker to the first trial, once /health answers; each failed trial doubles it."""
    open_max_s: float = 30.0
    """The longest time to a trial."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Time and size limits."""

    connect_s: float = 3.0
    """Longest wait for a new connection to an instance."""
    first_byte_s: float = 300.0
    """From dispatch to the first body byte; then the request is retried on another instance."""
    stall_s: float = 120.0
    """Between two pieces of a response; then the client gets an error event."""
    client_stall_s: float = 300.0
    """A client that reads nothing for this long is dropped."""
    client_idle_s: float = 300.0
    """A client connection without a complete request for this long is closed."""
    head_s: float = 30.0
    """From the first byte of a request to the end of its head; then the client gets a 408."""
    body_s: float = 300.0
    """From the first byte of a request to its last; then the client gets a 408."""
    drain_s: float = 30.0
    """Time that requests in flight have to finish at shutdown."""
    attempts: int = 3
    """Instances that one request may be sent to."""
    body_bytes: int = 64 << 20
    """Longest body of a request; a longer one gets a 413."""
    held_bytes: int = 1 << 30
    """All request bodies held at a time: arriving, waiting and in flight."""
    streams: int = 0
    """Client connections at a time, as far as the descriptor limit allows them, at two each; 0 = 65,536."""
    peer_streams: int = 0
    """Client connections at a time from one remote address; 0 = half of `streams`."""


@dataclass(frozen=True, slots=True)
class Prewarm:
    """A prompt that every instance computes before the first request."""

    model: str
    """Its name in the request."""
    token_ids: tuple[int, ...]
    """Token ids of the prompt."""


@dataclass(frozen=True, slots=True)
class BindingRules:
    """The table of session bindings (specs/ear.md 4.4)."""

    redis_url: str = ""
    """`redis://[USER@]HOST:PORT/DB`, `rediss://` with TLS, or `unix:///PATH`; empty = this router's memory alone."""
    prefix: str = "tracon:"
    """Prefix of all keys: routers with the same prefix share their sessions."""
    wait_s: float = 0.05
    """Longest wait of a request for Redis; then this router's own copy decides."""
    claim_s: float = 30.0
    """A migration's claim of a session expires this long after its last renewal."""


@dataclass(frozen=True, slots=True)
class RouterSpec:
    """One router: its address, its instances, its policy."""

    instances: tuple[InstanceSpec, ...]
    """At least one; their names differ."""
    policy: str = "unified_spread"
    """A policy's name, or the path of a Python file with one."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the policy; those that are absent have its defaults."""
    host: str = "127.0.0.1"
    """Address that it listens on."""
    port: int = 0
    """0 = any free one; the ready line names it."""
    processes: int = 1
    """Processes that share the port, for hosts with cores to spare. Each has its own loads and index, and its own
    record files beside `decisions_path` and `events_path` (`decisions.1.jsonl` ..)."""
    own_port: int | None = None
    """For one of several processes, which share `port`: the port that it alone listens on; 0 = any free one."""
    decisions_path: str = ""
    """File of decision records (JSONL); an existing file is replaced. Empty = not stored."""
    events_path: str = ""
    """File of instance events (JSONL), with which `tracon simulate check` replays the decision log; an existing file is
    replaced. Empty = not stored."""
    index: str = "approximate"
    """Source of the prefix index: `approximate` (an LRU index of the prompts sent) or `events` (the KV events)."""
    block_tokens: int = 0
    """Block size of the index in tokens; 0 = the instances', or 16 if they do not report it."""
    max_sessions: int = 100_000
    """Number of bindings stored."""
    session_ttl_s: float = 7200.0
    """A binding unused for this long is dropped."""
    reserved_output: int | Literal["max_tokens"] = 0
    """KV tokens reserved for an answer, besides its prompt, when a policy checks for room; `max_tokens` = the request's
    limit, which is an oracle if a replay asks for exactly the recorded output."""
    bindings: BindingRules = field(default_factory=BindingRules)
    """Where the bindings of sessions are stored."""
    prewarm: Prewarm | None = None
    """None = no instance computes a prompt ahead."""
    health: HealthRules = field(default_factory=HealthRules)
    """When an instance may be picked."""
    limits: Limits = field(default_factory=Limits)
    """Limits of requests, connections and times."""
    transfer: TransferRules = field(default_factory=TransferRules)
    """How KV is moved between instances."""
    version: int = ROUTER_SPEC_VERSION
    """Version of this record; one that states none is of version 1."""

    def __post_init__(self) -> None:
        refuse_problems("router", _list_rules(self))


def find_instance_problem(spec: InstanceSpec) -> tuple[str, str] | None:
    """The first problem of one instance and what to give instead; None = it is valid."""
    name = spec.instance
    usable = name.isascii() and name.isprintable() and not set(name) & set(' /"\\')
    if not (name and usable and len(name) <= INSTANCE_NAME_LIMIT):
        return (
            f"instance name {name!r}",
            f"1 to {INSTANCE_NAME_LIMIT} printable characters without blank, slash or quote",
        )
    if has_user(spec.url):
        return f"instance {name}: its url contains a user or a password", "the URL without them, http://HOST:PORT"
    if not is_http_url(spec.url):
        return f"instance {name}: url {spec.url!r} is no http(s) URL", "http://127.0.0.1:8000"
    if (spec.block_tokens or 1) < 1 or (spec.kv_capacity_tokens or 1) < 1:
        return f"instance {name}: block_tokens or kv_capacity_tokens is below 1", "at least 1, or null"
    return None if spec.transfer is None else _find_transfer_problem(spec, spec.transfer)


def _find_transfer_problem(spec: InstanceSpec, transfer: KvEndpoint) -> tuple[str, str] | None:
    name, role = spec.instance, transfer.kv_role
    unfit = {"prefill": "kv_consumer", "decode": "kv_producer"}.get(spec.role)
    if transfer.transport not in TRANSPORTS:
        return f"instance {name}: transport is {transfer.transport!r}", f"one of {', '.join(TRANSPORTS)}"
    if role not in KV_ROLES:
        return f"instance {name}: kv_role is {role!r}", f"one of {', '.join(KV_ROLES)}, as its connector was started"
    if role == unfit:
        return f"instance {name}: its role is {spec.role}, and its connector is a {role}", "kv_both, or the other one"
    if has_user(transfer.bootstrap):
        return f"instance {name}: its bootstrap contains a user or a password", "the URL without them, http://HOST:PORT"
    if transfer.transport == "mooncake" and role != "kv_consumer" and not is_http_url(transfer.bootstrap):
        return (
            f"instance {name}: bootstrap {transfer.bootstrap!r} is no http(s) URL",
            "the base URL of its Mooncake bootstrap server, http://HOST:PORT with its VLLM_MOONCAKE_BOOTSTRAP_PORT",
        )
    if (transfer.kv_bytes_per_token or 1) < 1:
        return f"instance {name}: kv_bytes_per_token is below 1", "at least 1, or null"
    return None


def _find_binding_problem(rules: BindingRules) -> tuple[str, str] | None:
    """The first problem of the rules and what to give instead, without secrets; None = they are valid."""
    if min(rules.wait_s, rules.claim_s) <= 0 or not rules.prefix:
        return "bindings.wait_s or claim_s is not above 0, or the prefix is empty", "seconds above 0 and a prefix"
    return _find_url_problem(rules.redis_url) if rules.redis_url else None


def _find_url_problem(url: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(url)
        port, secret = parts.port, parts.password is not None
    except ValueError:
        return "the URL of bindings cannot be read", "redis://HOST:PORT/DB"
    if secret:
        return (
            "the URL of bindings carries a password",
            f"the URL without it, redis://[USER@]HOST:PORT/DB, and the password in the environment as {PASSWORD}",
        )
    if parts.query or parts.fragment:
        return "the URL of bindings has a query", "redis://[USER@]HOST:PORT/DB and nothing behind it"
    if parts.scheme not in TABLE_SCHEMES or not (parts.path if parts.scheme == "unix" else parts.hostname):
        return (
            f"the URL of bindings has scheme {parts.scheme!r} or no host",
            "redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS) or unix:///PATH",
        )
    database = parts.path.strip("/")
    if parts.scheme != "unix" and database and not database.isdigit():
        return f"the URL of bindings names the database {database!r}", "a number, as in redis://127.0.0.1:6379/0"
    return None if port is None or port else ("the URL of bindings has port 0", "the port that Redis listens on")


def _list_rules(spec: RouterSpec) -> tuple[Rule, ...]:
    names = [instance.instance for instance in spec.instances]
    twice = sorted({name for name in names if names.count(name) > 1})
    problems = [problem for instance in spec.instances if (problem := find_instance_problem(instance))]
    if (problem := _find_binding_problem(spec.bindings)) is not None:
        problems.append(problem)
    limits, health, moves = spec.limits, spec.health, spec.transfer
    times = (
        limits.connect_s,
        limits.first_byte_s,
        limits.stall_s,
        limits.client_stall_s,
        limits.client_idle_s,
        limits.head_s,
        limits.body_s,
    )
    return (
        *((False, *problem) for problem in problems),
        (bool(names), "it has no instance", "at least one instance"),
        (not twice, f"instances are named twice: {', '.join(twice)}", "every instance a name of its own"),
        (0 <= spec.port < 65536, f"port is {spec.port}", "a port from 0 to 65535"),
        (0 <= (spec.own_port or 0) < 65536, f"own_port is {spec.own_port}", "a port from 0 to 65535, or null"),
        (spec.processes >= 1, f"processes is {spec.processes}", "at least 1"),
        (
            spec.processes == 1 or bool(spec.bindings.redis_url),
            f"{spec.processes} processes share no table of sessions",
            "one in Redis (--bindings redis://HOST:PORT/DB), or one process",
        ),
        (
            spec.processes == 1 or spec.index != "events",
            f"{spec.processes} processes cannot bind one endpoint of KV events",
            "the index approximate, or one process",
        ),
        (spec.reserved_output == "max_tokens" or spec.reserved_output >= 0, "reserved_output is below 0", "at least 0"),
        (spec.index in INDEXES, f"index is {spec.index!r}", f"one of {', '.join(INDEXES)}"),
        (
            spec.index != "events" or all(instance.kv_events for instance in spec.instances),
            "index is 'events', and an instance has no kv_events endpoint",
            "every instance a kv_events endpoint",
        ),
        (min(times) > 0 and limits.drain_s >= 0, "a limit in seconds is not above 0", "seconds above 0"),
        (limits.attempts >= 1 and limits.body_bytes >= 1, "limits.attempts or body_bytes is below 1", "at least 1"),
        (limits.held_bytes >= limits.body_bytes, "limits.held_bytes is below body_bytes", "at least body_bytes"),
        (min(limits.streams, limits.peer_streams) >= 0, "limits.streams or peer_streams is below 0", "at least 0"),
        (min(health.probe_interval_s, health.probe_timeout_s, health.open_s) > 0, "a health time is 0", "above 0"),
        (min(health.unhealthy_after, health.failures_to_open) >= 1, "a health count is below 1", "at least 1"),
        (
            min(moves.timeout_s, moves.window_s, moves.quarantine_s, moves.quarantine_max_s) > 0,
            "a transfer time is not above 0",
            "seconds above 0",
        ),
        (
            min(moves.attempts, moves.failures_to_quarantine, moves.min_tokens) >= 1,
            "transfer.attempts, failures_to_quarantine or min_tokens is below 1",
            "at least 1",
        ),
        (moves.queue >= 0, "transfer.queue is below 0", "at least 0"),
    )


def upgrade_router_spec_from_1(row: dict[str, Any]) -> dict[str, Any]:
    """A spec of version 1 with the present names of its transfer rules."""
    transfer = row.get("transfer")
    if isinstance(transfer, dict):
        row = row | {"transfer": rename_fields(transfer, RENAMED_RULES)}
    return row | {"version": 2}
