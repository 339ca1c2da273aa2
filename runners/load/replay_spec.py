"""What a replay is asked for, what it says while it runs, and how it ended: the wire between it and its parent.

As JSON, like the open loop's (`runners.load.spec`); times ending in `_ns` are `time.perf_counter_ns()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from runners.load.fidelity import Fidelity
from runners.load.replay_plan import THINKING, Pace
from runners.load.spec import EVIDENCE, SEED_LIMIT, LoadError, LoadFailure, decode_spec, is_url

ON_ERROR = ("continue", "end_session")


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """One replay of a trace: closed loop within a session, open arrival of sessions.

    Prompts and times are pure functions of the trace, `seed` and the pace. Two replays of a seed send the same prompts:
    the second needs fresh engines, or it hits the prefix cache of the first.
    """

    url: str
    """Base URL of the router or the engine; requests go to `<url>/v1/completions`."""
    model: str
    trace_path: str
    """A trace in the project's own form."""
    requests_path: str
    """Where the TurnRecords go (JSONL); an existing file is replaced."""
    seed: int = 0
    """Of the prompts' token ids."""
    time_scale: float = 1.0
    """Every recorded time is multiplied by it: 0.5 = twice as fast."""
    idle_gap_cap_s: float | None = None
    """No pause inside a session is longer, after scaling; None = as recorded."""
    think: str = "recorded"
    """`recorded` (think times; gaps from send to send where there are none), `gaps` (always those) or `none`."""
    max_inflight_sessions: int = 0
    """Sessions begun and not ended; those beyond it wait their turn and are counted, never dropped. 0 = no limit."""
    on_error: str = "continue"
    """After a failed turn: `continue` with the session's next one, or `end_session`."""
    vocab_low: int = 0
    vocab_high: int = 256
    """Prompt token ids are drawn from vocab_low <= id < vocab_high."""
    block_tokens: int = 16
    """The engine's block size: what the trace's bounds in the records are computed for."""
    max_duration_s: float = 3600.0
    """From the first session's start; after it nothing more is sent."""
    drain_s: float = 30.0
    """How long turns in flight at that moment may take to finish; what is still open then is CUT."""
    request_timeout_s: float = 600.0
    """From the send to the end of the response."""
    stall_timeout_s: float = 300.0
    """Between two pieces of a response, once its head has come; queueing in the engine falls in here."""
    max_failures_in_a_row: int = 50
    """So many failures with no completion between them end the replay; 0 = never."""
    token_evidence: str = "token_ids"
    """As LoadSpec.token_evidence."""
    spare_connections: int = 4
    """Connections kept open beyond those in use, so that a send seldom has to connect."""
    realtime: bool = True
    """As LoadSpec.realtime."""
    lateness_p99_s: float = 0.010
    """Fidelity: above it the replay is degraded."""
    achieved_ratio: float = 0.98
    """Fidelity: turns sent per turn that came due; below it the replay is degraded."""
    client_cpu_share: float = 0.90
    """Fidelity: CPU seconds of the client per second; above it the replay is degraded."""

    def __post_init__(self) -> None:
        for problem, remedy in _problems(self):
            raise LoadError(f"replay spec: {problem}", remedy=remedy)

    @property
    def pace(self) -> Pace:
        return Pace(self.time_scale, self.idle_gap_cap_s, self.think)


def _problems(spec: ReplaySpec) -> list[tuple[str, str]]:
    cap_s = spec.idle_gap_cap_s
    rules = (
        (is_url(spec.url), f"url {spec.url!r} is no http(s) URL", "http://127.0.0.1:8000"),
        (0 <= spec.seed < SEED_LIMIT, f"seed is {spec.seed}", "0 <= seed < 2**64"),
        (spec.time_scale > 0, f"time_scale is {spec.time_scale}", "a factor above 0; 0.5 replays twice as fast"),
        (cap_s is None or cap_s >= 0, f"idle_gap_cap_s is {cap_s}", "0 or more seconds, or none for no cap"),
        (spec.think in THINKING, f"think is {spec.think!r}", f"one of {', '.join(THINKING)}"),
        (spec.on_error in ON_ERROR, f"on_error is {spec.on_error!r}", f"one of {', '.join(ON_ERROR)}"),
        (
            spec.token_evidence in EVIDENCE,
            f"token_evidence is {spec.token_evidence!r}",
            f"one of {', '.join(EVIDENCE)}",
        ),
        (
            spec.max_inflight_sessions >= 0,
            f"max_inflight_sessions is {spec.max_inflight_sessions}",
            "0 (no limit) or more",
        ),
        (
            0 <= spec.vocab_low <= spec.vocab_high - 2,
            f"tokens {spec.vocab_low}..{spec.vocab_high}",
            "at least two token ids, none below 0",
        ),
        (spec.block_tokens >= 1, f"block_tokens is {spec.block_tokens}", "the engine's block size, at least 1"),
        (spec.max_duration_s > 0, f"max_duration_s is {spec.max_duration_s}", "above 0"),
        (spec.drain_s >= 0, f"drain_s is {spec.drain_s}", "0 or more"),
        (spec.request_timeout_s > 0 and spec.stall_timeout_s > 0, "a timeout is not above 0", "seconds above 0"),
    )
    return [(problem, f"Give {remedy}.") for holds, problem, remedy in rules if not holds]


