"""Draws the figures of a `routing` run from their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from results.measures import latency
from results.report.figure import Figure
from results.report.figure_files import Drawers
from results.report.ink import Pen, pens, plain_ticks, shares, sheet
from results.routing import figures
from results.routing.marks import dots, spans, time_axis
from results.routing.migration_draw import MIGRATION_DRAWERS
from results.routing.occupancy import DEPLOYMENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

Dashes = str | tuple[float, tuple[float, ...]]

_ROW = 0.3
"""Inches of a policy's row."""
_LOOKS = {"combined 8C": ("-", "#000000"), "4P+4D": ((0, (5, 2)), "#0072b2"), "6P+2D": ((0, (1, 1)), "#d55e00")}


def draw_amplification(figure: Figure) -> Drawing:
    """Figure 1: a row per policy."""
    drawing, axes = _list_of(figure)
    dots(axes, figure.table, 1.0)
    for name, value in figure.lines.items():
        axes.axvline(value, color="#808080", linestyle="--", linewidth=1)
        axes.annotate(name, (value, 0), xycoords=("data", "axes fraction"), xytext=(3, 3), textcoords="offset points",
                      fontsize=7, color="#555555")  # fmt: skip
    axes.set_xlabel("wall clock / trace span")
    return drawing


def draw_apc(figure: Figure) -> Drawing:
    """Figure 4a: a row per policy, its bounds as marks on the row."""
    drawing, axes = _list_of(figure)
    table = figure.table
    at = np.arange(len(table), dtype=np.float64)
    axes.barh(at, table["value"].to_numpy(dtype=np.float64), 0.55, color="#d9d9d9", edgecolor="black", linewidth=0.7)
    dots(axes, table, 1.0)
    for name, label, color, size in (  # the second on top of the first: they are often the same
        ("bound_any", "bound, any session", "#000000", 19),
        ("bound_intra", "bound, own session", "#56b4e9", 9),
    ):
        bound = table[name].to_numpy(dtype=np.float64)
        axes.plot(bound, at, "|", color=color, markersize=size, markeredgewidth=2.4, label=label)
    axes.set_xlim(0, 1.02)
    axes.set_xlabel("share of prompt tokens")
    shares(axes.xaxis)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2, handlelength=1.5)
    return drawing


def draw_occupancy(figure: Figure) -> Drawing:
    """Figure 4b: a line per deployment over the footprint."""
    table = figure.table
    drawing = sheet(7.5, 4.2)
    axes = drawing.subplots()
    for deployment in DEPLOYMENTS:
        rows = table[table["deployment"] == deployment].sort_values("footprint_tokens", kind="stable")
        dashes, color = _LOOKS[deployment]
        size = rows["footprint_tokens"].to_numpy(dtype=np.float64)
        low, high = (rows[name].to_numpy(dtype=np.float64) for name in ("occupancy_mean", "occupancy_p90"))
        axes.fill_between(size, low, high, color=color, alpha=0.12, linewidth=0)
        axes.plot(size, high, linestyle=dashes, color=color, label=deployment)
    measured = table[table["point"] == figures.MEASURED]
    for name, pen in pens(measured["deployment"]).items():
        rows = measured[measured["deployment"] == name]
        high = rows["occupancy_p90"].to_numpy(dtype=np.float64)
        down = np.maximum(high - rows["occupancy_mean"].to_numpy(dtype=np.float64), 0)
        axes.errorbar(rows["footprint_tokens"], high, yerr=(down, np.zeros_like(down)), fmt="o", color=pen.color,
                      markerfacecolor="white", capsize=2, label=name)  # fmt: skip
    marks = table[(table["point"] != "") & (table["deployment"] == next(iter(DEPLOYMENTS)))]
    wide = float(table["footprint_tokens"].max() / table["footprint_tokens"].min()) ** 0.13  # the width of a name
    named: dict[float, list[str]] = {}
    for point, tokens in zip(marks["point"], marks["footprint_tokens"].tolist(), strict=True):
        near = next((other for other in named if tokens < wide * other), tokens)
        named.setdefault(near, []).append(str(point))
        axes.axvline(tokens, color="#a0a0a0", linestyle=":", linewidth=1)
    for tokens, points in named.items():
        axes.annotate(", ".join(points), (tokens, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), fontsize=7.5,
                      textcoords="offset points", ha="center", color="#555555")  # fmt: skip
    axes.axhline(figure.lines["wall"], color="black", linestyle=":", linewidth=1)
    plain_ticks(axes, "x", table["footprint_tokens"])
    axes.set_yscale("log")
    axes.minorticks_off()
    shares(axes.yaxis)
    axes.annotate(f"{figure.lines['wall']:.0%}", (0, figure.lines["wall"]), xycoords=("axes fraction", "data"),
                  xytext=(3, 3), textcoords="offset points", fontsize=7.5, color="#555555")  # fmt: skip
    axes.set_xlabel("footprint of a request (tokens)")
    axes.set_ylabel("share of the decode pools")
    axes.set_title(figure.title, loc="left", fontweight="bold", pad=16)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
    return drawing


