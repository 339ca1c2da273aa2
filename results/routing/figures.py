"""Every figure of a `routing` report (f1 and f3 to f10 of specs/ear); those with a row per policy are drawn here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from results.measures import latency
from results.measures.summary import POINTS, name_percentile
from results.report import marks
from results.report.direct_labels import Named, label_marks
from results.report.figure import Drawers, Figure, has_values
from results.report.ink import make_panel_sheet, set_plain_ticks, shares, sheet
from results.report.terms import begin_sentence
from results.routing import load_figures, migration_figures, schematics, sensitivity_figures
from results.routing.analyze import RoutingAnalysis, compute_mean_of_known
from results.routing.figure_kinds import FigureData, FigureKind, describe_trials, explain_missing
from results.routing.shown import describe_bars, estimate_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

STATISTICS = ("mean", *POINTS)
_ROW = 0.3
"""Inches of a policy's row."""


def collect_amplification(analysis: RoutingAnalysis) -> FigureData | str:
    """f1."""
    rows = [{"label": label} | estimate_columns(analysis.value(label, "amplification")) for label in analysis.labels]
    table = pd.DataFrame(rows)
    if not has_values(table):
        return explain_missing(analysis, "amplification")
    caption = (
        f"{begin_sentence('replay amplification')}: at 1 the system keeps up with what was recorded. "
        f"{describe_bars(table)}{describe_trials(analysis)}"
    )
    return FigureData(table, caption, {"the trace's own time": 1.0})


def draw_amplification(figure: Figure) -> Drawing:
    drawing, axes = _make_policy_sheet(figure)
    marks.draw_dots(axes, figure.table, 1.0)
    for name, value in figure.lines.items():
        axes.axvline(value, color="#808080", linestyle="--", linewidth=1)
        marks.write_note(axes, name, (value, 0), (3, 3), xycoords=marks.ON_COLUMN, fontsize=7)
    axes.set_xlabel("wall clock / trace span")
    return drawing


def collect_apc(analysis: RoutingAnalysis) -> FigureData | str:
    """f4a."""
    rows = [
        {"label": label}
        | estimate_columns(analysis.value(label, "apc"))
        | {
            "apc_usage": analysis.value(label, "apc_usage").value,
            "bound_any": analysis.compute_mean_over_cells(label, "apc_bound_any"),
            "bound_intra": analysis.compute_mean_over_cells(label, "apc_bound_intra"),
        }
        for label in analysis.labels
    ]
    table = pd.DataFrame(rows)
    if not has_values(table):
        return explain_missing(analysis, "apc")
    caption = (
        "APC in %: cached over all prompt tokens by the engines' own counters, with the bounds of the turns that were "
        "completed: what an endless cache in one place would give, counting prefixes seen before in any session, or in "
        f"the turn's own. {describe_bars(table)}{describe_trials(analysis)}"
    )
    return FigureData(table, caption)


def draw_apc(figure: Figure) -> Drawing:
    """A policy's bounds are marks on its row."""
    drawing, axes = _make_policy_sheet(figure, marks_named=True)
    table = figure.table
    at = np.arange(len(table), dtype=np.float64)
    axes.barh(at, marks.column(table, "value"), 0.55, color="#d9d9d9", edgecolor="black", linewidth=0.7)
    marks.draw_dots(axes, table, 1.0)
    named = []
    for name, label, color, size in (  # the second on top of the first: they are often the same
        ("bound_any", "bound, any session", "#000000", 19),
        ("bound_intra", "bound, own session", "#56b4e9", 9),
    ):
        bound = marks.column(table, name)
        axes.plot(bound, at, "|", color=color, markersize=size, markeredgewidth=2.4, clip_on=False)
        named += [Named(bound[row], row, label, color) for row in np.flatnonzero(np.isfinite(bound))[:1]]
    axes.set_xlim(0, 1.02)
    axes.set_xlabel("share of prompt tokens")
    shares(axes.xaxis)
    label_marks(axes, named)
    return drawing


def collect_instances(analysis: RoutingAnalysis) -> FigureData | str:
    """f4c."""
    table = pd.DataFrame(_list_instance_rows(analysis))
    if not has_values(table):
        return explain_missing(analysis, "worker_ttft_p90_max_s")
    caption = (
        "In ms. Circles: p90 of each instance, mean over the trials. Bar and triangle: median and maximum over the "
        "instances of a cell, mean over the trials. Read as absolute times: a policy that slows every instance alike "
        f"would look even in a ratio. {describe_bars(table)}{describe_trials(analysis)}"
    )
    return FigureData(table, caption)


def _list_instance_rows(analysis: RoutingAnalysis) -> Iterator[dict[str, object]]:
    for label in analysis.labels:
        for name, instances in analysis.instances(label).items():
            p90 = [value for one in instances if (value := one.values["ttft_p90_s"].value) is not None]
            yield {
                "label": label,
                "kind": "instance",
                "instance": name,
                "value": compute_mean_of_known(p90),
                "n": len(p90),
            }
        for kind in ("median", "max"):
            whole = estimate_columns(analysis.value(label, f"worker_ttft_p90_{kind}_s"))
            yield {"label": label, "kind": kind, "instance": ""} | whole


