"""`tracon simulate`: a trace through a fleet that is a model, and the model fitted to a real run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import runners.cli.output as output
from runners.cli.options import JsonOption, RunArg, WorkspaceOption, read_pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from runners.simulator.calibrate import Calibration, CellComparison
    from runners.simulator.engine_file import EngineFile
    from runners.simulator.simulate import SimulationReport

DEFAULT_ENGINE = "h20-qwen3-coder-30b-a3b"


simulate_app = typer.Typer(no_args_is_help=True, help="Simulate a fleet of engines behind the router's own code.")


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (run, calibrate):
        simulate_app.command()(command)
    app.add_typer(simulate_app, name="simulate")


def run(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Trace file of any format that Tracon reads.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            "-p",
            metavar="NAME[,KEY=VALUE]",
            help="Route by this policy with these parameters; repeat it to compare (default: unified).",
        ),
    ] = None,
    instances: Annotated[int, typer.Option("--instances", min=1, help="Number of engines.")] = 8,
    prefill: Annotated[
        int, typer.Option("--prefill", min=0, help="Of these, the first N only prefill and the others only decode.")
    ] = 0,
    engine: Annotated[
        str, typer.Option("--engine", help="Engine model: a name that comes with Tracon, or a TOML or JSON file.")
    ] = DEFAULT_ENGINE,
    time_scale: Annotated[
        float, typer.Option("--time-scale", help="Multiply every recorded time by this: 0.5 sends twice as fast.")
    ] = 1.0,
    max_inflight_sessions: Annotated[
        int, typer.Option("--max-inflight-sessions", min=0, help="Further sessions wait (0 = no limit).")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the records to this folder (default: one in the workspace).")
    ] = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Send a trace through a simulated fleet: the router's own code before engines that are a model.

    Nothing it prints was measured. Each policy's folder has the records of a real replay (`metrics.jsonl`,
    `decisions.jsonl`), so that `tracon why` and `tracon whatif` work on them. docs/simulator.md says what the model
    holds and what not.

    Example: `tracon simulate run sessions.jsonl --instances 8 -p unified -p sticky -p ear,hot_tokens=60000`
    """  # fmt: skip
    from runners.load.replay_plan import Pace
    from runners.simulator.engine_file import read_engine
    from runners.simulator.simulate import Choice, name_instances, read_workload, simulate
    from state.workspace import default_root

    model, names = read_engine(engine), name_instances(instances, prefill)
    root = out or (workspace or default_root()) / "simulations" / time.strftime("%Y%m%d-%H%M%S")
    choices = [read_policy(text) for text in policy or ["unified"]]
    work = read_workload(trace, Pace(time_scale=time_scale))
    reports = []
    for number, (name, parameters) in enumerate(choices):
        output.err().print(f"simulating {name}: {len(work.plan.turns)} turns, {instances} instances", markup=False)
        choice = Choice(name, parameters, names, model, max_inflight_sessions=max_inflight_sessions)
        reports.append(simulate(work, choice, root / f"{number}_{Path(name).stem}"))
    if json:
        output.print_json({"simulated": True, "engine": model, "policies": reports})
    else:
        output.out().print(simulation_tables(reports, model))


