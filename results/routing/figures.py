"""The numbers of the figures of a `routing` run: f1, f4a to f4d, f6 and f8 of specs/ear; those of migration beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from results.measures import latency
from results.measures.summary import POINTS, percentile_name
from results.report.figure import Figure
from results.routing.analyse import RoutingAnalysis
from results.routing.marks import WIDE
from results.routing.metrics import metric
from results.routing.migration_figures import ablation, migration_timeline, sensitivity
from results.routing.occupancy import WALL
from results.routing.shown import bars, numbers, reaching_zero
from results.statistics.estimates import LEVEL, Estimate

AMPLIFICATION, APC, OCCUPANCY, WORKERS, INTERFERENCE, HEADLINE, LATENCIES, COUPLING = 1, 2, 3, 4, 5, 6, 7, 9
STATISTICS = ("mean", *POINTS)

CELL, FIT, LITTLE, KINEMATIC, SPECIFIED = "cell", "fit", "little", "kinematic", "specified"
"""What a row of figure 8 is."""
MEASURED = "measured"
"""A row of figure 4b that is no model."""


def figures(analysis: RoutingAnalysis) -> tuple[Figure, ...]:
    """Every figure, those that cannot be drawn included; nothing is written."""
    return (
        amplification(analysis), apc(analysis), occupancy(analysis), workers(analysis), interference(analysis),
        headline(analysis), latencies(analysis), ablation(analysis), coupling(analysis), sensitivity(analysis),
        migration_timeline(analysis),
    )  # fmt: skip


def amplification(analysis: RoutingAnalysis) -> Figure:
    """f1."""
    title = "Wall clock over trace span, by policy"
    rows = [_row(label, analysis.value(label, "amplification")) for label in analysis.labels]
    table = pd.DataFrame(rows)
    if table.empty or table["value"].isna().all():
        return Figure(AMPLIFICATION, title, name="1", missing=_why(analysis, "amplification"))
    caption = (
        "How much longer the replay took than its trace spans: at 1 the system keeps up with what was recorded. "
        f"{bars(table)}{_trials(analysis)}"
    )
    return Figure(AMPLIFICATION, title, caption, table, {"the trace's own time": 1.0}, name="1")


def apc(analysis: RoutingAnalysis) -> Figure:
    """f4a."""
    title = "Prefix cache hits against the trace's bound"
    rows = []
    for label in analysis.labels:
        usage = analysis.value(label, "apc_usage")
        bounds = {name: _mean_over_cells(analysis, label, f"apc_bound_{name}") for name in ("any", "intra")}
        rows.append(
            _row(label, analysis.value(label, "apc"))
            | {"apc_usage": usage.value, "bound_any": bounds["any"], "bound_intra": bounds["intra"]}
        )
    table = pd.DataFrame(rows)
    if table.empty or table["value"].isna().all():
        return Figure(APC, title, name="4a", missing=_why(analysis, "apc"))
    caption = (
        "Cached over all prompt tokens by the engines' own counters (APC), with the bounds of the turns that were "
        "completed: what an endless cache in one place would give, counting prefixes seen before in any session, or in "
        f"the turn's own. {bars(table)}{_trials(analysis)}"
    )
    return Figure(APC, title, caption, table, name="4a")


def occupancy(analysis: RoutingAnalysis) -> Figure:
    """f4b."""
    title = "Decode pools against the footprint of a request"
    if not analysis.occupancies:
        return Figure(OCCUPANCY, title, name="4b", missing=analysis.footprints.reason or "no turn was completed")
    rows = [
        {
            "deployment": row.deployment,
            "decode_share": row.decode_share,
            "point": row.point,
            "footprint_tokens": row.footprint_tokens,
            "occupancy_mean": row.mean,
            "occupancy_p90": row.p90,
            "fit_in_all_pools": row.fit_per_pool,
        }
        for row in analysis.occupancies
    ]
    held, measured = analysis.footprints, list(_measured_pools(analysis))
    table = pd.DataFrame([*rows, *measured])
    beside = (
        "Circles: decode pools that this run had, by the engines' own KV in use, the p90 over the samples and down to "
        "the mean, at the mean footprint. "
        if measured
        else ""
    )
    caption = (
        f"What the decoding requests of this run (mean {held.decodes_mean:.2f} at once, {held.decodes_p90:.0f} or more "
        "a tenth of the time; mean over all cells) would take of the KV pools that decode, if each held this many "
        f"tokens and only a share of the {held.pool_tokens:.0f} tokens of KV was there for decoding: all of it, half "
        "(4P+4D), a quarter (6P+2D). Lines: the number passed a tenth of the time; bands reach down to the mean. "
        f"Dotted: the percentiles of this trace's footprints, and the wall at {WALL:.0%}. {beside}Lines are computed "
        "from measured concurrency: no KV was moved for them."
    )
    return Figure(OCCUPANCY, title, caption, table, {"wall": WALL}, name="4b")


def _measured_pools(analysis: RoutingAnalysis) -> Iterator[dict[str, object]]:
    for pool in analysis.pools:
        mean, high = (pool.values[f"kv_{point}"].value for point in ("mean", "p90"))
        if pool.role == "decode" and mean is not None and high is not None:
            yield {
                "deployment": f"{pool.label}, measured",
                "decode_share": None,
                "point": MEASURED,
                "footprint_tokens": analysis.footprints.mean_tokens,
                "occupancy_mean": mean,
                "occupancy_p90": high,
                "fit_in_all_pools": None,
            }


def workers(analysis: RoutingAnalysis) -> Figure:
    """f4c."""
    title = "TTFT p90 of each instance, by policy"
    table = pd.DataFrame(_worker_rows(analysis))
    if table.empty or table["value"].isna().all():
        return Figure(WORKERS, title, name="4c", missing=_why(analysis, "worker_ttft_p90_max_s"))
    caption = (
        "Circles: each instance's p90, mean over the trials. Bar and triangle: the median and the maximum over the "
        "instances of a cell, mean over the trials. Read as absolute times: a policy that slows every instance alike "
        f"would look even in a ratio. {bars(table)}{_trials(analysis)}"
    )
    return Figure(WORKERS, title, caption, table, name="4c")


def interference(analysis: RoutingAnalysis) -> Figure:
    """f4d."""
    title = "TPOT of running decodes while a prefill joins"
    rows = [
        {
            "prefill_tokens": row.prefill_tokens,
            "decodes": row.decodes,
            "repeats": row.repeats,
            "tpot_before_s": row.before_s.value,
            "tpot_during_s": row.during_s.value,
            "tpot_after_s": row.after_s.value,
            "slowdown": row.slowdown.value,
            "slowdown_low": row.slowdown.low,
            "slowdown_high": row.slowdown.high,
            "worst_gap_s": row.worst_gap_s,
        }
        for row in analysis.interference
        if row.slowdown.value is not None
    ]
    if not rows:
        why = "no repeat has a time before and during" if analysis.interference else "it was not measured in this run"
        return Figure(INTERFERENCE, title, name="4d", missing=why)
    caption = (
        "Left: time per token before a prompt of this many tokens joins the same instance and while it runs (gaps "
        "between tokens that overlap its time from send to first token), means over repeats. Right: their ratio, with "
        f"the {LEVEL:.0%} interval over repeats: it depends on how small a decode step is beside a prefill step here."
    )
    return Figure(INTERFERENCE, title, caption, pd.DataFrame(rows), name="4d")


def headline(analysis: RoutingAnalysis) -> Figure:
    """f6."""
    return _latencies(analysis, HEADLINE, "6", "TTFT, TPOT and E2E of a turn: p90, by policy", ("p90",))


def latencies(analysis: RoutingAnalysis) -> Figure:
    """f6_full."""
    return _latencies(analysis, LATENCIES, "6_full", "TTFT, TPOT and E2E of a turn, by policy", STATISTICS)


def _latencies(analysis: RoutingAnalysis, number: int, name: str, title: str, points: Sequence[str]) -> Figure:
    rows = [
        {"label": label, "series": series, "statistic": point}
        | numbers(analysis.value(label, percentile_name(series, point)))
        for series in latency.METRICS
        for point in points
        for label in analysis.labels
    ]
    table = pd.DataFrame(rows)
    if table.empty or table["value"].isna().all():
        return Figure(number, title, name=name, missing=_why(analysis, "ttft_p90_s"))
    caption = (
        "Over the turns that completed; each column has its own scale, logarithmic (and said so) where policies "
        f"differ by more than {WIDE:g} times. {bars(table)}{reaching_zero(table)}{_trials(analysis)}"
    )
    return Figure(number, title, caption, table, name=name)


def coupling(analysis: RoutingAnalysis) -> Figure:
    """f8."""
    title = "Dispatch coupling: turns, sessions and wall clock"
    rows = [*_cell_points(analysis), *_fits(analysis), *_curves(analysis)]
    table = pd.DataFrame(
        rows, columns=["kind", "label", "trial", "sessions", "service_s", "low", "high", "amplification"]
    )
    if table.empty or not (table["kind"] == CELL).any():
        return Figure(COUPLING, title, name="8", missing=_why(analysis, "e2e_mean_s"))
    caption = (
        "Left: mean service time of a turn (TTFT + decoding) over the mean number of sessions in the system at its "
        "send, a mark per cell; lines: W_turn(L) as fitted inside the cells of a policy (input and output tokens "
        "held), over the middle 80 % of its L, shaded for the fastest one: its slope's interval; dotted: Little's law "
        f"with that policy's arrivals, turns and think time. {_predictions(analysis)}"
    )
    return Figure(COUPLING, title, caption, table, {"the trace's own time": 1.0}, name="8")


def _predictions(analysis: RoutingAnalysis) -> str:
    if analysis.curve is None:
        return f"Right: the same cells by their amplification; no prediction: {analysis.curve_reason}."
    dashed = (
        f"No dashed curve: {analysis.curve_reason}."
        if analysis.curve_reason
        else "Dashed: L*/(1 - Lambda N W'(L*)) of its fitted loop, scaled to pass through its amplification."
    )
    return (
        "Right: the same cells by their amplification. Solid: what the sessions of "
        f"{analysis.curve.label} would take if its turns took this long and nothing else changed. {dashed}"
    )


def _cell_points(analysis: RoutingAnalysis) -> Iterator[dict[str, object]]:
    for cell in sorted(analysis.cells, key=lambda cell: (analysis.labels.index(cell.label), cell.trial)):
        service = cell.estimate("e2e_mean_s").value
        if cell.degraded or service is None:
            continue
        own = {"label": cell.label, "trial": cell.trial, "kind": CELL}
        yield own | {
            "sessions": cell.estimate("inflight_sessions_mean").value,
            "service_s": service,
            "amplification": cell.estimate("amplification").value,
        }


def _fits(analysis: RoutingAnalysis) -> Iterator[dict[str, object]]:
    for row in analysis.couplings:
        service, at = row.service_s.value, row.concurrency.value
        ends = [_mean_over_cells(analysis, row.label, f"inflight_sessions_{end}") for end in ("p10", "mean", "p90")]
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


def _curves(analysis: RoutingAnalysis) -> Iterator[dict[str, object]]:
    predicted = analysis.curve
    if predicted is None:
        return
    row = next(row for row in analysis.couplings if row.label == predicted.label)
    arrivals, turns, think = (float(term.value or 0.0) for term in (row.arrivals_per_s, row.turns, row.think_s))
    own = {"label": predicted.label, "trial": None}
    triples = zip(predicted.service_s, predicted.kinematic, predicted.specified, strict=True)
    for service, kinematic, specified in triples:
        yield own | {"kind": LITTLE, "sessions": arrivals * turns * (service + think), "service_s": float(service)}
        yield own | {"kind": KINEMATIC, "service_s": float(service), "amplification": float(kinematic)}
        if specified == specified:
            yield own | {"kind": SPECIFIED, "service_s": float(service), "amplification": float(specified)}


def _worker_rows(analysis: RoutingAnalysis) -> Iterator[dict[str, object]]:
    for label in analysis.labels:
        cells = [cell for cell in analysis.cells if cell.label == label and not cell.degraded]
        for name in dict.fromkeys(one.instance for cell in cells for one in cell.instances):
            found = [
                value
                for cell in cells
                for one in cell.instances
                if one.instance == name and (value := one.values["ttft_p90_s"].value) is not None
            ]
            mean = sum(found) / len(found) if found else None
            yield {"label": label, "kind": "instance", "instance": name, "value": mean, "n": len(found)}
        for kind in ("median", "max"):
            whole = numbers(analysis.value(label, f"worker_ttft_p90_{kind}_s"))
            yield {"label": label, "kind": kind, "instance": ""} | whole


def _row(label: str, found: Estimate) -> dict[str, object]:
    return {"label": label} | numbers(found)


def _mean_over_cells(analysis: RoutingAnalysis, label: str, name: str) -> float | None:
    found = [
        value
        for cell in analysis.cells
        if cell.label == label and not cell.degraded and (value := cell.estimate(name).value) is not None
    ]
    return sum(found) / len(found) if found else None


def _trials(analysis: RoutingAnalysis) -> str:
    numbers = sorted({sum(cell.label == label for cell in analysis.cells) for label in analysis.labels})
    return f"Trials per policy: {' to '.join(str(number) for number in (numbers[:1] + numbers[1:][-1:]))}."


def _why(analysis: RoutingAnalysis, name: str) -> str:
    reasons = dict.fromkeys(analysis.value(label, name).reason or "" for label in analysis.labels)
    said = "; ".join(reason for reason in reasons if reason)
    return said or f"no cell has a {metric(name).title}"
