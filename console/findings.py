"""A run's results, computed from its folder in a separate thread while Results is open.

Importing what computes them takes a second or two, so only that thread does it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from results.records.errors import ResultsError
from results.records.events import CellState
from results.registry import find_results, is_measured
from results.report.chart import Chart
from state.model import RunView
from state.run import CELL_ENDED

if TYPE_CHECKING:
    from results.report.content import ReportText
    from results.report.page import Page
    from results.report.table import Table

EVERY_S = 10.0
"""Least time between the starts of two analyzes."""
NICENESS = 10
"""Niceness of the thread: a run on the same host goes first."""
PAGE = "page"
"""The section that has the run on one page, where its experiment has one."""
WHOLE = "report"
"""The section with the whole report."""

Progress = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a run, as its experiment reports them."""

    text: ReportText
    charts: tuple[Chart, ...] = ()
    page: Page | None = None
    """None where the experiment has none."""

    @property
    def sections(self) -> Mapping[str, Table | Chart]:
        """Every table, then every chart, by a name made of its title."""
        named: dict[str, Table | Chart] = {}
        parts: tuple[Table | Chart, ...] = (*self.text.tables, *self.charts)
        for part in parts:
            name = re.sub(r"[^a-z0-9]+", "-", part.title.lower()).strip("-")
            named[name if name not in named else f"{name}-{len(named)}"] = part
        return named


@dataclass(frozen=True, slots=True)
class Findings:
    """One analysis of the run's folder, or why there is none."""

    report: Report | None
    made_unix_s: float
    trouble: str = ""


def has_page(experiment: str) -> bool:
    """Runs of this experiment can be shown on one page."""
    try:
        return find_results(experiment).page is not None
    except ResultsError:
        return False


def list_sections(report: Report | None) -> Mapping[str, str]:
    """The sections by name, with their labels."""
    parts = {} if report is None else {name: part.title for name, part in report.sections.items()}
    first = {PAGE: "Page"} if report is not None and report.page is not None else {}
    return {**first, **parts, WHOLE: "Report"}


def count_measured(view: RunView) -> int:
    """Finished cells of the kinds that have numbers."""
    return sum(cell.state is CellState.DONE and is_measured(cell.plan.kind) for cell in view.cells.values())


class Analyst:
    """Analyzes one run again whenever more of it is measured. `post` is called from the analyst's thread."""

    def __init__(
        self, folder: Path, post: Callable[[Findings], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._post = post
        self._clock = clock
        self._analyzed: Progress | None = None
        self._started: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """An analysis is under way."""
        return self._thread is not None and self._thread.is_alive()

    def analyze_if_due(self, view: RunView) -> None:
        """Start an analysis if more cells have ended, none is under way, and the last is at least `EVERY_S` old."""
        ended = [cell for cell in view.cells.values() if cell.state in CELL_ENDED]
        progress = (len(ended), sum(cell.attempt for cell in ended))
        if progress == self._analyzed or count_measured(view) == 0 or self.busy:
            return
        now = self._clock()
        if self._started is not None and now - self._started < EVERY_S:
            return
        self._analyzed, self._started = progress, now
        self._thread = threading.Thread(
            target=self._run_analysis, args=(view.plan.experiment,), name="analyst", daemon=True
        )
        self._thread.start()

    def _run_analysis(self, experiment: str) -> None:
        with suppress(OSError):  # a system without a niceness per thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        self._post(analyze_folder(self._folder, experiment))


def analyze_folder(folder: Path, experiment: str) -> Findings:
    """The findings of the run's folder as it is now. Takes seconds; imports the analysis."""
    try:
        results = find_results(experiment)
        analysis = results.analyze(folder)
        text = results.report(analysis)
        charts = results.charts(analysis) if results.charts is not None else ()
        page = results.page(analysis) if results.page is not None else None
        return Findings(Report(text, charts, page), time.time())
    except Exception as error:  # noqa: BLE001 (a damaged folder shows its error in the panel; the console goes on)
        remedy = getattr(error, "remedy", "")
        return Findings(None, time.time(), f"{type(error).__name__}: {error}{f'. {remedy}' if remedy else ''}")
