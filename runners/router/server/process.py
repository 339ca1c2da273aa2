"""The router in a process of its own: started, followed, ended and never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from runners.router.spec import RouterError, RouterLine, RouterOutcome, RouterReady, RouterSpec, RouterTick, to_json

READY_WITHIN_S = 30.0
END_GRACE_S = 10.0
"""Beyond the drain: the log is still written."""
STDERR_LINES = 20
LINE_LIMIT_BYTES = 1 << 20


class RouterProcess:
    """A router for the length of an `async with` block; it ends with its parent too.

    `url` is where clients send. `end` stops it in order and returns what it counted; leaving the block without it stops
    it as well. Raises RouterError where it does not start, and from `end` where it died before.
    """

    def __init__(
        self, spec: RouterSpec, spec_path: Path, on_tick: Callable[[RouterTick], None] = lambda tick: None
    ) -> None:
        self.ready: RouterReady
        self.latest: RouterTick | None = None
        """The last tick; None = none came yet."""
        self._spec = spec
        self._spec_path = spec_path
        self._on_tick = on_tick
        self._last_words: deque[str] = deque(maxlen=STDERR_LINES)
        self._process: Process
        self._listening: asyncio.Task[None]
        self._following: asyncio.Task[RouterLine]
        self._outcome: RouterOutcome | None = None

    @property
    def url(self) -> str:
        return self.ready.url

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def __aenter__(self) -> Self:
        _write_spec(self._spec, self._spec_path)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "runners.router",
            str(self._spec_path),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=LINE_LIMIT_BYTES,
            start_new_session=True,
        )
        self._listening = asyncio.create_task(self._keep_last())
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                line = await self._read_line()
        except TimeoutError:
            line = RouterLine()
        except BaseException:
            await self._kill_process()
            raise
        if line.ready is None:
            await self._kill_process()
            raise self._make_error(line, "it did not get ready")
        self.ready = line.ready
        self._following = asyncio.create_task(self._follow_lines())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outcome is None and not self._following.done():
            with contextlib.suppress(RouterError):
                await self.end(0.0 if error is not None else None)
        await self._kill_process()

    async def end(self, drain_s: float | None = None) -> RouterOutcome:
        """Stop it: what is in flight may finish for at most `drain_s` (None = its spec's limit). Once is enough."""
        if self._outcome is not None:
            return self._outcome
        wait_s = (self._spec.limits.drain_s if drain_s is None else drain_s) + END_GRACE_S
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        if drain_s == 0 and self._process.stdin is not None:
            self._process.stdin.close()  # the end of its input cuts the drain short
        try:
            async with asyncio.timeout(wait_s):
                line = await asyncio.shield(self._following)
        except TimeoutError:
            line = RouterLine()
        if line.end is None:
            raise self._make_error(line, "it ended without an account of itself")
        self._outcome = line.end
        await self._kill_process()
        return line.end

    async def _read_line(self) -> RouterLine:
        assert self._process.stdout is not None
        raw = await self._process.stdout.readline()
        return msgspec.json.decode(raw, type=RouterLine) if raw else RouterLine()

    async def _follow_lines(self) -> RouterLine:
        """Ticks to the callback; returns the last line, an empty one where it died without."""
        while True:
            line = await self._read_line()
            if line.tick is None:
                return line
            self.latest = line.tick
            self._on_tick(line.tick)

    async def _keep_last(self) -> None:
        assert self._process.stderr is not None
        async for raw in self._process.stderr:
            self._last_words.append(raw.decode("utf-8", "backslashreplace").rstrip())

    async def _kill_process(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(END_GRACE_S):
                await self._process.wait()
        except (TimeoutError, asyncio.CancelledError) as why:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            if isinstance(why, asyncio.CancelledError):
                raise
        finally:
            self._listening.cancel()

    def _make_error(self, line: RouterLine, what: str) -> RouterError:
        if line.failure is not None:
            return RouterError(line.failure.message, remedy=line.failure.remedy, exit_code=line.failure.exit_code)
        tail = "\n".join(self._last_words) or "(it wrote nothing to stderr)"
        code = self._process.returncode
        return RouterError(
            f"router process: {what} (exit code {code}): {tail}",
            remedy="Run it again; if it ends so again, report it with this text.",
        )


def _write_spec(spec: RouterSpec, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(to_json(spec))
    except OSError as error:
        remedy = "Free space on that disk or choose another workspace."
        raise RouterError(f"cannot write {path}: {error.strerror}", remedy=remedy) from error
