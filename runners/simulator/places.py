"""Where simulations run: processes of this host, or tasks of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from runners.simulator.process import run_simulation
from runners.simulator.spec import SimulationOutcome, SimulationSpec, SimulationTick

LOCAL = "local"
RAY = "ray"
"""The cluster that this host belongs to; `ray://HEAD:PORT` = another one, through Ray's client."""


class Simulations(Protocol):
    """Runs simulations, several at once."""

    def count_room(self) -> int:
        """How many may run at once."""

    async def run(
        self, spec: SimulationSpec, path: Path, on_tick: Callable[[SimulationTick], None]
    ) -> SimulationOutcome:
        """As `run_simulation`."""


class LocalSimulations:
    """A process of this host for each, as many at once as it has cores."""

    def count_room(self) -> int:
        return len(os.sched_getaffinity(0))

    async def run(
        self, spec: SimulationSpec, path: Path, on_tick: Callable[[SimulationTick], None]
    ) -> SimulationOutcome:
        return await run_simulation(spec, path, on_tick)


def is_place(where: str) -> bool:
    return where in (LOCAL, RAY) or where.startswith("ray://")


def open_simulations(where: str) -> Simulations:
    """`local`, `ray` or `ray://HEAD:PORT`. Raises SimulationError where a cluster cannot be reached."""
    if where == LOCAL:
        return LocalSimulations()
    from runners.simulator.on_ray import RaySimulations

    return RaySimulations("auto" if where == RAY else where)
