"""The live router's driver: the running event loop of asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic, perf_counter_ns


class EventLoop:
    """Clock and timers of the running loop. It may be made before the loop runs."""

    now_ns = staticmethod(perf_counter_ns)
    now_s = staticmethod(monotonic)

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        return asyncio.get_running_loop().call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback)
