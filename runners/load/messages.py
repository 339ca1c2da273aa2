"""What a load process reports to its parent: its ticks and its outcome; and the spec that it reads.

Both travel as JSON; times ending in `_ns` are `time.perf_counter_ns()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from results.records.live import LiveLatency
from results.records.load_specs import LOAD_SPEC_VERSION, LoadSpec
from runners.child_process import ChildLine, read_spec
from runners.errors import RunnerError
from runners.load.fidelity import Fidelity

TickOf = TypeVar("TickOf")
OutcomeOf = TypeVar("OutcomeOf")


class LoadError(RunnerError):
    """The load could not be run at all (an impossible spec, no server, no room to write); nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick(LiveLatency):
    """One second of a running load. Counts are since it began; latencies cover the last LIVE_WINDOW_S seconds."""

    t_ns: int
    elapsed_s: float
    phase: str
    """`warmup`, `measure` or `drain` of a cell; `replay` or `drain` of a replay."""
    fraction: float
    """0..1 of the expected work."""
    sent: int
    completed: int
    failed: int
    inflight: int
    pending_prefill_tokens: int
    """Prompt tokens of requests sent whose first token has not come back, cached ones included."""
    lateness_p99_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTick(Tick):
    """One second of a running cell."""

    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficOutcome:
    """How a load ended."""

    t_start_ns: int
    """Intended time of the first arrival, or start of the first session."""
    t_end_ns: int
    """When the last request had finished or was cut."""
    t_start_unix_s: float
    stop_reason: str
    """`complete`, `hard_stop` (max_duration_s), `cancelled` (cut from outside) or `failing` (max_failures_in_a_row)."""
    sent: int
    completed: int
    failed: int
    cut: int
    """In flight, or of a replay still to come, when it ended."""
    retried: int
    """Requests sent again on a fresh connection because the pooled one was closed."""
    wrong_length: int
    """Completions whose prompt or output length, as the engine counted it, was not the requested one."""
    late_bodies: int
    """Bodies that were not ready at their time and were built when they were sent."""
    realtime: bool
    """Whether the kernel granted SCHED_RR."""
    fidelity: Fidelity


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOutcome(TrafficOutcome):
    """How a cell ended."""

    t_window_start_ns: int
    t_window_end_ns: int
    """When sending stopped: at the scheduled time of the first arrival that was not sent."""
    dropped: int
    completed_in_window: int
    """Completions that ended inside the window, warm-up requests included: effective throughput's numerator."""

    @property
    def window_s(self) -> float:
        return (self.t_window_end_ns - self.t_window_start_ns) / 1e9


class LoadLine(ChildLine[TickOf], Generic[TickOf, OutcomeOf], frozen=True, omit_defaults=True):
    """One line of the load process's standard output: exactly one field is set."""

    outcome: OutcomeOf | None = None


def read_load_spec(path: Path) -> LoadSpec:
    """The spec of a cell in a JSON file. Raises LoadError naming the file and the wrong field."""
    return read_spec(path, LoadSpec, "load spec", LoadError, LOAD_SPEC_VERSION)
