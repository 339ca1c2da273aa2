"""What the figures of a `routing` run share: how one is declared, its rows of policies, and its marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from results.report.figure import Figure
from results.report.ink import plain_ticks
from results.routing.analyse import RoutingAnalysis
from results.routing.metrics import metric_named
from results.statistics.estimates import Samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

QUIET = "#555555"
"""Of notes inside a panel."""
WIDE = 10.0
"""Times of policies that differ by more than this factor are drawn on a logarithmic axis: one slow policy would squeeze
all others into a corner of a linear one."""


@dataclass(frozen=True, slots=True)
class FigureData:
    """What a figure draws, as numbers."""

    table: pd.DataFrame
    caption: str
    lines: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FigureKind:
    """One figure of the report."""

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
        return Figure(self.number, self.title, data.caption, data.table, data.lines, name=self.name)


def has_values(table: pd.DataFrame) -> bool:
    return not table.empty and not table["value"].isna().all()


def why_missing(analysis: RoutingAnalysis, name: str) -> str:
    """Why no policy has a value of this metric."""
    reasons = dict.fromkeys(analysis.value(label, name).reason or "" for label in analysis.labels)
    return "; ".join(reason for reason in reasons if reason) or f"no cell has a {metric_named(name).title}"


def describe_trials(analysis: RoutingAnalysis) -> str:
    numbers = sorted({sum(cell.label == label for cell in analysis.cells) for label in analysis.labels})
    return f"Trials per policy: {' to '.join(str(number) for number in (numbers[:1] + numbers[1:][-1:]))}."


def title_sheet(drawing: Drawing, figure: Figure) -> None:
    drawing.suptitle(figure.title, x=0.01, ha="left", fontweight="bold", fontsize=9)


def add_legend_beside(axes: Axes, **options: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2, **options)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """The first one on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def draw_panel(axes: Axes, rows: pd.DataFrame, names: Sequence[str], title: str, unit: str, scale: float) -> None:
    """One metric; `rows` by name."""
    draw_dots(axes, rows.reindex(list(names)), scale)
    scaled = scale_time_axis(axes, rows, scale)
    axes.set_title(f"{title} ({unit}{scaled})", loc="left", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)


def draw_dots(axes: Axes, rows: pd.DataFrame, scale: float) -> None:
    """A dot with its interval on each row; nothing where nothing was measured."""
    at = np.arange(len(rows), dtype=np.float64)
    value = rows["value"].to_numpy(dtype=np.float64) * scale
    draw_spans(axes, value, at, rows, scale)
    axes.plot(value, at, "o", color="black", markersize=4.5, zorder=4)
    for row in np.flatnonzero(~np.isfinite(value)):
        axes.annotate("not measured", (0, float(row)), xycoords=("axes fraction", "data"), xytext=(4, 0),
                      textcoords="offset points", va="center", fontsize=7, color=QUIET)  # fmt: skip


def draw_spans(axes: Axes, value: Samples, at: Samples, rows: pd.DataFrame, scale: float) -> None:
    """The interval of each value, where it has one."""
    below, above = error_lengths(value, rows, scale=scale)
    known = np.isfinite(value)
    axes.errorbar(value[known], at[known], xerr=(below[known], above[known]), fmt="none", ecolor="#404040",
                  elinewidth=1, capsize=2.5, zorder=3)  # fmt: skip


def error_lengths(
    value: Samples, rows: pd.DataFrame, sides: tuple[str, str] = ("low", "high"), scale: float = 1.0
) -> tuple[Samples, Samples]:
    """From each value to its bounds, the columns `sides`; 0 where it has none."""
    low, high = (rows[side].to_numpy(dtype=np.float64) * scale for side in sides)
    below, above = (np.where(np.isfinite(side), side, 0).clip(0) for side in (value - low, high - value))
    return below, above


def scale_time_axis(axes: Axes, rows: pd.DataFrame, scale: float) -> str:
    """Logarithmic where the values and bounds above zero span more than WIDE, else from 0; what the title is to say.

    A bound of 0 then lies beyond the left edge.
    """
    drawn = rows[["value", "low", "high"]].to_numpy(dtype=np.float64).ravel() * scale
    known = drawn[np.isfinite(drawn) & (drawn > 0)]
    if not known.size or known.max() <= WIDE * known.min():
        axes.set_xlim(left=0)
        return ""
    from matplotlib.ticker import LogLocator

    plain_ticks(axes, "x", known.tolist(), spread=WIDE)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0), numticks=12))
    axes.set_xlim(left=float(known.min()) / 1.3, right=float(known.max()) * 1.3)
    return ", log scale"
