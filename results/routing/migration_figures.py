"""The numbers of the figures about sessions that move: f7, f9 and f10 of specs/ear."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from results.report.figure import Figure
from results.routing.analyse import RoutingAnalysis
from results.routing.cautions import few_trials
from results.routing.moves import CellMigrations
from results.routing.shown import bars, numbers
from results.routing.timeline import heat

ABLATION, SENSITIVITY, TIMELINE = 8, 10, 11
OF_ABLATION = ("apc", "ttft_p50_s", "ttft_p90_s", "worker_ttft_p90_median_s", "worker_ttft_p90_max_s")
OF_SENSITIVITY = ("ttft_p90_s", "trigger_rate", "accuracy", "thrash_rate")
BINS = 120
"""Stretches of time of a heat map."""
PANELS = 6
"""Policies that figure 10 shows at most."""
HEAT, ARROW = "heat", "arrow"
"""What a row of figure 10 is."""


def ablation(analysis: RoutingAnalysis) -> Figure:
    """f7."""
    title = "EAR and its parts"
    run = [row for row in analysis.ablation if row.label]
    if len(run) < 2:
        lacking = ", ".join(row.name for row in analysis.ablation if not row.label)
        return Figure(ABLATION, title, name="7", missing=f"not in this run: {lacking}")
    rows = [
        {"variant": row.name, "label": row.label, "metric": name} | numbers(analysis.value(row.label, name))
        for name in OF_ABLATION
        for row in run
    ]
    table = pd.DataFrame(rows)
    if table["value"].isna().all():
        return Figure(ABLATION, title, name="7", missing="no cell of these policies counts")
    caption = (
        "EAR without migration (sessions stay whatever is pending), without affinity (every turn is placed as a new "
        f"one, KV moved from a hot instance), and whole. {bars(table)}Measured as: "
        f"{'; '.join(f'{row.name}: {row.label}' for row in run)}."
    )
    return Figure(ABLATION, title, caption, table, name="7")


def sensitivity(analysis: RoutingAnalysis) -> Figure:
    """f9, of the two thresholds."""
    title = "EAR by its thresholds"
    if not analysis.settings:
        why = "it needs EAR with at least two values of hot_tokens or cooldown_s in one run"
        return Figure(SENSITIVITY, title, name="9", missing=why)
    moved = {row.label: row.values for row in analysis.moves.migrations}
    rows = []
    for name in OF_SENSITIVITY:
        for one in analysis.settings:
            found = moved[one.label].get(name) or analysis.value(one.label, name)
            own = {"metric": name, "hot_tokens": one.hot_tokens, "cooldown_s": one.cooldown_s, "label": one.label}
            rows.append(own | numbers(found))
    table = pd.DataFrame(rows)
    few = few_trials(analysis.trials)
    calm = not (table[table["metric"] == "thrash_rate"]["value"] > 0).any()
    gate = (
        "It is 0 by construction: EAR's cooldown gate refuses such a migration, so it checks the gate and says nothing "
        "of the thresholds. "
        if calm
        else ""
    )
    caption = (
        "Means over the trials, each with its interval. Trigger rate: requests that asked to migrate. Accuracy: served "
        "migrations whose target stayed cool, of n. Thrash rate: of n sessions that migrated, those that did again "
        f"within their cooldown. {gate}`-`: not measured, or nothing migrated. {bars(table)}{few}"
    )
    return Figure(SENSITIVITY, title, caption, table, name="9")


def migration_timeline(analysis: RoutingAnalysis) -> Figure:
    """f10."""
    title = "Prompt tokens pending at each instance, and migrations"
    found = analysis.moves.shown()
    if not found:
        why = dict.fromkeys(row.why_none for row in analysis.moves.migrations if row.trials and row.why_none)
        return Figure(TIMELINE, title, name="10", missing="; ".join(why) or "no policy of this run migrates")
    most = sorted(found, key=lambda cell: -len(cell.found.events))[:PANELS]
    shown = [cell for cell in found if cell in most]
    hot = {cell.label: _hot_tokens(cell.parameters) for cell in analysis.cells}
    table = pd.DataFrame([row for cell in shown for row in _timeline_rows(cell, hot.get(cell.label))])
    left_out = (
        f" {len(found) - len(shown)} policies with fewer migrations are left out." if len(found) > len(shown) else ""
    )
    caption = (
        "Of each policy that migrated sessions, the trial with the most migrations: "
        f"{'; '.join(f'{cell.label}, trial {cell.trial} ({len(cell.found.events)})' for cell in shown)}. "
        "Shade: the most prompt tokens pending in that stretch of time, by the router's counters at every pick and at "
        "1 Hz; white: nothing pending; hatched: not seen. Framed: hot, more than the policy's T_hot pending. Arrows: "
        "from source to target at the pick, by what became of the session's KV; unneeded: nothing was lacking there."
        f"{left_out}"
    )
    return Figure(TIMELINE, title, caption, table, name="10")


def _hot_tokens(parameters: Mapping[str, object]) -> float | None:
    found = parameters.get("hot_tokens")
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _timeline_rows(cell: CellMigrations, hot_tokens: float | None) -> Iterator[dict[str, object]]:
    """`hot`: whether more was pending than the policy's threshold; None where either is not known."""
    if cell.timeline is None:
        return
    ends = [float(series.t_s[-1]) for series in cell.timeline.series if series.t_s.size]
    edges = np.linspace(0.0, max([*ends, *(arrow.t_s for arrow in cell.timeline.arrows), 1e-3]) * (1 + 1e-9), BINS + 1)
    grid = heat(cell.timeline, edges)
    own = {"label": cell.label, "trial": cell.trial}
    for series, row in zip(cell.timeline.series, grid, strict=True):
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
    for arrow in cell.timeline.arrows:
        yield own | {
            "kind": ARROW,
            "instance": arrow.source,
            "target": arrow.target,
            "t_s": arrow.t_s,
            "session": arrow.session,
            "outcome": arrow.outcome,
        }
