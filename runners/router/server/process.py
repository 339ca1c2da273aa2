"""The router in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from results.records.router_spec import RouterSpec
from runners.child_process import ChildProcess, start_child, write_spec
from runners.router.messages import RouterError, RouterLine, RouterOutcome, RouterReady, RouterTick

READY_WITHIN_S = 30.0
END_GRACE_S = 10.0
"""Time after the drain, in which the log is written."""


class RouterProcess:
    """A router for the duration of an `async with` block; it also ends with its parent.

    Clients send to `url`. `end` stops it cleanly and returns its outcome; leaving the block stops it too. Raises
    RouterError if it does not start, and from `end` if it died before.
    """

    def __init__(
        self, spec: RouterSpec, spec_path: Path, on_tick: Callable[[RouterTick], None] = lambda tick: None
    ) -> None:
        self.ready: RouterReady
        self._spec = spec
        self._spec_path = spec_path
        self._on_tick = on_tick
        self._child: ChildProcess[RouterLine]
        self._following: asyncio.Task[RouterLine | None]
        self._outcome: RouterOutcome | None = None

    @property
    def url(self) -> str:
        return self.ready.url

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.alive

    async def explain_end(self) -> str:
        """Wait until it ends, by itself or by `end`; returns why it died, empty = it reported its outcome."""
        line = await asyncio.shield(self._following)
        if line is not None and line.end is not None:
            return ""
        await self._child.end()  # its exit code is known then
        return str(self._child.make_error(line, "it died", RouterError))

    def hurry(self) -> None:
        """End its drain."""
        self._child.close_stdin()

    async def __aenter__(self) -> Self:
        path = write_spec(self._spec_path, self._spec, RouterError)
        self._child = await start_child("runners.router", str(path), line_type=RouterLine, end_grace_s=END_GRACE_S)
        line = None
        try:
            with contextlib.suppress(TimeoutError):
                line = await asyncio.wait_for(self._child.read_line(), READY_WITHIN_S)
        finally:
            if line is None or line.ready is None:
                await self._child.end()
        if line is None or line.ready is None:
            raise self._child.make_error(line, "the router process did not get ready", RouterError)
        self.ready = line.ready
        self._following = asyncio.create_task(self._child.follow_ticks(self._on_tick))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outcome is None and not self._following.done():
            with contextlib.suppress(RouterError):
                await self.end(0.0 if error is not None else None)
        await self._child.end()

    async def end(self, drain_s: float | None = None) -> RouterOutcome:
        """Stop it; requests in flight may finish for at most `drain_s` (None = its spec's limit). Idempotent."""
        if self._outcome is not None:
            return self._outcome
        wait_s = (self._spec.limits.drain_s if drain_s is None else drain_s) + END_GRACE_S
        self._child.terminate()
        if drain_s == 0:
            self.hurry()
        line = None
        with contextlib.suppress(TimeoutError):
            line = await asyncio.wait_for(asyncio.shield(self._following), wait_s)
        if line is None or line.end is None:
            await self._child.end()  # its exit code is known then
            raise self._child.make_error(line, "the router process ended without an account of itself", RouterError)
        self._outcome = line.end
        await self._child.end()
        return line.end
