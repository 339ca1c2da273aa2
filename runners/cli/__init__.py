"""The `tracon` command. stdout is data, stderr is narration."""

from __future__ import annotations

import errno
import os
import platform
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from results.records.errors import SHORTAGE_REMEDIES
from results.records.visible import visible
from runners.cli import engines, policies, replay, reports, route, runs, session, simulate, steering, trace
from runners.cli.accompany import open_console
from runners.cli.terminal import fail, make_logs_visible, use_color
from runners.errors import RunnerError


class Commands(TyperGroup):
    """Quotes a wrong argument harmlessly: a shell may have put in the name of a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  (typer has no public name for it)
        with _make_usage_visible():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> object:  # noqa: ANN401  (the same)
        with _make_usage_visible():
            return super().invoke(ctx)


@contextmanager
def _make_usage_visible() -> Iterator[None]:
    """Escape control characters in the message of an error about arguments."""
    try:
        yield
    except Exception as error:
        usage: Any = error
        if isinstance(getattr(usage, "message", None), str):
            usage.message = visible(usage.message)
        raise


app = typer.Typer(
    name="tracon",
    cls=Commands,
    no_args_is_help=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
runs.add_to(app)
steering.add_to(app)
reports.add_to(app)
engines.add_to(app)
policies.add_to(app)
session.add_to(app)
route.add_to(app)
replay.add_to(app)
simulate.add_to(app)
trace.add_to(app)

_OTHER_FOLDER = "name a folder that this user can write: --workspace for runs, TRACON_HOME for engines and models"
REMEDIES = {
    **SHORTAGE_REMEDIES,
    errno.ENOSPC: "free some room on that disk, or name another folder: --workspace for runs, TRACON_HOME for engines",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST), _OTHER_FOLDER),
}
PLATFORM = ("Linux", "x86_64")
"""The only one whose wheels the engine's lock names, and whose /proc and process groups the guard relies on."""
PYTHONS = ((3, 11), (3, 13))
"""First and last version of Python that the pinned packages have wheels for."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tracon {metadata.version('tracon')}")
        raise typer.Exit


@app.callback()
def tracon(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    color: Annotated[
        bool | None,
        typer.Option("--color/--no-color", help="Color the output (default: on a terminal, unless NO_COLOR is set)."),
    ] = None,
) -> None:
    """Tracon: operator console for LLM-serving experiments on vLLM.

    Without a command it opens the console. A first run, from nothing to a measured result:

    **1.** `tracon engine install cpu` builds the engine environment (`cuda` on a host with GPUs: docs/gpu.md)

    **2.** `tracon plan connector-tax --profile cpu-tiny` shows stages, cells and the time they take

    **3.** `tracon run connector-tax --profile cpu-tiny` measures; Ctrl-C stops it, so that it can be resumed

    **4.** `tracon` watches and steers it from any terminal; `tracon resume` continues after a stop or a crash

    **5.** `tracon report` prints the result on one page, then the tables

    Then `tracon run routing` compares policies on a trace, `tracon run pd-lifecycle` breaks a request down into
    phases; `tracon trace` and `tracon route` need no run.

    In a script: stdout has data alone, as JSON with `--json`; stderr has progress and errors.

    Exit codes: 0 done, 1 cells failed or skipped, 2 bad usage or input, 3 interrupted and resumable, 4 a gate failed.
    """
    use_color(color)
    if context.invoked_subcommand is None:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            typer.echo(context.get_help())
            raise typer.Exit
        open_console(None, None)


def refuse_host() -> None:
    """Raise RunnerError on an operating system, CPU architecture or Python that Tracon does not run on."""
    here = (platform.system(), platform.machine())
    if here != PLATFORM:
        raise RunnerError(
            f"Tracon runs on Linux on x86-64 only, and this is {here[0]} on {here[1]}",
            remedy="use a Linux x86-64 host, and its terminal over SSH",
        )
    first, last = (".".join(map(str, version)) for version in PYTHONS)
    if not PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        raise RunnerError(
            f"Tracon runs on Python {first} to {last}, and this is {platform.python_version()}",
            remedy="make its environment again with one of those: `make clean`, then `make demo PYTHON=python3.12`",
        )


def place_caches() -> None:
    """Move the caches of the libraries, this process's and its engines', out of a home folder that is read-only."""
    from launch.cache_folders import can_write, make_cache_env

    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor an account: "~" would become a folder of that name
        home = Path("/")
        os.environ["HOME"] = "/"
    if not can_write(home):
        from launch.environment import home as tracon_home

        os.environ.update(make_cache_env(os.environ, home, tracon_home() / "caches"))


def main() -> None:
    """Entry point: runs the command; a refusal becomes one paragraph on stderr and an exit code."""
    make_logs_visible()
    try:
        refuse_host()
        place_caches()
        app()
    except BrokenPipeError:  # `tracon ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(fail(RunnerError(f"{where}{error.strerror or error}", remedy=REMEDIES.get(error.errno or 0, ""))))
    except Exception as error:  # noqa: BLE001  (a traceback, too, may quote what came from outside)
        if not hasattr(error, "exit_code") or not hasattr(error, "remedy"):
            sys.stderr.write(visible(traceback.format_exc()))
            sys.exit(1)
        sys.exit(fail(error))
