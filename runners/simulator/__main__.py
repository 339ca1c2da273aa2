"""`python -m runners.simulator SPEC.json PACE` simulates one replay; ticks and, last, the outcome go to standard output
as JSON lines. PACE: as `simulate` has it.

Ends at once when its standard input, a pipe from the parent, reaches its end: the parent died, or wants it no more.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from runners.child_process import STDIN, ChildFailure, ParentPipe, read_spec
from runners.errors import ExitCode, RunnerError
from runners.simulator.simulate import simulate
from runners.simulator.spec import SPEC_VERSION, SimulationError, SimulationLine, SimulationSpec, SimulationTick


def main(arguments: list[str]) -> int:
    """Simulate the spec in a file; returns the exit code."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m runners.simulator SPEC.json PACE\n")
        return ExitCode.BAD_INPUT
    threading.Thread(target=_end_with_parent, daemon=True).start()
    parent = ParentPipe()

    def send_tick(tick: SimulationTick) -> None:
        parent.write_line(SimulationLine(tick=tick))

    try:
        spec = read_spec(Path(arguments[0]), SimulationSpec, "simulation spec", SimulationError, SPEC_VERSION)
        outcome = simulate(spec, send_tick, float(arguments[1]))
    except RunnerError as error:
        parent.write_line(SimulationLine(failure=ChildFailure.of(error)))
        return int(error.exit_code)
    parent.write_line(SimulationLine(outcome=outcome))
    return ExitCode.DONE


def _end_with_parent() -> None:
    """A simulation has no event loop: a thread waits for the end of standard input."""
    while os.read(STDIN, 4096):
        pass
    os._exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
