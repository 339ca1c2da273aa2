"""Clock and timers of the router's core, supplied by an event loop or by the simulator's event heap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None: ...


class Driver(Protocol):
    """Runs the core. A callback never runs inside the call that schedules it."""

    def now_ns(self) -> int:
        """The clock of every record; `time.perf_counter_ns()` in a live router."""

    def now_s(self) -> float:
        """Monotonic seconds from an arbitrary zero."""

    def call_soon(self, callback: Callable[[], None]) -> Timer:
        """Run it after the current callback and all those scheduled before it."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...
