"""A simulation in a process of its own: as many run at once as the host has cores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runners.child_process import start_child, write_spec
from runners.simulator.spec import SimulationError, SimulationLine, SimulationOutcome, SimulationSpec, SimulationTick

END_GRACE_S = 2.0


async def run_simulation(
    spec: SimulationSpec, path: Path, on_tick: Callable[[SimulationTick], None], pace: float = 0.0
) -> SimulationOutcome:
    """Simulate in a process of its own; `path`: where its spec is written. `pace`: as `simulate` has it.

    Cancelling this coroutine ends the process. Raises SimulationError where nothing was simulated.
    """
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
