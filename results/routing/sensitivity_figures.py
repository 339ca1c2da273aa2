"""Figure 9 of specs/ear in three parts: EAR by its thresholds, policies by load, claims by the engine model."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from results.records.estimate import figure as digits
from results.records.estimate import unknown
from results.records.percent import format_percent
from results.report.figure import Figure, has_values
from results.report.ink import sheet
from results.report.marks import draw_grid, pivot_grid_values
from results.routing.analyze import RoutingAnalysis
from results.routing.cautions import explain_no_verdict
from results.routing.figure_kinds import FigureData, FigureKind, describe_trials
from results.routing.loads import TOP_SESSIONS, Load, strip_load
from results.routing.metrics import find_metric
from results.routing.pairs import find_pair
from results.routing.shown import describe_bars, estimate_columns, name_units
from results.statistics.estimates import LEVEL, Samples, correct_by_holm
from results.statistics.judgement import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

OF_THRESHOLDS = ("ttft_p90_s", "trigger_rate", "accuracy", "thrash_rate")
OF_LOADS = ("ttft_p50_s", "ttft_p90_s", "worker_ttft_p90_median_s", "completed_share")
OVER_EAR = "ttft_p90_over_ear"
"""TTFT p90 over that of EAR under the same load: the distance that specs/ear 5.5 asks for."""
_RATES = {"trigger_rate": "trigger rate (%)", "accuracy": "accuracy (%)", "thrash_rate": "thrash rate (%)"}
_COUNTED = ("accuracy", "thrash_rate")
"""Rates of a handful of migrations: each with its n."""
OWN_VALUES = "as the model has it"
_SIGNS = {Outcome.HOLDS: 1.0, Outcome.FAILS: -1.0}


def collect_thresholds(analysis: RoutingAnalysis) -> FigureData | str:
    if not analysis.settings:
        return "it needs EAR with at least two values of hot_tokens or cooldown_s in one run"
    rates = {row.label: row.values for row in analysis.moves.migrations}
    rows = [
        {"metric": name, "hot_tokens": one.hot_tokens, "cooldown_s": one.cooldown_s, "label": one.label}
        | estimate_columns(rates[one.label].get(name) or analysis.value(one.label, name))
        for name in OF_THRESHOLDS
        for one in analysis.settings
    ]
    table = pd.DataFrame(rows)
    few = explain_no_verdict(analysis.trials)
    calm = not (table[table["metric"] == "thrash_rate"]["value"] > 0).any()
    gate = (
        "It is 0 by construction: EAR's cooldown gate refuses such a migration, so it checks the gate and says nothing "
        "of the thresholds. "
        if calm
        else ""
    )
    caption = (
        "Means over the trials. Trigger rate: requests that asked to migrate. Accuracy: served "
        "migrations whose target stayed cool, of n. Thrash rate: of n sessions that migrated, those that did again "
        f"within their cooldown. {gate}`-`: not measured, or nothing migrated. TTFT p90 in ms, rates in %. "
        f"{describe_bars(table, 'Brackets')}{describe_trials(analysis)} {few}"
    )
    return FigureData(table, caption.strip())


def draw_thresholds(figure: Figure) -> Drawing:
    """A heat map per metric, T_hot upwards, T_cool to the right, each cell with its value and interval."""
    table = figure.table
    names = list(dict.fromkeys(table["metric"]))
    hot, cool = (sorted(set(table[axis])) for axis in ("hot_tokens", "cooldown_s"))
    drawing = sheet(3.1 * len(names), 1.6 + 0.6 * len(hot), figure.title)
    for axes, name in zip(drawing.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        rows = table[table["metric"] == name]
        scale = 100.0 if name in _RATES else find_metric(name).scale
        grid = _make_grid(rows, ("hot_tokens", "cooldown_s"), (hot, cool))
        labels = ([f"{value:g}" for value in hot], [f"{value:g}" for value in cool])
        draw_grid(axes, scale * grid["value"], _describe_cells(grid, scale, counted=name in _COUNTED), labels)
        by_gate = ", 0 by construction" if name == "thrash_rate" and not (grid["value"] > 0).any() else ""
        title = _RATES.get(name) or f"{find_metric(name).title} ({find_metric(name).shown_unit})"
        axes.set_title(f"{title}{by_gate}", loc="left")
        axes.set_xlabel("cooldown (s)")
    drawing.axes[0].set_ylabel("hot above (pending tokens)")
    return drawing


def collect_loads(analysis: RoutingAnalysis) -> FigureData | str:
    """A policy is recognized under several loads by its label without what was swept."""
    if len(analysis.loads) < 2:
        return "it needs policies under two loads or more in one run (presets `steady` and `skew-and-pool`)"
    rows = [row for load in analysis.loads for row in _load_rows(analysis, load)]
    table = pd.DataFrame(rows)
    if not has_values(table):
        return "no cell of these policies counts"
    table["verdict"], judged = _judge_over_ear(table)
    shares = {load.top_share: load.text for load in reversed(analysis.loads) if load.top_share is not None}
    listed = "; ".join(f"{format_percent(share)} ({text})" for share, text in sorted(shares.items()))
    caption = (
        f"Each policy under each load; only policies under the same load are compared. Of the input, "
        f"{format_percent(TOP_SESSIONS)} of the sessions have {listed}. Over EAR's: the ratio of TTFT p90 inside the "
        f"trials, above 1 is slower than EAR. {judged}{name_units(OF_LOADS)}{describe_bars(table, 'Brackets')}"
        f"{describe_trials(analysis)} {explain_no_verdict(analysis.trials)}"
    )
    return FigureData(table, caption.strip())


def _load_rows(analysis: RoutingAnalysis, load: Load) -> Iterator[dict[str, object]]:
    ear = [label for label in load.labels if analysis.policies[label] == "ear"]
    for label in load.labels:
        own = {"load": load.text, "policy": strip_load(label), "label": label}
        for name in OF_LOADS:
            yield own | {"metric": name} | estimate_columns(analysis.value(label, name))
        if len(ear) == 1 and label != ear[0]:
            pair = find_pair(analysis.pairs, label, ear[0], "ttft_p90_s")
            ratio = unknown("not compared") if pair is None or pair.ratio is None else pair.ratio
            yield own | {"metric": OVER_EAR, "p": None if pair is None else pair.p_value} | estimate_columns(ratio)


def _judge_over_ear(table: pd.DataFrame) -> tuple[pd.Series[str], str]:
    """`slower` or `faster` than EAR by row, after Holm's correction over all ratios of the figure; and that in words.

    A ratio without an interval counts with p = 1. Of the other metrics nothing is judged.
    """
    ratios = table[table["metric"] == OVER_EAR]
    verdicts = pd.Series("", index=table.index)
    if ratios.empty or ratios["p"].isna().all():
        return verdicts, ""
    corrected = correct_by_holm(ratios["p"].astype(float).fillna(1.0).tolist())
    for index, value, p in zip(ratios.index, ratios["value"], corrected, strict=True):
        if p <= 1 - LEVEL:
            verdicts[index] = "slower" if value > 1 else "faster"
    count, lacking = len(ratios), int(ratios["p"].isna().sum())
    without = f" ({lacking} without an interval)" if lacking else ""
    return verdicts, f"Slower and faster: distinguishable after Holm's correction over these {count} ratios{without}. "


def draw_loads(figure: Figure) -> Drawing:
    """A heat map per metric, a row per policy, a column per load."""
    table = figure.table
    names = list(dict.fromkeys(table["metric"]))
    policies, loads = (list(dict.fromkeys(table[axis])) for axis in ("policy", "load"))
    drawing = sheet(2.0 + 1.5 * len(loads), (0.9 + 0.5 * len(policies)) * len(names), figure.title)
    for axes, name in zip(drawing.subplots(len(names), 1, squeeze=False)[:, 0], names, strict=True):
        rows = table[table["metric"] == name]
        own = [policy for policy in policies if policy in set(rows["policy"])]
        scale = 1.0 if name == OVER_EAR else find_metric(name).scale
        grid = _make_grid(rows, ("policy", "load"), (own, loads))
        words = _describe_cells(grid, scale)
        for row in rows[rows["verdict"] != ""].itertuples():
            words[own.index(row.policy), loads.index(row.load)] += f"\n{row.verdict}"
        draw_grid(axes, scale * grid["value"], words, (own, loads))
        axes.set_title("TTFT p90 over EAR's" if name == OVER_EAR else find_metric(name).heading, loc="left")
    return drawing


def _make_grid(
    rows: pd.DataFrame, axes: tuple[str, str], ticks: tuple[Sequence[object], Sequence[object]]
) -> dict[str, Samples]:
    """Value, bounds and n over the grid, as `pivot_grid_values` has each."""
    return {name: pivot_grid_values(rows, name, axes, ticks) for name in ("value", "low", "high", "n")}


def _describe_cells(grid: Mapping[str, Samples], scale: float, *, counted: bool = False) -> dict[tuple[int, int], str]:
    """Each cell's value, its interval, and what it was counted of."""
    words = {}
    for index, value in np.ndenumerate(scale * grid["value"]):
        lines = [digits(float(value), 3) if np.isfinite(value) else "-"]
        span = [scale * float(grid[side][index]) for side in ("low", "high")]
        if np.isfinite(value) and np.isfinite(span).all():
            lines.append(f"[{digits(span[0], 3)}, {digits(span[1], 3)}]")
        if np.isfinite(value) and counted:
            lines.append(f"n = {grid['n'][index]:.0f}")
        words[index[0], index[1]] = "\n".join(lines)
    return words


