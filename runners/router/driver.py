"""Clock and timers of the router's core. It owns none: an event loop drives it, or a simulator's heap of events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A callback that is due later."""

    def cancel(self) -> None: ...


class Driver(Protocol):
    """Whatever runs the core. Callbacks never run inside the call that schedules them."""

    def now_ns(self) -> int:
        """The clock of every record; `time.perf_counter_ns()` in a live router."""

    def now_s(self) -> float:
        """Monotonic seconds, of any zero."""

    def call_soon(self, callback: Callable[[], None]) -> Timer:
        """Run it after what runs now, and after all that was scheduled before."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer: ...
