"""The options of a replay, its ticks and its outcome: the wire between the load process and its parent.

As JSON, like the open loop's (`runners.load.spec`); times ending in `_ns` are `time.perf_counter_ns()`.
"""

from __future__ import annotations

from dataclasses import dataclass

from results.records.live import LiveLatency
from runners.load.replay_plan import THINKING, Pace
from runners.load.spec import LoadOptions, Rule, Tick, TrafficOutcome, common_problems, refuse_problems

ON_ERROR = ("continue", "end_session")


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

    def __post_init__(self) -> None:
        refuse_problems("replay", (*common_problems(self), *_list_problems(self)))

    @property
    def pace(self) -> Pace:
        return Pace(self.time_scale, self.idle_gap_cap_s, self.think)


def _list_problems(spec: ReplaySpec) -> tuple[Rule, ...]:
    cap_s, most = spec.idle_gap_cap_s, spec.max_inflight_sessions
    return (
        (spec.time_scale > 0, f"time_scale is {spec.time_scale}", "a factor above 0; 0.5 replays twice as fast"),
        (cap_s is None or cap_s >= 0, f"idle_gap_cap_s is {cap_s}", "0 or more seconds, or none for no cap"),
        (spec.think in THINKING, f"think is {spec.think!r}", f"one of {', '.join(THINKING)}"),
        (spec.on_error in ON_ERROR, f"on_error is {spec.on_error!r}", f"one of {', '.join(ON_ERROR)}"),
        (most >= 0, f"max_inflight_sessions is {most}", "0 (no limit) or more"),
        (spec.block_tokens >= 1, f"block_tokens is {spec.block_tokens}", "the engine's block size, at least 1"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredBy(LiveLatency):
    """The client's latencies of one instance over the last LIVE_WINDOW_S seconds."""

    instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayTick(Tick):
    """One second of a running replay."""

    turns: int
    """Turns of the whole replay."""
    inflight_sessions: int
    waiting_sessions: int
    """Arrived and held back by max_inflight_sessions."""
    sessions_done: int
    sessions: int
    trace_span_s: float = 0.0
    """Span of the whole replay, which seldom takes less; 0 where pauses are left out."""
    instances: tuple[AnsweredBy, ...] = ()
    """Sorted by name: every instance that has answered, where the responses name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome(TrafficOutcome):
    """How a replay ended; `complete` = every turn has ended."""

    t_stop_ns: int
    """When sending stopped: at the end of the last turn, or when the replay ended early."""
    turns: int
    never_sent: int
    """Turns whose time never came, because the replay or (on_error) their session ended first."""
    sessions: int
    sessions_done: int
    """Every turn has completed, failed, or was dropped by on_error."""
    sessions_failed: int
    """At least one of their turns failed."""
    sessions_delayed: int
    """Held back by max_inflight_sessions."""
    session_delay_max_s: float
    inflight_sessions_max: int
    inflight_max: int
    """Requests."""
    input_tokens: int
    """Prompt tokens of all turns, sent or not; the next three are of all turns too."""
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

    @property
    def apc_bound_any(self) -> float:
        return self.reusable_any_tokens / max(1, self.input_tokens)

    @property
    def apc_bound_intra(self) -> float:
        return self.reusable_intra_tokens / max(1, self.input_tokens)
