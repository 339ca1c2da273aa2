"""Marks that several figures of a `routing` run share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from results.statistics import Samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def dots(axes: Axes, rows: pd.DataFrame, scale: float) -> None:
    """A dot with its interval on each row; nothing where nothing was measured."""
    at = np.arange(len(rows), dtype=np.float64)
    value = rows["value"].to_numpy(dtype=np.float64) * scale
    spans(axes, value, at, rows, scale)
    axes.plot(value, at, "o", color="black", markersize=4.5, zorder=4)
    for place in np.flatnonzero(~np.isfinite(value)):
        axes.annotate("not measured", (0, float(place)), xycoords=("axes fraction", "data"), xytext=(4, 0),
                      textcoords="offset points", va="center", fontsize=7, color="#555555")  # fmt: skip


def spans(axes: Axes, value: Samples, at: Samples, rows: pd.DataFrame, scale: float) -> None:
    """The interval of each value, where it has one."""
    low, high = (rows[side].to_numpy(dtype=np.float64) * scale for side in ("low", "high"))
    below, above = (np.where(np.isfinite(side), side, 0).clip(0) for side in (value - low, high - value))
    known = np.isfinite(value)
    axes.errorbar(value[known], at[known], xerr=(below[known], above[known]), fmt="none", ecolor="#404040",
                  elinewidth=1, capsize=2.5, zorder=3)  # fmt: skip
