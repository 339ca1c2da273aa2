"""`python -m runners.router SPEC.json`: run a router; the ready line, ticks and the outcome are JSON lines on stdout.

SIGTERM lets requests in flight finish, then ends it. The end of standard input, a pipe from the parent, ends it at
once: the parent died, or does not wait for the drain.
"""

from __future__ import annotations

import sys
from pathlib import Path

from runners.child_process import ChildFailure, ParentPipe, watch_parent
from runners.errors import ExitCode, RunnerError
from runners.router.messages import RouterLine, read_router_spec
from runners.router.server.serve import serve


def main(arguments: list[str]) -> int:
    """Run the router of a spec file; returns the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m runners.router SPEC.json\n")
        return ExitCode.BAD_INPUT
    parent = ParentPipe()
    try:
        serve(read_router_spec(Path(arguments[0])), parent.write_line, lambda now: watch_parent(now.set))
    except RunnerError as error:
        parent.write_line(RouterLine(failure=ChildFailure.of(error)))
        return int(error.exit_code)
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
