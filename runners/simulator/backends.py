"""Where simulations run: processes of this host, or tasks of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from results.records.simulation_spec import SimulationSpec
from runners.child_process import ChildProcess, start_child, write_spec
from runners.simulator.messages import (
    SimulationError,
    SimulationLine,
    SimulationOutcome,
    SimulationTask,
    SimulationTick,
)

LOCAL = "local"
RAY = "ray"
"""The cluster that this host belongs to; `ray://HEAD:PORT` = another one, through Ray's client."""
END_GRACE_S = 2.0


class Simulations(Protocol):
    """Runs simulations, several at once."""

    def count_room(self) -> int:
        """How many may run at once."""

    async def run(
        self, spec: SimulationSpec, path: Path, on_tick: Callable[[SimulationTick], None]
    ) -> SimulationOutcome:
        """Simulate; `path`: where the spec is written.

        Cancelling this coroutine ends the simulation. Raises SimulationError where nothing was simulated.
        """

    async def close(self) -> None:
        """Release what waits for a further simulation. One may run after it."""


class LocalSimulations:
    """Processes of this host, as many at once as it has cores; each runs one simulation after another.

    To start one takes as long as some 700 turns.
    """

    def __init__(self) -> None:
        self._idle: list[ChildProcess[SimulationLine]] = []

    def count_room(self) -> int:
        return len(os.sched_getaffinity(0))

    async def run(
        self, spec: SimulationSpec, path: Path, on_tick: Callable[[SimulationTick], None], pace: float = 0.0
    ) -> SimulationOutcome:
        """As `Simulations.run`. `pace`: as `simulate` has it."""
        write_spec(path, spec, SimulationError)
        child = await self._take_process()
        line: SimulationLine | None = None
        try:
            await child.send_line(msgspec.json.encode(SimulationTask(str(path), pace)))
            line = await child.follow_ticks(on_tick)
        finally:
            if line is None or line.outcome is None:
                await child.end()
        if line is None or line.outcome is None:
            raise child.make_error(line, "the simulation ended with no outcome", SimulationError)
        self._idle.append(child)
        return line.outcome

    async def _take_process(self) -> ChildProcess[SimulationLine]:
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            await child.end()
        return await start_child("runners.simulator", line_type=SimulationLine, end_grace_s=END_GRACE_S)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        await asyncio.gather(*(child.end() for child in idle))


def is_backend(where: str) -> bool:
    return where in (LOCAL, RAY) or where.startswith("ray://")


def open_simulations(where: str) -> Simulations:
    """`local`, `ray` or `ray://HEAD:PORT`. Raises SimulationError where a cluster cannot be reached."""
    if where == LOCAL:
        return LocalSimulations()
    from runners.simulator.on_ray import RaySimulations

    return RaySimulations("auto" if where == RAY else where)
