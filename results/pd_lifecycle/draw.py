"""Draws the figures of a lifecycle run from their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from results.pd_lifecycle import figures
from results.pd_lifecycle.overheads import SIGN_FIELD
from results.records.lifecycle import HANDSHAKE, HANDSHAKE_PARTS, PHASES
from results.report.direct_labels import Named, label_lines
from results.report.figure import Drawers, Figure
from results.report.ink import make_panel_sheet, pens, set_plain_ticks, sheet
from results.report.marks import (
    ON_COLUMN,
    ON_ROW,
    column,
    draw_grid,
    measure_error_lengths,
    pivot_grid_values,
    write_note,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from matplotlib.image import AxesImage

_LOOKS: Mapping[str, tuple[str, str]] = {
    "routing": ("#000000", ""),
    "p_queue": ("#cc79a7", ""),
    "p_prefill": ("#d9d9d9", ""),
    "metadata_wait": ("#f0e442", "////"),
    "zmq_after_metadata": ("#e69f00", ""),
    HANDSHAKE: ("#e69f00", "////"),
    "rdma_transfer": ("#d55e00", ""),
    "transfer_signal": ("#56b4e9", "xxx"),
    "d_promotion": ("#0072b2", ""),
    "d_first_token": ("#009e73", ""),
    "d_decode": ("#ffffff", "..."),
}
"""Fill and hatch of each phase: order, fill and hatch distinguish them, not color alone."""
_AFTER = PHASES.index(HANDSHAKE) + 1
_ORDER = (*PHASES[:_AFTER], *HANDSHAKE_PARTS, *PHASES[_AFTER:])
_BYTES = "10^6 bytes of the transfer"
_BAR = 0.8
"""Share of the distance between two N."""


def draw_phases(figure: Figure) -> Drawing:
    """Figure 1: a row per prior context; columns: the handover, the request without its prefill, the whole request."""
    table = figure.table
    contexts = sorted(set(table["prior_context"]))
    panels = [panel for panel in (figures.HANDOVER, figures.BESIDE, figures.WHOLE) if panel in set(table["panel"])]
    drawing = sheet(1.5 + 4.5 * len(panels), 0.8 + 2.3 * len(contexts), figure.title)
    grid = drawing.subplots(len(contexts), len(panels), squeeze=False)
    for line, context in zip(grid, contexts, strict=True):
        for axes, panel in zip(line, panels, strict=True):
            rows = table[(table["prior_context"] == context) & (table["panel"] == panel)]
            _draw_stacks(axes, rows)
            axes.set_title(f"C = {context}: {panel}", loc="left", fontsize=8)
            axes.set_ylabel("ms")
    for axes in grid[-1]:
        axes.set_xlabel("new tokens N")
    # A legend, once: every bar has all parts, and most are too thin for a name beside them.
    grid[0][-1].legend(loc="upper left", bbox_to_anchor=(1, 1), borderaxespad=0.2, handlelength=1.5, reverse=True)
    return drawing


def _draw_stacks(axes: Axes, rows: pd.DataFrame) -> None:
    """A group of bars per N, a bar per output length; an unknown phase has no height."""
    sizes = sorted(set(rows["new_tokens"]))
    lengths = sorted(set(rows["output_length"].dropna()))
    width = _BAR / max(len(lengths), 1)
    top: dict[float, float] = {}
    for phase in [name for name in _ORDER if name in set(rows["phase"])]:
        fill, hatch = _LOOKS[phase]
        own = rows[rows["phase"] == phase]
        index = own["output_length"].map({length: index for index, length in enumerate(lengths)}).fillna(0)
        middle = own["new_tokens"].map({size: index for index, size in enumerate(sizes)})
        at = (middle + (index - (len(lengths) - 1) / 2 if lengths else 0) * width).tolist()
        height = own["ms"].astype(float).fillna(0.0).tolist()
        axes.bar(at, height, width * 0.9, [top.get(x, 0.0) for x in at], color=fill, hatch=hatch, label=phase,
                 edgecolor="black", linewidth=0.5)  # fmt: skip
        top.update({x: top.get(x, 0.0) + more for x, more in zip(at, height, strict=True)})
    axes.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
    axes.grid(visible=False, axis="x")


def draw_bandwidth(figure: Figure) -> Drawing:
    """Figure 2: transfers, medians and the model's curve; knee, asymptote and link as lines."""
    table = figure.table
    drawing, axes = make_panel_sheet(7.5, 4.2, figure.title)
    single = table[table["kind"] == figures.POINT]
    axes.plot(single["bytes"] / 1e6, single["gbps"], ".", color="#a0a0a0", markersize=4)
    named = [_name_rightmost(single, "gbps", "transfer", "#a0a0a0")]
    rows = table[table["kind"] == figures.MEDIAN]
    value = column(rows, "gbps")
    axes.errorbar(rows["bytes"] / 1e6, value, yerr=measure_error_lengths(value, rows), fmt="o", color="black",
                  markerfacecolor="white", capsize=2.5, elinewidth=1)  # fmt: skip
    named += [_name_rightmost(rows, "gbps", "median of an N", "#000000")] if len(rows) else []
    model = table[table["kind"] == figures.MODEL]
    if len(model):
        axes.plot(model["bytes"] / 1e6, model["gbps"], color="#d55e00")
        named.append(_name_rightmost(model, "gbps", "cost model", "#d55e00"))
    set_plain_ticks(axes, "x", (single["bytes"] / 1e6).tolist())
    levels = {name: level for name, level in figure.lines.items() if name != "knee"}
    set_plain_ticks(axes, "y", [*single["gbps"].tolist(), *levels.values()])
    for name, level in levels.items():
        axes.axhline(level, color="#555555", linestyle=":" if name == "asymptote" else "--", linewidth=1)
        write_note(axes, f"{name} {level:.3g}", (1, level), (-3, 3), xycoords=ON_ROW, ha="right", color="black")
    knee = figure.lines.get("knee")
    if knee is not None and single["bytes"].min() / 4 <= knee <= single["bytes"].max() * 4:
        axes.axvline(knee / 1e6, color="#0072b2", linestyle="-.", linewidth=1)
        write_note(axes, "knee", (knee / 1e6, 0), (3, 3), xycoords=ON_COLUMN, color="#0072b2")
    axes.set(xlabel=_BYTES, ylabel="bandwidth of the write (Gbit/s)")
    label_lines(axes, named)
    return drawing


