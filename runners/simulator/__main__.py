"""`python -m runners.simulator` runs one simulation after another; each line of its standard input is a SimulationTask.

Of each, ticks and, last, the outcome or the failure go to standard output as JSON lines. SIGTERM ends it at once. So
does the end of its standard input, a pipe from the parent: the parent died, or has no more simulations.
"""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import msgspec

from runners.child_process import STDIN, ChildFailure, ParentPipe, accept_sigterm
from runners.errors import ExitCode, RunnerError
from runners.simulator.messages import SimulationLine, SimulationTask, SimulationTick, read_simulation_spec
from runners.simulator.simulate import simulate

READ_BYTES = 4096


def main() -> NoReturn:
    """Run simulations until standard input ends, which ends the process."""
    accept_sigterm()  # before the thread begins, which inherits what is blocked
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    parent = ParentPipe()
    while True:
        task = msgspec.json.decode(lines.get(), type=SimulationTask)
        parent.write_line(_run_task(task, parent))
        gc.collect()  # what a simulation leaves is in cycles, and a collection while the next one runs is rare


def _run_task(task: SimulationTask, parent: ParentPipe) -> SimulationLine:
    """Its last line."""

    def send_tick(tick: SimulationTick) -> None:
        parent.write_line(SimulationLine(tick=tick))

    try:
        spec = read_simulation_spec(Path(task.spec))
        return SimulationLine(outcome=simulate(spec, send_tick, task.pace))
    except RunnerError as error:
        return SimulationLine(failure=ChildFailure.of(error))


def _read_lines(lines: SimpleQueue[bytes]) -> None:
    """A simulation has no event loop: a thread waits for the end of standard input."""
    rest = b""
    while read := os.read(STDIN, READ_BYTES):
        *whole, rest = (rest + read).split(b"\n")
        for line in whole:
            lines.put(line)
    os._exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
