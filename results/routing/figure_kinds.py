"""How a figure of a `routing` run is declared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pandas as pd

from results.report.figure import Figure, join_range
from results.report.ink import Pen
from results.routing.analyze import RoutingAnalysis
from results.routing.metrics import find_metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True, slots=True)
class FigureData:
    """What a figure draws, as numbers."""

    table: pd.DataFrame
    caption: str
    lines: Mapping[str, float] = field(default_factory=dict)
    pens: Mapping[str, Pen] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FigureKind:
    number: int
    name: str
    """What its specification calls it, e.g. `4a`."""
    title: str
    collect: Callable[[RoutingAnalysis], FigureData | str]
    """Its numbers, or why it cannot be drawn."""
    draw: Callable[[Figure], Drawing]

    def build(self, analysis: RoutingAnalysis) -> Figure:
        data = self.collect(analysis)
        if isinstance(data, str):
            return Figure(self.number, self.title, missing=data, name=self.name)
        return Figure(self.number, self.title, data.caption, data.table, data.lines, data.pens, name=self.name)


def explain_missing(analysis: RoutingAnalysis, name: str) -> str:
    """Why no policy has a value of this metric."""
    reasons = dict.fromkeys(analysis.value(label, name).reason or "" for label in analysis.labels)
    return "; ".join(reason for reason in reasons if reason) or f"no cell has a {find_metric(name).title}"


def describe_trials(analysis: RoutingAnalysis) -> str:
    """What a caption says of how often each policy was measured."""
    counts = join_range(sum(cell.label == label for cell in analysis.cells) for label in analysis.labels)
    return f"Trials per policy: {counts or 'none'}, {'simulated' if analysis.facts.simulated else 'a launch each'}."