def draw_workers(figure: Figure) -> Drawing:
    """Figure 4c: a row per policy; instances as circles, median as a bar, maximum as a triangle."""
    table = figure.table
    drawing, axes = _list_of(figure)
    labels = list(dict.fromkeys(table["label"]))
    places = {label: place for place, label in enumerate(labels)}
    for kind, mark, size, fill in (
        ("instance", "o", 5, "white"),
        ("median", "|", 15, "black"),
        ("max", ">", 7, "black"),
    ):
        rows = table[table["kind"] == kind]
        at = rows["label"].map(places).to_numpy(dtype=np.float64)
        value = rows["value"].to_numpy(dtype=np.float64) * 1e3
        axes.plot(value, at, mark, color="black", markerfacecolor=fill, markersize=size, label=kind)
        if kind != "instance":
            spans(axes, value, at, rows, 1e3)
    known = table["value"].dropna().to_numpy(dtype=np.float64) * 1e3
    plain_ticks(axes, "x", known)
    axes.set_xlabel(f"TTFT p90 (ms{', log scale' if axes.get_xscale() == 'log' else ''})")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2, handlelength=1.5)
    return drawing


def draw_interference(figure: Figure) -> Drawing:
    """Figure 4d: times on the left, their ratio on the right, a line per number of decodes."""
    table = figure.table
    drawing = sheet(9.5, 3.8)
    times, ratio = drawing.subplots(1, 2)
    lengths = sorted(set(table["prefill_tokens"]))
    for name, pen in pens(f"{number} decodes" for number in sorted(set(table["decodes"]))).items():
        rows = table[table["decodes"] == int(name.split()[0])].sort_values("prefill_tokens", kind="stable")
        size = rows["prefill_tokens"].to_numpy(dtype=np.float64)
        times.plot(size, rows["tpot_before_s"] * 1e3, color=pen.color, marker=pen.marker, markerfacecolor="white",
                   linestyle=":", label=f"{name}, before")  # fmt: skip
        times.plot(size, rows["tpot_during_s"] * 1e3, color=pen.color, marker=pen.marker, label=f"{name}, during")
        value = rows["slowdown"].to_numpy(dtype=np.float64)
        low, high = (rows[f"slowdown_{side}"].to_numpy(dtype=np.float64) for side in ("low", "high"))
        below, above = (np.where(np.isfinite(side), side, 0).clip(0) for side in (value - low, high - value))
        ratio.errorbar(size, value, yerr=(below, above), color=pen.color, marker=pen.marker, capsize=2, elinewidth=0.9)
    for axes, values in ((times, table[["tpot_before_s", "tpot_during_s"]].to_numpy().ravel() * 1e3), (ratio, [])):
        if len(lengths) > 1:
            axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:g}" for length in lengths])
        axes.minorticks_off()
        plain_ticks(axes, "y", [float(value) for value in values if np.isfinite(value)])
        axes.set_xlabel("tokens of the joining prefill")
    ratio.axhline(1, color="#808080", linestyle="--", linewidth=1)
    ratio.set_ylim(bottom=0)
    times.set_ylabel("time per token of the decodes (ms)")
    ratio.set_ylabel("during / before")
    times.legend(loc="upper left")
    drawing.suptitle(figure.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return drawing


def draw_latencies(figure: Figure) -> Drawing:
    """Figures 6 and 6 full: a row of panels per series, a panel per statistic, a row in it per policy; one statistic
    alone has its series side by side."""
    table = figure.table
    labels = list(dict.fromkeys(table["label"]))
    series = [name for name in latency.METRICS if name in set(table["series"])]
    statistics = list(dict.fromkeys(table["statistic"]))
    panels = [(name, statistic) for name in series for statistic in statistics]
    across = len(statistics) if len(statistics) > 1 else len(series)
    down = len(panels) // across
    drawing = sheet(11.5, down * (0.75 + 0.24 * len(labels)) + 0.4)
    grid = drawing.subplots(down, across, sharey=True, squeeze=False)
    for axes, (name, statistic) in zip(grid.ravel(), panels, strict=True):
        of = latency.METRICS[name]
        unit, scale = of.shown_unit, 1e3 if of.shown_unit == "ms" else 1.0
        rows = table[(table["series"] == name) & (table["statistic"] == statistic)]
        dots(axes, rows.set_index("label").reindex(labels), scale)
        axes.set_title(f"{of.title} {statistic} ({unit}{time_axis(axes, rows, scale)})", loc="left", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
    for line in grid:
        line[0].set_yticks(range(len(labels)), labels)
        line[0].set_ylim(len(labels) - 0.5, -0.5)
    drawing.suptitle(figure.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return drawing


def draw_coupling(figure: Figure) -> Drawing:
    """Figure 8: W over L with the fits on the left, amplification over W with the predictions on the right."""
    table = figure.table
    drawing = sheet(11, 4.4)
    left, right = drawing.subplots(1, 2)
    cells = table[table["kind"] == figures.CELL]
    starts = set(table[table["kind"] == figures.KINEMATIC]["label"])
    for label, pen in pens(dict.fromkeys(cells["label"])).items():
        rows = cells[cells["label"] == label]
        _marks(left, rows, "sessions", "service_s", pen, label)
        fit = table[(table["kind"] == figures.FIT) & (table["label"] == label)]
        left.plot(fit["sessions"], fit["service_s"], color=pen.color, linewidth=1.1)
        if label in starts:
            low, high = (fit[side].to_numpy(dtype=np.float64) for side in ("low", "high"))
            left.fill_between(fit["sessions"].to_numpy(dtype=np.float64), low, high, color=pen.color, alpha=0.1)
        _marks(right, rows, "service_s", "amplification", pen, label)
    _lines(left, table, figures.LITTLE, "sessions", "service_s", (0, (1, 2)))
    _lines(right, table, figures.KINEMATIC, "service_s", "amplification", "-")
    _lines(right, table, figures.SPECIFIED, "service_s", "amplification", (0, (5, 3)))
    for value in figure.lines.values():
        right.axhline(value, color="#808080", linestyle="--", linewidth=1)
    _keep_to(left, cells["sessions"], cells["service_s"])
    _keep_to(right, cells["service_s"], cells["amplification"])
    left.set_xlabel("sessions in the system (mean at send)")
    left.set_ylabel("W_turn (s)")
    right.set_xlabel("W_turn (s)")
    right.set_ylabel("wall clock / trace span")
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.2)
    drawing.suptitle(figure.title, x=0.01, ha="left", fontweight="bold", fontsize=9)
    return drawing


DRAWERS: Drawers = {
    figures.AMPLIFICATION: draw_amplification,
    figures.APC: draw_apc,
    figures.OCCUPANCY: draw_occupancy,
    figures.WORKERS: draw_workers,
    figures.INTERFERENCE: draw_interference,
    figures.HEADLINE: draw_latencies,
    figures.LATENCIES: draw_latencies,
    **MIGRATION_DRAWERS,
    figures.COUPLING: draw_coupling,
}


def _list_of(figure: Figure) -> tuple[Drawing, Axes]:
    """A sheet with one panel and a row per label of the table."""
    labels = list(dict.fromkeys(figure.table["label"]))
    drawing = sheet(8, 1.3 + _ROW * len(labels))
    axes = drawing.subplots()
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_title(figure.title, loc="left", fontweight="bold")
    return drawing, axes


def _marks(axes: Axes, rows: pd.DataFrame, x: str, y: str, pen: Pen, label: str) -> None:
    axes.plot(rows[x], rows[y], pen.marker, color=pen.color, markerfacecolor="white", markeredgewidth=1.4, label=label)


def _lines(axes: Axes, table: pd.DataFrame, kind: str, x: str, y: str, dashes: Dashes) -> None:
    rows = table[table["kind"] == kind]
    if len(rows):
        axes.plot(rows[x], rows[y], color="#808080", linestyle=dashes, linewidth=1.3, zorder=1)


def _keep_to(axes: Axes, across: pd.Series[float], up: pd.Series[float]) -> None:
    """Axes that show every cell with room beside; what is predicted far away may leave the panel."""
    for values, setter in ((across, axes.set_xlim), (up, axes.set_ylim)):
        known = values.to_numpy(dtype=np.float64)
        known = known[np.isfinite(known)]
        if known.size:
            low, high = float(known.min()), float(known.max())
            room = max(0.15 * (high - low), 0.05 * high, 1e-9)
            setter(max(low - room, 0), high + room)
