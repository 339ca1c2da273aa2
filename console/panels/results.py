"""The Results panel: what the run says so far, in sections."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text
from textual import on
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from console.export import export_content
from console.feed import Picture
from console.findings import FIRST, PAGE, SECTIONS, WHOLE, Analyst, Findings, Report, count_measured, list_sections
from console.format import clock
from console.panels.panel import Export, Look, Opening, Panel, PanelKind, Place
from console.rows.instances import config_tone
from console.widgets.rate_plot import RatePlot
from console.widgets.section_bar import SectionBar
from console.widgets.table import Table

if TYPE_CHECKING:
    from console.rows.sections import Section
    from console.widgets.rate_plot import Curve
    from results.connector_tax.analyse import Analysis

UNITS = {"ttft": "TTFT p90, ms", "tpot": "TPOT p90, ms per token", "throughput": "completed, req/s"}
"""The curves by section, with what their values are."""
BELOW_TAXES = "ttft"
"""The curve that stands under the taxes where there is room."""
PLOT_LINES = 11
"""A plot is not drawn beside a table with fewer lines than this."""
TAX_LINES = 16
"""Lines of the taxes, which scroll, that stay above their plot."""


class ResultsPanel(Panel):
    """What the run's report says, in sections, analysed again as cells are done."""

    DEFAULT_CSS = """
    ResultsPanel {
        VerticalScroll { height: 1fr; }
        #results-note { height: auto; color: $tone-dim; }
        #results-report { height: auto; }
    }
    """

    class Analysed(Message):
        """An analysis has ended; posted from its thread."""

        def __init__(self, findings: Findings) -> None:
            super().__init__()
            self.findings = findings

    def __init__(self, look: Look, run_folder: Path, *, id: str) -> None:
        self._bar = SectionBar()
        self._note = Static(id="results-note")
        self._plot = RatePlot(empty="no cell of Phase A is measured yet")
        self._table = Table()
        self._text = Static(id="results-report")
        self._scroll = VerticalScroll(self._text)
        parts = (self._bar, self._note, self._table, self._plot, self._scroll)
        super().__init__(look, run_folder, *parts, id=id)
        self._analyst = Analyst(run_folder, lambda findings: self.post_message(self.Analysed(findings)))
        self._findings: Findings | None = None
        self._drawn: tuple[object, ...] = ()
        self._sections: Mapping[str, str] = SECTIONS
        self.section = next(iter(SECTIONS))

    @property
    def table(self) -> Table:
        return self._table

    @property
    def analysis(self) -> Analysis | Report | None:
        """The newest analysis that succeeded."""
        return self._findings.analysis if self._findings is not None else None

    @property
    def busy(self) -> bool:
        return self._analyst.busy

    def focus_content(self) -> None:
        for widget in (self._table, self._scroll):
            if widget.display:
                self.screen.set_focus(widget)
                return
        self.screen.set_focus(None)

    def step(self, by: int) -> None:
        """Open the next or the previous section."""
        names = list(self._sections)
        self.open(names[(names.index(self.section) + by) % len(names)])

    def open(self, section: str) -> None:
        """Open a section at its beginning."""
        self.section = section
        self._table.action_edge(0)
        self._scroll.scroll_home(animate=False)

    @on(Analysed)
    def load_analysis(self, event: Analysed) -> None:
        """Show the new analysis; the last good one stays where a later one failed."""
        event.stop()
        self.load(event.findings)
        self.post_message(self.Redraw())

    @on(SectionBar.Picked)
    def open_picked(self, event: SectionBar.Picked) -> None:
        event.stop()
        self.open(event.section)
        self.post_message(self.Redraw())

    def open_row(self, table: Table, key: str, picture: Picture) -> Opening | None:
        analysis = self.analysis
        if analysis is None or isinstance(analysis, Report):
            return None
        from console.rows.result_detail import row_facts

        facts = row_facts(analysis, key)
        return None if facts is None else Opening(*facts)

    def export(self) -> Export | None:
        analysis, section = self.analysis, self.section
        return None if analysis is None else Export(section, lambda: export_content(analysis, section))

    def load(self, findings: Findings) -> None:
        """Keep this analysis, unless it failed and there is an older one."""
        if findings.analysis is None and self.analysis is not None:
            self.border_subtitle = findings.trouble
            return
        self._findings = findings
        self.border_subtitle = f"as of {clock(findings.made_unix_s)}"

    def show(self, picture: Picture) -> None:
        self._analyst.look(picture.view)
        self._sections = list_sections(self.analysis, picture.view.plan.experiment)
        if self.section not in self._sections:
            self.section = next(iter(self._sections))
        size = self.content_region.size
        key = (self._findings, self._analyst.busy, count_measured(picture.view) == 0, self.section, size, self.look)
        if key == self._drawn or not size.width:
            return
        self._drawn = key
        self._bar.show(self.section, self._sections)
        analysis = self.analysis
        if analysis is None:
            self._say(self._why_nothing(picture))
        elif isinstance(analysis, Report):
            self._show_tables(analysis)
        elif self.section == WHOLE:
            self._show_report(analysis)
        else:
            self._show_section(analysis, lambda config: config_tone(picture.view, config))

    def _why_nothing(self, picture: Picture) -> str:
        if self._findings is not None and self._findings.trouble:
            return f"the analysis failed: {self._findings.trouble}"
        if count_measured(picture.view) == 0:
            return "nothing is measured yet: the first numbers come once a cell is done"
        return "reading what is measured ..."

    def _say(self, text: str) -> None:
        self._arrange(note=text)

    def _show_report(self, analysis: Analysis) -> None:
        from results.connector_tax.report import build_report
        from results.report.document import rich_tables

        self._text.update(rich_tables(build_report(analysis)))
        self._arrange(text=True)

    def _show_tables(self, report: Report) -> None:
        table = report.sections.get(self.section)
        if table is None:
            from results.report.content import ReportText
            from results.report.document import rich_tables

            self._text.update(rich_tables(ReportText(report.head, report.tables, report.unsaid)))
            self._arrange(text=True)
            return
        from console.rows.report import table_section

        section = table_section(table, self._width, report.head if self.section == FIRST else "")
        self._table.set_empty(section.empty)
        self._table.show(section.columns, section.rows)
        self._arrange(section.note, table=True)

    @property
    def _width(self) -> int:
        """Columns that a table has, or would have."""
        return self._table.room if self._table.display else self.content_region.width - 1

    def _show_section(self, analysis: Analysis, tone: Callable[[str], str]) -> None:
        from console.rows.measured import curves

        curve = self.section if self.section in UNITS else BELOW_TAXES if self.section == "taxes" else ""
        lines = curves(analysis, curve, tone) if curve else ()
        section = self._section(analysis, lines, tone)
        room = self.content_region.height - 1 - len(_lines(section.note, self.content_region.width))
        needed = len(section.rows) + (2 if any(column.unit for column in section.columns) else 1)
        spare = room - needed if self.section in UNITS else room - TAX_LINES
        both = bool(lines) and spare >= PLOT_LINES
        self._table.set_empty(section.empty)
        self._table.show(section.columns, section.rows)
        plot_only = self.section in UNITS and bool(lines) and not both
        self._plot.marker = self.look.marker
        if lines and (both or plot_only):
            self._plot.show_curves(lines, UNITS[curve], diagonal=curve == "throughput")
        self._arrange(
            section.note,
            table=not plot_only,
            plot=both or plot_only,
            lines=min(needed, room - PLOT_LINES) if both else 0,
        )

    def _section(self, analysis: Analysis, lines: tuple[Curve, ...], tone: Callable[[str], str]) -> Section:
        from console.rows import measured as rows_of_cells
        from console.rows import results as rows

        width = self._width
        if self.section == PAGE:
            from console.rows.page import page

            return page(analysis, self.run_folder, width, self.look.glyphs, tone)
        if self.section == "taxes":
            return rows.tax_section(analysis, width, tone)
        if self.section == "verdicts":
            return rows.verdict_section(analysis, width, self.look.glyphs)
        if self.section == "rates":
            return rows.rate_section(analysis, width, tone)
        if self.section == "cells":
            return rows_of_cells.cell_section(analysis, width, tone)
        if self.section == "gaps":
            return rows_of_cells.gap_section(analysis, width)
        return rows_of_cells.curve_section(lines, self.section, width, tone)

    def _arrange(
        self, note: str = "", *, table: bool = False, plot: bool = False, text: bool = False, lines: int = 0
    ) -> None:
        """Show these parts; `lines`: of the table where the plot takes the rest, 0 = all there are."""
        ours = self.has_focus_within or (self.screen.focused is None and self.screen.is_current)
        self._note.display = bool(note)
        self._note.update(Text("\n".join(_lines(note, self.content_region.width))))
        self._table.display, self._plot.display, self._scroll.display = table, plot, text
        self._table.styles.height = lines or "1fr"
        if ours:
            self.focus_content()


def _lines(note: str, width: int) -> list[str]:
    return textwrap.wrap(note, max(20, width))


PANEL = PanelKind(
    "results",
    "6",
    "Results",
    "what is measured so far: taxes, verdicts, rates, curves, cells, gaps, or the tables of the run's report",
    ResultsPanel,
    Place.ALONE,
    command=("tracon", "report", "{run}"),
    steps_through="section",
    exports="save the numbers of the open section as a CSV or JSON file in the run's folder",
)
