"""Drivers of the router's core other than a running event loop; `SimulatedClock` is one too."""

from __future__ import annotations

from collections.abc import Callable

from runners.router.server.server import EventLoop


class SetClock(EventLoop):
    """An event loop whose seconds a test sets."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.now_s = now_s
