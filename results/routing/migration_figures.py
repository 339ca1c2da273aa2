"""The figures about sessions that move, what they draw and how: f7 and f10 of specs/ear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from results.report.figure import Figure, has_values
from results.report.ink import sheet
from results.report.marks import QUIET, draw_panel, name_rows
from results.routing.analyze import RoutingAnalysis
from results.routing.figure_kinds import FigureData, FigureKind, describe_trials
from results.routing.logs import PendingSeries
from results.routing.metrics import find_metric
from results.routing.moves import CellMigrations
from results.routing.read import read_number_or_none
from results.routing.shown import describe_bars, estimate_columns, name_units
from results.statistics.estimates import Samples

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

Dashes = tuple[float, tuple[float, ...]]

OF_ABLATION = ("apc", "ttft_p50_s", "ttft_p90_s", "worker_ttft_p90_median_s", "worker_ttft_p90_max_s")
BINS = 120
"""Columns of a heat map, over time."""
PANELS = 6
"""Policies that figure 10 shows at most."""
MOST_ARROWS = 150
"""Migrations of a trial that figure 10 shows as arrows; more would cover each other and are counted in bars."""
HALF_ROW = 0.42
"""Height of the tallest bar in an instance's row of figure 10."""
HEAT, ARROW = "heat", "arrow"
"""What a row of figure 10 is."""
_ARROWS: Mapping[str, tuple[Dashes, str]] = {
    "transferred": ((0.0, ()), "#d55e00"),
    "recomputed": ((0.0, (3.0, 2.0)), "#0072b2"),
    "unneeded": ((0.0, (1.0, 1.0)), "#009e73"),
}
_LOST = QUIET
"""Color of arrows whose migration failed or has no known outcome; they are crossed out."""
_HOT: Mapping[str, Any] = {"fill": False, "edgecolor": "#cc79a7", "linewidth": 1.3}
_UNSEEN: Mapping[str, Any] = {"facecolor": "white", "edgecolor": "#c8c8c8", "hatch": "////", "linewidth": 0.0}


def collect_ablation(analysis: RoutingAnalysis) -> FigureData | str:
    """f7."""
    run = [row for row in analysis.ablation if row.label]
    if len(run) < 2:
        lacking = ", ".join(row.name for row in analysis.ablation if not row.label)
        return f"not in this run: {lacking}"
    rows = [
        {"variant": row.name, "label": row.label, "metric": name} | estimate_columns(analysis.value(row.label, name))
        for name in OF_ABLATION
        for row in run
    ]
    table = pd.DataFrame(rows)
    if not has_values(table):
        return "no cell of these policies counts"
    caption = (
        "EAR without migration (sessions stay whatever is pending), without affinity (every turn is placed as a new "
        f"one, KV moved from a hot instance), and whole. {name_units(OF_ABLATION)}{describe_bars(table)}"
        f"{describe_trials(analysis)} Measured as: "
        f"{'; '.join(f'{row.name}: {row.label}' for row in run)}."
    )
    return FigureData(table, caption)


def draw_ablation(figure: Figure) -> Drawing:
    """A panel per metric, a row in it per variant."""
    table = figure.table
    variants = list(dict.fromkeys(table["variant"]))
    names = list(dict.fromkeys(table["metric"]))
    drawing = sheet(11.5, 1.2 + 0.3 * len(variants), figure.title)
    line = drawing.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(line, names, strict=True):
        metric = find_metric(name)
        rows = table[table["metric"] == name].set_index("variant")
        draw_panel(axes, rows, variants, metric.title, metric.shown_unit, metric.scale)
    name_rows(line[0], variants)
    return drawing


def collect_timeline(analysis: RoutingAnalysis) -> FigureData | str:
    """f10."""
    cells = analysis.moves.shown()
    if not cells:
        why = dict.fromkeys(row.why_none for row in analysis.moves.migrations if row.trials and row.why_none)
        return "; ".join(why) or "no policy of this run migrates"
    most = sorted(cells, key=lambda cell: -len(cell.migrations.events))[:PANELS]
    shown = [cell for cell in cells if cell in most]
    hot = {cell.label: read_number_or_none(cell.parameters.get("hot_tokens")) for cell in analysis.cells}
    table = pd.DataFrame([row for cell in shown for row in _list_timeline_rows(cell, hot.get(cell.label))])
    left_out = (
        f" {len(cells) - len(shown)} policies with fewer migrations are left out." if len(cells) > len(shown) else ""
    )
    caption = (
        "Of each policy that migrated sessions, the trial with the most migrations: "
        f"{'; '.join(f'{cell.label}, trial {cell.trial} ({len(cell.migrations.events)})' for cell in shown)}. "
        "Shade: the most prompt tokens pending in that stretch of time, by the router's counters at every pick and at "
        "1 Hz; white: nothing pending; hatched: not seen. Framed: hot, more than the policy's T_hot pending. Arrows: "
        "from source to target at the pick, by what became of the session's KV; unneeded: nothing had to move. "
        f"{_describe_bars_of_moves(table)}One launch each, no interval.{left_out}"
    )
    return FigureData(table, caption)


