"""Commands that start or continue a run: plan, run, resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

import runners.cli.terminal as terminal
from runners.campaign.experiment import RunOptions
from runners.cli.accompany import accompany_run
from runners.cli.folders import workspace_of
from runners.cli.options import (
    RUN,
    RUNS_PANEL,
    ConsoleOption,
    DetachOption,
    DryRunOption,
    ExperimentArg,
    ExperimentCommand,
    JsonOption,
    PaceOption,
    RunArg,
    SkipStageOption,
    WorkspaceOption,
)
from runners.cli.spec_options import chosen, make_command_class
from runners.cli.steering import send_request
from runners.errors import RunnerError

if TYPE_CHECKING:
    from launch.profile import Kind
    from runners.campaign.start import Prepared
    from state.model import RunView
    from state.store import RunStore


def add_to(app: typer.Typer) -> None:
    for planned in (plan, run):
        app.command(cls=make_command_class(RUN, base=ExperimentCommand), rich_help_panel=RUNS_PANEL)(planned)
    app.command(rich_help_panel=RUNS_PANEL)(resume)
    app.command(hidden=True)(work)


def plan(
    context: typer.Context, experiment: ExperimentArg, workspace: WorkspaceOption = None, json: JsonOption = False
) -> None:
    """Print stages, cells, the estimated time and the detectable differences, without running anything.

    Examples: `tracon plan connector-tax --profile h20-qwen3-coder-30b`, `tracon plan routing --policy unified`,
    `tracon plan pd-lifecycle --preset demo`
    """
    print_plan(resolve_paths(RunOptions(experiment, **chosen(context, RUN))), workspace, json)


def run(
    context: typer.Context,
    experiment: ExperimentArg,
    workspace: WorkspaceOption = None,
    detach: DetachOption = False,
    console: ConsoleOption = False,
    skip_stage: SkipStageOption = None,
    pace: PaceOption = None,
    accept_small_gpus: Annotated[
        bool,
        typer.Option(
            "--accept-small-gpus",
            help="Start even if an engine fits on no GPU, by the doctor's estimate or beside other processes.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Start a run and follow it to its end.

    A separate process does the work: closing this terminal does not affect the run. Ctrl-C stops the run so that
    `tracon resume` can continue it; a second Ctrl-C does not wait for that. Without a terminal, stderr has a line per
    event.

    Examples: `tracon run connector-tax --preset demo`,
    `tracon run routing --policy lmetric --policy unified --set unified.overload_factor=1.3 --trace sessions.jsonl`,
    `tracon run pd-lifecycle --config nixl_both --set new_tokens=[512,2048]`
    """
    options = resolve_paths(RunOptions(experiment, **chosen(context, RUN)))
    if dry_run:
        print_plan(options, workspace, json)
        return
    start_run(
        options,
        workspace,
        detach=detach,
        console=console,
        skip_stage=skip_stage,
        pace=pace,
        accept_small_gpus=accept_small_gpus,
        json=json,
    )


