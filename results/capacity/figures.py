"""Figure 1: each limited percentile over the number of instances, with the limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from results.capacity.analyze import CapacityAnalysis
from results.capacity.report import FIGURE, name_outcome
from results.capacity.search import best_split
from results.records.count import format_count
from results.report.figure import Figure
from results.report.ink import legend_beside, pens, plain_ticks, sheet, title_sheet
from results.report.marks import draw_line
from results.statistics.judgement import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

TITLE = "Fewest instances that hold the objective"


def build_figures(analysis: CapacityAnalysis) -> tuple[Figure, ...]:
    table = pd.DataFrame(_list_rows(analysis))
    if table.empty or table["value"].isna().all():
        return (Figure(FIGURE, TITLE, missing="no point has a value"),)
    caption = (
        f"SIMULATED, {analysis.facts.simulated}. Each simulated size, over "
        f"{format_count(analysis.traces, 'trace', 'traces')}; bars: intervals. Of the splits of a pooled fleet the one "
        "that holds the objective, else the nearest to it. Filled: the size holds the objective; open: it does not, or "
        "that is undecided. A size that leaves the percentile unserved has no mark."
    )
    return (Figure(FIGURE, TITLE, caption, table, {limit.title: limit.limit_s for limit in analysis.limits}),)


def _list_rows(analysis: CapacityAnalysis) -> Iterator[dict[str, object]]:
    """A row per policy, number of instances and limit."""
    for policy in analysis.policies:
        for count in sorted({size.instances for size in policy.points}):
            size = best_split(policy.points, count)
            point = policy.points[size]
            for limit in analysis.limits:
                estimate = point.estimates[limit.name]
                yield {
                    "label": policy.label,
                    "instances": count,
                    "size": size.text,
                    "metric": limit.title,
                    "limit_s": limit.limit_s,
                    "value": estimate.value,
                    "value_low": estimate.low,
                    "value_high": estimate.high,
                    "reason": estimate.reason or "",
                    "objective": name_outcome(point),
                    "simulated": analysis.facts.simulated,
                }


def draw_capacity(figure: Figure) -> Drawing:
    """A panel per limit."""
    table = figure.table
    drawing = sheet(4.2 * len(figure.lines) + 1.6, 3.4)
    pen_of = pens(table["label"])
    panels = drawing.subplots(1, len(figure.lines), squeeze=False)[0]
    for axes, (name, limit_s) in zip(panels, figure.lines.items(), strict=True):
        rows = table[table["metric"] == name]
        for label, pen in pen_of.items():
            known = rows[(rows["label"] == label) & rows["value"].notna()]
            draw_line(axes, known["instances"], known, "value", pen)
            short = known[known["objective"] != str(Outcome.HOLDS)]
            hollow = {"color": pen.color, "markerfacecolor": "white", "zorder": 4}
            axes.plot(short["instances"], short["value"], pen.marker, **hollow)
        axes.axhline(limit_s, color="black", linewidth=0.9, linestyle=(0, (4, 2)))
        plain_ticks(axes, "y", [*rows["value"].dropna(), limit_s])
        axes.set_title(f"{name} (s), limit {limit_s:g} s", loc="left")
        axes.set_xlabel("instances")
        axes.xaxis.get_major_locator().set_params(integer=True)
    for label, pen in pen_of.items():
        panels[-1].plot([], [], label=label, **pen.line())
    legend_beside(panels[-1])
    title_sheet(drawing, f"SIMULATED: {figure.title}")
    return drawing
