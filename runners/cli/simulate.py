"""`tracon simulate`: size a fleet for a latency objective; fit engine models to real runs and check them."""

from __future__ import annotations

import shlex
import statistics
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

import runners.cli.terminal as terminal
from results.records.count import format_count
from results.records.percent import format_percent
from runners.cli.options import (
    PROFILE_HELP,
    TRACES_PANEL,
    ConsoleOption,
    DetachOption,
    DryRunOption,
    JsonOption,
    PaceOption,
    RunArg,
    WorkspaceOption,
)
from runners.cli.spec_options import SpecOption, SpecOptions, chosen, make_command_class
from runners.errors import RunnerError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from runners.simulator.calibrate import Calibration, CellComparison
    from runners.simulator.check import Check

PROFILE = "h20-qwen3-coder-30b"
FLEET = {"profile": PROFILE, "preset": "fleet"}
SIZED = {"profile": PROFILE, "preset": "fleet-size"}
_ENGINE = SpecOption("engine", "--engine", "Use this engine model: a name or a file", "MODEL", default="the preset's")
_ON = SpecOption("on", "--on", "Simulate on `local`, `ray` or `ray://HEAD:PORT`", "WHERE", default="local")
_SEED = SpecOption(
    "seed", "--seed", "Draw step noise from this seed; `--set trace.seed=N` draws other traces", default="the preset's"
)
_SETTINGS = SpecOption("settings", "--set", "Change a setting of the preset (repeatable)", "KEY=VALUE")
_PROFILE = SpecOption("profile", "--profile -p", PROFILE_HELP, default=PROFILE)
REPLAYING = SpecOptions(
    "runners.campaign.experiment:RunOptions",
    (
        SpecOption(
            "trace", "--trace", "Replay this trace: without `--preset` all of it, at its own pace", "FILE",
            default="the preset's",
        ),
        SpecOption(
            "policies", "--policy", "Simulate this routing policy: a name, label or Python file (repeatable)", "POLICY",
            default="the preset's",
        ),
        SpecOption("instances", "--instances", "Simulate this many instances", None, 1, "the preset's, 8"),
        _ENGINE,
        _ON,
        SpecOption(
            "trials", "--trials", "Simulate each policy N times; a generated trace is drawn again each time", None, 1,
            "the preset's",
        ),
        _SEED,
        _SETTINGS,
        _PROFILE,
        SpecOption(
            "preset", "--preset", "Use this preset of the profile",
            default=f"{FLEET['preset']}; with --trace all of the file, at its own pace",
        ),
    ),
)  # fmt: skip
SIZING = SpecOptions(
    "runners.campaign.experiment:RunOptions",
    (
        SpecOption("trace", "--trace", "Replay this trace at its own pace", "FILE", default="the preset's"),
        SpecOption("policies", "--policy", "Size for this policy (repeatable)", "POLICY"),
        _ENGINE,
        _ON,
        SpecOption(
            "trials", "--trials", "Simulate N traces, by N seeds, at each point; an interval takes 3", None, 1,
            "the preset's, 5",
        ),
        _SEED,
        _SETTINGS,
        _PROFILE,
        SpecOption("preset", "--preset", "Use this preset of the profile", default=SIZED["preset"]),
    ),
)  # fmt: skip


class SimulateGroup(typer.core.TyperGroup):
    """Takes options without a command as those of `policies`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  # a type that Typer keeps to itself
        own = {name for parameter in self.get_params(ctx) for name in parameter.opts}
        if args and args[0].startswith("-") and args[0] not in own:
            args = ["policies", *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: object, cmd_name: str) -> Any:  # noqa: ANN401  # as above
        """None = a misspelled command, which Typer corrects. Raises RunnerError for what is none, such as a preset."""
        if cmd_name in self.commands or get_close_matches(cmd_name, self.commands):
            return self.commands.get(cmd_name)
        raise RunnerError(
            f"`tracon simulate` has no command {cmd_name!r}",
            remedy=f"a preset: `tracon simulate --preset {shlex.quote(cmd_name)}`. `tracon simulate --help` lists the "
            "commands",
        )


simulate_app = typer.Typer(
    no_args_is_help=True,
    cls=SimulateGroup,
    help="""Simulate a fleet: the router's own code in front of engines that are a model. Nothing is measured.

    **Policies on a trace**, on N instances: `tracon simulate --trace FILE --policy unified --policy EAR --instances N`,
    or a preset of simulated H20s: `tracon simulate --preset fleet-loads`. `tracon simulate policies --help` has its
    options; `--dry-run` shows the time, and `--on ray` runs the simulations on a Ray cluster

    **The fewest instances** for a latency objective: `tracon simulate capacity --slo ttft_p90=4s,tpot_p90=50ms`

    **An engine model of your own**, from a real run: `tracon simulate calibrate RUN --out mine.json`, then `tracon run
    routing --simulated --engine mine.json`

    **What a simulated number is worth**: `tracon simulate check LIVE_RUN SIMULATED_RUN CONNECTOR_TAX_RUN`
    """,
)


def add_to(app: typer.Typer) -> None:
    simulate_app.command(cls=make_command_class(REPLAYING))(policies)
    simulate_app.command(cls=make_command_class(SIZING))(capacity)
    simulate_app.command()(calibrate)
    simulate_app.command()(check)
    app.add_typer(simulate_app, name="simulate", rich_help_panel=TRACES_PANEL)


def policies(
    context: typer.Context,
    workspace: WorkspaceOption = None,
    detach: DetachOption = False,
    console: ConsoleOption = False,
    pace: PaceOption = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Replay a trace through routing policies, on N simulated instances. `tracon simulate` with options is the same.

    It is a run of `routing`: `tracon status` has its ETA, `tracon resume` continues it, `tracon report` shows it.
    Engines are a model: nothing is measured.

    Examples: `tracon simulate --trace sessions.jsonl --policy unified --policy EAR --instances 4`,
    `tracon simulate --preset fleet-loads --on ray`
    """
    from runners.campaign.experiment import RunOptions
    from runners.cli.runs import print_plan, resolve_paths, start_run
    from runners.experiments.routing.plan import replay_as_recorded

    given = chosen(context, REPLAYING)
    asked: dict[str, Any] = {**FLEET, **given}
    if "trace" in given and "preset" not in given:  # a preset for a recorded trace says how much of it, and how fast
        asked["settings"] = replay_as_recorded(asked.get("settings", ()))
    options = resolve_paths(RunOptions("routing", **asked, simulated=True))
    if dry_run:
        print_plan(options, workspace, json)
        return
    start_run(options, workspace, detach=detach, console=console, pace=pace, json=json)


