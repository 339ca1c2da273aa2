"""Figures f2a to f2c of a trace: reuse, skew, and KV capacity, each with its numbers as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from results.report.direct_labels import Named, label_lines
from results.report.figure import Drawers, Figure
from results.report.ink import FILLS, HATCHES, make_panel_sheet, sheet
from results.report.marks import EDGE, column, name_bars, name_rows, write_note
from results.report.output import write_figures
from results.traces.description import DEPLOYMENTS, GIB, TraceDescription

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

REUSE, SKEW, CAPACITY = 1, 2, 3
"""Numbers of the figures that specs/ear calls f2a, f2b and f2c."""
_LOOKS: Mapping[str, tuple[str, str]] = {
    "any session": (FILLS[0], HATCHES[0]),
    "same session": (FILLS[1], HATCHES[1]),
    "intra-session": (FILLS[1], HATCHES[1]),
    "cross-session": (FILLS[2], HATCHES[2]),
    "shared prefix": (FILLS[2], HATCHES[0]),
    **dict(zip(DEPLOYMENTS, zip(FILLS, HATCHES, strict=True), strict=True)),
}
"""Fill and hatch of a bar by what it is."""
_EVEN = "#7f7f7f"
"""Ink of the line on which all sessions have the same input."""


def build_figures(description: TraceDescription) -> tuple[Figure, ...]:
    """f2a, f2b and f2c; one that cannot be drawn holds its reason."""
    return (
        make_reuse_split_figure(description),
        make_session_skew_figure(description),
        make_kv_capacity_figure(description),
    )


def write_trace_figures(description: TraceDescription, folder: Path) -> tuple[Figure, ...]:
    """Write `figure_2a` to `figure_2c` as `.png`, `.svg` and `.csv` into `folder`, which is created.

    The same numbers give the same bytes. A figure that is `missing` has no files. Raises OSError.
    """
    figures = build_figures(description)
    write_figures(figures, folder, DRAWERS)
    return figures


def make_reuse_split_figure(description: TraceDescription) -> Figure:
    """f2a: the bounds, and the origin of the reuse."""
    title = f"Reuse of prefixes: {description.facts['source']}"
    reuse = description.reuse
    values = {
        ("bound", "any session"): (description.apc_bound_any, "apc_bound_any"),
        ("bound", "same session"): (description.apc_bound_intra, "apc_bound_intra"),
        ("split", "intra-session"): (reuse.intra_session_share, "intra_session_share"),
        ("split", "cross-session"): (reuse.cross_session_share, "cross_session_share"),
        ("split", "shared prefix"): (reuse.shared_prefix_share, "shared_prefix_share"),
    }
    if all(value is None for value, _ in values.values()):
        return Figure(REUSE, title, name="2a", missing=description.reasons.get("apc_bound_any", "no bound is known"))
    table = pd.DataFrame(
        {"panel": panel, "what": what, "share": value, "standard_error": reuse.standard_error.get(name)}
        for (panel, what), (value, name) in values.items()
    ).astype({"share": float, "standard_error": float})
    unknown = [what for (_, what), (value, _) in values.items() if value is None]
    reasons = dict.fromkeys(reason for name, reason in description.reasons.items() if "reuse" in name or "apc" in name)
    caption = (
        "Left: share of the input tokens that an infinite cache would hit, from earlier requests of any session, or "
        "of the same session. Right: the reused tokens by the first user of their block: the same session, another "
        f"session, or another session where {reuse.shared_from} or more sessions use the block."
        + (f" Not known: {', '.join(unknown)} ({'; '.join(reasons)})." if unknown else "")
    )
    return Figure(REUSE, title, caption, table, name="2a")


def make_session_skew_figure(description: TraceDescription) -> Figure:
    """f2b: the share of the input tokens in the largest sessions."""
    title = f"Session skew: {description.facts['source']}"
    if not description.skew.top:
        return Figure(SKEW, title, name="2b", missing=description.reasons.get("skew", "no input tokens"))
    table = pd.DataFrame(
        {"mark": mark, "top_share": top.top_share, "sessions": top.sessions, "input_share": top.input_share}
        for mark, points in (("curve", description.skew.curve), ("top", description.skew.top))
        for top in points
    )
    caption = (
        f"Share of all input tokens in the sessions with the most input tokens, of {description.sessions} sessions. "
        "Dashed line: all sessions have the same input."
    )
    return Figure(SKEW, title, caption, table, name="2b")


def make_kv_capacity_figure(description: TraceDescription) -> Figure:
    """f2c: the number of requests of one size that decode at the same time, by deployment."""
    title = f"Concurrent decodes: {description.facts['source']}"
    kv = description.kv
    if not kv.capacity:
        return Figure(CAPACITY, title, name="2c", missing="no request has any tokens")
    table = pd.DataFrame(
        {
            "percentile": row.percentile,
            "footprint_gib": row.footprint_bytes / GIB,
            "per_instance": row.per_instance,
            "deployment": name,
            "concurrent_decodes": concurrent,
        }
        for row in kv.capacity
        for name, concurrent in row.concurrent.items()
    )
    caption = (
        "Requests of each size that decode at the same time in the whole system: whole footprints in a KV pool of "
        f"{kv.kv_pool_bytes / GIB:.1f} GiB (beside each group), times the instances that decode. A footprint is input "
        f"and output tokens at {kv.bytes_per_token:g} bytes each. Larger than a pool: "
        f"{100 * (kv.larger_than_pool or 0):.2f} % of the requests."
    )
    return Figure(CAPACITY, title, caption, table, name="2c")


def _draw_reuse(figure: Figure) -> Drawing:
    drawing = sheet(6.8, 3.2, figure.title)
    panels = drawing.subplots(1, 2, width_ratios=(2, 3))
    labels = {"bound": "share of input tokens", "split": "share of reused tokens"}
    for panel, (kind, label) in zip(panels, labels.items(), strict=True):
        rows = figure.table[figure.table["panel"] == kind]
        errors = np.nan_to_num(column(rows, "standard_error"))
        for index, (what, share, error) in enumerate(zip(rows["what"], column(rows, "share"), errors, strict=True)):
            height = 100 * float(np.nan_to_num(share))
            fill, hatch = _LOOKS[str(what)]
            panel.bar(index, height, 0.62, color=fill, hatch=hatch, **EDGE)
            text = f"{height:.1f} %" + (f"\n± {100 * error:.2g}" if error else "")
            shown = text if np.isfinite(share) else "not\nknown"
            write_note(panel, shown, (index, height), (0, 2), ha="center", va="bottom", fontsize=8, color="black")
        panel.set_xticks(range(len(rows)), [str(what).replace(" ", "\n") for what in rows["what"]])
        panel.set_ylim(0, 118)
        panel.set_yticks(range(0, 101, 20))
        panel.set_ylabel(f"{label} (%)")
        panel.grid(visible=False, axis="x")
    return drawing


def _draw_skew(figure: Figure) -> Drawing:
    table = figure.table
    drawing, axes = make_panel_sheet(6.2, 3.6, figure.title)
    curve, top = (table[table["mark"] == mark] for mark in ("curve", "top"))
    at, height = (column(curve, name, 100) for name in ("top_share", "input_share"))
    axes.plot(at, height, color="black")
    even = np.geomspace(at.min(), 100, 100)
    axes.plot(even, even, color=_EVEN, linestyle=(0, (5, 3)))
    for row in top.to_dict("records"):  # the top 1 % of seven sessions is one session, and is drawn as 14 %
        x, y = 100 * row["sessions"] / int(curve["sessions"].max()), 100 * row["input_share"]
        axes.plot(x, y, "o", color="black", markerfacecolor="white", zorder=4)
        text = f"top {100 * row['top_share']:g} %: {y:.1f} %"
        write_note(axes, text, (x, y), (-6, 5), ha="right", fontsize=8, color="black")
    axes.set_xscale("log")
    ticks = [tick for tick in (0.0001, 0.001, 0.01, 0.1, 1, 5, 10, 25, 50, 100) if tick >= at.min() * 0.99]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlim(right=110)
    axes.set_ylim(0, 105)
    axes.set_xlabel("sessions with the most input tokens (% of all, logarithmic)")
    axes.set_ylabel("share of all input tokens (%)")
    half = max(50.0, float(at.min()))  # not the end of the line, which is the curve's too
    label_lines(axes, [Named(half, half, "all sessions alike", _EVEN)])
    return drawing


def _draw_capacity(figure: Figure) -> Drawing:
    table = figure.table
    deployments = list(dict.fromkeys(table["deployment"]))
    groups = table.drop_duplicates("percentile")
    drawing, axes = make_panel_sheet(7.2, 1 + 0.7 * len(groups), figure.title)
    thick = 0.8 / len(deployments)
    for number, name in enumerate(deployments):
        rows = table[table["deployment"] == name]
        at = np.arange(len(rows)) + (number - (len(deployments) - 1) / 2) * thick
        width = column(rows, "concurrent_decodes")
        fill, hatch = _LOOKS[str(name)]
        axes.barh(at, width, thick * 0.92, color=fill, hatch=hatch, **EDGE)
        for x, y in zip(width.tolist(), at.tolist(), strict=True):
            write_note(axes, f"{x:g}", (x, y), (3, 0), va="center", fontsize=8, color="black")
    tick_labels = [
        f"p{row.percentile:g}: {row.footprint_gib:.2f} GiB\n{row.per_instance} fit per instance"
        for row in groups.itertuples()
    ]
    name_rows(axes, tick_labels)
    name_bars(axes, deployments)
    axes.margins(x=0.12)
    axes.set_xlabel("requests decoding at the same time")
    return drawing


DRAWERS: Drawers = {REUSE: _draw_reuse, SKEW: _draw_skew, CAPACITY: _draw_capacity}
