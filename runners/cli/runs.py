"""Commands about runs: plan, run, watch, steer, list."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import runners.cli.terminal as terminal
from results.records.visible import visible
from runners.campaign.experiment import RunOptions
from runners.cli.folders import workspace_of
from runners.cli.options import (
    RUN,
    DetachOption,
    ExperimentArg,
    ExperimentCommand,
    JsonOption,
    PaceOption,
    ReasonOption,
    RunArg,
    SkipStageOption,
    WorkspaceOption,
)
from runners.cli.spec_options import chosen, command_with
from runners.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from launch.profile import Kind
    from runners.campaign.start import Prepared
    from state.lease import LeaseState
    from state.model import RunView
    from state.store import RunStore


MOST_SHORTFALLS = 8
"""Failed and skipped cells listed at the end of a run; `tracon status` lists all."""


def add_to(app: typer.Typer) -> None:
    for planned in (plan, run):
        app.command(cls=command_with(RUN, base=ExperimentCommand))(planned)
    for command in (resume, status, watch, stop, pause, skip, retry, console):
        app.command()(command)
    app.command("list")(list_runs)
    app.command(hidden=True)(work)


def plan(
    context: typer.Context, experiment: ExperimentArg, workspace: WorkspaceOption = None, json: JsonOption = False
) -> None:
    """Print stages, cells, the estimated time and the detectable differences, without running anything.

    Examples: `tracon plan connector-tax --profile h20-qwen3-coder-30b`, `tracon plan routing --policy unified`,
    `tracon plan pd-lifecycle --preset demo`
    """
    _print_plan(from_root(RunOptions(experiment, **chosen(context, RUN))), workspace, json)


def run(
    context: typer.Context,
    experiment: ExperimentArg,
    workspace: WorkspaceOption = None,
    detach: DetachOption = False,
    console: Annotated[
        bool, typer.Option("--console", help="Open the console on the run, if stdin and stdout are a terminal.")
    ] = False,
    skip_stage: SkipStageOption = None,
    pace: PaceOption = None,
    accept_small_gpus: Annotated[
        bool,
        typer.Option(
            "--accept-small-gpus",
            help="Start even if an engine fits on no GPU, by the doctor's estimate or beside other processes.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, as `tracon plan`; start nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Start a run and follow it to its end.

    A separate process does the work: closing this terminal does not affect the run. Ctrl-C stops the run so that
    `tracon resume` can continue it; a second Ctrl-C leaves it running.

    Examples: `tracon run connector-tax --preset demo`,
    `tracon run routing --policy lmetric --policy unified --set unified.overload_factor=1.3 --trace sessions.jsonl`,
    `tracon run pd-lifecycle --config nixl_both --set new_tokens=[512,2048]`
    """
    from launch.gpu_checks import explain_small_gpus
    from runners.campaign.free_gpus import explain_skipped_gpus, require_free_gpus
    from runners.campaign.gpu_room import require_gpu_room
    from runners.campaign.start import create_run, require_pace, require_ports, spawn_run_process
    from runners.cli.asking import skip_stages
    from runners.experiments.registry import experiment_named

    options = from_root(RunOptions(experiment, **chosen(context, RUN)))
    if dry_run:
        _print_plan(options, workspace, json)
        return
    prepared = _prepare_run(options, need_engine=True)
    require_pace(pace, prepared.draft)
    if not accept_small_gpus:
        require_gpu_room(experiment_named(experiment), options, prepared.draft)
        require_free_gpus(prepared.draft)
    require_ports(prepared)
    unrest = _explain_unrest(prepared.profile.engine.kind, workspace) if prepared.draft.needs_engine else ""
    too_large = explain_small_gpus(prepared.profile) if prepared.draft.needs_engine else ""
    folder = create_run(workspace_of(workspace), prepared, unrest, pace)
    terminal.narrate("run ", (folder.name, "bold"), f" in {folder.parent}")
    for warning in filter(None, (too_large, explain_skipped_gpus(prepared.draft), unrest)):
        terminal.err().print(warning, style="yellow", markup=False)
    skip_stages(folder, skip_stage or ())
    process = spawn_run_process(folder)
    accompany_run(folder, process.pid, detach=detach, console=console, json=json)


