"""Commands about results: report, compare. Which analysis reads a run depends on its experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runners.cli import output
from runners.cli.folders import artifacts_of
from runners.cli.options import JsonOption, RunArg, RunsArg, WorkspaceOption
from runners.errors import RunnerError

if TYPE_CHECKING:
    from rich.console import RenderableType

ROUTING, LIFECYCLE = "routing", "pd-lifecycle"
WITHIN = {
    ROUTING: "its policies are compared within it, paired by trial",
    LIFECYCLE: "its configurations are compared within it, with the same requests on a combined instance",
}
"""Experiments whose comparisons are inside one run: `compare` has nothing to set side by side."""


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    for command in (report, compare):
        app.command()(command)


def report(
    run: RunArg = None,
    workspace: WorkspaceOption = None,
    again: Annotated[bool, typer.Option("--again", help="Analyse the artifacts again first.")] = False,
    json: JsonOption = False,
) -> None:
    """Print a run's tables: verdicts, and taxes, policies or phases with intervals; on a terminal the curves too.

    The whole report with its figures is the run's `report.html`; `--again` writes it anew.
    """
    folder = artifacts_of(run, workspace)
    if json:
        output.print_json(report_json(folder, again=again))
    else:
        screen = output.out()
        curves_width = min(screen.width, 120) if screen.is_terminal else None
        screen.print(report_tables(folder, again=again, curves_width=curves_width))


def compare(first: RunsArg, second: RunsArg, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """Print two connector-tax runs side by side: latencies, taxes, reference rates, and what differed."""
    from results.compare import compare_runs, to_json
    from runners.cli.tables import compare_tables

    folders = [artifacts_of(run, workspace) for run in (first, second)]
    for folder in folders:
        experiment = experiment_of(folder)
        if experiment in WITHIN:
            raise RunnerError(
                f"{folder.name} is a {experiment} run: {WITHIN[experiment]}",
                remedy=f"see `tracon report {folder.name}`",
            )
    comparison = compare_runs(*folders)
    if json:
        output.print_json(to_json(comparison))
    else:
        output.out().print(compare_tables(comparison))


def experiment_of(folder: Path) -> str:
    """What the run in `folder` executes; empty where its plan cannot be read."""
    import msgspec

    from results.layout import RunLayout

    try:
        plan = msgspec.json.decode(RunLayout(folder).plan.read_bytes())
    except (OSError, msgspec.DecodeError):
        return ""
    return str(plan.get("experiment", "")) if isinstance(plan, dict) else ""


def report_json(folder: Path, *, again: bool) -> dict[str, Any]:
    """The run's numbers as data, analysed first where asked or missing."""
    import msgspec

    from results.layout import RunLayout

    layout, experiment = RunLayout(folder), experiment_of(folder)
    parts = {"aggregate": layout.aggregate_json, "verdicts": layout.verdicts_json}
    if experiment == ROUTING:
        parts["pairs"] = folder / "pairs.json"
    elif experiment != LIFECYCLE:
        parts = {"aggregate": layout.aggregate_json, "tax": layout.tax_json}
    if again or not all(path.exists() for path in parts.values()):
        _analyse(folder)
    return {"run": folder.name} | {name: msgspec.json.decode(path.read_bytes()) for name, path in parts.items()}


def _analyse(folder: Path) -> None:
    experiment = experiment_of(folder)
    if experiment == ROUTING:
        from results.routing.analysis import analyse_routing

        analyse_routing(folder)
    elif experiment == LIFECYCLE:
        from results.lifecycle.analysis import analyse_lifecycle

        analyse_lifecycle(folder)
    else:
        from results.analysis import analyse_run

        analyse_run(folder)


def report_tables(folder: Path, *, again: bool, curves_width: int | None = None) -> RenderableType:
    """The report's tables, from the artifacts as they are; `again` also rewrites the files made from them.

    `curves_width`: columns of the main curves below the tables; None = no curves.
    """
    from rich.console import Group
    from rich.text import Text

    experiment = experiment_of(folder)
    if experiment == ROUTING:
        from results.routing import analysis as policies

        return policies.terminal_tables(policies.analyse_routing(folder) if again else policies.analyse(folder))
    if experiment == LIFECYCLE:
        from results.lifecycle import analysis as lifecycle

        return lifecycle.terminal_tables(lifecycle.analyse_lifecycle(folder) if again else lifecycle.analyse(folder))
    from results.analysis import analyse_run
    from results.findings import analyse
    from results.report import to_rich
    from runners.cli.curves import ttft_curves

    analysis = analyse_run(folder) if again else analyse(folder)
    curves = ttft_curves(analysis, curves_width) if curves_width else None
    return Group(to_rich(analysis), *(() if curves is None else (Text(), curves)))