def _name_rightmost(rows: pd.DataFrame, value: str, name: str, color: str) -> Named:
    """At the most bytes; of several points there at the highest, which no other mark covers."""
    last = rows[rows["bytes"] == rows["bytes"].max()]
    return Named(float(last["bytes"].iloc[0]) / 1e6, float(last[value].max()), name, color)


def draw_cost(figure: Figure) -> Drawing:
    """Figure 3: the fit on linear axes, as it is defined, and on logarithmic axes, which show the short transfers."""
    table = figure.table
    drawing = sheet(10, 4.2, figure.title)
    panels = drawing.subplots(1, 2)
    single = table[table["kind"] == figures.POINT]
    for axes, scale in zip(panels, ("linear", "log"), strict=True):
        axes.plot(single["bytes"] / 1e6, single["ms"], "o", color="black", markerfacecolor="none", markersize=4)
        named = [_name_rightmost(single, "ms", "transfer", "#000000")]
        for kind, color, dashes in ((figures.MODEL, "#d55e00", "-"), (figures.ORDINARY, "#0072b2", "--")):
            rows = table[table["kind"] == kind]
            if len(rows):
                axes.plot(rows["bytes"] / 1e6, rows["ms"], color=color, linestyle=dashes)
                named.append(_name_rightmost(rows, "ms", _FITS[kind], color))
        if scale == "log":
            set_plain_ticks(axes, "x", (single["bytes"] / 1e6).tolist())
            set_plain_ticks(axes, "y", single["ms"].tolist())
        axes.set(xlabel=_BYTES, ylabel="rdma_transfer (ms)")
    label_lines(panels[1], named)  # once: both panels have the same marks
    return drawing


_FITS = {figures.MODEL: figures.WEIGHTED, figures.ORDINARY: figures.UNWEIGHTED}


def draw_overhead(figure: Figure) -> Drawing:
    """Figure 4: a panel per combined engine, all on one scale."""
    table = figure.table
    contexts, sizes = (sorted(set(table[name])) for name in ("prior_context", "new_tokens"))
    baselines = figures.list_baselines(table)
    drawing = sheet(2.6 + 1.0 * len(sizes), 0.7 + len(baselines) * (1.0 + 0.55 * len(contexts)), figure.title)
    panels = list(drawing.subplots(len(baselines), 1, squeeze=False)[:, 0])
    reach = float(table["overhead_ms"].abs().max()) or 1.0
    images = [
        _draw_overheads(axes, table[table["baseline"] == baseline], contexts, sizes, reach)
        for axes, baseline in zip(panels, baselines, strict=True)
    ]
    panels[-1].set_xlabel("new tokens N")
    drawing.colorbar(images[-1], ax=panels, pad=0.02).set_label("TTFT overhead (ms): above 0 slower")
    return drawing


def _draw_overheads(axes: Axes, rows: pd.DataFrame, contexts: list[int], sizes: list[int], reach: float) -> AxesImage:
    """Over one combined engine: a field per (C, N), and the contour of no overhead."""
    grid = pivot_grid_values(rows, "overhead_ms", ("prior_context", "new_tokens"), (contexts, sizes))
    words = {}
    for row in rows.to_dict("records"):
        shown = f"{float(row['overhead_ms']):+.3g}"
        cell = contexts.index(row["prior_context"]), sizes.index(row["new_tokens"])
        words[cell] = shown if row[SIGN_FIELD] else f"({shown})"
    labels = ([f"{context:g}" for context in contexts], [f"{size:g}" for size in sizes])
    image = draw_grid(axes, grid, words, labels, reach=reach)
    if figures.has_contour(rows):
        axes.contour(np.ma.masked_invalid(grid), levels=[0.0], colors="black", linewidths=1.6)
    axes.set_ylabel("prior context C")
    axes.set_title(f"over the {rows['baseline'].iloc[0]}", loc="left", fontsize=8)
    return image


def draw_volume(figure: Figure) -> Drawing:
    """Figure 5: a line per N."""
    table = figure.table
    drawing, axes = make_panel_sheet(7.5, 4.2, figure.title)
    sizes: Sequence[int] = sorted(set(table["new_tokens"]), reverse=True)
    ends = []
    for name, pen in pens(f"N = {size}" for size in sizes).items():
        rows = table[table["new_tokens"] == int(name.rpartition(" ")[2])].sort_values("prior_context", kind="stable")
        at, moved = rows["prior_context"].to_numpy(), column(rows, "bytes") / 1e6
        axes.plot(at, moved, **pen.line())
        ends.append(Named(float(at[-1]), float(moved[-1]), name, pen.color))
    set_plain_ticks(axes, "y", (table["bytes"] / 1e6).tolist())
    axes.set(xlabel="prior context C (tokens)", ylabel=_BYTES)
    label_lines(axes, ends)
    return drawing


DRAWERS: Drawers = {
    figures.BREAKDOWN: draw_phases,
    figures.BANDWIDTH: draw_bandwidth,
    figures.COST: draw_cost,
    figures.OVERHEAD: draw_overhead,
    figures.VOLUME: draw_volume,
}
