"""What else than an event loop can drive the router's core: a clock that a test sets, and a heap of timers."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from runners.router.server.server import EventLoop

LIMIT = 100_000
"""Callbacks of one `run`."""


@dataclass(order=True)
class HeapTimer:
    at_ns: int
    number: int
    callback: Callable[[], None] | None = field(compare=False)

    def cancel(self) -> None:
        self.callback = None


class HeapDriver:
    """Simulated time: it passes only in `run_until` and `advance`."""

    def __init__(self) -> None:
        self._now_ns = 1_000_000_000
        self._timers: list[HeapTimer] = []
        self._numbers = itertools.count()

    def now_ns(self) -> int:
        return self._now_ns

    def now_s(self) -> float:
        return self._now_ns / 1e9

    def call_soon(self, callback: Callable[[], None]) -> HeapTimer:
        return self.call_later(0.0, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> HeapTimer:
        timer = HeapTimer(self._now_ns + round(delay_s * 1e9), next(self._numbers), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass, and run what is due meanwhile."""
        end_ns = self._now_ns + round(seconds * 1e9)
        for _ in range(LIMIT):
            if not self._timers or self._timers[0].at_ns > end_ns:
                break
            timer = heapq.heappop(self._timers)
            self._now_ns = timer.at_ns
            if timer.callback is not None:
                timer.callback()
        else:
            raise AssertionError("timers without an end")
        self._now_ns = end_ns

    def run_due(self) -> None:
        """Run what is due now."""
        self.advance(0.0)


class SetClock(EventLoop):
    """An event loop whose seconds a test sets."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
