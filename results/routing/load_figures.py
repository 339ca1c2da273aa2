"""The figures about load, what they draw and how: decode pools, interference, the loop (f4b, f4d, f8 of specs/ear)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from results.measures.summary import make_bounded_columns
from results.records.percent import format_percent
from results.report import marks
from results.report.direct_labels import Named, choose_marker_look, label_lines
from results.report.figure import Figure, join_range
from results.report.ink import Pen, make_panel_sheet, pens, set_plain_ticks, shares, sheet
from results.report.policy_pens import assign_pens
from results.routing.analyze import RoutingAnalysis
from results.routing.cautions import explain_no_verdict
from results.routing.coupling import Curve
from results.routing.figure_kinds import FigureData, FigureKind, describe_trials, explain_missing
from results.routing.loads import strip_load
from results.routing.occupancy import WALL, Deployment
from results.statistics.estimates import LEVEL, Samples
from results.statistics.trials import SPREAD

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

Dashes = str | tuple[float, tuple[float, ...]]

MEASURED = "measured"
"""A row of figure 4b that is no model."""
CELL, FIT, LITTLE, KINEMATIC, SPECIFIED = "cell", "fit", "little", "kinematic", "specified"
"""What a row of figure 8 is."""


def collect_occupancy(analysis: RoutingAnalysis) -> FigureData | str:
    """f4b."""
    footprints = analysis.footprints
    if not analysis.occupancies:
        return analysis.deployments_reason or footprints.reason
    rows: list[dict[str, object]] = [
        {
            "deployment": row.deployment,
            "arm": row.arm,
            "modelled": not row.is_measured,
            "point": row.point,
            "footprint_tokens": row.footprint_tokens,
            "occupancy_mean": row.mean,
            "occupancy_p90": row.p90,
            "fit_in_all_pools": row.fit_in_all_pools,
        }
        for row in analysis.occupancies
    ]
    measured = list(_list_measured_pools(analysis))
    beside = (
        "Circles: decode pools that this run had, by the engines' own KV in use, the p90 over the samples and down to "
        "the mean, at the mean footprint; several are set apart sideways. "
        if measured
        else ""
    )
    deployments = "; ".join(map(_describe_deployment, analysis.deployments))
    caption = (
        "In % of the KV pools that decode: what the requests that decode at once would take of them, if each held this "
        f"many tokens: {deployments}. Lines: the number passed a tenth of the time; bands reach to "
        "the mean, neither is an interval. Dotted: the percentiles of this trace's footprints, and the wall at "
        f"{format_percent(WALL)}. {beside}Lines are computed from measured concurrency. {describe_trials(analysis)}"
    )
    table = pd.DataFrame([*rows, *measured])
    return FigureData(table, caption, {"wall": WALL}, assign_pens(analysis.policies, strip_load))


def _describe_deployment(one: Deployment) -> str:
    model = "" if one.is_measured else ", which had no such pools: a model"
    return (
        f"{one.name}: {one.decoding} x {one.pool_tokens:.0f} tokens, {one.decodes_mean:.2f} at once on average and "
        f"{one.decodes_p90:.0f} or more a tenth of the time under {one.arm}{model}"
    )


def _list_measured_pools(analysis: RoutingAnalysis) -> Iterator[dict[str, object]]:
    for pool in analysis.pools:
        mean, high = (pool.values[f"kv_{point}"].value for point in ("mean", "p90"))
        if pool.role == "decode" and mean is not None and high is not None:
            yield {
                "deployment": f"{pool.label}, measured",
                "arm": pool.label,
                "modelled": False,
                "point": MEASURED,
                "footprint_tokens": analysis.footprints.mean_tokens,
                "occupancy_mean": mean,
                "occupancy_p90": high,
                "fit_in_all_pools": None,
            }


def draw_occupancy(figure: Figure) -> Drawing:
    """A line per deployment over the footprint, a circle per measured pool, each with the color of its arm's policy."""
    table = figure.table
    drawing, axes = make_panel_sheet(8.5, 4.2, figure.title, 16)
    ends = []
    lines = table[table["point"] != MEASURED]
    for deployment in dict.fromkeys(lines["deployment"]):
        rows = lines[lines["deployment"] == deployment].sort_values("footprint_tokens", kind="stable")
        pen = figure.pens[rows["arm"].iloc[0]]
        dashes: Dashes = (0, (5, 2)) if rows["modelled"].any() else "-"
        size = marks.column(rows, "footprint_tokens")
        low, high = (marks.column(rows, name) for name in ("occupancy_mean", "occupancy_p90"))
        axes.fill_between(size, low, high, color=pen.color, alpha=0.12, linewidth=0)
        axes.plot(size, high, linestyle=dashes, color=pen.color)
        ends += [_name_end(size, high, str(deployment), pen.color)] if size.size else []
    measured = table[table["point"] == MEASURED]
    for name, apart in marks.set_apart(list(dict.fromkeys(measured["deployment"]))).items():
        rows = measured[measured["deployment"] == name]
        pen = figure.pens[rows["arm"].iloc[0]]
        high = marks.column(rows, "occupancy_p90")
        down = np.maximum(high - marks.column(rows, "occupancy_mean"), 0)
        size = marks.column(rows, "footprint_tokens") * apart
        axes.errorbar(size, high, yerr=(down, np.zeros_like(down)), fmt="o", color=pen.color, markerfacecolor="white",
                      capsize=2)  # fmt: skip
        ends += [_name_end(size, high, str(name), pen.color)]
    _mark_footprints(axes, table)
    wall = figure.lines["wall"]
    axes.axhline(wall, color="black", linestyle=":", linewidth=1)
    set_plain_ticks(axes, "x", table["footprint_tokens"])
    axes.set_yscale("log")
    axes.minorticks_off()
    shares(axes.yaxis)
    marks.write_note(axes, format_percent(wall), (0, wall), (3, 3), xycoords=marks.ON_ROW)
    axes.set(xlabel="footprint of a request (tokens)", ylabel="share of the decode pools")
    label_lines(axes, ends)
    return drawing


