"""Run a router in this process until it is stopped. Used by `python -m runners.router` and the CLI."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import uvloop

from results.records.router_spec import RouterSpec
from runners.child_process import end_on_signals
from runners.router.messages import RouterLine, RouterOutcome, RouterTick
from runners.router.policies import make_policy
from runners.router.server.server import Server
from runners.router.server.several import Processes

COLLECT_AFTER = (10_000, 50, 50)
"""Thresholds of the garbage collector, which pauses the loop; connections leave no cycles, so it need not run often."""


def serve(
    spec: RouterSpec, report: Callable[[RouterLine], None], on_loop: Callable[[asyncio.Event], None] = lambda now: None
) -> RouterOutcome:
    """Run a router until SIGTERM or SIGINT; a second one, or the event passed to `on_loop`, ends the drain.

    `report` receives the ready line, a tick per second, and the end. Raises RouterError if it cannot start.
    """

    def report_tick(tick: RouterTick) -> None:
        report(RouterLine(tick=tick))

    policy = make_policy(spec.policy, spec.parameters)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        server = Server(spec, policy, report_tick) if spec.processes == 1 else Processes(spec, report_tick)
        return runner.run(_serve_until_stopped(server, report, on_loop))


async def _serve_until_stopped(
    server: Server | Processes, report: Callable[[RouterLine], None], on_loop: Callable[[asyncio.Event], None]
) -> RouterOutcome:
    stop, now = asyncio.Event(), asyncio.Event()

    def request_stop() -> None:
        if stop.is_set():
            now.set()
        stop.set()

    end_on_signals(request_stop)
    on_loop(now)
    report(RouterLine(ready=await server.start()))
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    waits = [asyncio.create_task(event.wait()) for event in (stop, now)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    ending = asyncio.create_task(server.end(0.0 if now.is_set() else None))
    await asyncio.wait((ending, waits[1]), return_when=asyncio.FIRST_COMPLETED)
    if not ending.done():
        server.hurry()
    outcome = await ending
    for task in waits:
        task.cancel()
    report(RouterLine(end=outcome))
    return outcome
