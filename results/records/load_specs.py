"""The options of a load process, as a file: an open-loop cell's, and a replay's."""

from __future__ import annotations

from dataclasses import dataclass

from results.records.spec_rules import Rule, has_user, is_http_url, refuse_problems

LOAD_SPEC_VERSION = 1
REPLAY_SPEC_VERSION = 1
ARRIVALS = ("constant", "poisson")
EVIDENCE = ("token_ids", "usage")
THINKING = ("recorded", "gaps", "none")
ON_ERROR = ("continue", "end_session")
SEED_LIMIT = 1 << 64
CELL_INDEX_LIMIT = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options that an open-loop cell and a replay share."""

    url: str
    """Base URL of the engine or the router; requests go to `<url>/v1/completions`."""
    model: str
    """Its name in requests."""
    requests_path: str
    """Where the record of every request goes (JSONL); an existing file is replaced."""
    seed: int = 0
    """Seed of the prompts' token ids, and of an open loop's schedule."""
    vocab_low: int = 0
    """The lowest token id of a prompt."""
    vocab_high: int = 256
    """Prompt token ids are drawn from vocab_low <= id < vocab_high."""
    max_duration_s: float
    """The hard stop: send nothing after this many seconds."""
    drain_s: float = 30.0
    """How long requests in flight at the stop may take to finish; what is still open then is CUT."""
    request_timeout_s: float = 600.0
    """From the send to the end of the response."""
    stall_timeout_s: float
    """Between two pieces of a response, once it has begun."""
    max_failures_in_a_row: int = 50
    """This many failures with no completion between them end the load; 0 = never."""
    token_evidence: str = "token_ids"
    """What proves a token: `token_ids` (return_token_ids; the engine echoes the prompt's ids once, in the first chunk)
    or `usage` (continuous_usage_stats; a count in every chunk, nothing echoed)."""
    spare_connections: int = 4
    """Open connections beyond those in use, so that a send seldom has to connect."""
    realtime: bool = True
    """Run the load process under SCHED_RR: it needs little CPU time, but at once, and would otherwise stamp late on a
    busy machine. Where that is not permitted, the load runs without."""
    lateness_p99_s: float = 0.010
    """Fidelity: above it the cell is degraded."""
    achieved_ratio: float = 0.98
    """Fidelity: requests sent or dropped in time per request that came due; below it the cell is degraded."""
    client_cpu_share: float = 0.90
    """Fidelity: CPU seconds of the client per second; above it the cell is degraded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec(LoadOptions):
    """One open-loop cell: fixed before it starts, and the same for every config that is compared.

    Schedule and prompts are pure functions of `seed` and `cell_index`. Two cells on one living engine need different
    `cell_index` (a repeated attempt too), or the second one hits the prefix cache of the first.
    """

    rate_per_s: float
    """Arrivals per second."""
    input_tokens: int
    """Length of each prompt."""
    output_tokens: int
    """Length of each answer."""
    arrival: str = "constant"
    """`constant` or `poisson`."""
    cell_index: int = 0
    """Below 2**32; tells the cells of a run apart."""
    warmup_s: float = 10.0
    """Before the measured window."""
    min_duration_s: float = 60.0
    """Minimum duration of the measured window, which begins when the warm-up ends."""
    min_completed: int = 200
    """Requests that were due inside the window and were completed."""
    max_duration_s: float = 600.0
    """Maximum duration of the measured window: the hard stop."""
    inflight_cap: int = 256
    """An arrival at which this many requests are in flight is dropped."""
    stall_timeout_s: float = 60.0
    """Between two pieces of a response, once it has begun."""
    chunks_path: str = ""
    """Where the stamps of every token chunk go (JSONL: index, t_ns); empty = not written."""
    version: int = LOAD_SPEC_VERSION
    """Version of this record; one that states none is of version 1."""

    def __post_init__(self) -> None:
        refuse_problems("load", (*_make_common_rules(self), *_load_rules(self)))

    @property
    def horizon_s(self) -> float:
        """From the first send to the hard stop."""
        return self.warmup_s + self.max_duration_s

    @property
    def expected_window_s(self) -> float:
        """Length of the measured window of an engine that keeps up."""
        return min(max(self.min_duration_s, self.min_completed / self.rate_per_s), self.max_duration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySpec(LoadOptions):
    """One replay of a trace: closed loop within a session, open arrival of sessions.

    Prompts and times are pure functions of the trace, `seed` and the pace. Two replays of a seed send the same prompts:
    the second needs fresh engines, or it hits the prefix cache of the first.
    """

    trace_path: str
    """A trace in the project's own format."""
    time_scale: float = 1.0
    """Every recorded time is multiplied by it: 0.5 = twice as fast."""
    idle_gap_cap_s: float | None = None
    """No pause inside a session is longer, after scaling; None = as recorded."""
    think: str = "recorded"
    """`recorded` (think times; gaps from send to send where there are none), `gaps` (always those) or `none`."""
    max_inflight_sessions: int = 0
    """Most sessions in flight at once; further ones wait and are counted, never dropped. 0 = no limit."""
    on_error: str = "continue"
    """After a failed turn: `continue` with the session's next one, or `end_session`."""
    block_tokens: int = 16
    """The engine's block size, for which the records hold the trace's bounds."""
    max_duration_s: float = 3600.0
    """From the first session's start: the hard stop."""
    stall_timeout_s: float = 300.0
    """Between two pieces of a response, once its head has come; queueing in the engine counts."""
    version: int = REPLAY_SPEC_VERSION
    """Version of this record; one that states none is of version 1."""

    def __post_init__(self) -> None:
        refuse_problems("replay", (*_make_common_rules(self), *_replay_rules(self)))


def _make_common_rules(spec: LoadOptions) -> tuple[Rule, ...]:
    evidence = ", ".join(EVIDENCE)
    return (
        (not has_user(spec.url), "url contains a user or a password", "the URL without them, http://HOST:PORT"),
        (is_http_url(spec.url), f"url {spec.url!r} is no http(s) URL", "http://127.0.0.1:8000"),
        (spec.token_evidence in EVIDENCE, f"token_evidence is {spec.token_evidence!r}", f"one of {evidence}"),
        (0 <= spec.seed < SEED_LIMIT, f"seed is {spec.seed}", "0 <= seed < 2**64"),
        (
            0 <= spec.vocab_low <= spec.vocab_high - 2,
            f"tokens {spec.vocab_low}..{spec.vocab_high}",
            "at least two token ids, none below 0",
        ),
        (spec.drain_s >= 0, f"drain_s is {spec.drain_s}", "0 or more"),
        (spec.max_duration_s > 0, f"max_duration_s is {spec.max_duration_s}", "above 0"),
        (spec.request_timeout_s > 0 and spec.stall_timeout_s > 0, "a timeout is not above 0", "seconds above 0"),
    )


def _load_rules(spec: LoadSpec) -> tuple[Rule, ...]:
    return (
        (spec.rate_per_s > 0, f"rate_per_s is {spec.rate_per_s}", "a rate above 0"),
        (spec.input_tokens >= 1, f"input_tokens is {spec.input_tokens}", "at least 1"),
        (spec.output_tokens >= 1, f"output_tokens is {spec.output_tokens}", "at least 1"),
        (spec.arrival in ARRIVALS, f"arrival is {spec.arrival!r}", f"one of {', '.join(ARRIVALS)}"),
        (0 <= spec.cell_index < CELL_INDEX_LIMIT, f"cell_index is {spec.cell_index}", "0 <= cell_index < 2**32"),
        (spec.warmup_s >= 0, f"warmup_s is {spec.warmup_s}", "0 or more"),
        (
            spec.min_duration_s <= spec.max_duration_s,
            f"min_duration_s {spec.min_duration_s} is above max_duration_s {spec.max_duration_s}",
            "a hard stop after the minimum duration",
        ),
        (spec.inflight_cap >= 1, f"inflight_cap is {spec.inflight_cap}", "at least 1"),
    )


def _replay_rules(spec: ReplaySpec) -> tuple[Rule, ...]:
    cap_s, most = spec.idle_gap_cap_s, spec.max_inflight_sessions
    return (
        (spec.time_scale > 0, f"time_scale is {spec.time_scale}", "a factor above 0; 0.5 replays twice as fast"),
        (cap_s is None or cap_s >= 0, f"idle_gap_cap_s is {cap_s}", "0 or more seconds, or none for no cap"),
        (spec.think in THINKING, f"think is {spec.think!r}", f"one of {', '.join(THINKING)}"),
        (spec.on_error in ON_ERROR, f"on_error is {spec.on_error!r}", f"one of {', '.join(ON_ERROR)}"),
        (most >= 0, f"max_inflight_sessions is {most}", "0 (no limit) or more"),
        (spec.block_tokens >= 1, f"block_tokens is {spec.block_tokens}", "the engine's block size, at least 1"),
    )
