"""Commands about runs that exist: status, watch, stop, pause, skip, retry, list, console."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

import runners.cli.terminal as terminal
from runners.cli.accompany import open_console, read_run
from runners.cli.folders import workspace_of
from runners.cli.options import RUNS_PANEL, JsonOption, ReasonOption, RunArg, WorkspaceOption
from runners.errors import ExitCode, RunnerError


def add_to(app: typer.Typer) -> None:
    for command in (status, watch, stop, pause, skip, retry, console):
        app.command(rich_help_panel=RUNS_PANEL)(command)
    app.command("list", rich_help_panel=RUNS_PANEL)(list_runs)


def status(run: RunArg = None, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """Print the state of a run: stages, cells, instances, ETA, why cells failed, its folder and its log.

    Examples: `tracon status`, `tracon status 20260131-1200 --json` (every cell with its id)
    """
    from results.records.layout import RunLayout
    from runners.cli.tables import make_status_json, make_status_tables

    folder = workspace_of(workspace).find(run)
    view, lease = read_run(folder)
    if json:
        terminal.print_json(make_status_json(view, lease, folder, time.time()))
    else:
        terminal.out().print(make_status_tables(view, lease, time.time()))
        paths = f"folder {folder}\nlog    {RunLayout(folder).log}"  # not folded: they are for copying
        terminal.out().print(paths, markup=False, soft_wrap=True)


def watch(run: RunArg = None, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """Follow a run until it ends, with progress and ETA; `--json` prints its events, one JSON object a line.

    At the end it prints the run's state and the next command. Exits with the run's own exit code. Ctrl-C does not touch
    the run.
    """
    from runners.cli.follow import follow_run

    folder = workspace_of(workspace).find(run)
    try:
        code = follow_run(folder, events=json)
    except KeyboardInterrupt:
        terminal.narrate("left ", (folder.name, "bold"), " as it is")
        raise typer.Exit(ExitCode.DONE) from None
    if not json:
        interrupted = code == ExitCode.INTERRUPTED
        state, command = ("interrupted", "resume") if interrupted else (read_run(folder)[0].state, "report")
        terminal.narrate((folder.name, "bold"), f" is {state}: `tracon {command} {folder.name}`")
    raise typer.Exit(code)


def stop(
    run: RunArg = None,
    workspace: WorkspaceOption = None,
    now: Annotated[bool, typer.Option("--now", help="Cut the running cell; `resume` measures it again.")] = False,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Stop a run after the running cell (or `--now`); `tracon resume` continues it.

    Examples: `tracon stop`, `tracon stop 20260131-1200 --now`
    """
    send_request(workspace_of(workspace).find(run), "stop_now" if now else "stop", "", reason, json=json)


def pause(
    run: RunArg = None, workspace: WorkspaceOption = None, reason: ReasonOption = "", json: JsonOption = False
) -> None:
    """Pause a run after the running cell: its engines stop, its process waits, `tracon resume` continues it."""
    send_request(workspace_of(workspace).find(run), "pause", "", reason, json=json)


def skip(
    run: RunArg = None,
    cell: Annotated[str, typer.Option("--cell", help="Skip this cell, by its id in `tracon status --json`.")] = "",
    config: Annotated[str, typer.Option("--config", help="Skip all pending cells of this config.")] = "",
    stage: Annotated[str, typer.Option("--stage", help="Skip all pending cells of this stage, by its id.")] = "",
    reason: ReasonOption = "",
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Skip a cell, a config or a stage, with a reason that the report shows.

    Examples: `tracon skip --config lmcache_only --reason "too little host memory"`, `tracon skip --stage phase-a`
    """
    targets = _name_targets(cell, config, stage)
    if len(targets) != 1:
        raise RunnerError("name exactly one thing to skip", remedy="give one of --cell, --config, --stage")
    send_request(workspace_of(workspace).find(run), "skip", targets[0], reason, json=json)


def retry(
    run: RunArg = None,
    cell: Annotated[str, typer.Option("--cell", help="Retry only this cell.")] = "",
    config: Annotated[str, typer.Option("--config", help="Retry only this config's cells.")] = "",
    stage: Annotated[str, typer.Option("--stage", help="Retry only this stage's cells.")] = "",
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Set failed cells back to pending: all, or those named. A run that has ended then needs `tracon resume`.

    Examples: `tracon retry`, `tracon retry --config nixl_both`
    """
    targets = _name_targets(cell, config, stage)
    if len(targets) > 1:
        raise RunnerError("name at most one thing to retry", remedy="give one of --cell, --config, --stage, or none")
    send_request(workspace_of(workspace).find(run), "retry", targets[0] if targets else "", "", json=json)


def _name_targets(cell: str, config: str, stage: str) -> list[str]:
    return [f"{kind}:{name}" for kind, name in (("cell", cell), ("config", config), ("stage", stage)) if name]


def list_runs(workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """List the runs of the workspace, newest first."""
    from runners.cli.tables import make_runs_json, make_runs_table

    entries = workspace_of(workspace).runs()
    if json:
        terminal.print_json(make_runs_json(entries))
    elif entries:
        terminal.out().print(make_runs_table(entries))
    else:
        terminal.err().print("no runs yet: `tracon run connector-tax --profile cpu-tiny --preset demo` makes one")


def console(
    run: RunArg = None,
    workspace: WorkspaceOption = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Watch only: no key changes a run.")] = False,
    low_bandwidth: Annotated[
        bool, typer.Option("--low-bandwidth", help="Draw every 2 s, with block characters and 16 colors.")
    ] = False,
    no_mouse: Annotated[bool, typer.Option("--no-mouse", help="Leave the mouse to the terminal.")] = False,
    ascii: Annotated[
        bool, typer.Option("--ascii", help="Draw states, bars and plots with ASCII characters only.")
    ] = False,
) -> None:
    """Open the console on a run, or on the list of runs. Closing it never touches a run; `?` in it shows every key.

    Examples: `tracon console`, `tracon console 20260131-1200 --read-only`
    """
    flags = {
        "--read-only": read_only,
        "--low-bandwidth": low_bandwidth,
        "--no-mouse": no_mouse,
        "--ascii": ascii,
    }
    folder = str(workspace_of(workspace).find(run)) if run else None
    open_console(folder, workspace, [flag for flag, wanted in flags.items() if wanted])


def send_request(folder: Path, action: str, target: str, reason: str, *, json: bool = False) -> None:
    """Print the run's answer; exits with BAD_INPUT where it refuses."""
    from runners.cli.asking import ask_run

    answer = ask_run(folder, action, target, reason)
    if json:
        terminal.print_json(answer)
    else:
        verb = "accepted" if answer["accepted"] else "refused"
        terminal.narrate(f"{action.replace('_', ' ')} {verb}: {answer['detail']}")
    if not answer["accepted"]:
        raise typer.Exit(ExitCode.BAD_INPUT)