def start_run(
    options: RunOptions,
    workspace: Path | None,
    *,
    detach: bool,
    json: bool,
    console: bool = False,
    skip_stage: Sequence[str] | None = None,
    pace: float | None = None,
    accept_small_gpus: bool = False,
    prints_results: bool = False,
) -> NoReturn:
    """Start a run and follow it to its end; exits with the run's exit code.

    `options`: those of `resolve_paths`. `prints_results`: with `json` print the numbers of a finished run instead of
    its status. Raises RunnerError or LaunchError for what keeps the run from starting.
    """
    from launch.gpu_checks import explain_small_gpus
    from results.records.layout import RunLayout
    from runners.campaign.gpus import explain_skipped_gpus, require_free_gpus, require_gpu_room
    from runners.campaign.start import create_run, require_pace, require_ports, spawn_run_process
    from runners.cli.asking import skip_stages
    from runners.experiments.registry import select_experiment

    prepared = _prepare_run(options, need_engine=True)
    require_pace(pace, prepared.draft)
    if not accept_small_gpus:
        require_gpu_room(select_experiment(options.experiment), options, prepared.draft)
        require_free_gpus(prepared.draft)
    require_ports(prepared)
    unrest = _explain_unrest(prepared.draft.profile.engine.kind, workspace) if prepared.draft.needs_engine else ""
    too_large = explain_small_gpus(prepared.draft.profile) if prepared.draft.needs_engine else ""
    folder = create_run(workspace_of(workspace), prepared, unrest, pace)
    terminal.narrate("run ", (folder.name, "bold"), f" in {folder.parent}")
    notes = () if prepared.draft.needs_engine else prepared.draft.notes  # that nothing is measured
    for warning in filter(None, (*notes, too_large, explain_skipped_gpus(prepared.draft), unrest)):
        terminal.err().print(warning, style="yellow", markup=False)
    skip_stages(folder, skip_stage or ())
    process = spawn_run_process(folder)
    document = RunLayout(folder).aggregate_json if prints_results else None
    accompany_run(folder, process.pid, detach=detach, console=console, json=json, document=document)


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
    """Continue a run that was paused, stopped or killed. Finished cells are never measured again.

    Examples: `tracon resume`, `tracon resume 20260131-1200 --console`
    """
    from results.records.events import Noted, RunState
    from runners.campaign.start import spawn_run_process
    from runners.cli.asking import skip_stages
    from state.lease import read_lease_state
    from state.store import RunStore

    folder = workspace_of(workspace).find(run)
    with RunStore.open(folder) as store:
        view = store.view()
        if read_lease_state(store).live:
            _refuse_pace_of_live_run(pace)
            if view.state is RunState.PAUSED:  # else its own engines keep the host busy
                _warn_of_unrest(view, workspace)
            send_request(folder, "resume", "", "", json=json)
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


def work(folder: Path, accept_changes: Annotated[bool, typer.Option("--accept-changes")] = False) -> None:
    """The run process itself; `run` and `resume` start it."""
    from runners.campaign.run_process import work as work_on
    from runners.experiments.registry import select_experiment

    raise typer.Exit(work_on(folder, select_experiment, accept_changes=accept_changes))


def _prepare_run(options: RunOptions, *, need_engine: bool) -> Prepared:
    from runners.campaign.start import prepare_run
    from runners.experiments.registry import select_experiment

    return prepare_run(select_experiment(options.experiment), options, need_engine=need_engine)


def print_plan(options: RunOptions, workspace: Path | None, json: bool) -> None:
    """Print the plan of a run with these options. Raises RunnerError or LaunchError as `start_run`."""
    from launch.gpu_checks import explain_small_gpus
    from runners.cli.tables import make_plan_json, make_plan_tables
    from runners.experiments.registry import select_experiment

    prepared = _prepare_run(options, need_engine=False)
    precision = select_experiment(options.experiment).describe_precision(prepared.plan, workspace_of(workspace))
    unrest = _explain_unrest(prepared.draft.profile.engine.kind, workspace) if prepared.draft.needs_engine else ""
    too_large = explain_small_gpus(prepared.draft.profile) if prepared.draft.needs_engine else ""
    notes = (*precision, *prepared.draft.notes, *filter(None, (too_large, unrest)))
    if json:
        terminal.print_json(make_plan_json(prepared.plan, prepared.draft.sums, notes))
    else:
        terminal.out().print(make_plan_tables(prepared.plan, prepared.draft.sums, notes))


def resolve_paths(options: RunOptions) -> RunOptions:
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


def _refuse_changes(view: RunView) -> None:
    from runners.campaign.plan import find_changes_for_rest
    from runners.campaign.start import rebuild_options

    changes = find_changes_for_rest(view, _prepare_run(rebuild_options(view.plan), need_engine=True).plan)
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
    from runners.campaign.start import rebuild_options, require_pace

    require_pace(pace, _prepare_run(rebuild_options(store.plan), need_engine=False).draft)
    store.append(PaceChosen(pace))


def _refuse_pace_of_live_run(pace: float | None) -> None:
    if pace is not None:
        raise RunnerError(
            "a run process that is alive keeps its pace",
            remedy="end it with `tracon stop`, then `tracon resume --pace N`",
        )
