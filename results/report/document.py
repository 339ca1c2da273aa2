"""A report's sections as Markdown for files and as rich tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from results.records.run_folder import RunFacts
from results.report.content import ReportText
from results.report.figure import Figure
from results.report.table import Table


def report_title(facts: RunFacts) -> str:
    return f"{facts.experiment or 'Run'} {facts.run}"


def describe_engine(facts: RunFacts) -> str:
    """Which kind of engine was measured, to follow the run's label; empty where it is not known."""
    return {"cpu": ", on a CPU build of the engine", "cuda": ", on a GPU"}.get(facts.engine_kind, "")


def render_markdown(name: str, text: ReportText, figures: Iterable[Figure] = ()) -> str:
    lines = [f"# {name}", "", text.opening, ""]
    for table in text.tables:
        lines += [f"## {table.title}", "", *([table.note, ""] if table.note else []), *_markdown_table(table), ""]
    drawn = [line for figure in figures for line in _markdown_figure(figure)]
    if drawn:
        lines += ["## Figures", "", *drawn]
    lines += ["## What this does not say", "", *(f"- {line}" for line in text.limits)]
    return "\n".join(lines) + "\n"


def rich_tables(text: ReportText) -> RenderableType:
    """The report's text for a terminal."""
    parts: list[RenderableType] = [Text(text.opening), Text()]
    for table in text.tables:
        parts += [rich_table(table), Text()]
    parts.append(Text("What this does not say", style="bold"))
    parts += [Padding(Text(f"- {line}"), (0, 0, 0, 2)) for line in text.limits]
    return Group(*parts)


def rich_table(table: Table) -> RichTable:
    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False, title_justify="left", caption_justify="left")
    drawn.title, drawn.title_style = escape(table.title), "bold"
    for number, column in enumerate(table.columns):
        drawn.add_column(escape(column), overflow="fold", no_wrap=number == 0 or column == "config")
    for row in table.rows:
        drawn.add_row(*(escape(cell) for cell in row))
    if table.note:
        drawn.caption = escape(table.note)
    return drawn


def _markdown_figure(figure: Figure) -> list[str]:
    name = f"Figure {figure.label}. {figure.title}"
    if figure.missing:
        return [f"**{name}**: not drawn: {figure.missing}", ""]
    path = f"figures/{figure.stem}"
    return [
        f"![{name}]({path}.svg)",
        "",
        f"**{name}.** {figure.caption} ([numbers]({path}.csv), [PNG]({path}.png))",
        "",
    ]


def _markdown_table(table: Table) -> list[str]:
    return [
        f"| {' | '.join(map(_markdown_cell, table.columns))} |",
        f"|{'---|' * len(table.columns)}",
        *(f"| {' | '.join(map(_markdown_cell, row))} |" for row in table.rows),
    ]


def _markdown_cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
