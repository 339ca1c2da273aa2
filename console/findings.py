"""A run's results, computed from its folder in a thread of their own while Results is open.

Importing what computes them takes a second or two, so only that thread does it: `results.connector_tax.analyse` and
what stands on it (also `console.rows.results`) may be imported where there is a `Findings`, and not before.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from results.registry import is_measured, results_named
from state.run import CELL_ENDED, CellState
from state.view import RunView

if TYPE_CHECKING:
    from results.connector_tax.analyse import Analysis
    from results.report.table import Table

EVERY_S = 10.0
"""Least time between the starts of two analyses."""
NICENESS = 10
"""Of the thread: a run on the same host goes first."""
ROUTING = "routing"
LIFECYCLE = "pd-lifecycle"
SECTIONED = "connector-tax"
"""The experiment whose results have sections of their own here; every other one shows the tables of its report."""
PAGE = "page"
"""The section that has a connector-tax run on one page."""
SECTIONS = {
    PAGE: "Page",
    "taxes": "Taxes",
    "verdicts": "Verdicts",
    "rates": "Rates",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "throughput": "Throughput",
    "cells": "Cells",
    "gaps": "Gaps",
    "report": "Report",
}
"""The sections of a connector-tax run by name, with their labels, in order."""
FIRST = "table-1"
"""The section of a report's first table."""
WHOLE = "report"
"""The section with the whole report, of any experiment."""

Progress = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of an experiment without sections of its own: the tables of its report."""

    head: str
    tables: tuple[Table, ...]
    unsaid: tuple[str, ...]
    """The report's limits."""

    @property
    def sections(self) -> Mapping[str, Table]:
        """A section per table."""
        return {f"table-{number}": table for number, table in enumerate(self.tables, 1)}


@dataclass(frozen=True, slots=True)
class Findings:
    """One analysis of the run's folder, or why there is none."""

    analysis: Analysis | Report | None
    made_unix_s: float
    trouble: str = ""


def list_sections(analysis: Analysis | Report | None, experiment: str) -> Mapping[str, str]:
    """The sections by name, with their labels; before the analysis, those that every run of the experiment has."""
    if isinstance(analysis, Report):
        return {name: table.title for name, table in analysis.sections.items()} | {WHOLE: SECTIONS[WHOLE]}
    return {FIRST: "Tables", WHOLE: SECTIONS[WHOLE]} if experiment not in (SECTIONED, "") else SECTIONS


def count_measured(view: RunView) -> int:
    """Finished cells of the kinds that have numbers."""
    return sum(cell.state is CellState.DONE and is_measured(cell.plan.kind) for cell in view.cells.values())


class Analyst:
    """Analyses one run again whenever more of it is measured. `post` is called from the analyst's thread."""

    def __init__(
        self, folder: Path, post: Callable[[Findings], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder = folder
        self._post = post
        self._clock = clock
        self._of: Progress | None = None
        self._started: float | None = None
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """An analysis is under way."""
        return self._thread is not None and self._thread.is_alive()

    def look(self, view: RunView) -> None:
        """Start an analysis if more cells have ended, none is under way, and the last is at least `EVERY_S` old."""
        ended = [cell for cell in view.cells.values() if cell.state in CELL_ENDED]
        progress = (len(ended), sum(cell.attempt for cell in ended))
        if progress == self._of or count_measured(view) == 0 or self.busy:
            return
        now = self._clock()
        if self._started is not None and now - self._started < EVERY_S:
            return
        self._of, self._started = progress, now
        self._thread = threading.Thread(target=self._run, args=(view.plan.experiment,), name="analyst", daemon=True)
        self._thread.start()

    def _run(self, experiment: str) -> None:
        with suppress(OSError):  # where a thread has no niceness of its own, it just takes its share
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        self._post(analyse_folder(self._folder, experiment))


def analyse_folder(folder: Path, experiment: str) -> Findings:
    """The findings of the run's folder as it is now. Takes seconds; imports the analysis."""
    try:
        results = results_named(experiment)
        analysis = results.analyse(folder)
        if results.name == SECTIONED:
            return Findings(analysis, time.time())
        text = results.report(analysis)
        return Findings(Report(text.opening, text.tables, text.limits), time.time())
    except Exception as error:  # noqa: BLE001 (a damaged folder shows its error in the panel; the console goes on)
        remedy = getattr(error, "remedy", "")
        return Findings(None, time.time(), f"{type(error).__name__}: {error}{f'. {remedy}' if remedy else ''}")
