"""Commands about results: report, export, compare. Which analysis reads a run depends on its experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import runners.cli.terminal as terminal
from runners.cli.folders import find_artifacts_folder, find_compared_folder
from runners.cli.options import RESULTS_PANEL, ComparedArg, JsonOption, RunArg, RunsArg, WorkspaceOption
from runners.errors import RunnerError

if TYPE_CHECKING:
    from rich.console import RenderableType


def add_to(app: typer.Typer) -> None:
    for command in (report, export, compare):
        app.command(rich_help_panel=RESULTS_PANEL)(command)


def report(
    run: RunArg = None,
    workspace: WorkspaceOption = None,
    again: Annotated[bool, typer.Option("--again", help="Analyze the artifacts again before printing.")] = False,
    json: JsonOption = False,
) -> None:
    """Print a run's page and tables: verdicts, taxes, policies or phases with intervals; on a terminal curves too.

    The whole report with its figures is `report.html` in the run's folder, which `tracon status` names; `--again`
    writes it again.

    Examples: `tracon report`, `tracon report 20260131-1200 --json`
    """
    folder = find_artifacts_folder(run, workspace)
    if json:
        terminal.print_json(make_report_json(folder, again=again))
    else:
        screen = terminal.out()
        curves_width = min(screen.width, 120) if screen.is_terminal else None
        screen.print(make_report_tables(folder, again=again, curves_width=curves_width))


def export(
    run: RunsArg,
    folder: Annotated[Path, typer.Argument(help="Folder to write to; created if it does not exist.")],
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Write a run's results to a folder to hand on: report, figures, tables, and the data for tracon compare.

    Raw artifacts stay in the run. Paths of this host are masked in every text. The run is analyzed again.

    Example: `tracon export 20260131-1200 results-of-monday`
    """
    from results.records.count import format_count
    from results.registry import export_run

    files = export_run(find_artifacts_folder(run, workspace), folder)
    if json:
        names = [str(path.relative_to(folder.resolve())) for path in files]
        terminal.print_json({"folder": str(folder), "files": names})
        return
    count = format_count(len(files), "file", "files")
    line = f"{count} in {folder}. To compare a run with them: tracon compare RUN {folder}"
    terminal.out().print(line, markup=False, soft_wrap=True)


def compare(
    first: ComparedArg,
    second: ComparedArg,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Print two runs of one experiment side by side: numbers, verdicts, and what differed.

    Examples: `tracon compare 20260131-1200 20260201-0900`, `tracon compare 20260131-1200 results-of-monday`
    """
    from results.registry import compare_runs
    from results.report.comparison import to_json
    from results.report.comparison_text import describe_comparison
    from results.report.document import make_rich_tables, render_markdown

    compared = compare_runs(*(find_compared_folder(run, workspace) for run in (first, second)))
    text = describe_comparison(compared)
    if json:
        terminal.print_json(to_json(compared))
    elif markdown:
        title = f"{compared.first.experiment}: {compared.first.run} and {compared.second.run}"
        terminal.out().print(render_markdown(title, text), markup=False, soft_wrap=True, end="")
    else:
        terminal.out().print(make_rich_tables(text))


def make_report_json(folder: Path, *, again: bool) -> dict[str, Any]:
    """The run's numbers as data; analyzes the run first if `again` or if a document is missing."""
    import msgspec

    from results.records.errors import DAMAGED_JSON
    from results.records.layout import RunLayout
    from results.registry import find_results_of_run

    results = find_results_of_run(folder)
    files = results.documents(RunLayout(folder))
    if again or not all(path.exists() for path in files.values()):
        results.write(folder)
    documents: dict[str, Any] = {}
    for name, path in files.items():
        try:
            documents[name] = msgspec.json.decode(path.read_bytes())
        except DAMAGED_JSON as error:
            remedy = f"`tracon report {folder.name} --again` writes it again"
            raise RunnerError(f"{path} is damaged: {error}", remedy=remedy) from error
    return {"run": folder.name} | documents | {name: up(documents[name]) for name, up in results.upgrades.items()}


def render_ending(folder: Path) -> RenderableType:
    """The output at the end of a run: the experiment's page if it has one, else the report's tables.

    The page that the run process stored; the run is analyzed again only if its artifacts have changed since.
    """
    from results.registry import find_results_of_run
    from results.report.document import make_rich_tables
    from results.report.page import render_terminal
    from results.report.stored_page import read_page

    experiment = find_results_of_run(folder)
    if experiment.page is None:
        return make_rich_tables(experiment.report(experiment.analyze(folder)))
    page = read_page(folder) or experiment.page(experiment.analyze(folder))
    return render_terminal(page, folder, terminal.out().width)


def make_report_tables(folder: Path, *, again: bool, curves_width: int | None = None) -> RenderableType:
    """The run's page and the report's tables, analyzed from the artifacts; `again` also rewrites the report's files.

    `curves_width`: columns of the experiment's first chart below the tables; None = no chart.
    """
    from rich.console import Group
    from rich.text import Text

    from results.registry import find_results_of_run
    from results.report.curves import draw_curves
    from results.report.document import APPENDIX, make_rich_tables
    from results.report.page import render_terminal

    results = find_results_of_run(folder)
    analysis = results.write(folder) if again else results.analyze(folder)
    parts: list[RenderableType] = [make_rich_tables(results.report(analysis))]
    if results.page is not None:
        page = render_terminal(results.page(analysis), folder, terminal.out().width)
        parts = [page, Text(), Text(APPENDIX, style="bold"), Text(), *parts]
    if results.charts is not None and curves_width:
        chart = next(iter(results.charts(analysis)), None)
        curves = None if chart is None else draw_curves(chart, curves_width)
        parts += [] if curves is None else [Text(), curves]
    return Group(*parts)
