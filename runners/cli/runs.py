"""Commands about runs: plan, run, watch, steer, list."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from runners.cli import output
from runners.cli.folders import workspace_of
from runners.cli.options import (
    ConfigOption,
    DetachOption,
    ExperimentArg,
    JsonOption,
    PolicyOption,
    PresetOption,
    ProfileOption,
    PythonOption,
    ReasonOption,
    RunArg,
    SeedOption,
    SetOption,
    SkipStageOption,
    TraceOption,
    TrialsOption,
    WorkspaceOption,
)
from runners.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runners.draft import Wish
    from state.lease import LeaseState
    from state.view import RunView


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (plan, run, resume, status, watch, stop, pause, skip, retry, console):
        app.command()(command)
    app.command("list")(list_runs)
    app.command(hidden=True)(work)


def plan(
    experiment: ExperimentArg,
    profile: ProfileOption = "cpu-tiny",
    preset: PresetOption = "full",
    config: ConfigOption = None,
    seed: SeedOption = None,
    trials: TrialsOption = None,
    policy: PolicyOption = None,
    settings: SetOption = None,
    trace: TraceOption = None,
    engine_python: PythonOption = None,
    json: JsonOption = False,
) -> None:
    """Print stages, cells and the estimated time without running anything.

    Examples: `tracon plan connector-tax --profile h20-qwen3-coder-30b`, `tracon plan routing --policy unified`,
    `tracon plan pd-lifecycle --preset demo`
    """
    _print_plan(
        _wish(experiment, profile, preset, config, seed, engine_python, trials, None, policy, settings, trace), json
    )


def run(
    experiment: ExperimentArg,
    profile: ProfileOption = "cpu-tiny",
    preset: PresetOption = "full",
    config: ConfigOption = None,
    seed: SeedOption = None,
    trials: TrialsOption = None,
    policy: PolicyOption = None,
    settings: SetOption = None,
    trace: TraceOption = None,
    engine_python: PythonOption = None,
    workspace: WorkspaceOption = None,
    detach: DetachOption = False,
    console: Annotated[
        bool, typer.Option("--console", help="Open the console on the run (where there is a terminal).")
    ] = False,
    port: Annotated[
        int | None, typer.Option("--port", help="First port of the engines (default: the profile's).")
    ] = None,
    skip_stage: SkipStageOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, as `tracon plan`; start nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Start a run and watch it to its end.

    The work is done by a process of its own: closing this terminal changes nothing. Ctrl-C stops the run so that
    `tracon resume` can go on; twice leaves it running.

    Examples: `tracon run connector-tax --preset demo`,
    `tracon run routing --policy lmetric --policy unified --set unified.overload_factor=1.3 --trace sessions.jsonl`,
    `tracon run pd-lifecycle --config nixl_both --set new_tokens=[512,2048]`
    """
    from runners.cli.asking import skip_stages
    from runners.start import create_run, prepare, require_ports, spawn_worker

    wish = _wish(experiment, profile, preset, config, seed, engine_python, trials, port, policy, settings, trace)
    if dry_run:
        _print_plan(wish, json)
        return
    prepared = prepare(wish, need_engine=True)
    require_ports(prepared)
    folder = create_run(workspace_of(workspace), prepared)
    output.err().print(f"run [bold]{folder.name}[/] in {folder.parent}")
    skip_stages(folder, skip_stage or ())
    worker = spawn_worker(folder)
    _accompany(folder, worker.pid, detach=detach, console=console, json=json)


def resume(
    run: RunArg = None,
    workspace: WorkspaceOption = None,
    detach: DetachOption = False,
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes", help="Go on although something that shapes numbers changed; the report says so."
        ),
    ] = False,
    console: Annotated[bool, typer.Option("--console", help="Open the console on the run.")] = False,
    skip_stage: SkipStageOption = None,
    json: JsonOption = False,
) -> None:
    """Go on with a run that was paused, stopped or killed. Finished cells are kept, never measured again."""
    from runners.cli.asking import skip_stages
    from runners.start import spawn_worker
    from state.lease import lease_state
    from state.store import RunStore

    folder = workspace_of(workspace).find(run)
    with RunStore.open(folder) as store:
        if lease_state(store).live:
            _ask(folder, "resume", "", "")
            return
        if not accept_changes:
            _refuse_changes(store.view())
    skip_stages(folder, skip_stage or ())
    worker = spawn_worker(folder, accept_changes=accept_changes)
    _accompany(folder, worker.pid, detach=detach, console=console, json=json)