def calibrate(
    run: RunArg = None,
    config: Annotated[str, typer.Option("--config", "-c", help="Fit the engine of this connector config.")] = "plain",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write the engine model to this file.")
    ] = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Fit an engine model to the step times of a connector-tax run, and hold it against the cells it was not fitted to.

    Every second cell gives the fit; the others are simulated and compared. Read the error of those before you believe
    a simulation: docs/simulator.md says which limits a model has to hold.

    Example: `tracon simulate calibrate 20260131-1200 --out mine.json`; then give `--engine mine.json` to `run`.
    """
    import msgspec

    from runners.cli.folders import artifacts_of
    from runners.simulator.calibrate import calibrate as fit_run

    calibration = fit_run(artifacts_of(run, workspace), config)
    if out is not None:
        from results.records.layout import write_atomic

        write_atomic(out, msgspec.json.format(msgspec.json.encode(calibration.engine)) + b"\n")
    if json:
        output.print_json(calibration)
    else:
        output.out().print(calibration_tables(calibration))


def calibration_tables(calibration: Calibration) -> RenderableType:
    """The coefficients, and each cell's p90s: measured, simulated, and the error."""
    from rich.console import Group
    from rich.text import Text

    from runners.cli.tables import begin_table

    model = calibration.engine.model
    step = model.step
    lines = [
        f"A step takes {step.base_s * 1e3:.3f} ms + {step.prefill_token_s * 1e6:.2f} us per prompt token "
        f"+ {step.decode_sequence_s * 1e6:.1f} us per sequence that decodes; a request {model.frontend_s * 1e3:.1f} ms "
        f"before it is scheduled.",
        f"Fitted to {calibration.steps} steps, mean absolute error of a step {calibration.step_mape:.0%}.",
    ]
    for metric, name in (("ttft_s", "TTFT p90"), ("tpot_s", "TPOT p90"), ("e2e_s", "E2E p90")):
        held_out = calibration.held_out(metric)
        if held_out is not None:
            lines.append(f"{name} of the cells not fitted: bias {held_out[0]:+.0%}, mean error {held_out[1]:.0%}.")
    table = begin_table("cell", "fitted", ">TTFT p90 (ms)", ">TPOT p90 (ms)", ">E2E p90 (ms)")
    for cell in calibration.cells:
        table.add_row(
            cell.cell, "yes" if cell.fitted else "no", *(_format_pair(cell, metric) for metric in cell.measured)
        )
    return Group(*(Text(line) for line in lines), Text(), table)


def _format_pair(cell: CellComparison, metric: str) -> str:
    measured, simulated, error = cell.measured[metric], cell.simulated[metric], cell.error(metric)
    if measured is None or simulated is None or error is None:
        return "-"
    return f"{measured * 1e3:.2f}, simulated {simulated * 1e3:.2f} ({error:+.0%})"


def read_policy(text: str) -> tuple[str, dict[str, str]]:
    """`NAME[,KEY=VALUE]...` as name and parameters. Raises RunnerError for another shape."""
    name, *pairs = text.split(",")
    return name, read_pairs(pairs, "--policy", "NAME,KEY=VALUE")


def simulation_tables(reports: Sequence[SimulationReport], model: EngineFile) -> RenderableType:
    """A row per policy, and above it that all of this is simulated."""
    from rich.console import Group
    from rich.text import Text

    from runners.cli.tables import begin_table

    table = begin_table(
        "policy",
        ">APC",
        ">TTFT p50 (s)",
        ">TTFT p90 (s)",
        ">TPOT p90 (ms)",
        ">E2E p90 (s)",
        ">busy",
        ">migrations",
        ">failed",
    )
    for report in reports:
        numbers = report.numbers
        busy = [engine["busy"] for engine in report.engines.values() if engine["busy"] is not None]
        table.add_row(
            report.policy,
            numbers["apc_usage"].text(),
            numbers["ttft_p50_s"].text(),
            numbers["ttft_p90_s"].text(),
            numbers["tpot_p90_s"].text(scale=1e3),
            numbers["e2e_p90_s"].text(),
            f"{min(busy):.0%} to {max(busy):.0%}" if busy else "-",
            str(sum(report.migrations.values())),
            str(report.failed),
        )
    fitted = "fitted to a real engine" if model.calibrated else "UNCALIBRATED: not fitted to any real engine"
    lines = [f"SIMULATED, nothing here was measured. Engine model: {model.title} ({fitted})."]
    lines += [f"{report.policy}: {report.folder}" for report in reports]
    return Group(Text(lines[0], style="bold"), Text(), table, Text(), *(Text(line) for line in lines[1:]))
