"""Figure 9c: the claims over the coefficients of the engine model."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pandas as pd

from results.report.figure import Figure
from results.report.ink import sheet, title_sheet
from results.report.marks import draw_grid
from results.routing.analyse import RoutingAnalysis
from results.routing.cautions import why_no_verdict
from results.routing.figure_kinds import FigureData, FigureKind, describe_trials
from results.statistics.judgement import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

OWN_VALUES = "as the model has it"
_SIGNS = {Outcome.HOLDS: 1.0, Outcome.FAILS: -1.0}


def collect_conditional(analysis: RoutingAnalysis) -> FigureData:
    rows = [
        {"claim": one.claim.name, "variation": name, "outcome": str(outcome), "value": _SIGNS.get(outcome, 0.0)}
        for one in analysis.conditional
        for name, outcome in {OWN_VALUES: one.claim.outcome, **one.outcomes}.items()
    ]
    caption = (
        "Each claim at the model's own values, and with one coefficient or trait of the load changed at a time. The "
        f"claims of one variation are corrected for one another. {describe_trials(analysis)} "
        f"{why_no_verdict(analysis.trials)}"
    )
    return FigureData(pd.DataFrame(rows), caption.strip())


def draw_conditional(figure: Figure) -> Drawing:
    """A row per variation, a column per claim."""
    table = figure.table
    claims, variations = (list(dict.fromkeys(table[axis])) for axis in ("claim", "variation"))
    grid = table.pivot_table(index="variation", columns="claim", values="value").reindex(variations)[claims]
    outcomes = {(row.variation, row.claim): str(row.outcome) for row in table.itertuples()}
    words = {
        (down, across): outcomes[variation, claim]
        for down, variation in enumerate(variations)
        for across, claim in enumerate(claims)
    }
    drawing = sheet(2.6 + 1.25 * len(claims), 1.4 + 0.3 * len(variations))
    axes = drawing.subplots()
    draw_grid(axes, grid.to_numpy(), words, (variations, [textwrap.fill(claim, 16) for claim in claims]), reach=2.0)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=6.5)
    title_sheet(drawing, figure.title)
    return drawing


CONDITIONAL = FigureKind(
    15, "9c", "Claims over the coefficients of the engine model", collect_conditional, draw_conditional
)
