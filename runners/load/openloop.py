"""An open-loop cell: requests leave at their scheduled times whatever the engine does, until the cell has enough.

The cap on requests in flight drops and counts, it never blocks. The window begins when the warm-up ends and closes at
the scheduled time of the first arrival at which both the minimum duration and the minimum completions are met, or at
the hard stop. Requests sent before that get `drain_s` to finish, so that the slow ones are in the sample as the fast
ones are; what is still open then is CUT.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from runners.load.cell import Cell
from runners.load.client import LoadClient, resolve
from runners.load.recorder import Recorder
from runners.load.spec import LoadError, LoadOutcome, LoadSpec, LoadTick

HOUSEKEEPING_S = 0.25
TICKS_EVERY = 4
"""A tick per so many rounds of housekeeping: 1 Hz."""


async def run_cell(spec: LoadSpec, on_tick: Callable[[LoadTick], None], cut: asyncio.Event) -> LoadOutcome:
    """Run the cell in this process, on this event loop, and write its records.

    `cut` ends it early: what is in flight is recorded as CUT. Raises LoadError where nothing can be measured.
    """
    _allow_connections(spec.inflight_cap + spec.spare_connections)
    client = LoadClient(
        await resolve(spec.url),
        spares=spec.spare_connections,
        request_timeout_s=spec.request_timeout_s,
        stall_timeout_s=spec.stall_timeout_s,
    )
    recorders = [Recorder(Path(path)) for path in (spec.requests_path, spec.chunks_path) if path]
    cell = Cell(spec, client, recorders[0], recorders[1] if spec.chunks_path else None)
    try:
        cell.prepare()
        await client.open()
        with _quiet_gc(), _at_once(spec.realtime) as cell.realtime:
            cell.start()
            await _follow(cell, client, recorders, on_tick, cut)
    finally:
        cell.finish()
        await client.close()
        for recorder in recorders:
            await recorder.close()
    return cell.outcome()


async def _follow(
    cell: Cell, client: LoadClient, recorders: list[Recorder], on_tick: Callable[[LoadTick], None], cut: asyncio.Event
) -> None:
    """Until the cell is closed and drained, or is cut."""
    watch = asyncio.create_task(_housekeeping(cell, client, recorders, on_tick))
    defect = _first_defect()
    cutting = asyncio.create_task(cut.wait())
    futures: list[asyncio.Future[Any]] = [watch, cutting, defect]
    try:
        for wait, limit_s in ((cell.closed, None), (cell.drained, cell.spec.drain_s)):
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
    cell: Cell, client: LoadClient, recorders: list[Recorder], on_tick: Callable[[LoadTick], None]
) -> None:
    """On absolute times: timeouts at 4 Hz; records, and what the operator sees, at 1 Hz."""
    rounds = 0
    while True:
        rounds += 1
        due_ns = cell.t_start_ns + round(rounds * HOUSEKEEPING_S * 1e9)
        await asyncio.sleep(max(0.0, (due_ns - perf_counter_ns()) / 1e9))
        now_ns = perf_counter_ns()
        client.sweep(now_ns)
        if rounds % TICKS_EVERY == 0:
            for recorder in recorders:
                recorder.flush()
            on_tick(cell.tick(now_ns))


def _allow_connections(count: int) -> None:
    """Raise the soft limit on open files to what the cap needs. Raises LoadError where the hard limit is below it."""
    needed = count + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise LoadError(
                f"{count} connections need {needed} open files, the limit is {hard}",
                remedy="Raise it (ulimit -Hn) or lower inflight_cap.",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@contextlib.contextmanager
def _quiet_gc() -> Iterator[None]:
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
def _at_once(wanted: bool) -> Iterator[bool]:
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
