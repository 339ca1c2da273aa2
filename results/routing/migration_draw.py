"""Draws figures 7, 9 and 10 of a `routing` run from their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from results.report.figure import Figure
from results.report.figure_files import Drawers
from results.report.ink import sheet
from results.routing import migration_figures as figures
from results.routing.marks import dots, time_axis
from results.routing.metrics import metric
from results.statistics.estimates import Samples
from results.statistics.estimates import figure as digits

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from matplotlib.patches import Patch

Dashes = tuple[float, tuple[float, ...]]

_RATES = {"trigger_rate": "trigger rate (%)", "accuracy": "accuracy (%)", "thrash_rate": "thrash rate (%)"}
_COUNTED = ("accuracy", "thrash_rate")
"""Rates of a handful of migrations: each with its n."""
_ARROWS: Mapping[str, tuple[Dashes, str]] = {
    "transferred": ((0.0, ()), "#d55e00"),
    "recomputed": ((0.0, (3.0, 2.0)), "#0072b2"),
    "unneeded": ((0.0, (1.0, 1.0)), "#009e73"),
}
_LOST = "#555555"
"""Of arrows whose migration failed, or of which it is not known what came: crossed out."""
_HOT = "#cc79a7"
_UNSEEN: Mapping[str, Any] = {"facecolor": "white", "edgecolor": "#c8c8c8", "hatch": "////", "linewidth": 0.0}


def draw_ablation(figure: Figure) -> Drawing:
    """Figure 7: a panel per metric, a row in it per variant."""
    table = figure.table
    variants = list(dict.fromkeys(table["variant"]))
    names = list(dict.fromkeys(table["metric"]))
    drawing = sheet(11.5, 1.2 + 0.3 * len(variants))
    line = drawing.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(line, names, strict=True):
        measure = metric(name)
        rows = table[table["metric"] == name]
        dots(axes, rows.set_index("variant").reindex(variants), measure.scale)
        scaled = time_axis(axes, rows, measure.scale)
        axes.set_title(f"{measure.title} ({measure.shown_unit}{scaled})", loc="left", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
    line[0].set_yticks(range(len(variants)), variants)
    line[0].set_ylim(len(variants) - 0.5, -0.5)
    drawing.suptitle(figure.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return drawing


def draw_sensitivity(figure: Figure) -> Drawing:
    """Figure 9: a heat map per metric, T_hot upwards, T_cool to the right, each cell with its value and interval."""
    table = figure.table
    names = list(dict.fromkeys(table["metric"]))
    hot, cool = (sorted(set(table[axis])) for axis in ("hot_tokens", "cooldown_s"))
    drawing = sheet(3.1 * len(names), 1.6 + 0.6 * len(hot))
    for axes, name in zip(drawing.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        rows = table[table["metric"] == name]
        scale = 100.0 if name in _RATES else metric(name).scale
        values, low, high = (_grid(rows, column, hot, cool) * scale for column in ("value", "low", "high"))
        _map(axes, values, (low, high), _grid(rows, "n", hot, cool) if name in _COUNTED else None)
        by_gate = ", 0 by construction" if name == "thrash_rate" and not (values > 0).any() else ""
        title = _RATES.get(name) or f"{metric(name).title} ({metric(name).shown_unit})"
        axes.set_title(f"{title}{by_gate}", loc="left")
        axes.set_xticks(range(len(cool)), [f"{value:g}" for value in cool])
        axes.set_yticks(range(len(hot)), [f"{value:g}" for value in hot])
        axes.set_xlabel("cooldown (s)")
    drawing.axes[0].set_ylabel("hot above (pending tokens)")
    drawing.suptitle(figure.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return drawing


def _grid(rows: pd.DataFrame, column: str, hot: Sequence[float], cool: Sequence[float]) -> Samples:
    """A column over the grid, T_hot by T_cool; NaN where there is none."""
    found = rows.pivot_table(index="hot_tokens", columns="cooldown_s", values=column, dropna=False)
    return found.reindex(index=list(hot), columns=list(cool)).to_numpy(dtype=np.float64)


def _map(axes: Axes, values: Samples, bounds: tuple[Samples, Samples], counts: Samples | None) -> None:
    """Each cell with its value, its interval, and what it was counted of."""
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    axes.imshow(values, cmap="Greys", vmin=low, vmax=high + 0.6 * max(high - low, 1e-12), aspect="auto", origin="lower")
    axes.grid(visible=False)
    for place, value in np.ndenumerate(values):
        lines = [digits(float(value), 3) if np.isfinite(value) else "-"]
        span = [float(side[place]) for side in bounds]
        if np.isfinite(value) and np.isfinite(span).all():
            lines.append(f"[{digits(span[0], 3)}, {digits(span[1], 3)}]")
        if np.isfinite(value) and counts is not None:
            lines.append(f"n = {counts[place]:.0f}")
        axes.annotate("\n".join(lines), (place[1], place[0]), ha="center", va="center", fontsize=7)


def draw_timeline(figure: Figure) -> Drawing:
    """Figure 10: a panel per policy, a row per instance, hot stretches framed, arrows from source to target."""
    table = figure.table
    labels = list(dict.fromkeys(table["label"]))
    heat = table[table["kind"] == figures.HEAT]
    lines = [heat[heat["label"] == label]["instance"].nunique() for label in labels]
    drawing = sheet(10, 1.0 + sum(0.8 + 0.42 * count for count in lines))
    panels = drawing.subplots(len(labels), 1, squeeze=False, height_ratios=[1.0 + count for count in lines])
    most = float(np.nanmax(heat["pending_tokens"].to_numpy(dtype=np.float64), initial=1.0))
    for axes, label in zip(panels[:, 0], labels, strict=True):
        _timeline(axes, table[table["label"] == label], most)
    shade = drawing.colorbar(panels[0, 0].collections[0], ax=list(panels[:, 0]), fraction=0.03, pad=0.01)
    shade.set_label("prompt tokens pending")
    panels[-1, 0].set_xlabel("time since the first pick (s)")
    keys = _keys(table)
    drawing.legend(handles=keys, loc="outside lower left", ncols=len(keys), fontsize=7.5, handlelength=2.6)
    drawing.suptitle(figure.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return drawing


def _timeline(axes: Axes, rows: pd.DataFrame, most: float) -> None:
    heat, arrows = (rows[rows["kind"] == kind] for kind in (figures.HEAT, figures.ARROW))
    grid = heat.pivot_table(index="instance", columns="t_s", values="pending_tokens", dropna=False, sort=True)
    edges = np.append(grid.columns.to_numpy(dtype=np.float64), float(heat["end_s"].max()))
    names = list(grid.index)
    at = {name: place for place, name in enumerate(names)}
    values = grid.to_numpy(dtype=np.float64)
    axes.patch.set(**_UNSEEN)  # shows where the mesh has no value
    axes.pcolormesh(edges, np.arange(len(names) + 1) - 0.5, values, cmap="Greys", vmin=0, vmax=most, rasterized=True)
    hot_tokens = float(heat["hot_tokens"].iloc[0]) if heat["hot_tokens"].notna().any() else None
    for place, row in enumerate(values):
        for first, end in _runs(row > hot_tokens) if hot_tokens is not None else ():
            axes.add_patch(_frame(edges[first], place - 0.46, edges[end] - edges[first]))
    for source, target, t_s, outcome in arrows[["instance", "target", "t_s", "outcome"]].itertuples(index=False):
        if source not in at or target not in at:
            continue
        dashes, color = _ARROWS.get(str(outcome), ((0.0, ()), _LOST))
        look = {"arrowstyle": "->", "color": color, "linestyle": dashes, "linewidth": 1.1}
        axes.annotate("", (t_s, at[target]), xytext=(t_s, at[source]), arrowprops=look)
        if outcome not in _ARROWS:
            axes.plot([t_s], [(at[source] + at[target]) / 2], "x", color=color, markersize=6)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False)
    threshold = "" if hot_tokens is None else f": hot above {hot_tokens:g} tokens"
    axes.set_title(f"{rows['label'].iloc[0]}, trial {rows['trial'].iloc[0]}{threshold}", loc="left", fontsize=8)


def _runs(where: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First place and end of each stretch that is True."""
    steps = np.flatnonzero(np.diff(np.concatenate(([False], where, [False])).astype(np.int8)))
    return [(int(first), int(end)) for first, end in zip(steps[::2], steps[1::2], strict=True)]


