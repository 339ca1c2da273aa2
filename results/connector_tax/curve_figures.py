"""The numbers of the figures of Phase A: latency and throughput over rate, and what a step takes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pandas as pd

from results.connector_tax.analyze import Analysis
from results.connector_tax.configs import rank_config
from results.connector_tax.saturation_criteria import judge_launches
from results.connector_tax.summary import CellSummary, is_at_rate
from results.measures.step_durations import LATENCY, PERIOD, whole_step
from results.records.estimate import Estimate
from results.records.percent import format_percent
from results.records.reference_rates import REF_LOAD, REF_SAFE
from results.report.figure import Figure, has_values, join_range
from results.report.terms import begin_sentence
from results.statistics.estimates import LEVEL, Samples
from results.statistics.trials import SPREAD

StepsOf = Callable[[CellSummary], Mapping[str, Samples]]
"""Reads a cell's step series (`results.connector_tax.read.read_step_samples`)."""

CDF_SERIES: Mapping[str, str] = {
    LATENCY: "whole engine step",
    PERIOD: "whole engine step, from the end of the one before",
    "step_duration_us": "schedule() alone",
}
_WHOLE_STEP: Mapping[str, str] = {
    LATENCY: "schedule entry to the end of update_from_output, the whole step, worker-side connector callbacks "
    "included",
    PERIOD: "from the end of a step to the end of the next one, because steps overlap",
}
"""What the left panel of figure 6 shows, by its series."""
CDF_POINTS = np.concatenate((np.linspace(0, 0.98, 99), np.linspace(0.981, 1, 20)))
"""Shares at which a distribution is drawn: finer where the tail is."""

_RANGE = "range of the trials"
_SATURATED = "x marks a saturated cell, with the numbers of the criteria that fired below"


def make_latency_by_rate(analysis: Analysis, number: int, latency: str) -> Figure:
    """Figures 1 and 2: of `TTFT` and of `TPOT`."""
    name, value = f"{latency} p90", f"{latency.lower()}_p90_s"
    title = f"{name} by send rate, Phase A"
    cells = _select_phase_a(analysis)
    table = pd.DataFrame(_make_rate_rows(analysis, cells, {value: value}))
    if not has_values(table, value):
        return Figure(number, title, missing=_explain_no_curve(analysis, cells, name))
    caption = (
        f"{name} in ms of requests due in the measured window, {_describe_shapes(cells)}. {_bar_text(table)} "
        f"{_SATURATED} ({_describe_limits(analysis)}). Hollow marks are degraded cells: the client could not keep its "
        "schedule. Points at one rate are set apart sideways around plain's, which is at the rate itself."
        f"{name_absent(analysis)}"
    )
    return Figure(number, title, caption, table, _collect_reference_lines(analysis))


def make_throughput_by_rate(analysis: Analysis) -> Figure:
    title = "Achieved by requested throughput, Phase A"
    cells = _select_phase_a(analysis)
    values = {"achieved_per_s": "effective_throughput_per_s", "ratio": "throughput_ratio"}
    table = pd.DataFrame(_make_rate_rows(analysis, cells, values))
    if not has_values(table, "achieved_per_s"):
        return Figure(3, title, missing=_explain_no_curve(analysis, cells, "throughput"))
    knees = {scan.config: scan.saturation_rate_per_s for scan in analysis.rates.configs}
    table["saturation_rate_per_s"] = table["config"].map(knees)
    caption = (
        f"{begin_sentence('effective throughput')}, against the requested rate, {_describe_shapes(cells)}, "
        f"{describe_launches(table['trials'])}. On the dashed line y = x the engine keeps up. A ring marks a cell in "
        "which criterion 1 fired; the knees beside are by any criterion "
        f"({_describe_limits(analysis)}). Below: the throughput ratio, which the specification judges, on an axis that "
        "does not begin at 0, with its limit; criterion 1 judges the cohort ratio instead, so that a point below the "
        f"limit may have no ring.{name_absent(analysis)}"
    )
    lines = _collect_reference_lines(analysis) | {"threshold": analysis.rates.thresholds.throughput_ratio}
    return Figure(3, title, caption, table, lines)


