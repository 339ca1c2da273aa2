"""What an experiment offers for its results: each `results/<experiment>/experiment.py` declares one of these.

Those modules import what computes the results inside their functions: the registry loads in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from results.report.content import ReportText

if TYPE_CHECKING:
    from rich.console import RenderableType

    from results.records.layout import RunLayout
    from results.report.chart import Chart
    from results.report.comparison import Comparable
    from results.report.page import Page

Analysis = TypeVar("Analysis")


@dataclass(frozen=True, slots=True)
class ExperimentResults(Generic[Analysis]):
    """One experiment's results, from a run's folder to what is shown of them."""

    name: str
    """As in the run's plan."""
    measured_kinds: frozenset[str]
    """The kinds of its cells that have numbers to analyse."""
    documents: Callable[[RunLayout], Mapping[str, Path]]
    """What `tracon report --json` prints: name to a JSON file, of those that `write` leaves in the run's folder."""
    analyse: Callable[[Path], Analysis]
    """Reads the run's folder; writes nothing but Parquet copies. Raises ResultsError."""
    write: Callable[[Path], Analysis]
    """Analyses, then writes numbers, figures and the report into the folder. Raises ResultsError and OSError."""
    report: Callable[[Analysis], ReportText]
    curves: Callable[[Analysis, int], RenderableType | None] | None = None
    """For a terminal of this many columns, below the report's tables; returns None where there is nothing to draw."""
    charts: Callable[[Analysis], tuple[Chart, ...]] | None = None
    """For the console, as sections of their own."""
    page: Callable[[Analysis], Page] | None = None
    """The result on one page: the beginning of every form of the report, and what a run shows when it ends."""
    comparable: Callable[[Analysis, Path], Comparable] | None = None
    """What of the run in this folder another run of the experiment can be held against."""
    upgrades: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = field(default_factory=dict)
    """By name of a document: brings one that an older version wrote to today's names."""
    why_no_compare: str = ""
    """Why two runs are not compared, and what is compared instead."""
