"""A run's results, computed from its folder in a thread of their own while somebody looks at them.

Importing what computes them takes a second or two, so only that thread does it: `results.findings` and what stands on
it (also `console.rows.results`) may be imported where there is a `Findings`, and not before.
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

from state.run import CELL_ENDED, CellState
from state.view import RunView

if TYPE_CHECKING:
    from results.findings import Analysis
    from results.table import Table

EVERY_S = 10.0
"""An analysis starts at most so often."""
NICENESS = 10
"""Of the thread: measuring goes first where the run shares this host."""
MEASURED = ("load", "replay", "lifecycle")
"""The kinds of cells that have numbers to analyse."""
ROUTING = "routing"
"""An experiment whose results are the tables of its report."""
LIFECYCLE = "pd-lifecycle"
"""Likewise."""
REPORTED = (ROUTING, LIFECYCLE)
SECTIONS = {
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
"""The parts of the Results panel, in their order, with what the operator calls them."""
FIRST = "table-1"
"""The section of a report's first table."""
WHOLE = "report"
"""The section that has everything, of any experiment."""

Progress = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Report:
    """What a run says whose experiment has no sections of its own: the tables of its report."""

    head: str
    tables: tuple[Table, ...]
    unsaid: tuple[str, ...]
    """What the tables do not say."""

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


def sections_of(analysis: Analysis | Report | None, experiment: str) -> Mapping[str, str]:
    """The sections by name, with what the operator calls them; before the analysis, those the experiment is sure of."""
    if isinstance(analysis, Report):
        return {name: table.title for name, table in analysis.sections.items()} | {WHOLE: SECTIONS[WHOLE]}
    return {FIRST: "Tables", WHOLE: SECTIONS[WHOLE]} if experiment in REPORTED else SECTIONS


def measured(view: RunView) -> int:
    """Cells with numbers that are done."""
    return sum(cell.state is CellState.DONE and cell.plan.kind in MEASURED for cell in view.cells.values())


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
        """Start an analysis if the run has something new to say, none is under way, and the last is old enough."""
        ended = [cell for cell in view.cells.values() if cell.state in CELL_ENDED]
        progress = (len(ended), sum(cell.attempt for cell in ended))
        if progress == self._of or measured(view) == 0 or self.busy:
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
        self._post(find(self._folder, experiment))


def find(folder: Path, experiment: str) -> Findings:
    """The findings of the run's folder as it is now; takes seconds, and imports what computes them."""
    try:
        return Findings(_FINDERS.get(experiment, _analysis)(folder), time.time())
    except Exception as error:  # noqa: BLE001 (a folder nobody foresaw is told in the panel; the console goes on)
        remedy = getattr(error, "remedy", "")
        return Findings(None, time.time(), f"{type(error).__name__}: {error}{f'. {remedy}' if remedy else ''}")


def _analysis(folder: Path) -> Analysis:
    from results.findings import analyse

    return analyse(folder)


def _routing(folder: Path) -> Report:
    from results.routing.findings import analyse
    from results.routing.report import limits, opening
    from results.routing.tables import tables

    analysis = analyse(folder)
    return Report(opening(analysis), tuple(tables(analysis)), tuple(limits(analysis)))


def _lifecycle(folder: Path) -> Report:
    from results.lifecycle.findings import analyse
    from results.lifecycle.report import limits, opening
    from results.lifecycle.tables import tables

    analysis = analyse(folder)
    return Report(opening(analysis), tuple(tables(analysis)), tuple(limits(analysis)))


_FINDERS: Mapping[str, Callable[[Path], Analysis | Report]] = {ROUTING: _routing, LIFECYCLE: _lifecycle}