def make_step_cdf(analysis: Analysis, steps_of: StepsOf) -> Figure:
    """Figure 6: reads the steps of the Phase A cells at ref_safe."""
    title = "Time per engine step at ref_safe, Phase A"
    safe = analysis.rates.ref_safe_per_s
    if safe is None:
        return Figure(6, title, missing=f"there is no ref_safe: {analysis.rates.ref_safe_reason}")
    cells = [cell for cell in _select_phase_a(analysis) if is_at_rate(cell.rate_per_s, safe)]
    if not cells:
        return Figure(6, title, missing=f"no cell of Phase A was measured at {safe:g} req/s")
    timed = [cell for cell in cells if cell.step_timing.get("available", False) and not cell.degraded]
    table = pd.DataFrame(_make_cdf_rows(timed, steps_of))
    if table.empty:
        return Figure(6, title, missing=f"no step timing at {safe:g} req/s: {_explain_untimed(cells)}")
    without = sorted({cell.config for cell in cells} - set(table["config"]), key=rank_config)
    whole = _WHOLE_STEP[whole_step(cell.step_timing for cell in timed)]
    caption = (
        f"Share of the non-empty steps in the measured window that took at most this long (us), at {safe:g} req/s, "
        f"{_describe_shapes(cells)}; {_describe_pooled(timed)}. Left: {whole}. Right: Scheduler.schedule() alone, the "
        "specification's step_duration_us; worker-side callbacks do not run inside it. The slowest 0.5 % may lie "
        "beyond the axis." + (f" No step timing: {', '.join(without)}." if without else "") + name_absent(analysis)
    )
    return Figure(6, title, caption, table)


def _describe_pooled(cells: Sequence[CellSummary]) -> str:
    """The number of launches that the steps are of."""
    launches = describe_launches(Counter(cell.config for cell in cells).values())
    if len({cell.trial for cell in cells}) > 1:
        return f"{launches} together"
    return f"{launches}, so that two lines differ also by what two launches do"


def name_absent(analysis: Analysis) -> str:
    """A sentence that names the configs of the plan that were not measured, with the reason; empty = none."""
    lacking = [row for row in analysis.manifest if row.status != "ran"]
    if not lacking:
        return ""
    named = "; ".join(f"{row.config} ({row.status}: {row.skip_reason})" for row in lacking)
    return f" Not measured: {named}."


def describe_launches(counts: Iterable[int]) -> str:
    """`3 launches per config`, or `1 to 3 launches per config`; a config that has none is left out."""
    ends = join_range(int(count) for count in counts if count) or "0"
    return f"{ends} {'launch' if ends == '1' else 'launches'} per config"


def describe_reference(analysis: Analysis, name: str) -> str:
    """`ref_safe (4 req/s)`, or that there is none."""
    rate = analysis.rates.rate(name)
    return f"{name} ({rate:g} req/s)" if rate is not None else f"no {name}: {analysis.rates.explain_rate(name)}"


def _select_phase_a(analysis: Analysis) -> list[CellSummary]:
    return [cell for cell in analysis.cells if cell.phase == "A"]


def _make_rate_rows(
    analysis: Analysis, cells: Sequence[CellSummary], values: Mapping[str, str]
) -> list[dict[str, object]]:
    """A row per config and rate; `values`: column to the value of a cell that it shows, the first with its bounds."""
    groups: dict[tuple[str, float], list[CellSummary]] = defaultdict(list)
    for cell in cells:
        groups[cell.config, cell.rate_per_s].append(cell)
    first = next(iter(values))
    rows: list[dict[str, object]] = []
    for (config, rate), trials in sorted(groups.items(), key=lambda item: (rank_config(item[0][0]), item[0][1])):
        counting = [cell for cell in trials if not cell.degraded] or trials
        points = {column: _merge_trials(counting, value) for column, value in values.items()}
        main = points[first]
        saturated, fired = _judge_trials(analysis, counting)
        rows.append(
            {"config": config, "rate_per_s": rate}
            | {column: point.value for column, point in points.items()}
            | {f"{first}_low": main.low, f"{first}_high": main.high}
            | {"n": main.n, "trials": main.launches, "interval": main.basis}
            | {"saturated": saturated, "criteria_fired": ",".join(map(str, fired))}
            | {"degraded": counting[0].degraded}
        )
    return rows


