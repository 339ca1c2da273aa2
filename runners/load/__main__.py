"""`python -m runners.load SPEC.json` runs one cell, `python -m runners.load replay SPEC.json` one replay; ticks and,
last, the outcome go to standard output as JSON lines.

Ends at once when its standard input, a pipe from the parent, reaches its end: the parent died. SIGTERM cuts the load.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import uvloop

from runners.errors import ExitCode, RunnerError
from runners.load.openloop import run_cell
from runners.load.replay_spec import ReplayOutcome, ReplaySpec, ReplayTick
from runners.load.spec import LoadFailure, LoadLine, LoadOutcome, LoadSpec, LoadTick, load_spec, to_json

STDIN, STDOUT = 0, 1


def main(arguments: list[str]) -> int:
    """Run the cell or the replay of a spec file; returns the exit code."""
    replay = arguments[:1] == ["replay"]
    if len(arguments) != 1 + replay:
        sys.stderr.write("usage: python -m runners.load [replay] SPEC.json\n")
        return ExitCode.BAD_INPUT
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run(Path(arguments[-1]), replay))
    except RunnerError as error:
        _print_line(LoadLine(failure=LoadFailure(str(error), error.remedy, int(error.exit_code))))
        return int(error.exit_code)


async def _run(path: Path, replay: bool) -> int:
    loop, cut = asyncio.get_running_loop(), asyncio.Event()
    spec = load_spec(path, ReplaySpec) if replay else load_spec(path, LoadSpec)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, cut.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # the parent holds it back until now
    kind = os.fstat(STDIN).st_mode
    if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
        loop.add_reader(STDIN, _end_with_parent)
    outcome: LoadOutcome | ReplayOutcome
    if isinstance(spec, ReplaySpec):
        from runners.load.replay import run_trace  # an open-loop cell starts without the trace readers

        outcome = await run_trace(spec, _print_tick, cut)
    else:
        outcome = await run_cell(spec, _print_tick, cut)
    _print_line(LoadLine(outcome=outcome))
    return ExitCode.DONE


def _end_with_parent() -> None:
    """No process is left to read the outcome. The kernel closes the files; every whole batch is in them already."""
    if not os.read(STDIN, 4096):
        os._exit(ExitCode.INTERRUPTED)


def _print_tick(tick: LoadTick | ReplayTick) -> None:
    """A parent that stopped reading loses ticks and does not stall this loop; a line is below a pipe's atomic size."""
    os.set_blocking(STDOUT, False)
    try:
        os.write(STDOUT, to_json(LoadLine(tick=tick)) + b"\n")
    except BlockingIOError:
        pass
    except BrokenPipeError:
        os._exit(ExitCode.INTERRUPTED)
    finally:
        os.set_blocking(STDOUT, True)


def _print_line(line: LoadLine[Any, Any]) -> None:
    data = to_json(line) + b"\n"
    while data:
        data = data[os.write(STDOUT, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
