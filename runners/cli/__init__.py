"""The `tracon` command: thin commands over the rooms below. stdout is data, stderr is narration."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from runners.cli import engines, policies, replay, reports, route, runs, sessions, trace
from runners.cli.output import fail, use_color
from runners.errors import RunnerError

app = typer.Typer(
    name="tracon",
    no_args_is_help=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
runs.add_to(app)
reports.add_to(app)
engines.add_to(app)
policies.add_to(app)
sessions.add_to(app)
route.add_to(app)
replay.add_to(app)
trace.add_to(app)

REMEDIES = {
    errno.ENOSPC: "free some room on that disk, or name another folder with --workspace",
    errno.EACCES: "name a folder that this user may write, with --workspace",
    errno.EROFS: "name a folder that can be written, with --workspace",
}


def _version(wanted: bool) -> None:
    if wanted:
        from runners.start import tracon_version

        typer.echo(f"tracon {tracon_version()}")
        raise typer.Exit


@app.callback()
def tracon(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    color: Annotated[
        bool | None, typer.Option("--color/--no-color", help="Colour on stderr and tables; NO_COLOR works too.")
    ] = None,
) -> None:
    """Tracon: operator console for LLM-serving experiments on vLLM.

    Without a command it opens the console. A first run, from nothing to a measured result:

    **1.** `tracon engine install cpu` builds the engine environment

    **2.** `tracon plan connector-tax --profile cpu-tiny` shows stages, cells and the time they take

    **3.** `tracon run connector-tax --profile cpu-tiny` measures; Ctrl-C stops it resumably

    **4.** `tracon` watches and steers it from any terminal; `tracon resume` goes on after a stop or a crash

    **5.** `tracon report` prints the tax table

    Then `tracon run routing` sets policies side by side on a trace, `tracon run pd-lifecycle` takes a request apart;
    `tracon trace` and `tracon route` stand alone.

    Exit codes: 0 done, 1 some cells failed, 2 bad usage or input, 3 interrupted and resumable, 4 a gate failed.
    """
    use_color(color)
    if context.invoked_subcommand is None:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            typer.echo(context.get_help())
            raise typer.Exit
        runs.open_console(None, None)


def main() -> None:
    """Entry point: runs the command; what Tracon refuses becomes one paragraph on stderr and an exit code."""
    try:
        app()
    except BrokenPipeError:  # `tracon ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(fail(RunnerError(f"{where}{error.strerror or error}", remedy=REMEDIES.get(error.errno or 0, ""))))
    except Exception as error:
        if not hasattr(error, "exit_code") or not hasattr(error, "remedy"):
            raise
        sys.exit(fail(error))
