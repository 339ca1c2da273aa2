"""A report's sections as Markdown for files and as rich tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from results.records.run_folder import RunFacts
from results.report.content import ReportText
from results.report.figure import Figure
from results.report.page import REMEDIES_TITLE, Page, describe_sentence, group_by_figure, group_remedies
from results.report.table import Table

APPENDIX = "Appendix"
"""Heading of what follows the page."""
LIMITS_TITLE = "What this does not say"


def format_report_title(facts: RunFacts) -> str:
    return f"{'SIMULATED: ' if facts.simulated else ''}{facts.experiment or 'Run'} {facts.run}"


def describe_engine(facts: RunFacts) -> str:
    """The kind of engine that was measured, to be appended to the run's label; empty where it is not known."""
    if facts.simulated:
        return f", SIMULATED, nothing was measured: engines are the model {facts.simulated}"
    return {"cpu": ", on a CPU build of the engine", "cuda": ", on a GPU"}.get(facts.engine_kind, "")


def render_markdown(name: str, text: ReportText, figures: Sequence[Figure] = (), page: Page | None = None) -> str:
    """The page, then everything else as its appendix; without a page, everything under the title."""
    lines = [f"# {name}", ""]
    if page is not None:
        lines += [*_format_markdown_page(page, figures), f"## {APPENDIX}", ""]
    level = "###" if page is not None else "##"
    lines += [text.opening, ""]
    for table in text.tables:
        lines += [
            f"{level} {table.title}",
            "",
            *([table.note, ""] if table.note else []),
            *_format_markdown_table(table),
            "",
        ]
    drawn = [line for figure in figures for line in _format_markdown_figure(figure)]
    if drawn:
        lines += [f"{level} Figures", "", *drawn]
    lines += [f"{level} {LIMITS_TITLE}", "", *(f"- {line}" for line in text.limits)]
    return "\n".join(lines) + "\n"


def _format_markdown_page(page: Page, figures: Sequence[Figure]) -> list[str]:
    trouble = [f"**{page.trouble}.**", ""] if page.trouble else []
    lines = [f"**{page.question}**", "", " ".join(page.setting), "", page.noise, "", *trouble]
    images = {figure.number: figure for figure in figures if not figure.missing}
    for title, sentences in page.sections:
        lines += [f"## {title}", ""]
        for number, group in group_by_figure(sentences):
            lines += (f"- **{one.name}**{describe_sentence(one)}" for one in group)
            if number in images:  # each at its first sentences
                lines += ["", _format_markdown_image(images.pop(number)), ""]
        lines += [""] if lines[-1] else []
    remedies = [f"- {names}: {decides}." for names, decides in group_remedies(page.undecided)]
    return [*lines, *([REMEDIES_TITLE, "", *remedies, ""] if remedies else [])]


def _format_markdown_image(figure: Figure) -> str:
    return f"![Figure {figure.label}. {figure.title}](figures/{figure.stem}.svg)"


def make_rich_tables(text: ReportText) -> RenderableType:
    """The report's text for a terminal."""
    parts: list[RenderableType] = [Text(text.opening), Text()]
    for table in text.tables:
        parts += [make_rich_table(table), Text()]
    parts.append(Text(LIMITS_TITLE, style="bold"))
    parts += [Padding(Text(f"- {line}"), (0, 0, 0, 2)) for line in text.limits]
    return Group(*parts)


def make_rich_table(table: Table) -> RichTable:
    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False, title_justify="left", caption_justify="left")
    drawn.title, drawn.title_style = escape(table.title), "bold"
    for number, column in enumerate(table.columns):
        drawn.add_column(escape(column), overflow="fold", no_wrap=number == 0 or column == "config")
    for row in table.rows:
        drawn.add_row(*(escape(cell) for cell in row))
    if table.note:
        drawn.caption = escape(table.note)
    return drawn


def _format_markdown_figure(figure: Figure) -> list[str]:
    name = f"Figure {figure.label}. {figure.title}"
    if figure.missing:
        return [f"**{name}**: not drawn: {figure.missing}", ""]
    path = f"figures/{figure.stem}"
    return [
        _format_markdown_image(figure),
        "",
        f"**{name}.** {figure.caption} ([numbers]({path}.csv), [PNG]({path}.png))",
        "",
    ]


def _format_markdown_table(table: Table) -> list[str]:
    return [
        f"| {' | '.join(map(_format_markdown_cell, table.columns))} |",
        f"|{'---|' * len(table.columns)}",
        *(f"| {' | '.join(map(_format_markdown_cell, row))} |" for row in table.rows),
    ]


def _format_markdown_cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
