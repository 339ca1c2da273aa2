"""The Results panel: what the run says so far, in sections."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text
from textual import on
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widgets import Static

from console import format as say
from console.export import export_content
from console.feed import Picture
from console.findings import PAGE, Analyst, Findings, Report, count_measured, list_sections
from console.panels.panel import Export, Look, Opening, Panel, PanelKind, Place
from console.rows.instances import choose_config_tone
from console.widgets.rate_plot import RatePlot
from console.widgets.section_bar import SectionBar
from console.widgets.table import Table
from results.report.chart import Chart

if TYPE_CHECKING:
    from results.report.table import Table as ReportTable

PLOT_LINES = 11
"""A plot is not drawn beside a table with fewer lines than this."""


class ResultsPanel(Panel):
    """What the run's report says, in sections, analyzed again as cells are done."""

    DEFAULT_CSS = """
    ResultsPanel {
        VerticalScroll { height: 1fr; }
        #results-note { height: auto; color: $tone-dim; }
        #results-page { height: auto; }
    }
    """

    class Analyzed(Message):
        """An analysis has ended; posted from its thread."""

        def __init__(self, findings: Findings) -> None:
            super().__init__()
            self.findings = findings

    def __init__(self, look: Look, run_folder: Path, *, id: str) -> None:
        self._bar = SectionBar()
        self._note = Static(id="results-note")
        self._plot = RatePlot(empty="nothing is measured yet")
        self._table = Table(empty="none")
        self._text = Static(id="results-page")
        self._scroll = VerticalScroll(self._text)
        parts = (self._bar, self._note, self._table, self._plot, self._scroll)
        super().__init__(look, run_folder, *parts, id=id)
        self._analyst = Analyst(run_folder, lambda findings: self.post_message(self.Analyzed(findings)))
        self._findings: Findings | None = None
        self._drawn: tuple[object, ...] = ()
        self._sections = list_sections(None)
        self._chosen = ""

    @property
    def table(self) -> Table:
        return self._table

    @property
    def can_filter(self) -> bool:
        return bool(self._table.display)

    @property
    def report(self) -> Report | None:
        """The newest analysis that succeeded."""
        return self._findings.report if self._findings is not None else None

    @property
    def section(self) -> str:
        """The open section: the first, until another is chosen."""
        return self._chosen if self._chosen in self._sections else next(iter(self._sections))

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
        self._chosen = section
        self._table.action_edge(0)
        self._scroll.scroll_home(animate=False)

    @on(Analyzed)
    def load_analysis(self, event: Analyzed) -> None:
        """Show the new analysis; the last good one stays where a later one failed."""
        event.stop()
        self.show_findings(event.findings)
        self.post_message(self.Redraw())

    @on(SectionBar.Picked)
    def open_picked(self, event: SectionBar.Picked) -> None:
        event.stop()
        self.open(event.section)
        self.post_message(self.Redraw())

    def open_row(self, table: Table, key: str, picture: Picture) -> Opening | None:
        part = self.report.sections.get(self.section) if self.report is not None else None
        if self.report is None or part is None or isinstance(part, Chart):
            return None
        from console.rows.report import list_row_facts, parse_row_number

        number = parse_row_number(key)
        if number is None:
            return None
        return Opening(part.rows[number][0] or part.title, list_row_facts(self.report.text.tables, part, number))

    def export(self) -> Export | None:
        report, section = self.report, self.section
        return None if report is None else Export(section, lambda: export_content(report, section))

    def show_findings(self, findings: Findings) -> None:
        """Keep this analysis, unless it failed and there is an older one."""
        if findings.report is None and self.report is not None:
            self.border_subtitle = findings.trouble
            return
        self._findings = findings
        self._sections = list_sections(self.report)
        self.border_subtitle = f"as of {say.clock(findings.made_unix_s)}"

    def show(self, picture: Picture) -> None:
        self._analyst.analyze_if_due(picture.view)
        size = self.content_region.size
        key = (self._findings, self._analyst.busy, count_measured(picture.view) == 0, self.section, size, self.look)
        if key == self._drawn or not size.width:
            return
        self._drawn = key
        self._bar.show(self.section, self._sections)
        if self.report is None:
            self._arrange_section(note=self._explain_nothing(picture))
        else:
            self._show_report(self.report, lambda name: choose_config_tone(picture.view, name.partition(" (")[0]))

    def _explain_nothing(self, picture: Picture) -> str:
        if self._findings is not None and self._findings.trouble:
            return f"the analysis failed: {self._findings.trouble}"
        if count_measured(picture.view) == 0:
            return "nothing is measured yet: the first numbers come once a cell is done"
        return "reading what is measured ..."

    def _show_report(self, report: Report, tone_of: Callable[[str], str]) -> None:
        part = report.sections.get(self.section)
        if self.section == PAGE and report.page is not None:
            from results.report.page import render_terminal

            self._text.update(render_terminal(report.page, self.run_folder, self._table_width))
            self._arrange_section(text=True)
        elif part is None:
            from console.rows.report import make_report_section

            section = make_report_section(report.text, self._table_width, tone_of)
            self._table.show(section.columns, section.rows)
            self._arrange_section(table=True)
        elif isinstance(part, Chart):
            self._show_chart(part, tone_of)
        else:
            is_first = report.text.tables[0] is part
            self._show_table(part, tone_of, report.text.opening if is_first else "")
            self._arrange_section(part.note, table=True)

    @property
    def _table_width(self) -> int:
        """Columns that a table has, or would have."""
        return self._table.room if self._table.display else self.content_region.width - 1

    def _show_table(self, table: ReportTable, tone_of: Callable[[str], str], paragraph: str = "") -> int:
        """Returns the lines that it needs."""
        from console.rows.report import make_table_section

        section = make_table_section(table, self._table_width, tone_of, paragraph)
        self._table.show(section.columns, section.rows)
        return len(section.rows) + (2 if any(column.unit for column in section.columns) else 1)

    def _show_chart(self, chart: Chart, tone_of: Callable[[str], str]) -> None:
        """The curves, and above them their numbers where there is room for both."""
        from console.rows.report import make_chart_table

        lines = self._show_table(make_chart_table(chart), tone_of) if chart.lines else 0
        room = self.content_region.height - 1 - len(_wrap_note(chart.note, self.content_region.width))
        both = 0 < lines <= room - PLOT_LINES
        self._plot.marker = self.look.marker
        self._plot.show_chart(chart, tone_of)
        self._arrange_section(chart.note, table=both, plot=True, lines=lines if both else 0)

    def _arrange_section(
        self, note: str = "", *, table: bool = False, plot: bool = False, text: bool = False, lines: int = 0
    ) -> None:
        """Show these parts; `lines`: of the table where the plot takes the rest, 0 = all there are."""
        ours = self.has_focus_within or (self.screen.focused is None and self.screen.is_current)
        self._note.display = bool(note)
        self._note.update(Text("\n".join(_wrap_note(note, self.content_region.width))))
        self._table.display, self._plot.display, self._scroll.display = table, plot, text
        self._table.styles.height = lines or "1fr"
        if ours:
            self.focus_content()


def _wrap_note(note: str, width: int) -> list[str]:
    return textwrap.wrap(note, max(20, width))


PANEL = PanelKind(
    "results",
    "6",
    "Results",
    "what is measured so far: the run on one page, every table of its report, curves, the whole report",
    ResultsPanel,
    Place.ALONE,
    command=("tracon", "report", "{run}"),
    steps_through="section",
    exports="save the open table or curve as CSV, the page or the report as Markdown, in the run's folder",
)