def status(run: RunArg = None, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """Show where a run stands: stages, cells, instances, ETA."""
    from runners.cli.tables import status_json, status_tables

    folder = workspace_of(workspace).find(run)
    view, lease = _read(folder)
    if json:
        output.print_json(status_json(view, lease, folder, time.time()))
    else:
        output.out().print(status_tables(view, lease, time.time()))


def watch(run: RunArg = None, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """Follow a run until it ends, with progress and ETA; `--json` prints its events, one JSON object a line.

    Ends with the run's own exit code. Ctrl-C leaves the run alone.
    """
    from runners.cli.follow import follow

    folder = workspace_of(workspace).find(run)
    try:
        code = follow(folder, events=json)
    except KeyboardInterrupt:
        output.err().print(f"left [bold]{folder.name}[/] as it is")
        code = ExitCode.DONE
    raise typer.Exit(code)


def stop(
    run: RunArg = None,
    workspace: WorkspaceOption = None,
    now: Annotated[
        bool, typer.Option("--now", help="Cut the running cell; it is measured again after `resume`.")
    ] = False,
    reason: ReasonOption = "",
    json: JsonOption = False,
) -> None:
    """Stop a run after the running cell (or `--now`); `tracon resume` goes on from there."""
    _ask(workspace_of(workspace).find(run), "stop_now" if now else "stop", "", reason, json=json)


def pause(
    run: RunArg = None, workspace: WorkspaceOption = None, reason: ReasonOption = "", json: JsonOption = False
) -> None:
    """Pause a run after the running cell; its engine is released, `tracon resume` goes on."""
    _ask(workspace_of(workspace).find(run), "pause", "", reason, json=json)


def skip(
    run: RunArg = None,
    cell: Annotated[str, typer.Option("--cell", help="This cell.")] = "",
    config: Annotated[str, typer.Option("--config", help="All pending cells of this config.")] = "",
    stage: Annotated[str, typer.Option("--stage", help="All pending cells of this stage.")] = "",
    reason: ReasonOption = "",
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Skip a cell, a config or a stage, with a reason that the manifest keeps."""
    given = [f"{sort}:{name}" for sort, name in (("cell", cell), ("config", config), ("stage", stage)) if name]
    if len(given) != 1:
        raise RunnerError("name exactly one thing to skip", remedy="give one of --cell, --config, --stage")
    _ask(workspace_of(workspace).find(run), "skip", given[0], reason, json=json)


def retry(
    run: RunArg = None,
    cell: Annotated[str, typer.Option("--cell", help="Only this cell.")] = "",
    config: Annotated[str, typer.Option("--config", help="Only this config's cells.")] = "",
    stage: Annotated[str, typer.Option("--stage", help="Only this stage's cells.")] = "",
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Put failed cells back to pending: all, or those named. A run that stands still needs `tracon resume` then."""
    given = [f"{sort}:{name}" for sort, name in (("cell", cell), ("config", config), ("stage", stage)) if name]
    if len(given) > 1:
        raise RunnerError("name at most one thing to retry", remedy="give one of --cell, --config, --stage, or none")
    _ask(workspace_of(workspace).find(run), "retry", given[0] if given else "", "", json=json)


def list_runs(workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """List the runs of the workspace, newest first."""
    from runners.cli.tables import runs_json, runs_table

    entries = workspace_of(workspace).runs()
    if json:
        output.print_json(runs_json(entries))
    elif entries:
        output.out().print(runs_table(entries))
    else:
        output.err().print("no runs yet: `tracon run connector-tax --profile cpu-tiny --preset demo` makes one")


def console(run: RunArg = None, workspace: WorkspaceOption = None) -> None:
    """Open the console on a run, or on the list of runs. Closing it never touches a run."""
    open_console(str(workspace_of(workspace).find(run)) if run else None, workspace)


def work(folder: Path, accept_changes: Annotated[bool, typer.Option("--accept-changes")] = False) -> None:
    """The run process itself; `run` and `resume` start it."""
    from runners.work import work as work_on

    raise typer.Exit(work_on(folder, accept_changes=accept_changes))


def open_console(run: str | None, workspace: Path | None) -> NoReturn:
    """Become the console's process."""
    argv = [sys.executable, "-m", "console"]
    if run:
        argv.append(run)
    if workspace:
        argv += ["--workspace", str(workspace)]
    os.execv(sys.executable, argv)


def _print_plan(wish: Wish, json: bool) -> None:
    from runners.cli.tables import plan_json, plan_tables
    from runners.start import prepare

    prepared = prepare(wish, need_engine=False)
    if json:
        output.print_json(plan_json(prepared.plan, prepared.draft.sums))
    else:
        output.out().print(plan_tables(prepared.plan, prepared.draft.sums, prepared.draft.notes))


def _wish(
    experiment: str,
    profile: str,
    preset: str,
    config: list[str] | None,
    seed: int | None,
    engine_python: Path | None,
    trials: int | None,
    port: int | None,
    policy: list[str] | None,
    settings: list[str] | None,
    trace: Path | None,
) -> Wish:
    """Files are named from the root: the run process may be started again from another folder."""
    from runners.draft import Wish

    policies = tuple(str(Path(name).resolve()) if "/" in name or ".py" in name else name for name in policy or ())
    return Wish(
        experiment=experiment,
        profile=profile,
        preset=preset,
        configs=tuple(config or ()),
        seed=seed,
        engine_python=engine_python,
        trials=trials,
        port=port,
        policies=policies,
        settings=tuple(settings or ()),
        trace=str(trace.resolve()) if trace else "",
    )


def _read(folder: Path) -> tuple[RunView, LeaseState]:
    from state.lease import lease_state
    from state.store import RunStore

    with RunStore.open(folder, read_only=True) as store:
        return store.view(), lease_state(store)


def _ask(folder: Path, action: str, target: str, reason: str, *, json: bool = False) -> None:
    from runners.cli.asking import ask

    answer = ask(folder, action, target, reason)
    if json:
        output.print_json(answer)
    else:
        verb = "accepted" if answer["accepted"] else "refused"
        output.err().print(f"{action.replace('_', ' ')} {verb}: {answer['detail']}")
    if not answer["accepted"]:
        raise typer.Exit(ExitCode.BAD_INPUT)


def _refuse_changes(view: RunView) -> None:
    from runners.plan import differences
    from runners.start import prepare, wish_of

    now = prepare(wish_of(view.plan), need_engine=True).plan
    if now.fingerprint == view.plan.fingerprint:
        return
    changes = "; ".join(differences(view.plan.inputs, now.inputs)) or "stages or cells are laid out differently"
    raise RunnerError(
        f"what shapes the numbers of {view.run} has changed since it began: {changes}",
        remedy="undo the change, start a new run, or `tracon resume --accept-changes` (the report will say so)",
    )


def _accompany(folder: Path, worker_pid: int, *, detach: bool, console: bool, json: bool) -> NoReturn:
    """What the command that started a run process does while it works."""
    from runners.cli.follow import await_lease
    from runners.cli.reports import report_tables
    from runners.cli.tables import status_json

    if detach:
        await_lease(folder, worker_pid)  # so that the next command meets a live run
        if json:
            output.print_json({"run": folder.name, "folder": str(folder), "pid": worker_pid})
        else:
            print(folder.name)
        raise typer.Exit(ExitCode.DONE)
    if console and sys.stdin.isatty() and sys.stdout.isatty():
        open_console(str(folder), None)
    signal.signal(signal.SIGTERM, _as_interrupt)
    code = _follow_to_end(folder, worker_pid)
    view, lease = _read(folder)
    if code == ExitCode.INTERRUPTED:
        remedy = f"`tracon resume {folder.name}` goes on from here"
        output.fail(RunnerError(f"the run was interrupted: {view.reason or 'its process ended'}", remedy=remedy))
    if json:
        output.print_json(status_json(view, lease, folder, time.time()))
    elif code in (ExitCode.DONE, ExitCode.CELLS_FAILED, ExitCode.GATE_FAILED):
        output.out().print(report_tables(folder, again=False))
    raise typer.Exit(code)


def _follow_to_end(folder: Path, worker_pid: int) -> int:
    """Follow; the first Ctrl-C (or TERM) asks the run to stop now and waits, the second leaves it alone."""
    from runners.cli.asking import ask
    from runners.cli.follow import follow

    try:
        return follow(folder, worker_pid=worker_pid)
    except KeyboardInterrupt:
        output.err().print("stopping the run so that it can be resumed; Ctrl-C again leaves it running")
    try:
        ask(folder, "stop_now", "", "Ctrl-C at the command that started it")
        return follow(folder, worker_pid=worker_pid)
    except KeyboardInterrupt:
        output.err().print(f"left [bold]{folder.name}[/] running: `tracon watch`, `tracon stop`")
        return ExitCode.INTERRUPTED


def _as_interrupt(_signum: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