def _describe_bars_of_moves(table: pd.DataFrame) -> str:
    many = [label for label, rows in table.groupby("label", sort=False) if (rows["kind"] == ARROW).sum() > MOST_ARROWS]
    if not many:
        return ""
    return (
        f"Bars stand for more than {MOST_ARROWS} arrows ({', '.join(map(str, many))}): sessions that came to the "
        "instance, above its middle, and left it, below, in that stretch of time; the panel's title has the most. "
    )


def _list_timeline_rows(cell: CellMigrations, hot_tokens: float | None) -> Iterator[dict[str, object]]:
    """`hot`: whether more was pending than the policy's threshold; None where either is not known."""
    ends = [float(series.t_s[-1]) for series in cell.pending if series.t_s.size]
    picks = [event.t_s for event in cell.migrations.events]
    edges = np.linspace(0.0, max([*ends, *picks, 1e-3]) * (1 + 1e-9), BINS + 1)
    own = {"label": cell.label, "trial": cell.trial}
    for series, row in zip(cell.pending, bin_pending(cell.pending, edges), strict=True):
        for begin, end, tokens in zip(edges, edges[1:], row, strict=False):
            yield own | {
                "kind": HEAT,
                "instance": series.instance,
                "t_s": float(begin),
                "end_s": float(end),
                "pending_tokens": float(tokens),
                "hot_tokens": hot_tokens,
                "hot": None if hot_tokens is None or not np.isfinite(tokens) else bool(tokens > hot_tokens),
            }
    for event in cell.migrations.events:
        yield own | {
            "kind": ARROW,
            "instance": event.pick.decision.migrate_from,
            "target": event.pick.decision.instance,
            "t_s": event.t_s,
            "session": event.session,
            "outcome": event.outcome,
        }


def bin_pending(pending: Sequence[PendingSeries], edges_s: Samples) -> Samples:
    """The most tokens pending in each bin, instances x bins; NaN where nothing was seen."""
    grid = np.full((len(pending), max(len(edges_s) - 1, 0)), np.nan)
    for row, series in zip(grid, pending, strict=True):
        bins = np.searchsorted(edges_s, series.t_s, side="right") - 1
        inside = (bins >= 0) & (bins < row.size)
        np.fmax.at(row, bins[inside], series.tokens[inside])
    return grid


def draw_timeline(figure: Figure) -> Drawing:
    """A panel per policy, a row per instance, hot stretches framed, arrows from source to target."""
    table = figure.table
    labels = list(dict.fromkeys(table["label"]))
    heat = table[table["kind"] == HEAT]
    lines = [heat[heat["label"] == label]["instance"].nunique() for label in labels]
    drawing = sheet(10, 1.0 + sum(0.8 + 0.42 * count for count in lines), figure.title)
    panels = drawing.subplots(len(labels), 1, squeeze=False, height_ratios=[1.0 + count for count in lines])
    most = float(np.nanmax(heat["pending_tokens"].to_numpy(dtype=np.float64), initial=1.0))
    for axes, label in zip(panels[:, 0], labels, strict=True):
        _draw_cell(axes, table[table["label"] == label], most)
    shade = drawing.colorbar(panels[0, 0].collections[0], ax=list(panels[:, 0]), fraction=0.03, pad=0.01)
    shade.set_label("prompt tokens pending")
    panels[-1, 0].set_xlabel("time since the first pick (s)")
    # A legend, because the marks are many and small: a name in the mesh would cover what it is about.
    keys = _make_legend_keys(table)
    drawing.legend(handles=keys, loc="outside lower left", ncols=len(keys), fontsize=7.5, handlelength=2.6)
    return drawing


def _draw_cell(axes: Axes, rows: pd.DataFrame, most: float) -> None:
    from matplotlib.patches import Rectangle

    heat, arrows = (rows[rows["kind"] == kind] for kind in (HEAT, ARROW))
    grid = heat.pivot_table(index="instance", columns="t_s", values="pending_tokens", dropna=False, sort=True)
    edges = np.append(grid.columns.to_numpy(dtype=np.float64), float(heat["end_s"].max()))
    names = list(grid.index)
    at = {name: index for index, name in enumerate(names)}
    values = grid.to_numpy(dtype=np.float64)
    axes.patch.set(**_UNSEEN)  # shows where the mesh has no value
    axes.pcolormesh(edges, np.arange(len(names) + 1) - 0.5, values, cmap="Greys", vmin=0, vmax=most, rasterized=True)
    hot_tokens = float(heat["hot_tokens"].iloc[0]) if heat["hot_tokens"].notna().any() else None
    for index, row in enumerate(values):
        for first, end in _find_runs(row > hot_tokens) if hot_tokens is not None else ():
            corner, width = (edges[first], index - 0.46), edges[end] - edges[first]
            axes.add_patch(Rectangle(corner, width, 0.92, zorder=3, **_HOT))
    if len(arrows) > MOST_ARROWS:
        most_moves = f"; bars: up to {_draw_moves(axes, arrows, names, edges)} sessions"
    else:
        most_moves = ""
        _draw_arrows(axes, arrows, at)
    name_rows(axes, names)
    axes.grid(visible=False)
    threshold = "" if hot_tokens is None else f": hot above {hot_tokens:g} tokens"
    title = f"{rows['label'].iloc[0]}, trial {rows['trial'].iloc[0]}{threshold}{most_moves}"
    axes.set_title(title, loc="left", fontsize=8)