def resume(
    run: RunArg = None,
    workspace: WorkspaceOption = None,
    detach: DetachOption = False,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes", help="Continue although something that shapes the numbers changed; the report names it."
        ),
    ] = False,
    console: Annotated[bool, typer.Option("--console", help="Open the console on the run.")] = False,
    skip_stage: SkipStageOption = None,
    pace: PaceOption = None,
    json: JsonOption = False,
) -> None:
    """Continue a run that was paused, stopped or killed. Finished cells are never measured again."""
    from results.records.events import Noted, RunState
    from runners.campaign.start import spawn_run_process
    from runners.cli.asking import skip_stages
    from state.lease import lease_state
    from state.store import RunStore

    folder = workspace_of(workspace).find(run)
    with RunStore.open(folder) as store:
        view = store.view()
        if lease_state(store).live:
            _refuse_pace_of_live_run(pace)
            if view.state is RunState.PAUSED:  # else its own engines keep the host busy
                _warn_of_unrest(view, workspace)
            _ask_run(folder, "resume", "", "", json=json)
            return
        if not accept_changes:
            _refuse_changes(view)
        if pace is not None:
            _choose_pace(store, pace)
        if unrest := _warn_of_unrest(view, workspace):
            store.append(Noted("warning", folder.name, unrest))
    skip_stages(folder, skip_stage or ())
    process = spawn_run_process(folder, accept_changes=accept_changes)
    accompany_run(folder, process.pid, detach=detach, console=console, json=json)


