"""Draws figures 7, 9 and 10 of a `routing` run from their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from results.figures.figure import Figure
from results.figures.files import Drawers
from results.figures.ink import sheet
from results.routing import migration_figures as figures
from results.routing.marks import dots
from results.routing.metrics import metric
from results.statistics import figure as digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

_RATES = {"trigger_rate": "trigger rate (%)", "thrash_rate": "thrash rate (%)"}
_ARROWS = {"transferred": ("-", "#d55e00"), "recomputed": ((0, (3, 2)), "#0072b2")}


def draw_ablation(figure: Figure) -> Drawing:
    """Figure 7: a panel per metric, a row in it per variant."""
    table = figure.table
    variants = list(dict.fromkeys(table["variant"]))
    names = list(dict.fromkeys(table["metric"]))
    drawing = sheet(11.5, 1.2 + 0.3 * len(variants))
    line = drawing.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(line, names, strict=True):
        measure = metric(name)
        dots(axes, table[table["metric"] == name].set_index("variant").reindex(variants), measure.scale)
        axes.set_title(f"{measure.title} ({measure.shown_unit})", loc="left", fontsize=8)
        axes.set_xlim(left=0)
        axes.tick_params(axis="x", labelsize=7)
    line[0].set_yticks(range(len(variants)), variants)
    line[0].set_ylim(len(variants) - 0.5, -0.5)
    drawing.suptitle(figure.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return drawing


def draw_sensitivity(figure: Figure) -> Drawing:
    """Figure 9: a heat map per metric, T_hot upwards, T_cool to the right, each cell with its value."""
    table = figure.table
    names = list(dict.fromkeys(table["metric"]))
    hot, cool = (sorted(set(table[axis])) for axis in ("hot_tokens", "cooldown_s"))
    drawing = sheet(3.6 * len(names), 1.6 + 0.45 * len(hot))
    for axes, name in zip(drawing.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        rows = table[table["metric"] == name]
        grid = rows.pivot_table(index="hot_tokens", columns="cooldown_s", values="value", dropna=False)
        scale = 100.0 if name in _RATES else metric(name).scale
        values = grid.reindex(index=hot, columns=cool).to_numpy(dtype=np.float64) * scale
        _map(axes, values)
        axes.set_title(_RATES.get(name) or f"{metric(name).title} ({metric(name).shown_unit})", loc="left")
        axes.set_xticks(range(len(cool)), [f"{value:g}" for value in cool])
        axes.set_yticks(range(len(hot)), [f"{value:g}" for value in hot])
        axes.set_xlabel("cooldown (s)")
    drawing.axes[0].set_ylabel("hot above (pending tokens)")
    drawing.suptitle(figure.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return drawing


def _map(axes: Axes, values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    axes.imshow(values, cmap="Greys", vmin=low, vmax=high + 0.6 * max(high - low, 1e-12), aspect="auto", origin="lower")
    axes.grid(visible=False)
    for place, value in np.ndenumerate(values):
        text = digits(float(value), 3) if np.isfinite(value) else "-"
        axes.annotate(text, (place[1], place[0]), ha="center", va="center", fontsize=8)


def draw_timeline(figure: Figure) -> Drawing:
    """Figure 10: a panel per policy, a row per instance, arrows from source to target."""
    table = figure.table
    labels = list(dict.fromkeys(table["label"]))
    heat = table[table["kind"] == figures.HEAT]
    lines = [heat[heat["label"] == label]["instance"].nunique() for label in labels]
    drawing = sheet(10, 0.7 + sum(0.8 + 0.42 * count for count in lines))
    panels = drawing.subplots(len(labels), 1, squeeze=False, height_ratios=[1.0 + count for count in lines])
    most = float(np.nanmax(heat["pending_tokens"].to_numpy(dtype=np.float64), initial=1.0))
    for axes, label in zip(panels[:, 0], labels, strict=True):
        _timeline(axes, table[table["label"] == label], most)
    shade = drawing.colorbar(panels[0, 0].collections[0], ax=list(panels[:, 0]), fraction=0.03, pad=0.01)
    shade.set_label("prompt tokens pending")
    panels[-1, 0].set_xlabel("time since the first pick (s)")
    drawing.suptitle(figure.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return drawing


def _timeline(axes: Axes, rows: pd.DataFrame, most: float) -> None:
    heat, arrows = (rows[rows["kind"] == kind] for kind in (figures.HEAT, figures.ARROW))
    grid = heat.pivot_table(index="instance", columns="t_s", values="pending_tokens", dropna=False, sort=True)
    edges = np.append(grid.columns.to_numpy(dtype=np.float64), float(heat["end_s"].max()))
    names = list(grid.index)
    at = {name: place for place, name in enumerate(names)}
    axes.pcolormesh(edges, np.arange(len(names) + 1) - 0.5, grid.to_numpy(dtype=np.float64), cmap="Greys", vmin=0,
                    vmax=most, rasterized=True)  # fmt: skip
    for source, target, t_s, outcome in arrows[["instance", "target", "t_s", "outcome"]].itertuples(index=False):
        if source not in at or target not in at:
            continue
        dashes, color = _ARROWS.get(str(outcome), ("-", "#555555"))
        look = {"arrowstyle": "->", "color": color, "linestyle": dashes, "linewidth": 1.1}
        axes.annotate("", (t_s, at[target]), xytext=(t_s, at[source]), arrowprops=look)
        if outcome not in _ARROWS:
            axes.plot([t_s], [(at[source] + at[target]) / 2], "x", color=color, markersize=6)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False)
    axes.set_title(f"{rows['label'].iloc[0]}, trial {rows['trial'].iloc[0]}", loc="left", fontsize=8)


MIGRATION_DRAWERS: Drawers = {
    figures.ABLATION: draw_ablation,
    figures.SENSITIVITY: draw_sensitivity,
    figures.TIMELINE: draw_timeline,
}
