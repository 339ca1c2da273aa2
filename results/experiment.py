"""The results of an experiment: each `results/<experiment>/experiment.py` declares one `ExperimentResults`.

Those modules import what computes the results inside their functions: the registry loads in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from results.report.content import ReportText

if TYPE_CHECKING:
    from results.records.declaration import Declared
    from results.records.layout import RunLayout
    from results.report.chart import Chart
    from results.report.comparison import Comparable
    from results.report.page import Page

Analysis = TypeVar("Analysis")


@dataclass(frozen=True, slots=True)
class ExperimentResults(Generic[Analysis]):
    """One experiment's results, from a run's folder to the report."""

    name: str
    """As in the run's plan."""
    measured_kinds: frozenset[str]
    """The kinds of its cells that have numbers to analyze."""
    documents: Callable[[RunLayout], Mapping[str, Path]]
    """What `tracon report --json` prints: name to a JSON file that `write` leaves in the run's folder."""
    analyze: Callable[[Path], Analysis]
    """Reads the run's folder; writes nothing but Parquet copies. Raises ResultsError."""
    write: Callable[[Path], Analysis]
    """Analyzes, then writes numbers, figures and the report into the folder. Raises ResultsError and OSError."""
    report: Callable[[Analysis], ReportText]
    declared: Callable[[], tuple[Declared, ...]] = lambda: ()
    """The records in the documents that `write` leaves in the run's folder, for docs/records.md."""
    charts: Callable[[Analysis], tuple[Chart, ...]] | None = None
    """One section each in the console; the first also below the report's tables in a terminal."""
    page: Callable[[Analysis], Page] | None = None
    """The result on one page: it begins every form of the report and is shown when a run ends."""
    comparable: Callable[[Analysis], Comparable] | None = None
    """The numbers that are compared with another run of the experiment."""
    upgrades: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)
    """By name of a document: converts one of an older version."""
    why_no_compare: str = ""
    """Why two runs are not compared, and what is compared instead."""
    exported: Callable[[RunLayout], tuple[Path, ...]] = lambda layout: ()
    """What `tracon export` copies, where it exists, beside the files that every experiment has: tables, rates."""
    times_steps: bool = False
    """The engines of its runs report the durations of their steps."""