def _frame(left: float, bottom: float, width: float) -> Patch:
    from matplotlib.patches import Rectangle

    return Rectangle((left, bottom), width, 0.92, fill=False, edgecolor=_HOT, linewidth=1.3, zorder=3)


def _keys(table: pd.DataFrame) -> list[Artist]:
    """What the marks of figure 10 mean: of arrows, those that are in it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    heat, ends = table[table["kind"] == figures.HEAT], set(table["outcome"].dropna())
    found: list[Artist] = [
        Line2D([], [], color=color, linestyle=dashes, linewidth=1.1, label=f"KV {name}")
        for name, (dashes, color) in _ARROWS.items()
        if name in ends
    ]
    if ends - set(_ARROWS):
        lost = ", ".join(sorted(ends - set(_ARROWS)))
        found.append(Line2D([], [], color=_LOST, marker="x", linewidth=1.1, label=lost))
    if heat["hot"].eq(True).any():
        found.append(Patch(fill=False, edgecolor=_HOT, linewidth=1.3, label="hot"))
    if heat["pending_tokens"].isna().any():
        found.append(Patch(**_UNSEEN, label="not seen"))
    return found


MIGRATION_DRAWERS: Drawers = {
    figures.ABLATION: draw_ablation,
    figures.SENSITIVITY: draw_sensitivity,
    figures.TIMELINE: draw_timeline,
}
