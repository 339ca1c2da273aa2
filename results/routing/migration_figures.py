"""The numbers of the figures about sessions that move: f7, f9 and f10 of specs/ear."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from results.figures.figure import Figure
from results.routing.findings import RoutingAnalysis
from results.routing.policy_migrations import CellMigrations
from results.routing.shown import bars, numbers
from results.routing.timeline import heat

ABLATION, SENSITIVITY, TIMELINE = 8, 10, 11
OF_ABLATION = ("apc", "ttft_p50_s", "ttft_p90_s", "worker_ttft_p90_median_s", "worker_ttft_p90_max_s")
OF_SENSITIVITY = ("ttft_p90_s", "trigger_rate", "thrash_rate")
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
    caption = (
        "Means over the trials. Trigger rate: requests that asked to migrate. Thrash rate: sessions that migrated "
        f"again within their cooldown. Blank: not measured, or nothing migrated. {bars(table)}"
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
    table = pd.DataFrame([row for cell in shown for row in _timeline_rows(cell)])
    left_out = (
        f" {len(found) - len(shown)} policies with fewer migrations are left out." if len(found) > len(shown) else ""
    )
    caption = (
        "Of each policy that migrated sessions, the trial with the most migrations: "
        f"{'; '.join(f'{cell.label}, trial {cell.trial} ({len(cell.found.events)})' for cell in shown)}. "
        "Shade: the most prompt tokens pending in that stretch of time, by the router's counters at every pick and at "
        "1 Hz; white: nothing pending, or not seen. Arrows: from source to target at the pick; solid with KV, dashed "
        "recomputed, crossed out where it failed."
        f"{left_out}"
    )
    return Figure(TIMELINE, title, caption, table, name="10")


def _timeline_rows(cell: CellMigrations) -> Iterator[dict[str, object]]:
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