@dataclass(frozen=True, slots=True)
class AnsweredBy:
    """What the client saw of one instance in the last LIVE_WINDOW_S seconds. None = nothing to measure it by."""

    instance: str
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p90_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReplayTick:
    """One second of a running replay. Counts are since it began; latencies cover the last LIVE_WINDOW_S seconds."""

    t_ns: int
    elapsed_s: float
    phase: str
    """`replay` or `drain`."""
    fraction: float
    """0..1 of the turns, or of the longest it may take where that is nearer."""
    turns: int
    """Of the whole replay."""
    sent: int
    completed: int
    failed: int
    inflight: int
    inflight_sessions: int
    waiting_sessions: int
    """Arrived and held back by max_inflight_sessions."""
    sessions_done: int
    sessions: int
    pending_prefill_tokens: int
    """Prompt tokens of turns sent whose first token has not come back, cached ones included."""
    trace_span_s: float = 0.0
    """Of the whole replay, which hardly takes less; 0 where pauses are left out."""
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p90_s: float | None = None
    lateness_p99_s: float | None = None
    instances: tuple[AnsweredBy, ...] = ()
    """By name: those that ever answered, where the answers say who gave them."""


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """How a replay ended."""

    t_start_ns: int
    """Intended start of the first session."""
    t_stop_ns: int
    """When sending stopped: at the end of the last turn, or where the replay was ended early."""
    t_end_ns: int
    """When the last turn had finished or was cut."""
    t_start_unix_s: float
    stop_reason: str
    """`complete` (every turn has ended), `hard_stop` (max_duration_s), `cancelled` (cut from outside) or `failing`."""
    turns: int
    sent: int
    completed: int
    failed: int
    cut: int
    """In flight or still to come when the replay ended."""
    never_sent: int
    """Turns whose time never came, because the replay or (on_error) their session ended first."""
    sessions: int
    sessions_done: int
    """Over: every turn has ended, well or not, or was given up by on_error."""
    sessions_failed: int
    """At least one turn of theirs failed."""
    sessions_delayed: int
    """Held back by max_inflight_sessions."""
    session_delay_max_s: float
    """The longest that one was held back."""
    inflight_sessions_max: int
    inflight_max: int
    """Requests."""
    retried: int
    """Turns sent again on a fresh connection because the pooled one turned out to be closed."""
    wrong_length: int
    """Completions whose prompt or output the engine counted differently from what was asked."""
    late_bodies: int
    """Bodies that were not ready at their time and were built in place."""
    realtime: bool
    """Whether the kernel granted SCHED_RR."""
    input_tokens: int
    """Of all turns, sent or not; so are the next three."""
    output_tokens: int
    reusable_any_tokens: int
    """The trace's bound at the engine's block size: prompt tokens seen before in any session."""
    reusable_intra_tokens: int
    """The same within the turn's own session."""
    trace_span_s: float
    """First to last recorded send, with time_scale and idle_gap_cap_s applied."""
    wall_clock_s: float | None
    """First send to last end; None = nothing was sent."""
    amplification: float | None
    """wall_clock_s / trace_span_s."""
    amplification_reason: str
    """Why there is none."""
    fidelity: Fidelity

    @property
    def apc_bound_any(self) -> float:
        return self.reusable_any_tokens / max(1, self.input_tokens)

    @property
    def apc_bound_intra(self) -> float:
        return self.reusable_intra_tokens / max(1, self.input_tokens)


class ReplayLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the replay process's standard output: exactly one of the three is set."""

    tick: ReplayTick | None = None
    outcome: ReplayOutcome | None = None
    failure: LoadFailure | None = None


def load_replay_spec(path: Path) -> ReplaySpec:
    """The spec in a JSON file. Raises LoadError naming the file and the field that is wrong."""
    return decode_spec(path, ReplaySpec)
