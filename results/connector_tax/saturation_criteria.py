"""The three saturation criteria, applied to one cell (specs/connector_tax, "Saturation criteria").

Two of them deviate from the specification; its own result is beside ours. Criterion 1 follows the requests due in the
window until the last of them has completed: completions inside the window miss the requests that are still running at
its end, so that the specification's ratio falls below 0.95 where E2E is longer than the warm-up and a twentieth of the
window. Criteria 1 and 3 fire where the whole spread of their number is beyond the threshold. Criterion 2 is open where
the queue has fewer samples than the interval of a median needs, and they do not all agree. Where several launches
measured both rates, in the confirm stage, criterion 3 is judged over all of them, by an interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from results.connector_tax.summary import CellSummary
from results.records.count import format_count
from results.records.estimate import Estimate, unknown
from results.records.reference_rates import SPECIFIED, CellSaturation, Criterion, Thresholds
from results.statistics.estimates import compute_student_interval, standard_error
from results.statistics.trials import MIN_PAIRED

THROUGHPUT, QUEUE, GROWTH = 1, 2, 3
FEWEST = 3
"""Samples of the queue on which criterion 2 fires."""
LIMITS = frozenset({THROUGHPUT, QUEUE})
"""The criteria that show an engine at its limit; a growing TTFT alone does not."""
CRITERIA: Mapping[int, str] = {
    THROUGHPUT: "cohort ratio",
    QUEUE: "p50 of requests waiting",
    GROWTH: "growth of TTFT p90 over half the rate",
}


def apply_specified_rules(cell: CellSaturation) -> CellSaturation:
    """The same cell by the specification's own rules."""
    criteria = tuple(replace(one, fired=one.specified_fired) for one in cell.criteria)
    saturated: bool | None = any(one.fired for one in criteria)
    if not saturated and any(one.fired is None for one in criteria if one.number != GROWTH):
        saturated = None
    return replace(cell, saturated=saturated, criteria=criteria)


def judge_launches(saturated: Iterable[bool | None]) -> bool | None:
    """Whether at least half of the launches that could be judged are saturated; None = none could be judged."""
    known = [state for state in saturated if state is not None]
    return sum(known) * 2 >= len(known) if known else None


def judge(
    summary: CellSummary,
    half: CellSummary | None = None,
    thresholds: Thresholds = SPECIFIED,
    growth: Estimate | None = None,
) -> CellSaturation:
    """The three criteria at one cell; `half` is the same config's cell at half the rate, where it was measured.

    `growth`: of TTFT p90 over the launches of this load; None = that of this launch alone, against `half`.
    A degraded cell is no evidence about the engine, because its client sent less than requested: every criterion is
    open.
    """
    criteria: tuple[Criterion, ...] = (
        _judge_throughput(summary, thresholds.throughput_ratio),
        _judge_queue(summary, thresholds.waiting_p50),
        _judge_growth(_measure_growth(summary, half) if growth is None else growth, thresholds.ttft_p90_growth),
    )
    if summary.degraded:
        criteria = tuple(
            replace(one, fired=None, specified_fired=None, fired_by_point=None, reason="the cell is degraded")
            for one in criteria
        )
    saturated, reason = _judge_criteria(summary, criteria)
    return CellSaturation(summary.cell, summary.config, summary.rate_per_s, summary.trial, saturated, criteria, reason)


def _judge_criteria(summary: CellSummary, criteria: tuple[Criterion, ...]) -> tuple[bool | None, str | None]:
    if summary.degraded:
        return None, f"degraded, so not evidence about the engine: {summary.degraded}"
    if any(criterion.fired for criterion in criteria):
        return True, None
    blind = [criterion for criterion in criteria if criterion.fired is None and criterion.number != GROWTH]
    if blind:
        return None, "; ".join(f"{criterion.name}: {criterion.reason}" for criterion in blind)
    return False, None


def _judge_throughput(summary: CellSummary, threshold: float) -> Criterion:
    ratio, specified = summary.estimate("cohort_ratio"), summary.value("throughput_ratio")
    fired = by_point = _is_below(ratio.value, threshold)
    if ratio.high is not None and ratio.high < threshold:
        fired = True
    elif fired:  # where the spread holds the threshold, one slow request may have moved the ratio
        fired = ratio.high is None and ratio.low is None
    criterion = _make_criterion(THROUGHPUT, ratio, threshold, fired, by_point, ratio.reason)
    return replace(criterion, specified=specified, specified_fired=_is_below(specified, threshold))


def _is_below(ratio: float | None, threshold: float) -> bool | None:
    return None if ratio is None else ratio < threshold


