"""The ticks of a replay, its outcome and its spec, besides what those of every load have (`runners.load.messages`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from results.records.live import LiveLatency
from results.records.load_specs import REPLAY_SPEC_VERSION, ReplaySpec
from runners.child_process import read_spec
from runners.load.messages import LoadError, Tick, TrafficOutcome


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


def read_replay_spec(path: Path) -> ReplaySpec:
    """The spec of a replay in a JSON file. Raises LoadError naming the file and the wrong field."""
    return read_spec(path, ReplaySpec, "load spec", LoadError, REPLAY_SPEC_VERSION)
