"""Figure 1: each limited percentile over the number of instances, with the limit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from results.capacity.analyze import CapacityAnalysis
from results.capacity.report import FIGURE, name_outcome
from results.capacity.search import choose_best_split, describe_withheld
from results.measures.summary import make_bounded_columns
from results.records.count import format_count
from results.report.direct_labels import Named, label_lines
from results.report.figure import Figure, has_values
from results.report.ink import set_plain_ticks, sheet
from results.report.marks import column, draw_line
from results.report.policy_pens import assign_pens
from results.statistics.judgement import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

TITLE = "Fewest instances that hold the objective"


def build_figures(analysis: CapacityAnalysis) -> tuple[Figure, ...]:
    table = pd.DataFrame(_list_rows(analysis))
    if not has_values(table):
        return (Figure(FIGURE, TITLE, missing="no point has a value"),)
    why = describe_withheld(analysis.traces)
    caption = (
        f"SIMULATED, {analysis.facts.simulated}. Each simulated size, over "
        f"{format_count(analysis.traces, 'trace', 'traces')}; bars: intervals. Of the splits of a pooled fleet the one "
        "that holds the objective, else an undecided one, else the nearest to it. Ringed: the size holds the "
        "objective; the others do not, or that is undecided. A size that leaves the percentile unserved has no mark."
        + (f" No size is ringed: {why}." if why else "")
    )
    limits = {limit.title: limit.limit_s for limit in analysis.limits}
    pens = assign_pens({one.label: one.policy for one in analysis.policies})
    return (Figure(FIGURE, TITLE, caption, table, limits, pens),)


def _list_rows(analysis: CapacityAnalysis) -> Iterator[dict[str, object]]:
    """A row per policy, number of instances and limit."""
    for policy in analysis.policies:
        for count in sorted({size.instances for size in policy.points}):
            size = choose_best_split(policy.points, count)
            point = policy.points[size]
            for limit in analysis.limits:
                estimate = point.estimates[limit.name]
                yield {
                    "label": policy.label,
                    "instances": count,
                    "size": size.text,
                    "metric": limit.title,
                    "limit_s": limit.limit_s,
                    **make_bounded_columns("value", estimate),
                    "reason": estimate.reason or "",
                    "objective": name_outcome(point),
                    "simulated": analysis.facts.simulated,
                }


def draw_capacity(figure: Figure) -> Drawing:
    """A panel per limit, a line per policy with its name at its end."""
    table = figure.table
    drawing = sheet(5.2 * len(figure.lines), 3.4, f"SIMULATED: {figure.title}")
    panels = drawing.subplots(1, len(figure.lines), squeeze=False)[0]
    for axes, (name, limit_s) in zip(panels, figure.lines.items(), strict=True):
        rows = table[(table["metric"] == name) & table["value"].notna()]
        ends = []
        for label, pen in figure.pens.items():
            own = rows[rows["label"] == label]
            at, value = column(own, "instances"), column(own, "value")
            draw_line(axes, at, own, "value", pen)
            holds = (own["objective"] == str(Outcome.HOLDS)).to_numpy()
            axes.plot(at[holds], value[holds], "o", color=pen.color, markerfacecolor="none", markersize=11)
            ends += [Named(at[-1], value[-1], label, pen.color, pen.marker)] if at.size else []
        axes.axhline(limit_s, color="black", linewidth=0.9, linestyle=(0, (4, 2)))
        set_plain_ticks(axes, "y", [*rows["value"], limit_s])
        axes.set_title(f"{name} (s), limit {limit_s:g} s", loc="left")
        axes.set_xlabel("instances")
        axes.xaxis.get_major_locator().set_params(integer=True)
        label_lines(axes, ends)
    return drawing