def _make_criterion(
    number: int, measured: Estimate, threshold: float, fired: bool | None, by_point: bool | None, reason: str | None
) -> Criterion:
    """A criterion whose value alone the specification judges. `reason`: why it is open, where it is."""
    return Criterion(
        number,
        CRITERIA[number],
        measured.value,
        threshold,
        fired,
        reason if fired is None else None,
        measured.low,
        measured.high,
        specified=measured.value,
        specified_fired=by_point,
        fired_by_point=by_point,
    )


def _judge_queue(summary: CellSummary, threshold: float) -> Criterion:
    """By the median, as specified; of samples too few for an interval of it, only where all are on one side.

    A queue in fewer than FEWEST samples is never enough.
    """
    waiting = summary.estimate("waiting_p50")
    by_point = waiting.value > threshold if waiting.value is not None else None
    few = waiting.low is not None and (waiting.low <= threshold or waiting.n < FEWEST)
    fired, reason = by_point, waiting.reason
    if few and waiting.high is not None and waiting.high > threshold:
        fired, reason = None, f"not all samples are at most {threshold:g}, and {waiting.reason}"
    return replace(_make_criterion(QUEUE, waiting, threshold, fired, by_point, reason), n=waiting.n or None)


def _judge_growth(growth: Estimate, threshold: float) -> Criterion:
    by_point = None if growth.value is None else growth.value > threshold
    bounds = "interval" if growth.launches >= MIN_PAIRED else "spread"
    reason = growth.reason or f"its {bounds} holds the threshold"
    return _make_criterion(GROWTH, growth, threshold, _is_beyond(growth, threshold), by_point, reason)


def _is_beyond(growth: Estimate, threshold: float) -> bool | None:
    """None where the interval holds the threshold; a ratio without both bounds is judged by its value."""
    if growth.value is None:
        return True if growth.low is not None and growth.low > threshold else None
    if growth.low is None or growth.high is None:
        return growth.value > threshold
    if growth.low > threshold:
        return True
    return False if growth.high <= threshold else None


def _measure_growth(summary: CellSummary, half: CellSummary | None) -> Estimate:
    """TTFT p90 over that at half the rate; its bounds are those of MOVER for a ratio (Zou and Donner, 2008)."""
    if half is None:
        return Estimate(None, reason=f"half the rate ({summary.rate_per_s / 2:g} req/s) was not measured")
    if half.degraded:
        return Estimate(None, reason=f"the cell at half the rate is degraded: {half.degraded}")
    ours, theirs = summary.estimate("ttft_p90_s"), half.estimate("ttft_p90_s")
    if theirs.value is None or theirs.value <= 0:
        return Estimate(None, reason=f"at half the rate: {theirs.reason or 'TTFT p90 is zero'}")
    if ours.value is None:
        least = None if ours.low is None else ours.low / (theirs.high or theirs.value)
        return Estimate(None, low=least, reason=ours.reason)
    ratio = ours.value / theirs.value
    bounds = (ours.low, ours.high, theirs.low, theirs.high)
    if any(bound is None or bound <= 0 for bound in bounds):
        return Estimate(ratio, reason=ours.reason or theirs.reason)
    down = math.hypot(_compute_log_distance(ours.value, ours.low), _compute_log_distance(theirs.value, theirs.high))
    up = math.hypot(_compute_log_distance(ours.value, ours.high), _compute_log_distance(theirs.value, theirs.low))
    return Estimate(ratio, ratio * math.exp(-down), ratio * math.exp(up))


def measure_growth_over_launches(loaded: Mapping[int, CellSummary], half: Mapping[int, CellSummary]) -> Estimate:
    """The geometric mean over launches of TTFT p90 over that at half the rate in the same launch, with its interval.

    `loaded`, `half`: the cells of one config and shape at both rates, by trial. Degraded ones take no part. A
    percentile that cut requests leave unknown leaves the growth unknown: the other launches may be the faster ones.
    """
    pairs = [
        (loaded[trial].value("ttft_p90_s"), half[trial].value("ttft_p90_s"))
        for trial in sorted(loaded.keys() & half.keys())
        if not loaded[trial].degraded and not half[trial].degraded
    ]
    if len(pairs) < MIN_PAIRED:
        count = format_count(len(pairs), "launch", "launches")
        return unknown(f"{count} measured TTFT p90 at both rates; an interval needs {MIN_PAIRED}")
    logs = np.array([math.log(ours / theirs) for ours, theirs in pairs if ours and theirs])
    if logs.size < len(pairs):
        return unknown(f"TTFT p90 is not known in {len(pairs) - logs.size} of {len(pairs)} launches")
    growth = compute_student_interval(
        float(logs.mean()), standard_error(logs), logs.size - 1, logs.size, launches=logs.size,
        basis=f"over {logs.size} launches",
    )  # fmt: skip
    return growth.transform(math.exp)


def _compute_log_distance(value: float, bound: float | None) -> float:
    return 0.0 if bound is None else abs(math.log(bound / value))
