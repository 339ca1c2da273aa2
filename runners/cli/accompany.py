"""Accompany a run from the command that started it: in the console or line by line, to its ending and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

import runners.cli.terminal as terminal
from results.records.visible import visible
from runners.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from state.lease import LeaseState
    from state.model import RunView

MOST_SHORTFALLS = 8
"""Failed and skipped cells listed at the end of a run; `tracon status` lists all."""


def open_console(run: str | None, workspace: Path | None, flags: Sequence[str] = ()) -> NoReturn:
    """Replace this process with the console."""
    os.execv(sys.executable, [*_make_console_argv(run, workspace), *flags])


def _make_console_argv(run: str | None, workspace: Path | None) -> list[str]:
    argv = [sys.executable, "-m", "console"]
    if run:
        argv.append(run)
    if workspace:
        argv += ["--workspace", str(workspace)]
    return argv


def read_run(folder: Path) -> tuple[RunView, LeaseState]:
    from state.lease import read_lease_state
    from state.store import RunStore

    with RunStore.open(folder, read_only=True) as store:
        return store.view(), read_lease_state(store)


def accompany_run(
    folder: Path, worker_pid: int, *, detach: bool, console: bool, json: bool, document: Path | None = None
) -> NoReturn:
    """Follow a run process that this command has started, print its end, and exit with its exit code.

    `document`: the file that `json` prints for a finished run instead of its status.
    """
    from runners.campaign.exit_code import list_shortfalls
    from runners.cli.follow import await_lease
    from runners.cli.reports import render_ending
    from runners.cli.tables import make_status_json

    if detach:
        await_lease(folder, worker_pid)  # so that the next command finds a live run
        if json:
            terminal.print_json({"run": folder.name, "folder": str(folder), "pid": worker_pid})
        else:
            print(visible(folder.name))
        raise typer.Exit(ExitCode.DONE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if console and sys.stdin.isatty() and sys.stdout.isatty():
        code = _watch_in_console(folder)
    else:
        code = _follow_to_end(folder, worker_pid)
    view, lease = read_run(folder)
    if lease.live:
        terminal.narrate((folder.name, "bold"), " continues: `tracon`, `tracon watch`, `tracon stop`")
        raise typer.Exit(code)
    if code == ExitCode.INTERRUPTED:
        remedy = f"`tracon resume {folder.name}` continues from here"
        terminal.fail(RunnerError(f"the run was interrupted: {view.reason or 'its process ended'}", remedy=remedy))
    if json and document is not None and document.is_file():
        terminal.print_json_line(document.read_bytes())
    elif json:
        terminal.print_json(make_status_json(view, lease, folder, time.time()))
    elif code in (ExitCode.DONE, ExitCode.CELLS_FAILED, ExitCode.GATE_FAILED):
        terminal.out().print(render_ending(folder))
    for text in list_shortfalls(view)[:MOST_SHORTFALLS]:
        terminal.err().print(text, markup=False, soft_wrap=True)
    raise typer.Exit(code)


def _watch_in_console(folder: Path) -> int:
    """Show the console until it is closed; returns the run's exit code, INTERRUPTED if it still runs."""
    from runners.campaign.exit_code import exit_code

    subprocess.run(_make_console_argv(str(folder), None), check=False)
    view, lease = read_run(folder)
    return ExitCode.INTERRUPTED if lease.live else exit_code(view)


def _follow_to_end(folder: Path, worker_pid: int) -> int:
    """Follow; the first Ctrl-C (or TERM) asks the run to stop now and waits, the second ends the waiting."""
    from runners.cli.asking import ask_run
    from runners.cli.follow import follow_run

    try:
        return follow_run(folder, worker_pid=worker_pid)
    except KeyboardInterrupt:
        terminal.err().print("stopping the run so that it can be resumed; Ctrl-C again does not wait for it")
    try:
        ask_run(folder, "stop_now", "", "Ctrl-C at the command that started it")
        return follow_run(folder, worker_pid=worker_pid)
    except KeyboardInterrupt:
        terminal.narrate((folder.name, "bold"), " is still stopping: `tracon status`, then `tracon resume`")
        return ExitCode.INTERRUPTED
