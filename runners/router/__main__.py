"""`python -m runners.router SPEC.json`: run a router; ready, ticks and, last, the end as JSON lines on stdout.

SIGTERM lets what is in flight finish and ends. The end of standard input, a pipe from the parent, ends it at once: the
parent died, or is in a hurry.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from runners.child_process import ChildFailure, ParentPipe, watch_parent
from runners.errors import ExitCode, RunnerError
from runners.router.server.serve import serve
from runners.router.spec import RouterLine, router_spec


def main(arguments: list[str]) -> int:
    """Run the router of a spec file; returns the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m runners.router SPEC.json\n")
        return ExitCode.BAD_INPUT
    parent = ParentPipe()
    try:
        serve(router_spec(Path(arguments[0])), parent.write_line, _end_with_parent)
    except RunnerError as error:
        parent.write_line(RouterLine(failure=ChildFailure.of(error)))
        return int(error.exit_code)
    return ExitCode.DONE


def _end_with_parent(now: asyncio.Event) -> None:
    watch_parent(now.set)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
