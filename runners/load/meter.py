"""What every load has around its hot path: housekeeping, the end, and a process that disturbs its stamps as little as
it can."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns
from typing import Any, Protocol, TypeVar

from runners.load.client import LoadClient
from runners.load.recorder import Recorder
from runners.load.spec import LoadError

HOUSEKEEPING_S = 0.25
TICKS_EVERY = 4
"""A tick per this many rounds of housekeeping: 1 Hz."""

Tick = TypeVar("Tick")
TickOut = TypeVar("TickOut", covariant=True)


class Work(Protocol[TickOut]):
    """A load that has begun."""

    @property
    def t_start_ns(self) -> int: ...

    async def closed(self) -> None:
        """Until it sends nothing more."""

    async def drained(self) -> None:
        """Until nothing of it is in flight."""

    def tick(self, now_ns: int) -> TickOut: ...


async def follow(
    work: Work[Tick],
    client: LoadClient,
    recorders: Sequence[Recorder],
    on_tick: Callable[[Tick], None],
    cut: asyncio.Event,
    drain_s: float,
) -> None:
    """Until the work is closed and drained, which may take `drain_s`, or is cut."""
    watch = asyncio.create_task(_housekeeping(work, client, recorders, on_tick))
    defect = _first_defect()
    cutting = asyncio.create_task(cut.wait())
    futures: list[asyncio.Future[Any]] = [watch, cutting, defect]
    try:
        for wait, limit_s in ((work.closed, None), (work.drained, drain_s)):
            futures.append(asyncio.create_task(wait()))
            await asyncio.wait(
                (watch, cutting, defect, futures[-1]), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            for broken in (watch, defect):
                if broken.done():
                    broken.result()
            if cutting.done():
                return
    finally:
        asyncio.get_running_loop().set_exception_handler(None)
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)


def _first_defect() -> asyncio.Future[None]:
    """Fails with the first exception that escapes a callback: a meter with a defect must not go on measuring."""
    loop = asyncio.get_running_loop()
    defect: asyncio.Future[None] = loop.create_future()

    def keep(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not defect.done():
            defect.set_exception(context.get("exception") or RuntimeError(context["message"]))

    loop.set_exception_handler(keep)
    return defect


async def _housekeeping(
    work: Work[Tick], client: LoadClient, recorders: Sequence[Recorder], on_tick: Callable[[Tick], None]
) -> None:
    """On absolute times: timeouts at 4 Hz; records, and what the operator sees, at 1 Hz."""
    rounds = 0
    while True:
        rounds += 1
        due_ns = work.t_start_ns + round(rounds * HOUSEKEEPING_S * 1e9)
        await asyncio.sleep(max(0.0, (due_ns - perf_counter_ns()) / 1e9))
        now_ns = perf_counter_ns()
        client.sweep(now_ns)
        if rounds % TICKS_EVERY == 0:
            for recorder in recorders:
                recorder.flush()
            on_tick(work.tick(now_ns))


def allow_connections(count: int, remedy: str) -> None:
    """Raise the soft limit on open files to what is needed. Raises LoadError where the hard limit is below it."""
    needed = count + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise LoadError(
                f"{count} connections need {needed} open files, the limit is {hard}",
                remedy=f"Raise it (ulimit -Hn) or {remedy}.",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@contextlib.contextmanager
def quiet_gc() -> Iterator[None]:
    """No garbage collection while stamps are taken; the hot path makes no cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def at_once(wanted: bool) -> Iterator[bool]:
    """SCHED_RR at its lowest priority where it is permitted; yields whether it is. The kernel bounds what it may take.

    With three busy processes on two cores a timer of ours fired 0.1 ms late with it and 4 to 12 ms without (p99).
    """
    granted = False
    if wanted and hasattr(os, "sched_setscheduler"):
        with contextlib.suppress(PermissionError):
            before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
            granted = True
    try:
        yield granted
    finally:
        if granted:
            os.sched_setscheduler(0, before, parameters)