def collect_conditional(analysis: RoutingAnalysis) -> FigureData:
    rows = [
        {
            "claim": one.claim.name,
            "variation": name,
            "outcome": str(own.outcome),
            "value": _SIGNS.get(own.outcome, 0.0),
            "measured": own.measured.value,
            "low": own.measured.low,
            "high": own.measured.high,
        }
        for one in analysis.conditional
        for name, own in {OWN_VALUES: one.claim, **one.varied}.items()
    ]
    caption = (
        "Each claim at the model's own values, and with one coefficient or trait of the load changed at a time. The "
        f"claims of one variation are corrected together. {describe_trials(analysis)} "
        f"{explain_no_verdict(analysis.trials)}"
    )
    return FigureData(pd.DataFrame(rows), caption.strip())


def draw_conditional(figure: Figure) -> Drawing:
    """A row per variation, a column per claim."""
    table = figure.table
    claims, variations = (list(dict.fromkeys(table[axis])) for axis in ("claim", "variation"))
    values = pivot_grid_values(table, "value", ("variation", "claim"), (variations, claims))
    words = {(variations.index(row.variation), claims.index(row.claim)): str(row.outcome) for row in table.itertuples()}
    drawing = sheet(2.6 + 1.25 * len(claims), 1.4 + 0.3 * len(variations), figure.title)
    axes = drawing.subplots()
    draw_grid(axes, values, words, (variations, [textwrap.fill(claim, 16) for claim in claims]), reach=2.0)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=6.5)
    return drawing


THRESHOLDS = FigureKind(10, "9", "EAR by its thresholds", collect_thresholds, draw_thresholds)
LOADS = FigureKind(14, "9b", "Policies by arrival rate, skew and KV pool", collect_loads, draw_loads)
CONDITIONAL = FigureKind(
    15, "9c", "Claims over the coefficients of the engine model", collect_conditional, draw_conditional
)
