"""Draws figures 1, 2, 3 and 6 from their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from results.connector_tax.curve_figures import CDF_SERIES
from results.report.figure import Figure
from results.report.ink import Pen, bar_lengths, legend_beside, pens, plain_ticks, rate_axis, sheet, title_sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

_ON_GRID = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
_GAP = 1.035
"""Neighbouring configs at one rate stand apart by this factor."""


def draw_latency(figure: Figure) -> Drawing:
    """Figures 1 and 2: lines with bars above, which criteria fired below."""
    table, name = figure.table, ("ttft" if figure.number == 1 else "tpot")
    value = f"{name}_p90_s"
    configs = list(dict.fromkeys(table["config"]))
    rates = sorted(set(table["rate_per_s"]))
    drawing = sheet(9, 4.4 + 0.2 * len(configs))
    axes, strip = drawing.subplots(2, 1, sharex=True, height_ratios=(16, 1 + len(configs)))
    _reference(axes, figure)
    for place, (config, pen) in enumerate(pens(configs).items()):
        rows = table[(table["config"] == config) & table[value].notna()]
        shift = _GAP ** (place - (len(configs) - 1) / 2)
        _line_with_bars(axes, rows, rows["rate_per_s"] * shift, value, config, pen)
    shown = table[[value, f"{value}_low", f"{value}_high"]].to_numpy(dtype=np.float64).ravel() * 1e3
    plain_ticks(axes, "y", shown[np.isfinite(shown)])
    axes.set_ylabel(f"{name.upper()} p90 (ms)")
    axes.set_title(figure.title, loc="left", fontweight="bold", pad=16)  # above the names of the reference rates
    legend_beside(axes)
    _strip(strip, table, configs)
    rate_axis(strip, rates)
    strip.set_xlabel("send rate (requests/s)")
    return drawing


def _line_with_bars(axes: Axes, rows: pd.DataFrame, at: pd.Series[float], value: str, config: str, pen: Pen) -> None:
    """One config (ms); saturated points are crossed, degraded ones hollow."""
    names = (value, f"{value}_low", f"{value}_high")
    height, low, high = (rows[name].to_numpy(dtype=np.float64) * 1e3 for name in names)
    axes.plot(at, height, label=config, **pen.line())
    bars = bar_lengths(height, low, high)
    axes.errorbar(at, height, yerr=bars, fmt="none", ecolor=pen.color, elinewidth=0.9, capsize=2)
    hollow = (rows["degraded"] != "").to_numpy()
    axes.plot(at[hollow], height[hollow], pen.marker, color=pen.color, markerfacecolor="white", zorder=4)
    crossed = (rows["saturated"] == True).to_numpy()  # noqa: E712 - None is "not known"
    axes.plot(at[crossed], height[crossed], "x", color="black", markersize=9, markeredgewidth=1.4, zorder=5)


def _strip(axes: Axes, table: pd.DataFrame, configs: list[str]) -> None:
    """A line per config: the criteria that fired at each rate."""
    for place, config in enumerate(configs):
        for row in table[table["config"] == config].to_dict("records"):
            text = " ".join(f"×{number}" for number in row["criteria_fired"].split(",") if number)
            if row["saturated"] is None:
                text = "?"
            axes.text(row["rate_per_s"], place, text, ha="center", va="center", fontsize=8, bbox=_ON_GRID)
    axes.set_yticks(range(len(configs)), configs)
    axes.set_ylim(len(configs) - 0.5, -0.5)
    axes.tick_params(length=0)
    axes.set_title("saturated by criterion", loc="left", fontsize=8)


def _reference(axes: Axes, figure: Figure) -> None:
    """The reference rates as lines from top to bottom, named at the top."""
    rates: dict[float, list[str]] = {}
    for name, rate in figure.lines.items():
        if name.startswith("ref_"):
            rates.setdefault(rate, []).append(name)
    for rate, names in rates.items():
        axes.axvline(rate, color="#a0a0a0", linewidth=5, alpha=0.35, zorder=0)
        axes.annotate(" = ".join(names), (rate, 1), xycoords=("data", "axes fraction"), xytext=(0, 1),
                      textcoords="offset points", ha="center", va="bottom", fontsize=7.5, color="#555555")  # fmt: skip


def draw_throughput(figure: Figure) -> Drawing:
    """Figure 3: achieved over requested with y = x and knees; the ratio below."""
    table = figure.table
    configs = list(dict.fromkeys(table["config"]))
    rates = sorted(set(table["rate_per_s"]))
    drawing = sheet(9, 6)
    axes, ratio = drawing.subplots(2, 1, sharex=True, height_ratios=(5, 3))
    axes.plot(rates, rates, color="#808080", linestyle="--", linewidth=1, label="y = x")
    for place, (config, pen) in enumerate(pens(configs).items()):
        rows = table[(table["config"] == config) & table["achieved_per_s"].notna()]
        shift = _GAP ** (place - (len(configs) - 1) / 2)
        knee = (rows["rate_per_s"] == rows["saturation_rate_per_s"]).to_numpy()
        for panel, column, at in (
            (axes, "achieved_per_s", rows["rate_per_s"]),
            (ratio, "ratio", rows["rate_per_s"] * shift),
        ):
            panel.plot(at, rows[column], label=config, **pen.line())
            panel.plot(at[knee], rows[column][knee], "o", color=pen.color, markerfacecolor="none", markersize=11)
    plain_ticks(axes, "y", table["achieved_per_s"].dropna(), spread=2)
    axes.set_ylabel("achieved (completions/s)")
    axes.set_title(figure.title, loc="left", fontweight="bold", pad=6)
    legend_beside(axes)
    _knees(ratio, table)
    _reference(ratio, figure)
    ratio.axhline(figure.lines["threshold"], color="black", linewidth=0.8, linestyle=":")
    ratio.set_ylim(0, max(1.1, 1.05 * float(table["ratio"].max())))
    ratio.set_ylabel("achieved / requested")
    rate_axis(ratio, rates)
    ratio.set_xlabel("requested (requests/s)")
    return drawing


def _knees(axes: Axes, table: pd.DataFrame) -> None:
    """Beside the panel: which configs saturate first at which rate."""
    knees: dict[str, list[str]] = {}
    for row in table.drop_duplicates("config").sort_values("saturation_rate_per_s", kind="stable").to_dict("records"):
        rate = row["saturation_rate_per_s"]
        knees.setdefault(f"{rate:g} req/s" if pd.notna(rate) else "above the grid", []).append(row["config"])
    lines = ["knee (first saturated rate):"]
    for where, configs in knees.items():
        lines += [f" {where}", *(f"    {config}" for config in configs)]
    axes.annotate("\n".join(lines), (1, 1), xycoords="axes fraction", xytext=(8, 0), textcoords="offset points",
                  ha="left", va="top", fontsize=7.5)  # fmt: skip


def draw_cdf(figure: Figure) -> Drawing:
    """Figure 6: a panel per series of steps."""
    table = figure.table
    series = [name for name in CDF_SERIES if name in set(table["series"])]
    drawing = sheet(10, 4.4)
    panels = drawing.subplots(1, len(series), sharey=True, squeeze=False)[0]
    ink = pens(dict.fromkeys(table["config"]))
    for panel, name in zip(panels, series, strict=True):
        inside = table[table["series"] == name]
        for place, (config, pen) in enumerate(ink.items()):
            rows = inside[inside["config"] == config]
            panel.plot(rows["time_us"], rows["share"], label=config, markevery=(2 * place, 20), **pen.line())
        bulk = inside[(inside["share"] >= 0.005) & (inside["share"] <= 0.995)]["time_us"]
        panel.set_xlim(0.9 * bulk.min(), 1.15 * bulk.max())
        plain_ticks(panel, "x", bulk, spread=2.5)
        panel.set_xlabel(f"{name.removesuffix('_us')} (µs)")
        panel.set_title(CDF_SERIES[name], loc="left")
        panel.set_ylim(0, 1.005)
    panels[0].set_ylabel("share of steps")
    legend_beside(panels[-1])
    title_sheet(drawing, figure.title)
    return drawing
