"""The content of a report, whatever form it is written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from results.report.figure import Drawers, Figure
    from results.report.page import Page
    from results.report.table import Table


@dataclass(frozen=True, slots=True)
class ReportText:
    """A report without its figures."""

    opening: str
    tables: tuple[Table, ...]
    limits: tuple[str, ...]
    """What its numbers do not say."""


@dataclass(frozen=True, slots=True)
class Report:
    """The parts of a run's report."""

    title: str
    page: Page
    text: ReportText
    figures: Sequence[Figure]
    """Including those that cannot be drawn."""
    figures_before: str
    """In the HTML the figures precede the first table whose title begins with this."""
    drawers: Drawers
