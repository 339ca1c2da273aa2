"""Simulated time: a heap of timers. It passes only while `run` works, and jumps from one timer to the next."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

START_NS = 1_000_000_000
"""Not 0, which stands for "never" in the records."""


@dataclass(eq=False, slots=True)
class HeapTimer:
    """A callback that is due at a time; those of one time run in the order in which they were scheduled."""

    at_ns: int
    callback: Callable[[], None] | None

    def cancel(self) -> None:
        self.callback = None


class SimulatedClock:
    """Clock and timers of a simulation: a `Driver` of the router's core."""

    def __init__(self) -> None:
        self._now_ns = START_NS
        self._timers: list[tuple[int, int, HeapTimer]] = []
        """Time, number of the call that scheduled it, timer: the number is unique, so no two timers are compared."""
        self._numbers = itertools.count()

    def now_ns(self) -> int:
        return self._now_ns

    def now_s(self) -> float:
        return self._now_ns / 1e9

    def call_soon(self, callback: Callable[[], None]) -> HeapTimer:
        return self.call_at(self._now_ns, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> HeapTimer:
        return self.call_at(self._now_ns + round(delay_s * 1e9), callback)

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> HeapTimer:
        """Raises ValueError for a time that has passed."""
        if at_ns < self._now_ns:
            raise ValueError(f"{at_ns} ns is in the past: it is {self._now_ns} ns")
        timer = HeapTimer(at_ns, callback)
        heapq.heappush(self._timers, (at_ns, next(self._numbers), timer))
        return timer

    def run(self, until_ns: int | None = None) -> None:
        """Run everything that is due, to the end (None) or up to a time, which it is then."""
        timers = self._timers
        while timers and (until_ns is None or timers[0][0] <= until_ns):
            at_ns, _, timer = heapq.heappop(timers)
            if timer.callback is not None:
                self._now_ns = at_ns
                timer.callback()
        if until_ns is not None:
            self._now_ns = max(self._now_ns, until_ns)

    def advance(self, seconds: float) -> None:
        """Let time pass, and run what is due meanwhile."""
        self.run(self._now_ns + round(seconds * 1e9))
