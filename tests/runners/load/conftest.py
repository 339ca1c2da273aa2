from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from runners.load.messages import LoadTick
from runners.load.openloop import run_cell
from runners.load.replay import run_trace
from runners.load.replay_messages import ReplayTick
from runners.trace.session import Trace
from tests.runners.load.cells import Measure, Measured, read_rows, short_spec
from tests.runners.load.traces import Replay, Replayed, read_turns, replay_spec
from tests.servers.truth_server import TruthServer

AT_ONCE: Mapping[str, float] = {"itl_ms": 1}
Spec = TypeVar("Spec")
AnyTick = TypeVar("AnyTick", LoadTick, ReplayTick)
Outcome = TypeVar("Outcome")


@pytest.fixture(scope="package")
def running_server() -> Iterator[TruthServer]:
    with TruthServer() as server:
        yield server


@pytest.fixture
def server(running_server: TruthServer) -> TruthServer:
    """The truth server, with nothing left over from the test before."""
    running_server.take_rows()
    return running_server


def run_on_uvloop(
    run: Callable[[Spec, Callable[[AnyTick], None], asyncio.Event], Coroutine[Any, Any, Outcome]],
    spec: Spec,
    cut_once_sent: int = 0,
) -> tuple[Outcome, tuple[AnyTick, ...]]:
    """In this process, as the load process does; cut at the first tick that has sent this many (0 = never)."""
    ticks: list[AnyTick] = []

    async def run_until_cut() -> Outcome:
        cut = asyncio.Event()

        def on_tick(tick: AnyTick) -> None:
            ticks.append(tick)
            if 0 < cut_once_sent <= tick.sent:
                cut.set()

        async with asyncio.timeout(60):
            return await run(spec, on_tick, cut)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(run_until_cut())
    return outcome, tuple(ticks)


@pytest.fixture
def measure(server: TruthServer, tmp_path: Path) -> Measure:
    def run(served: Mapping[str, float] = AT_ONCE, **changes: Any) -> Measured:
        spec = short_spec(server.url(**served), tmp_path, **changes)
        outcome, ticks = run_on_uvloop(run_cell, spec)
        return Measured(outcome, read_rows(spec.requests_path), server.take(), ticks)

    return run


@pytest.fixture
def replay(server: TruthServer, tmp_path: Path) -> Replay:
    def run(trace: Trace, served: Mapping[str, float] = AT_ONCE, *, cut_once_sent: int = 0, **changes: Any) -> Replayed:
        spec = replay_spec(server.url(**served), trace, tmp_path, **changes)
        outcome, ticks = run_on_uvloop(run_trace, spec, cut_once_sent)
        return Replayed(outcome, read_turns(spec.requests_path), server.take(), ticks)

    return run
