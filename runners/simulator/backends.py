"""Where simulations run: processes of this host, or tasks of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from runners.child_process import start_child, write_spec
from runners.simulator.spec import SimulationError, SimulationLine, SimulationOutcome, SimulationSpec, SimulationTick

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


class LocalSimulations:
    """A process of this host for each, as many at once as it has cores."""

    def count_room(self) -> int:
        return len(os.sched_getaffinity(0))

    async def run(
        self, spec: SimulationSpec, path: Path, on_tick: Callable[[SimulationTick], None], pace: float = 0.0
    ) -> SimulationOutcome:
        """As `Simulations.run`. `pace`: as `simulate` has it."""
        write_spec(path, spec, SimulationError)
        arguments = (str(path), f"{pace!r}")
        child = await start_child("runners.simulator", *arguments, line_type=SimulationLine, end_grace_s=END_GRACE_S)
        try:
            line = await child.follow_ticks(on_tick)
        finally:
            await child.end()
        if line is not None and line.outcome is not None:
            return line.outcome
        raise child.make_error(line, "the simulation ended with no outcome", SimulationError)


def is_backend(where: str) -> bool:
    return where in (LOCAL, RAY) or where.startswith("ray://")


def open_simulations(where: str) -> Simulations:
    """`local`, `ray` or `ray://HEAD:PORT`. Raises SimulationError where a cluster cannot be reached."""
    if where == LOCAL:
        return LocalSimulations()
    from runners.simulator.on_ray import RaySimulations

    return RaySimulations("auto" if where == RAY else where)
