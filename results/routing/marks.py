"""Marks that several figures of a `routing` run share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from results.report.ink import plain_ticks
from results.statistics.estimates import Samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDE = 10.0
"""Times of policies that differ by more than this factor are drawn on a logarithmic axis: one slow policy would squeeze
all others into a corner of a linear one."""


def dots(axes: Axes, rows: pd.DataFrame, scale: float) -> None:
    """A dot with its interval on each row; nothing where nothing was measured."""
    at = np.arange(len(rows), dtype=np.float64)
    value = rows["value"].to_numpy(dtype=np.float64) * scale
    spans(axes, value, at, rows, scale)
    axes.plot(value, at, "o", color="black", markersize=4.5, zorder=4)
    for place in np.flatnonzero(~np.isfinite(value)):
        axes.annotate("not measured", (0, float(place)), xycoords=("axes fraction", "data"), xytext=(4, 0),
                      textcoords="offset points", va="center", fontsize=7, color="#555555")  # fmt: skip


def time_axis(axes: Axes, rows: pd.DataFrame, scale: float) -> str:
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


def spans(axes: Axes, value: Samples, at: Samples, rows: pd.DataFrame, scale: float) -> None:
    """The interval of each value, where it has one."""
    low, high = (rows[side].to_numpy(dtype=np.float64) * scale for side in ("low", "high"))
    below, above = (np.where(np.isfinite(side), side, 0).clip(0) for side in (value - low, high - value))
    known = np.isfinite(value)
    axes.errorbar(value[known], at[known], xerr=(below[known], above[known]), fmt="none", ecolor="#404040",
                  elinewidth=1, capsize=2.5, zorder=3)  # fmt: skip