def _merge_trials(cells: Sequence[CellSummary], value: str) -> Estimate:
    """One trial: its estimate. Several: the mean of theirs, and their range. `basis`: what the bounds are."""
    estimates = [cell.estimate(value) for cell in cells]
    measured = [estimate for estimate in estimates if estimate.value is not None]
    if len(measured) < 2:
        one = measured[0] if measured else estimates[0]
        kind = f"{format_percent(LEVEL)} {SPREAD}" if one.low is not None or one.high is not None else ""
        return replace(one, basis=kind, launches=len(measured))
    values = [estimate.value for estimate in measured if estimate.value is not None]
    n = sum(estimate.n for estimate in measured)
    return Estimate(fmean(values), min(values), max(values), n, basis=_RANGE, launches=len(values))


def _judge_trials(analysis: Analysis, cells: Sequence[CellSummary]) -> tuple[bool | None, tuple[int, ...]]:
    """Whether the trials are saturated, and the criteria that fired if they are."""
    judged = [analysis.saturation[cell.path] for cell in cells]
    saturated = judge_launches(judgement.saturated for judgement in judged)
    fired = {number for judgement in judged for number in judgement.fired} if saturated else set()
    return saturated, tuple(sorted(fired))


def _make_cdf_rows(cells: Sequence[CellSummary], steps_of: StepsOf) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    by_config: dict[str, list[Mapping[str, Samples]]] = defaultdict(list)
    for cell in cells:
        by_config[cell.config].append(steps_of(cell))
    whole = whole_step(cell.step_timing for cell in cells)
    for config in sorted(by_config, key=rank_config):
        for series in (whole, "step_duration_us"):
            samples = np.concatenate([steps[series] for steps in by_config[config]])
            n = samples.size
            if n == 0:
                continue
            shares = zip(CDF_POINTS, np.quantile(samples, CDF_POINTS), strict=True)
            rows += [
                {"config": config, "series": series, "share": round(float(share), 4), "time_us": float(us), "n": n}
                for share, us in shares
            ]
    return rows


def _explain_untimed(cells: Sequence[CellSummary]) -> str:
    reasons = dict.fromkeys(
        f"degraded: {cell.degraded}"
        if cell.degraded
        else str(cell.step_timing.get("reason") or "no steps in the window")
        for cell in cells
    )
    return "; ".join(reasons)


def _explain_no_curve(analysis: Analysis, cells: Sequence[CellSummary], name: str) -> str:
    return f"no cell of Phase A has a {name}" if cells else f"no cell of Phase A was measured.{name_absent(analysis)}"


def _describe_shapes(cells: Sequence[CellSummary]) -> str:
    shapes = sorted({cell.shape for cell in cells})
    return ", ".join(f"{shape.input_tokens} tokens in and {shape.output_tokens} out" for shape in shapes)


def _bar_text(table: pd.DataFrame) -> str:
    kinds = [kind for kind in dict.fromkeys(table["interval"]) if kind]
    launches = describe_launches(table["trials"])
    if not kinds:
        return f"No bars: too few requests for a spread. {launches}."
    mean = ", line through their mean" if _RANGE in kinds else ""
    return f"Bars: {' or '.join(kinds)}{mean}; {launches}."


def _describe_limits(analysis: Analysis) -> str:
    limit = analysis.rates.thresholds
    return (
        f"1: cohort ratio < {limit.throughput_ratio:g}, 2: p50 of requests waiting > {limit.waiting_p50:g}, "
        f"3: TTFT p90 over that at half the rate > {limit.ttft_p90_growth:g}"
    )


def _collect_reference_lines(analysis: Analysis) -> dict[str, float]:
    rates = {name: analysis.rates.rate(name) for name in (REF_SAFE, REF_LOAD)}
    return {name: rate for name, rate in rates.items() if rate is not None}