def draw_instances(figure: Figure) -> Drawing:
    """Instances are circles, the median a bar, the maximum a triangle."""
    table = figure.table
    drawing, axes = _make_policy_sheet(figure, marks_named=True)
    named = []
    row_of = {label: row for row, label in enumerate(dict.fromkeys(table["label"]))}
    for kind, mark, size, fill in (
        ("instance", "o", 5, "white"),
        ("median", "|", 15, "black"),
        ("max", ">", 7, "black"),
    ):
        rows = table[table["kind"] == kind]
        at = rows["label"].map(row_of).to_numpy(dtype=np.float64)
        value = marks.column(rows, "value", 1e3)
        axes.plot(value, at, mark, color="black", markerfacecolor=fill, markersize=size, clip_on=False)
        named += [Named(value[row], at[row], kind, "#000000") for row in np.flatnonzero(np.isfinite(value))[:1]]
        if kind != "instance":
            marks.draw_spans(axes, value, at, rows, 1e3)
    set_plain_ticks(axes, "x", marks.column(table, "value", 1e3))
    axes.set_xlabel(f"TTFT p90 (ms{', log scale' if axes.get_xscale() == 'log' else ''})")
    label_marks(axes, named)
    return drawing


def collect_latencies(analysis: RoutingAnalysis, points: Sequence[str]) -> FigureData | str:
    """f6, f6_full."""
    rows = [
        {"label": label, "series": series, "statistic": point}
        | estimate_columns(analysis.value(label, name_percentile(series, point)))
        for series in latency.METRICS
        for point in points
        for label in analysis.labels
    ]
    table = pd.DataFrame(rows)
    if not has_values(table):
        return explain_missing(analysis, "ttft_p90_s")
    cut = "A bar that reaches the left edge was cut at 0. " if (table["low"] == 0).any() else ""
    units = ", ".join(f"{of.title} in {of.shown_unit}" for of in latency.METRICS.values())
    caption = (
        f"{units}, over the turns that completed. Each column has its own scale, logarithmic (and said so) where "
        f"policies differ by more than {marks.WIDE:g} times. {describe_bars(table)}{cut}{describe_trials(analysis)}"
    )
    return FigureData(table, caption)


def draw_latencies(figure: Figure) -> Drawing:
    """A row of panels per series, a panel per statistic, a row in it per policy; one statistic alone has its series
    side by side."""
    table = figure.table
    labels = list(dict.fromkeys(table["label"]))
    series = [name for name in latency.METRICS if name in set(table["series"])]
    statistics = list(dict.fromkeys(table["statistic"]))
    panels = [(name, statistic) for name in series for statistic in statistics]
    across = len(statistics) if len(statistics) > 1 else len(series)
    down = len(panels) // across
    drawing = sheet(11.5, down * (0.75 + 0.24 * len(labels)) + 0.4, figure.title)
    grid = drawing.subplots(down, across, sharey=True, squeeze=False)
    for axes, (name, statistic) in zip(grid.ravel(), panels, strict=True):
        of = latency.METRICS[name]
        rows = table[(table["series"] == name) & (table["statistic"] == statistic)].set_index("label")
        scale = 1e3 if of.shown_unit == "ms" else 1.0
        marks.draw_panel(axes, rows, labels, f"{of.title} {statistic}", of.shown_unit, scale)
    for line in grid:
        marks.name_rows(line[0], labels)
    return drawing


def _make_policy_sheet(figure: Figure, *, marks_named: bool = False) -> tuple[Drawing, Axes]:
    """A sheet with one panel and a row per label of the table. `marks_named`: names above the panel have room."""
    labels = list(dict.fromkeys(figure.table["label"]))
    drawing, axes = make_panel_sheet(8, 1.3 + _ROW * len(labels), figure.title, 18 if marks_named else None)
    marks.name_rows(axes, labels)
    return drawing, axes


AMPLIFICATION = FigureKind(1, "1", "Wall clock over trace span, by policy", collect_amplification, draw_amplification)
APC = FigureKind(2, "4a", "Prefix cache hits against the trace's bound", collect_apc, draw_apc)
INSTANCES = FigureKind(4, "4c", "TTFT p90 of each instance, by policy", collect_instances, draw_instances)
HEADLINE = FigureKind(
    6, "6", "TTFT, TPOT and E2E of a turn: p90, by policy", partial(collect_latencies, points=("p90",)), draw_latencies
)
LATENCIES = FigureKind(
    7,
    "6_full",
    "TTFT, TPOT and E2E of a turn, by policy",
    partial(collect_latencies, points=STATISTICS),
    draw_latencies,
)
SCHEMATICS = (schematics.COUPLING, schematics.ARCHITECTURE)
FIGURES = (
    AMPLIFICATION,
    APC,
    load_figures.OCCUPANCY,
    INSTANCES,
    load_figures.INTERFERENCE,
    HEADLINE,
    LATENCIES,
    migration_figures.ABLATION,
    load_figures.COUPLING,
    sensitivity_figures.THRESHOLDS,
    sensitivity_figures.LOADS,
    migration_figures.TIMELINE,
    *SCHEMATICS,
)
OF_VARIATIONS = (sensitivity_figures.CONDITIONAL,)
"""Only of simulated runs that vary their engine model."""
DRAWERS: Drawers = {kind.number: kind.draw for kind in (*FIGURES, *OF_VARIATIONS)}


def build_figures(analysis: RoutingAnalysis) -> tuple[Figure, ...]:
    """Every figure in order; one that cannot be drawn holds its reason. Simulated numbers have it in the title."""
    kinds = (*FIGURES, *OF_VARIATIONS) if analysis.conditional else FIGURES
    figures = tuple(kind.build(analysis) for kind in kinds)
    if not analysis.facts.simulated:
        return figures
    schematic = {kind.number for kind in SCHEMATICS}
    return tuple(
        figure if figure.number in schematic else replace(figure, title=f"SIMULATED: {figure.title}")
        for figure in figures
    )