def capacity(
    context: typer.Context,
    slo: Annotated[
        str, typer.Option("--slo", metavar="LIMITS", help="Hold these limits, e.g. `ttft_p90=2s,tpot_p90=50ms`.")
    ],
    max_instances: Annotated[
        int | None, typer.Option("--max-instances", min=1, help="End the search there (default: the preset's).")
    ] = None,
    workspace: WorkspaceOption = None,
    detach: DetachOption = False,
    console: ConsoleOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Find the fewest instances that hold a latency objective, and the split of static pools, for each policy.

    It is a run: `tracon status` has its ETA, `tracon resume` continues it, `tracon report` shows it. Engines are a
    model: nothing is measured.

    Five traces at each point give the answer its interval: some 4 minutes on two cores for the preset's five policies.
    `--trials 1` takes a fifth, and gives the number alone.

    Example: `tracon simulate capacity --slo ttft_p90=2s,tpot_p90=50ms --trace sessions.jsonl --policy unified`
    """
    from runners.campaign.experiment import RunOptions
    from runners.cli.runs import print_plan, resolve_paths, start_run

    search = [f"search.slo={slo}"]
    search += [] if max_instances is None else [f"search.max_instances={max_instances}"]
    asked: dict[str, Any] = {**SIZED, **chosen(context, SIZING)}
    asked["settings"] = (*search, *asked.get("settings", ()))
    options = resolve_paths(RunOptions("capacity", **asked))
    if dry_run:
        print_plan(options, workspace, json)
        return
    start_run(options, workspace, detach=detach, console=console, json=json, prints_results=True)


def calibrate(
    run: RunArg = None,
    config: Annotated[str, typer.Option("--config", "-c", help="Fit the engine of this connector config.")] = "plain",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the engine model as JSON to this file.")
    ] = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Fit an engine model to the step times of a connector-tax run, and compare it with the cells it was not fitted to.

    It is fitted to every second cell; the others, and all of `plain_again`, are simulated and compared. Check their
    error before you trust a simulation: docs/calibrate.md has the limits that a model must meet.

    Example: `tracon simulate calibrate 20260131-1200 --out mine.json`; then
    `tracon run routing --simulated --engine mine.json`.
    """
    import msgspec

    from runners.cli.folders import find_artifacts_folder
    from runners.simulator.calibrate import calibrate as fit_run

    if out is not None and out.suffix != ".json":
        raise RunnerError(f"--out {out}: the engine model is written as JSON", remedy="name a file that ends in .json")
    calibration = fit_run(find_artifacts_folder(run, workspace), config)
    if out is not None:
        from results.records.layout import write_atomic

        write_atomic(out, msgspec.json.format(msgspec.json.encode(calibration.engine)) + b"\n")
    if json:
        terminal.print_json(calibration)
    else:
        terminal.out().print(make_calibration_tables(calibration))


def check(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run ids, unique beginnings of them, or folders.")
    ],
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Compare the simulator with real runs: parity, calibration, APC and rank. Exits with 4 if a gate fails.

    Live routing runs decide whether the simulator's router makes the same picks, decision by decision. Connector-tax
    runs decide the calibration, of the engine model that was fitted to them. Live and simulated routing runs together
    decide APC and the order of the policies. A gate that the runs cannot decide is undecided, or open without a number,
    and names what is missing.

    The gates become part of the report of each simulated run, also of `capacity`; the last check counts, so name all
    runs at once.

    Example: `tracon simulate check LIVE_RUN SIMULATED_RUN CONNECTOR_TAX_RUN`
    """
    from runners.cli.folders import find_artifacts_folder
    from runners.errors import ExitCode
    from runners.simulator.check import check_runs, record_gates

    folders = [find_artifacts_folder(run, workspace) for run in runs]
    checked = check_runs(folders)
    if json:
        terminal.print_json({"passed": checked.passed, **asdict(checked)})
    else:
        terminal.out().print(check_tables(checked))
    for folder in record_gates(checked, folders):
        terminal.narrate("these gates are in the report of ", (folder.name, "bold"), f", {folder}/report.html")
    if not checked.passed:
        raise typer.Exit(ExitCode.GATE_FAILED)


def check_tables(checked: Check) -> RenderableType:
    """The gates, and each live cell's decisions with its first difference."""
    from rich.console import Group
    from rich.text import Text

    from runners.cli.tables import begin_table

    gates = begin_table("gate", "rule", "outcome", "by the point", "numbers")
    for gate in checked.gates:
        gates.add_row(gate.name, gate.rule, gate.outcome, gate.point or "-", gate.reason)
    cells = begin_table(
        "cell", ">decisions", ">equal", ">not compared", ">different", "first difference, or why none is compared"
    )
    lines: list[str] = []
    for cell in checked.parity:
        parity = cell.parity
        if parity is None:
            cells.add_row(cell.cell, "-", "-", "-", "-", cell.reason)
            continue
        unsure, first = sum(parity.unsure.values()), parity.first
        where = "" if first is None else f"decision {first.seq}: {', '.join(first.fields)}"
        cells.add_row(cell.cell, *map(str, (parity.decisions, parity.equal, unsure, parity.different)), where)
        lines += [f"{cell.cell}: {count} are not compared: {why}" for why, count in parity.unsure.items()]
        lines += [f"{cell.cell}: cached tokens are the log's own: {parity.index_reason}"] * bool(parity.index_reason)
    shown = (gates, Text(), cells) if checked.parity else (gates,)
    return Group(*shown, *map(Text, (*lines, *checked.notes)))


def make_calibration_tables(calibration: Calibration) -> RenderableType:
    """The coefficients, and each cell's p90s: measured, simulated, and the error."""
    from rich.console import Group
    from rich.text import Text

    from runners.cli.tables import begin_table

    model = calibration.engine.model
    step = model.step
    lines = [
        f"A step takes {step.base_s * 1e3:.3f} ms + {step.prefill_token_s * 1e6:.2f} us per prompt token "
        f"+ {step.decode_sequence_s * 1e6:.1f} us per sequence that decodes; for the context, "
        f"{step.prefill_context_s * 1e9:.2f} ns per token that a prompt token attends to "
        f"+ {step.decode_context_s * 1e9:.1f} ns per KV token that a sequence reads; a request "
        f"{model.frontend_s * 1e3:.1f} ms before it is scheduled.",
        f"Fitted to {calibration.steps} steps, mean absolute error of a step {format_percent(calibration.step_mape)}.",
    ]
    if calibration.not_told_apart:
        lines.append(
            f"The steps do not tell {', '.join(calibration.not_told_apart)} apart from the others: 0. "
            "A run with several rates and lengths of prompts and answers does."
        )
    for metric, name in (("ttft_s", "TTFT p90"), ("tpot_s", "TPOT p90"), ("e2e_s", "E2E p90")):
        for near_saturation, which in ((False, "not fitted"), (True, "not fitted and near saturation (not judged)")):
            loads = list(calibration.list_loads(metric, near_saturation=near_saturation).values())
            if loads:
                bias = format_percent(statistics.geometric_mean(1 + load.bias for load in loads) - 1, signed=True)
                mean_error = format_percent(statistics.fmean(load.size for load in loads))
                cells = format_count(sum(len(load.cells) for load in loads), "cell", "cells")
                over = f"{cells} of {format_count(len(loads), 'load', 'loads')}"
                repeated = [load.repetition for load in loads if load.repeated]
                repetition = format_percent(statistics.fmean(repeated)) if repeated else "not measured"
                lines.append(
                    f"{name} of {over} {which}: bias {bias}, mean error {mean_error}; of a real cell against its own "
                    f"repetition {repetition}."
                )
    table = begin_table("cell", "fitted", "near saturation", ">TTFT p90 (ms)", ">TPOT p90 (ms)", ">E2E p90 (ms)")
    for cell in calibration.cells:
        table.add_row(
            cell.cell,
            "yes" if cell.fitted else "no",
            "yes" if cell.near_saturation else "no",
            *(_format_pair(cell, metric) for metric in cell.measured),
        )
    return Group(*(Text(line) for line in lines), Text(), table)


def _format_pair(cell: CellComparison, metric: str) -> str:
    measured, simulated, error = cell.measured[metric], cell.simulated[metric], cell.error(metric)
    if measured is None or simulated is None or error is None:
        return "-"
    return f"{measured * 1e3:.2f}, simulated {simulated * 1e3:.2f} ({format_percent(error, signed=True)})"