def status(run: RunArg = None, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """Print the state of a run: stages, cells, instances, ETA, its folder and its log."""
    from results.records.layout import RunLayout
    from runners.cli.tables import status_json, status_tables

    folder = workspace_of(workspace).find(run)
    view, lease = _read_run(folder)
    if json:
        terminal.print_json(status_json(view, lease, folder, time.time()))
    else:
        terminal.out().print(status_tables(view, lease, time.time()))
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
        state, command = ("interrupted", "resume") if interrupted else (_read_run(folder)[0].state, "report")
        terminal.narrate((folder.name, "bold"), f" is {state}: `tracon {command} {folder.name}`")
    raise typer.Exit(code)


def stop(
    run: RunArg = None,
    workspace: WorkspaceOption = None,
    now: Annotated[bool, typer.Option("--now", help="Cut the running cell; `resume` measures it again.")] = False,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Stop a run after the running cell (or `--now`); `tracon resume` continues it."""
    _ask_run(workspace_of(workspace).find(run), "stop_now" if now else "stop", "", reason, json=json)


def pause(
    run: RunArg = None, workspace: WorkspaceOption = None, reason: ReasonOption = "", json: JsonOption = False
) -> None:
    """Pause a run after the running cell; its engine is released, `tracon resume` continues it."""
    _ask_run(workspace_of(workspace).find(run), "pause", "", reason, json=json)


def skip(
    run: RunArg = None,
    cell: Annotated[str, typer.Option("--cell", help="Skip this cell.")] = "",
    config: Annotated[str, typer.Option("--config", help="Skip all pending cells of this config.")] = "",
    stage: Annotated[str, typer.Option("--stage", help="Skip all pending cells of this stage.")] = "",
    reason: ReasonOption = "",
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Skip a cell, a config or a stage, with a reason that the report shows."""
    targets = _name_targets(cell, config, stage)
    if len(targets) != 1:
        raise RunnerError("name exactly one thing to skip", remedy="give one of --cell, --config, --stage")
    _ask_run(workspace_of(workspace).find(run), "skip", targets[0], reason, json=json)


def retry(
    run: RunArg = None,
    cell: Annotated[str, typer.Option("--cell", help="Retry only this cell.")] = "",
    config: Annotated[str, typer.Option("--config", help="Retry only this config's cells.")] = "",
    stage: Annotated[str, typer.Option("--stage", help="Retry only this stage's cells.")] = "",
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Set failed cells back to pending: all, or those named. A run that has ended then needs `tracon resume`."""
    targets = _name_targets(cell, config, stage)
    if len(targets) > 1:
        raise RunnerError("name at most one thing to retry", remedy="give one of --cell, --config, --stage, or none")
    _ask_run(workspace_of(workspace).find(run), "retry", targets[0] if targets else "", "", json=json)


def _name_targets(cell: str, config: str, stage: str) -> list[str]:
    return [f"{kind}:{name}" for kind, name in (("cell", cell), ("config", config), ("stage", stage)) if name]


def list_runs(workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """List the runs of the workspace, newest first."""
    from runners.cli.tables import runs_json, runs_table

    entries = workspace_of(workspace).runs()
    if json:
        terminal.print_json(runs_json(entries))
    elif entries:
        terminal.out().print(runs_table(entries))
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
    """Open the console on a run, or on the list of runs. Closing it never touches a run."""
    flags = {
        "--read-only": read_only,
        "--low-bandwidth": low_bandwidth,
        "--no-mouse": no_mouse,
        "--ascii": ascii,
    }
    folder = str(workspace_of(workspace).find(run)) if run else None
    open_console(folder, workspace, [flag for flag, wanted in flags.items() if wanted])


def work(folder: Path, accept_changes: Annotated[bool, typer.Option("--accept-changes")] = False) -> None:
    """The run process itself; `run` and `resume` start it."""
    from runners.campaign.run_process import work as work_on
    from runners.experiments.registry import experiment_named

    raise typer.Exit(work_on(folder, experiment_named, accept_changes=accept_changes))


def open_console(run: str | None, workspace: Path | None, flags: Sequence[str] = ()) -> NoReturn:
    """Replace this process with the console."""
    os.execv(sys.executable, [*_console_argv(run, workspace), *flags])


def _console_argv(run: str | None, workspace: Path | None) -> list[str]:
    argv = [sys.executable, "-m", "console"]
    if run:
        argv.append(run)
    if workspace:
        argv += ["--workspace", str(workspace)]
    return argv


def _prepare_run(options: RunOptions, *, need_engine: bool) -> Prepared:
    from runners.campaign.start import prepare_run
    from runners.experiments.registry import experiment_named

    return prepare_run(experiment_named(options.experiment), options, need_engine=need_engine)


def _print_plan(options: RunOptions, workspace: Path | None, json: bool) -> None:
    from launch.gpu_checks import explain_small_gpus
    from runners.cli.tables import plan_json, plan_tables
    from runners.experiments.registry import experiment_named

    prepared = _prepare_run(options, need_engine=False)
    precision = experiment_named(options.experiment).describe_precision(prepared.plan, workspace_of(workspace))
    unrest = _explain_unrest(prepared.profile.engine.kind, workspace) if prepared.draft.needs_engine else ""
    too_large = explain_small_gpus(prepared.profile) if prepared.draft.needs_engine else ""
    notes = (*precision, *prepared.draft.notes, *filter(None, (too_large, unrest)))
    if json:
        terminal.print_json(plan_json(prepared.plan, prepared.draft.sums, notes))
    else:
        terminal.out().print(plan_tables(prepared.plan, prepared.draft.sums, notes))


def from_root(options: RunOptions) -> RunOptions:
    """The options with absolute paths: the run process may be started again from another folder."""
    return replace(
        options,
        profile=_make_absolute(options.profile),
        configs=tuple(map(_make_absolute, options.configs)),
        policies=tuple(map(_make_absolute, options.policies)),
        trace=str(Path(options.trace).resolve()) if options.trace else "",
        engine=_make_absolute(options.engine),
    )


def _make_absolute(name: str) -> str:
    """A name stays a name: a path has a `/`, or ends in `.toml`, `.json`, `.py` or `.py:Class`."""
    is_path = "/" in name or name.endswith((".toml", ".json")) or name.partition(":")[0].endswith(".py")
    return str(Path(name).expanduser().resolve()) if is_path else name


def _read_run(folder: Path) -> tuple[RunView, LeaseState]:
    from state.lease import lease_state
    from state.store import RunStore

    with RunStore.open(folder, read_only=True) as store:
        return store.view(), lease_state(store)


def _ask_run(folder: Path, action: str, target: str, reason: str, *, json: bool = False) -> None:
    from runners.cli.asking import ask_run

    answer = ask_run(folder, action, target, reason)
    if json:
        terminal.print_json(answer)
    else:
        verb = "accepted" if answer["accepted"] else "refused"
        terminal.narrate(f"{action.replace('_', ' ')} {verb}: {answer['detail']}")
    if not answer["accepted"]:
        raise typer.Exit(ExitCode.BAD_INPUT)


def _refuse_changes(view: RunView) -> None:
    from runners.campaign.plan import find_changes_for_rest
    from runners.campaign.start import options_of

    changes = find_changes_for_rest(view, _prepare_run(options_of(view.plan), need_engine=True).plan)
    if changes:
        raise RunnerError(
            f"what shapes the numbers of {view.run} has changed since it began: {changes}",
            remedy="undo the change, start a new run, or `tracon resume --accept-changes` (the report will say so)",
        )


def _explain_unrest(kind: Kind, workspace: Path | None) -> str:
    from runners.samplers.rest import explain_unrest, find_usual_work_us, read_rest

    return explain_unrest(read_rest(), kind, find_usual_work_us(workspace_of(workspace)))


def _warn_of_unrest(view: RunView, workspace: Path | None) -> str:
    """Print why the host that measures the rest of the run is not at rest; empty where it is, or needs not be."""
    from state.run import CELL_ENDED

    inputs = view.plan.inputs
    measures = not inputs.get("simulated") and any(cell.state not in CELL_ENDED for cell in view.cells.values())
    unrest = _explain_unrest(inputs["profile"]["engine"]["kind"], workspace) if measures else ""
    if unrest:
        terminal.err().print(unrest, style="yellow", markup=False)
    return unrest


def _choose_pace(store: RunStore, pace: float) -> None:
    from results.records.events import PaceChosen
    from runners.campaign.start import options_of, require_pace

    require_pace(pace, _prepare_run(options_of(store.plan), need_engine=False).draft)
    store.append(PaceChosen(pace))


def _refuse_pace_of_live_run(pace: float | None) -> None:
    if pace is not None:
        raise RunnerError(
            "a run process that is alive keeps its pace",
            remedy="end it with `tracon stop`, then `tracon resume --pace N`",
        )


def accompany_run(
    folder: Path, worker_pid: int, *, detach: bool, console: bool, json: bool, document: Path | None = None
) -> NoReturn:
    """Follow a run process that this command has started, print its end, and exit with its exit code.

    `document`: the file that `json` prints for a finished run instead of its status.
    """
    from runners.campaign.exit_code import list_shortfalls
    from runners.cli.follow import await_lease
    from runners.cli.reports import render_ending
    from runners.cli.tables import status_json

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
    view, lease = _read_run(folder)
    if lease.live:
        terminal.narrate((folder.name, "bold"), " goes on: `tracon`, `tracon watch`, `tracon stop`")
        raise typer.Exit(code)
    if code == ExitCode.INTERRUPTED:
        remedy = f"`tracon resume {folder.name}` goes on from here"
        terminal.fail(RunnerError(f"the run was interrupted: {view.reason or 'its process ended'}", remedy=remedy))
    if json and document is not None and document.is_file():
        terminal.print_json_line(document.read_bytes())
    elif json:
        terminal.print_json(status_json(view, lease, folder, time.time()))
    elif code in (ExitCode.DONE, ExitCode.CELLS_FAILED, ExitCode.GATE_FAILED):
        terminal.out().print(render_ending(folder))
    for text in list_shortfalls(view)[:MOST_SHORTFALLS]:
        terminal.err().print(text, markup=False, soft_wrap=True)
    raise typer.Exit(code)


def _watch_in_console(folder: Path) -> int:
    """Show the console until it is closed; returns the run's exit code, INTERRUPTED if it still runs."""
    from runners.campaign.exit_code import exit_code

    subprocess.run(_console_argv(str(folder), None), check=False)
    view, lease = _read_run(folder)
    return ExitCode.INTERRUPTED if lease.live else exit_code(view)


def _follow_to_end(folder: Path, worker_pid: int) -> int:
    """Follow; the first Ctrl-C (or TERM) asks the run to stop now and waits, the second leaves it alone."""
    from runners.cli.asking import ask_run
    from runners.cli.follow import follow_run

    try:
        return follow_run(folder, worker_pid=worker_pid)
    except KeyboardInterrupt:
        terminal.err().print("stopping the run so that it can be resumed; Ctrl-C again leaves it running")
    try:
        ask_run(folder, "stop_now", "", "Ctrl-C at the command that started it")
        return follow_run(folder, worker_pid=worker_pid)
    except KeyboardInterrupt:
        terminal.narrate("left ", (folder.name, "bold"), " running: `tracon watch`, `tracon stop`")
        return ExitCode.INTERRUPTED