def _name_end(size: Samples, share: Samples, name: str, color: str) -> Named:
    """The end of a line or a circle; one at 0, which the axis does not show, has its value in its name."""
    return Named(float(size[-1]), float(share[-1]), name if share[-1] > 0 else f"{name}: {format_percent(0.0)}", color)


def _mark_footprints(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the percentiles of the footprints; those too near each other share a label."""
    percentiles = table[(table["point"] != "") & (table["deployment"] == table["deployment"].iloc[0])]
    wide = float(table["footprint_tokens"].max() / table["footprint_tokens"].min()) ** 0.13  # the width of a name
    named: dict[float, list[str]] = {}
    for point, tokens in zip(percentiles["point"], percentiles["footprint_tokens"].tolist(), strict=True):
        near = next((other for other in named if tokens < wide * other), tokens)
        named.setdefault(near, []).append(str(point))
        axes.axvline(tokens, color="#a0a0a0", linestyle=":", linewidth=1)
    for tokens, points in named.items():
        marks.write_note(axes, ", ".join(points), (tokens, 1), (0, 2), xycoords=marks.ON_COLUMN, ha="center")


def collect_interference(analysis: RoutingAnalysis) -> FigureData | str:
    """f4d."""
    rows = [
        {
            "prefill_tokens": row.prefill_tokens,
            "decodes": row.decodes,
            "repeats": row.repeats,
            "itl_before_s": row.before_s.value,
            "itl_during_s": row.during_s.value,
            "itl_after_s": row.after_s.value,
            **make_bounded_columns("slowdown", row.slowdown),
            "worst_gap_s": row.worst_gap_s,
        }
        for row in analysis.interference
        if row.slowdown.value is not None
    ]
    if not rows:
        return "no repeat has a time before and during" if analysis.interference else "it was not measured in this run"
    repeats = join_range(row.repeats for row in analysis.interference)
    caption = (
        "Left: ITL in ms of running decodes before a prompt of this many tokens joins the same instance, and while it "
        "runs (gaps that overlap its time from send to first token), means over repeats. Right: their ratio; bars: "
        f"{format_percent(LEVEL)} {SPREAD} (over {repeats} repeats). It depends on how small a decode step is beside a "
        "prefill step here."
    )
    return FigureData(pd.DataFrame(rows), caption)


def draw_interference(figure: Figure) -> Drawing:
    """Times on the left, their ratio on the right, a line per number of decodes."""
    table = figure.table
    drawing = sheet(11, 3.8, figure.title)
    times, ratio = drawing.subplots(1, 2)
    lengths = sorted(set(table["prefill_tokens"]))
    time_ends, ratio_ends = [], []
    for name, pen in pens(f"{number} decodes" for number in sorted(set(table["decodes"]))).items():
        rows = table[table["decodes"] == int(name.split()[0])].sort_values("prefill_tokens", kind="stable")
        size = marks.column(rows, "prefill_tokens")
        before, during = (marks.column(rows, f"itl_{when}_s", 1e3) for when in ("before", "during"))
        times.plot(size, before, color=pen.color, marker=pen.marker, markerfacecolor="white", linestyle=":")
        times.plot(size, during, color=pen.color, marker=pen.marker)
        for when, line in (("before", before), ("during", during)):
            time_ends.append(Named(float(size[-1]), float(line[-1]), f"{name}, {when}", pen.color))
        value = marks.column(rows, "slowdown")
        below, above = marks.measure_error_lengths(value, rows, ("slowdown_low", "slowdown_high"))
        ratio.errorbar(size, value, yerr=(below, above), color=pen.color, marker=pen.marker, capsize=2, elinewidth=0.9)
        ratio_ends.append(Named(float(size[-1]), float(value[-1]), name, pen.color))
    for axes, values in ((times, table[["itl_before_s", "itl_during_s"]].to_numpy().ravel() * 1e3), (ratio, [])):
        if len(lengths) > 1:
            axes.set_xscale("log", base=2)
        axes.set_xticks(lengths, [f"{length:g}" for length in lengths])
        axes.minorticks_off()
        set_plain_ticks(axes, "y", [float(value) for value in values if np.isfinite(value)])
        axes.set_xlabel("tokens of the joining prefill")
    ratio.axhline(1, color="#808080", linestyle="--", linewidth=1)
    times.set_ylabel("ITL of the decodes (ms)")
    ratio.set_ylabel("during / before")
    label_lines(times, time_ends)
    label_lines(ratio, ratio_ends)
    return drawing


def collect_coupling(analysis: RoutingAnalysis) -> FigureData | str:
    """f8."""
    load_of_label = {label: load.text for load in analysis.loads for label in load.labels}
    curves = (row for predicted in analysis.curves for row in _list_curve_rows(analysis, predicted))
    parts = chain(_list_cell_points(analysis), _fit_rows(analysis), curves)
    rows = [row | {"load": load_of_label[str(row["label"])]} for row in parts]
    table = pd.DataFrame(
        rows, columns=["kind", "load", "label", "trial", "sessions", "service_s", "low", "high", "amplification"]
    )
    if table.empty or not (table["kind"] == CELL).any():
        return explain_missing(analysis, "e2e_mean_s")
    shade = f"{format_percent(LEVEL)} {'spread' if explain_no_verdict(analysis.trials) else 'interval'}"
    caption = (
        "Left: mean service time of a turn, in s (TTFT + decoding), over the mean number of sessions in the system at "
        "its send, a mark per cell, the same under every load of a policy; lines: W_turn(L) as fitted inside the cells "
        "of a policy (input and output tokens held), over the middle 80 % of its L, shaded for the fastest one of a "
        f"load: {shade} of its slope; dotted: Little's law with that policy's arrivals, turns and think time. "
        f"{_describe_predictions(analysis)} "
        f"{describe_trials(analysis)}"
    )
    return FigureData(table, caption, {"the trace's own time": 1.0}, assign_pens(analysis.policies, strip_load))


def _describe_predictions(analysis: RoutingAnalysis) -> str:
    if not analysis.curves:
        return f"Right: the same cells by their amplification; no prediction: {analysis.curve_reason}."
    dashed = (
        f"A dashed curve is missing: {analysis.curve_reason}."
        if analysis.curve_reason
        else "Dashed: (L* - Lambda N T)/(1 - Lambda N W'(L*)) of its fitted loop, scaled to meet its amplification."
    )
    return (
        "Right: the same cells by their amplification. Solid: what the sessions of "
        f"{', '.join(one.label for one in analysis.curves)} would take if its turns took this long and nothing else "
        f"changed{', a curve per load' if len(analysis.loads) > 1 else ''}. {dashed}"
    )


def _list_cell_points(analysis: RoutingAnalysis) -> Iterator[dict[str, object]]:
    for cell in sorted(analysis.cells, key=lambda cell: (analysis.labels.index(cell.label), cell.trial)):
        service = cell.estimate("e2e_mean_s").value
        if cell.degraded or service is None:
            continue
        yield {
            "label": cell.label,
            "trial": cell.trial,
            "kind": CELL,
            "sessions": cell.estimate("inflight_sessions_mean").value,
            "service_s": service,
            "amplification": cell.estimate("amplification").value,
        }


def _fit_rows(analysis: RoutingAnalysis) -> Iterator[dict[str, object]]:
    for row in analysis.couplings:
        service, at = row.service_s.value, row.concurrency.value
        ends = [
            analysis.compute_mean_over_cells(row.label, f"inflight_sessions_{end}") for end in ("p10", "mean", "p90")
        ]
        if service is None or at is None or row.slope_s.value is None:
            continue
        for sessions in (end for end in ends if end is not None):
            away = sessions - at
            bounds = [service + slope * away for slope in (row.slope_s.low, row.slope_s.high) if slope is not None]
            yield {
                "label": row.label,
                "trial": None,
                "kind": FIT,
                "sessions": sessions,
                "service_s": service + row.slope_s.value * away,
                "low": min(bounds) if len(bounds) == 2 else None,
                "high": max(bounds) if len(bounds) == 2 else None,
            }


def _list_curve_rows(analysis: RoutingAnalysis, predicted: Curve) -> Iterator[dict[str, object]]:
    row = next(row for row in analysis.couplings if row.label == predicted.label)
    arrivals, turns, think = (float(term.value or 0.0) for term in (row.arrivals_per_s, row.turns, row.think_s))
    own = {"label": predicted.label, "trial": None}
    triples = zip(predicted.service_s, predicted.kinematic, predicted.specified, strict=True)
    for service, kinematic, specified in triples:
        yield own | {"kind": LITTLE, "sessions": arrivals * turns * (service + think), "service_s": float(service)}
        yield own | {"kind": KINEMATIC, "service_s": float(service), "amplification": float(kinematic)}
        if specified == specified:
            yield own | {"kind": SPECIFIED, "service_s": float(service), "amplification": float(specified)}


def draw_coupling(figure: Figure) -> Drawing:
    """W over L with the fits on the left, amplification over W with the predictions on the right."""
    table = figure.table
    drawing = sheet(11, 4.4, figure.title)
    left, right = drawing.subplots(1, 2)
    cells = table[table["kind"] == CELL]
    starts = set(table[table["kind"] == KINEMATIC]["label"])
    colors = {label: figure.pens[label].color for label in starts} if len(starts) > 1 else {}
    for label, rows in cells.groupby("label", sort=False):
        pen = figure.pens[str(label)]
        _plot_cells(left, rows, "sessions", "service_s", pen)
        _plot_cells(right, rows, "service_s", "amplification", pen)
        fit = table[(table["kind"] == FIT) & (table["label"] == label)]
        left.plot(fit["sessions"], fit["service_s"], color=pen.color, linewidth=1.1)
        if label in starts:
            low, high = (marks.column(fit, side) for side in ("low", "high"))
            left.fill_between(marks.column(fit, "sessions"), low, high, color=pen.color, alpha=0.1)
    _plot_prediction(left, table[table["kind"] == LITTLE], "sessions", "service_s", (0, (1, 2)), colors)
    _plot_prediction(right, table[table["kind"] == KINEMATIC], "service_s", "amplification", "-", colors)
    _plot_prediction(right, table[table["kind"] == SPECIFIED], "service_s", "amplification", (0, (5, 3)), colors)
    for value in figure.lines.values():
        right.axhline(value, color="#808080", linestyle="--", linewidth=1)
    _show_all_cells(left, cells["sessions"], cells["service_s"])
    _show_all_cells(right, cells["service_s"], cells["amplification"])
    left.set(xlabel="sessions in the system (mean at send)", ylabel="W_turn (s)")
    right.set(xlabel="W_turn (s)", ylabel="wall clock / trace span")
    label_lines(right, _name_policies(cells, figure.pens))  # once: the left panel has the same marks
    return drawing


def _name_policies(cells: pd.DataFrame, pen_of: Mapping[str, Pen]) -> Iterator[Named]:
    """Each policy at its rightmost cell on the right panel, once for all loads."""
    known = cells[cells["service_s"].notna() & cells["amplification"].notna()]
    for policy, rows in known.groupby(known["label"].map(strip_load), sort=False):
        last = rows.iloc[int(np.argmax(marks.column(rows, "service_s")))]
        pen = pen_of[last["label"]]
        yield Named(last["service_s"], last["amplification"], str(policy), pen.color, pen.marker)


def _plot_cells(axes: Axes, rows: pd.DataFrame, x: str, y: str, pen: Pen) -> None:
    look = choose_marker_look(pen.marker)
    axes.plot(rows[x], rows[y], marker=pen.marker, linestyle="", color=pen.color, zorder=4, **look)


def _plot_prediction(
    axes: Axes, table: pd.DataFrame, x: str, y: str, dashes: Dashes, colors: Mapping[str, str]
) -> None:
    """`colors`: of the policy that a curve starts from, where several loads have one each; else gray."""
    for label, rows in table.groupby("label", sort=False):
        color = colors.get(str(label), "#808080")
        axes.plot(rows[x], rows[y], color=color, linestyle=dashes, linewidth=1.3, zorder=1)


def _show_all_cells(axes: Axes, across: pd.Series[float], up: pd.Series[float]) -> None:
    """Limit the axes to the cells, with a margin; predictions far from them may leave the panel.

    An axis over a factor of `marks.WIDE` or more is logarithmic, or the cells of the lower loads lie on each other.
    """
    sides: tuple[tuple[pd.Series[float], Literal["x", "y"]], ...] = ((across, "x"), (up, "y"))
    for values, side in sides:
        known = values.to_numpy(dtype=np.float64)
        known = known[np.isfinite(known)]
        if not known.size:
            continue
        set_plain_ticks(axes, side, known.tolist(), spread=marks.WIDE)
        low, high = float(known.min()), float(known.max())
        limit, scale = (axes.set_xlim, axes.get_xscale()) if side == "x" else (axes.set_ylim, axes.get_yscale())
        if scale == "log":
            limit(low / 1.25, high * 1.25)
        else:
            room = max(0.15 * (high - low), 0.05 * high, 1e-9)
            limit(max(low - room, 0), high + room)


OCCUPANCY = FigureKind(3, "4b", "Decode pools against the footprint of a request", collect_occupancy, draw_occupancy)
INTERFERENCE = FigureKind(
    5, "4d", "ITL of running decodes while a prefill joins", collect_interference, draw_interference
)
COUPLING = FigureKind(9, "8", "Dispatch coupling: turns, sessions and wall clock", collect_coupling, draw_coupling)
