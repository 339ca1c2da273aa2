"""A run's analysis as Markdown for files and as rich tables for a terminal, with what it does not say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from results.drift import DriftVerdict
from results.facts import RunFacts
from results.figures.figure import Figure
from results.findings import Analysis
from results.saturation import BASELINE
from results.statistics import LEVEL
from results.table import Table
from results.tables import tables
from results.trials import MIN_PAIRED


def to_markdown(analysis: Analysis, figures: Sequence[Figure] = ()) -> str:
    """`report.md`: the same analysis gives the same text. Links `figures`, as they lie in the run's `figures/`."""
    return markdown(title(analysis.facts), opening(analysis), tables(analysis), figures, limits(analysis))


def title(facts: RunFacts) -> str:
    """What a run's report is called."""
    return f"{facts.experiment or 'Run'} {facts.run}"


def markdown(name: str, head: str, shown: Iterable[Table], figures: Sequence[Figure], unsaid: Iterable[str]) -> str:
    """A title, a paragraph, tables, figures, and what they do not say."""
    lines = [f"# {name}", "", head, ""]
    for table in shown:
        lines += [f"## {table.title}", "", *([table.note, ""] if table.note else []), *_markdown_table(table), ""]
    if figures:
        lines += ["## Figures", "", *(line for figure in figures for line in _markdown_figure(figure))]
    lines += ["## What this does not say", "", *(f"- {line}" for line in unsaid)]
    return "\n".join(lines) + "\n"


def to_rich(analysis: Analysis) -> RenderableType:
    """The same for a terminal."""
    return rich_tables(opening(analysis), tables(analysis), limits(analysis))


def rich_tables(head: str, shown: Iterable[Table], unsaid: Iterable[str]) -> RenderableType:
    """A paragraph, tables, and what they do not say, for a terminal."""
    parts: list[RenderableType] = [Text(head), Text()]
    for table in shown:
        parts += [rich_table(table), Text()]
    parts.append(Text("What this does not say", style="bold"))
    parts += [Padding(Text(f"- {line}"), (0, 0, 0, 2)) for line in unsaid]
    return Group(*parts)


def rich_table(table: Table) -> RichTable:
    """One table for a terminal."""
    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False, title_justify="left", caption_justify="left")
    drawn.title, drawn.title_style = escape(table.title), "bold"
    for number, column in enumerate(table.columns):
        drawn.add_column(escape(column), overflow="fold", no_wrap=number == 0 or column == "config")
    for row in table.rows:
        drawn.add_row(*(escape(cell) for cell in row))
    if table.note:
        drawn.caption = escape(table.note)
    return drawn


def opening(analysis: Analysis) -> str:
    """What was measured, and how to read the numbers."""
    facts = analysis.facts
    ran = sum(row.status == "ran" for row in analysis.manifest)
    where = {"cpu": ", on a CPU build of the engine", "cuda": ", on a GPU"}.get(facts.engine_kind, "")
    return (
        f"Profile {facts.label}{where}: {len(analysis.cells)} cells of {ran} configs measured, "
        f"degraded: {len(analysis.degraded)}, gaps: {len(analysis.gaps)}. "
        f"Brackets hold {LEVEL:.0%} intervals; `?` is a bound that too few samples allow, `-` a value "
        "that was not measured."
    )


def limits(analysis: Analysis) -> tuple[str, ...]:
    """What these numbers do not say: part of every report."""
    found = []
    if analysis.facts.engine_kind == "cpu":
        found.append(
            "This is a CPU build of the engine with the profile's model: the sizes say nothing about a GPU. "
            "They show what each connector adds to a step on this host."
        )
    if len({cell.trial for cell in analysis.cells}) < MIN_PAIRED:
        found.append(
            f"Every cell was measured fewer than {MIN_PAIRED} times, each config on launches of its own. The intervals "
            "hold what varies inside a cell, not what varies between launches or drifts over the run: a difference of "
            "a few percent needs trials, and a verdict from one launch is that launch's."
        )
    if any(drift.verdict == DriftVerdict.DETECTED for drift in analysis.drift):
        found.append("The run drifted: configs were measured in a random order, and a tax holds what drift that left.")
    found.append(
        "Intervals of single percentiles assume independent requests. Near saturation requests share a queue, and the "
        "intervals are too narrow there; intervals of taxes resample blocks of neighbours."
    )
    found.append(
        "`tax_step` times schedule() alone, as specified; worker-side callbacks do not run inside it, so its remainder "
        "over `tax_callback` can be negative. `tax_engine_step` times the whole step."
    )
    unprobed = sorted({cell.config for cell in analysis.cells if not cell.step_timing.get("available", False)})
    if unprobed:
        found.append(f"No step timing in at least one cell of: {', '.join(unprobed)}.")
    if not any(cell.config == BASELINE for cell in analysis.cells):
        found.append(f"{BASELINE} was not measured: there is nothing to compare with, and no tax.")
    return (*analysis.facts.host_notes, *found)


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