def _draw_arrows(axes: Axes, arrows: pd.DataFrame, at: Mapping[str, int]) -> None:
    for source, target, t_s, outcome in arrows[["instance", "target", "t_s", "outcome"]].itertuples(index=False):
        if source not in at or target not in at:
            continue
        dashes, color = _ARROWS.get(str(outcome), ((0.0, ()), _LOST))
        look = {"arrowstyle": "->", "color": color, "linestyle": dashes, "linewidth": 1.1}
        axes.annotate("", (t_s, at[target]), xytext=(t_s, at[source]), arrowprops=look)
        if outcome not in _ARROWS:
            axes.plot([t_s], [(at[source] + at[target]) / 2], "x", color=color, markersize=6)


def _draw_moves(axes: Axes, arrows: pd.DataFrame, names: Sequence[str], edges_s: Samples) -> int:
    """Bars of the sessions that came and left, stacked by what became of their KV; returns the most in one bar."""
    outcomes = [*_ARROWS, *sorted(set(arrows["outcome"]) - set(_ARROWS))]
    groups = [arrows[arrows["outcome"] == outcome] for outcome in outcomes]
    stacks = {
        end: np.cumsum([count_moves(group[end], group["t_s"], names, edges_s) for group in groups], axis=0)
        for end in ("target", "instance")
    }
    most = max(int(stack.max(initial=0)) for stack in stacks.values())
    for end, side in (("target", -1), ("instance", 1)):  # the first instance is on top: upwards is less
        heights = side * HALF_ROW * np.concatenate([np.zeros((1, len(names), len(edges_s) - 1)), stacks[end]]) / most
        for below, above, outcome in zip(heights, heights[1:], outcomes, strict=False):
            color = _ARROWS.get(outcome, ((), _LOST))[1]
            for index in range(len(names)):
                if (below[index] != above[index]).any():
                    bottom, top = index + below[index], index + above[index]
                    axes.stairs(top, edges_s, baseline=bottom, fill=True, color=color, rasterized=True)
    return most


def count_moves(instances: pd.Series, t_s: pd.Series, names: Sequence[str], edges_s: Samples) -> npt.NDArray[np.int64]:
    """Moves by instance and bin, names x bins; instances outside `names` are left out."""
    grid = np.zeros((len(names), len(edges_s) - 1), dtype=np.int64)
    rows = pd.Index(names).get_indexer(pd.Index(instances))
    bins = np.searchsorted(edges_s, t_s.to_numpy(dtype=np.float64), side="right") - 1
    inside = (rows >= 0) & (bins >= 0) & (bins < grid.shape[1])
    np.add.at(grid, (rows[inside], bins[inside]), 1)
    return grid


def _find_runs(where: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Begin and end (exclusive) of each run of True."""
    steps = np.flatnonzero(np.diff(np.concatenate(([False], where, [False])).astype(np.int8)))
    return [(int(first), int(end)) for first, end in zip(steps[::2], steps[1::2], strict=True)]


def _make_legend_keys(table: pd.DataFrame) -> list[Artist]:
    """What the marks in this figure 10 mean."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    heat, ends = table[table["kind"] == HEAT], set(table["outcome"].dropna())
    keys: list[Artist] = [
        Line2D([], [], color=color, linestyle=dashes, linewidth=1.1, label=f"KV {name}")
        for name, (dashes, color) in _ARROWS.items()
        if name in ends
    ]
    if ends - set(_ARROWS):
        lost = ", ".join(sorted(ends - set(_ARROWS)))
        keys.append(Line2D([], [], color=_LOST, marker="x", linewidth=1.1, label=lost))
    if heat["hot"].eq(True).any():
        keys.append(Patch(label="hot", **_HOT))
    if heat["pending_tokens"].isna().any():
        keys.append(Patch(**_UNSEEN, label="not seen"))
    return keys


ABLATION = FigureKind(8, "7", "EAR and its parts", collect_ablation, draw_ablation)
TIMELINE = FigureKind(
    11, "10", "Prompt tokens pending at each instance, and migrations", collect_timeline, draw_timeline
)
