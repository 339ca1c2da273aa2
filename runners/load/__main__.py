"""`python -m runners.load SPEC.json` runs one cell, `python -m runners.load replay SPEC.json` one replay; ticks and,
last, the outcome go to standard output as JSON lines.

Ends at once when its standard input, a pipe from the parent, reaches its end: the parent died. SIGTERM cuts the load.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import uvloop

from runners.child_process import ChildFailure, ParentPipe, end_on_signals, watch_parent
from runners.errors import ExitCode, RunnerError
from runners.load.messages import LoadLine, LoadOutcome, LoadTick, read_load_spec
from runners.load.openloop import run_cell
from runners.load.replay_messages import ReplayOutcome, ReplayTick, read_replay_spec


def main(arguments: list[str]) -> int:
    """Run the cell or the replay of a spec file; returns the exit code."""
    replay = arguments[:1] == ["replay"]
    if len(arguments) != 1 + replay:
        sys.stderr.write("usage: python -m runners.load [replay] SPEC.json\n")
        return ExitCode.BAD_INPUT
    parent = ParentPipe()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            outcome = runner.run(_run(Path(arguments[-1]), replay, parent))
    except RunnerError as error:
        parent.write_line(LoadLine(failure=ChildFailure.of(error)))
        return int(error.exit_code)
    parent.write_line(LoadLine(outcome=outcome))
    return ExitCode.DONE


async def _run(path: Path, replay: bool, parent: ParentPipe) -> LoadOutcome | ReplayOutcome:
    cut = asyncio.Event()
    end_on_signals(cut.set)
    watch_parent(_end_with_parent)

    def send_tick(tick: LoadTick | ReplayTick) -> None:
        parent.write_line(LoadLine(tick=tick))

    if replay:
        from runners.load.replay import run_trace  # an open-loop cell starts without the trace readers

        return await run_trace(read_replay_spec(path), send_tick, cut)
    return await run_cell(read_load_spec(path), send_tick, cut)


def _end_with_parent() -> None:
    """No process is left to read the outcome. The kernel closes the files; every whole batch is in them already."""
    os._exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
