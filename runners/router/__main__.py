"""`python -m runners.router SPEC.json`: run a router; ready, ticks and, last, the end as JSON lines on stdout.

SIGTERM lets what is in flight finish and ends. The end of standard input, a pipe from the parent, ends it at once: the
parent died, or is in a hurry.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from pathlib import Path

from runners.errors import ExitCode, RunnerError
from runners.router.server.serve import serve
from runners.router.spec import RouterFailure, RouterLine, router_spec, to_json

STDIN, STDOUT = 0, 1


class Lines:
    """JSON lines to a parent that may stop reading: it then loses ticks, and the router does not wait for it."""

    def __init__(self) -> None:
        self._rest = b""
        """The rest of a line that a full pipe took in part."""

    def write_line(self, line: RouterLine) -> None:
        """Write a line; a tick is dropped where the pipe is full."""
        try:
            if line.tick is None:
                _write_all(self._rest + to_json(line) + b"\n")
                self._rest = b""
            else:
                self._try_write(line)
        except BrokenPipeError:  # the parent is gone: the end of standard input will tell why
            self._rest = b""

    def _try_write(self, line: RouterLine) -> None:
        os.set_blocking(STDOUT, False)
        try:
            data = self._rest or to_json(line) + b"\n"
            self._rest = data[os.write(STDOUT, data) :]
        except BlockingIOError:
            pass
        finally:
            os.set_blocking(STDOUT, True)


def main(arguments: list[str]) -> int:
    """Run the router of a spec file; returns the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m runners.router SPEC.json\n")
        return ExitCode.BAD_INPUT
    lines = Lines()
    try:
        serve(router_spec(Path(arguments[0])), lines.write_line, _end_with_parent)
    except RunnerError as error:
        lines.write_line(RouterLine(failure=RouterFailure(str(error), error.remedy, int(error.exit_code))))
        return int(error.exit_code)
    return ExitCode.DONE


def _end_with_parent(now: asyncio.Event) -> None:
    kind = os.fstat(STDIN).st_mode
    if not (stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)):
        return
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(STDIN, 4096):
            loop.remove_reader(STDIN)
            now.set()

    loop.add_reader(STDIN, read)


def _write_all(data: bytes) -> None:
    while data:
        data = data[os.write(STDOUT, data) :]


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))
