"""The hypotheses of a run by its measurements, and the success criteria of specs/connector_tax.

The criteria ask whether the run answers its questions: 1 to 5 ask for an answer, not for the expected one. They hold
where the interval decides, and fail where the number is missing. They are undecided where the interval decides nothing
or comes from fewer than three launches. The specification judges by the value alone: every reason gives its result
first ("by the point"), then that of the interval.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from results.connector_tax import hypotheses
from results.connector_tax.combined_taxes import (
    ADDITIVE_WITHIN,
    FRAMEWORK,
    LMCACHE,
    MOONCAKE,
    MULTI,
    NIXL,
    Additivity,
    Decomposition,
    find_tax,
    measure_nixl_gap,
)
from results.connector_tax.manifest import NOT_RUN, RAN, SKIP
from results.connector_tax.measurements import Measurements
from results.connector_tax.saturation import describe_rate
from results.connector_tax.summary import CellSummary, Shape
from results.connector_tax.tax import Metric, TaxRow
from results.connector_tax.trends import Trend
from results.records.estimate import Estimate, unknown
from results.records.frames import Gap
from results.records.manifest import ManifestRow
from results.records.percent import format_percent
from results.records.phase_names import CONFIRM
from results.records.reference_rates import REF_SAFE, ReferenceRates
from results.records.run_folder import PreflightDecision, RunFacts
from results.statistics.judgement import Judgement, Outcome, correct_together, list_some, withheld
from results.statistics.trials import estimate, p_value

_Row = TypeVar("_Row", Decomposition, Additivity, Trend)

COMPARED: Mapping[str, frozenset[str]] = {
    "H1": frozenset({MOONCAKE}),
    "H2": frozenset({MOONCAKE, NIXL}),
    "H3": frozenset({MOONCAKE, FRAMEWORK}),
    "H4": frozenset({MOONCAKE, LMCACHE, MULTI}),
}
"""The configs that a hypothesis about Phase A's shape compares with plain."""
OF_TRENDS: Mapping[str, str] = {"input_tokens": "H5", "output_tokens": "H6"}
"""The length of a trend to the hypothesis that it judges."""


def judge_hypotheses(
    measurements: Measurements,
    rates: ReferenceRates,
    decomposition: Sequence[Decomposition],
    additivity: Sequence[Additivity],
    lines: Sequence[Trend],
) -> tuple[Judgement, ...]:
    """H1 to H6, by the contrasts of mooncake_both's TTFT tax (H6: TPOT), corrected for each other (Holm).

    The family is every hypothesis whose configs were measured, whatever their numbers.
    """
    mooncake, nixl = (
        find_tax(measurements, rates, REF_SAFE, config, Metric.TTFT_P90) for config in (MOONCAKE, NIXL)
    )  # fmt: skip
    gap = measure_nixl_gap(measurements, rates, Metric.TTFT_P90)
    low, high = hypotheses.GAP_WITHIN
    remedy = measurements.remedy
    judged = (
        hypotheses.judge_tax(estimate(mooncake), p_value(mooncake, hypotheses.TAX_AT_LEAST), remedy),
        hypotheses.judge_gap(
            estimate(gap), estimate(mooncake), estimate(nixl), (p_value(gap, low), p_value(gap, high)), remedy
        ),
        hypotheses.judge_framework(_find_first(decomposition, config=MOONCAKE, metric=Metric.TTFT_P90), remedy),
        hypotheses.judge_additivity(_find_first(additivity, metric=Metric.TTFT_P90)),
        hypotheses.judge_input_trend(_find_first(lines, config=MOONCAKE, along="input_tokens", at=None), remedy),
        hypotheses.judge_output_trend(_find_first(lines, config=MOONCAKE, along="output_tokens", at=None), remedy),
    )
    family = _list_measured(measurements)
    corrected = correct_together(judged, undefined=sum(one.p is None and one.name in family for one in judged))
    return tuple(map(hypotheses.withdraw_agreement, corrected))


def _list_measured(measurements: Measurements) -> frozenset[str]:
    """The hypotheses whose configs and lengths the run measured."""
    swept, shaped = (set(measurements.configs(phase)) for phase in ("A", "B"))
    names = {name for name, configs in COMPARED.items() if configs <= swept}
    shapes = [load.shape for load in measurements.loads if load.phase == "B"]
    if MOONCAKE in shaped and len({shape.input_tokens for shape in shapes}) > 1:
        names.add("H5")
    if MOONCAKE in shaped and len({shape.output_tokens for shape in shapes}) > 1:
        names.add("H6")
    return frozenset(names)


def name_loads(rates: ReferenceRates, taxes: Sequence[TaxRow], trends: Sequence[Trend]) -> dict[str, str]:
    """What each hypothesis is judged over: H1 to H4 ref_safe and the shape of Phase A, H5 and H6 the rates and shapes
    of a trend of MOONCAKE.

    Two runs that judge one hypothesis over other loads ask two questions.
    """
    swept = sorted({str(row.shape) for row in taxes if row.phase == "A"})
    loads = dict.fromkeys(COMPARED, ", ".join((describe_rate(rates.ref_safe_per_s), *swept)))
    shapes = sorted({row.shape for row in taxes if row.phase == "B"})
    for trend in trends:
        if trend.config == MOONCAKE and trend.at is None and trend.rates_per_s:
            each = " and ".join(f"{rate:g}" for rate in trend.rates_per_s)
            loads[OF_TRENDS[trend.along]] = ", ".join((f"{each} req/s", *map(str, _list_averaged(trend, shapes))))
    return loads


def _list_averaged(trend: Trend, shapes: Sequence[Shape]) -> list[Shape]:
    """Those of these shapes that a trend at no other length is the mean over.

    Its lengths at every other length, but at one at which a shape of them is left out.
    """
    across = "output_tokens" if trend.along == "input_tokens" else "input_tokens"
    left_out = {text.partition(":")[0] for text in trend.left_out}
    own = [shape for shape in shapes if getattr(shape, trend.along) in trend.lengths]
    dropped = {getattr(shape, across) for shape in own if str(shape) in left_out}
    return [shape for shape in own if getattr(shape, across) not in dropped]


def judge_success(
    judged: Sequence[Judgement],
    facts: RunFacts,
    rows: Sequence[ManifestRow],
    decisions: Mapping[str, PreflightDecision],
    cells: Collection[CellSummary],
    gaps: Sequence[Gap],
    unmeasured: Sequence[Gap],
    left_out: Sequence[Gap],
) -> tuple[Judgement, ...]:
    """The success criteria 1 to 7; `gaps`: of the artifacts; `unmeasured`: planned cells without a record; `left_out`:
    those of them that an operator skipped."""
    h1, h2, h3, h4, h5, h6 = judged
    planned = bool(facts.cells)
    specified = _list_specified(cells)
    return (
        judge_tax_reported(h1),
        judge_gap_reported(h2),
        judge_cost_labeled(h3),
        judge_additivity_decided(h4),
        judge_trends_reported(h5, h6),
        judge_artifacts_present(rows, decisions, [*gaps, *unmeasured], left_out, planned),
        judge_wall_clock(
            _measure_span_h(specified), _measure_span_h(cells), whole=planned and not (unmeasured or left_out)
        ),
    )


def _list_specified(cells: Collection[CellSummary]) -> list[CellSummary]:
    """Those of Phase A, B and B'. The first launch of each config stands for B and B' that are confirmed only."""
    shapes_swept = any(cell.phase == "B" for cell in cells)
    return [cell for cell in cells if cell.phase != CONFIRM or (cell.trial == 0 and not shapes_swept)]


def _measure_span_h(cells: Collection[CellSummary]) -> Estimate:
    ends = [cell.t_end_unix_s for cell in cells if cell.t_end_unix_s is not None]
    if not ends:
        return unknown("no cell was measured")
    return Estimate((max(ends) - min(cell.t_start_unix_s for cell in cells)) / 3600, n=len(ends))


def _find_first(rows: Sequence[_Row], **where: object) -> _Row | None:
    """The row whose attributes are these."""
    return next((row for row in rows if all(getattr(row, name) == value for name, value in where.items())), None)


WITHIN_H = 6.0
"""Criterion 7."""


def judge_tax_reported(h1: Judgement) -> Judgement:
    """1: tax_ttft_p90(mooncake_both, ref_safe) is reported, and with it whether the prior is accepted or revised."""
    rule = "tax_ttft_p90(mooncake_both) at ref_safe is reported, and the prior is accepted or revised"
    low, high = hypotheses.TAX_PRIOR
    value = h1.measured.value
    point = ""
    if value is not None:
        effect = "accepts" if low <= value <= high else "revises"
        point = f"{format_percent(value, 1, signed=True)} {effect} the prior"
    decided = hypotheses.is_inside(h1.measured, hypotheses.TAX_PRIOR) is not None
    return _judge_reported("1", "H1 falsifiable", rule, h1, point, f"prior {h1.prior}", decided)


def judge_gap_reported(h2: Judgement) -> Judgement:
    """2: the gap between NIXL and Mooncake at ref_safe is reported, and whether it agrees with the trace replay."""
    rule = "tax(mooncake_both) - tax(nixl_both) at ref_safe is reported, and agrees with the trace replay's or does not"
    low, high = hypotheses.GAP_WITHIN
    value = h2.measured.value
    point = "" if value is None else f"{value * 100:+.1f} pp {'agrees' if low <= value <= high else 'disagrees'}"
    return _judge_reported("2", "H2 testable", rule, h2, point, h2.prior, h2.outcome.is_decided)


def judge_cost_labeled(h3: Judgement) -> Judgement:
    """3: noop_connector's tax is reported and the tax of mooncake_both is labeled by the cost that dominates it."""
    rule = "tax(noop_connector) at ref_safe is reported and its share of tax(mooncake_both) gives a label"
    value = h3.measured.value
    point = "" if value is None else f"{format_percent(value, 1)}, {hypotheses.label_value(value)}"
    return _judge_reported("3", "H3 disambiguated", rule, h3, point, f"{h3.label}: {h3.reason}", bool(h3.label))


def judge_additivity_decided(h4: Judgement) -> Judgement:
    """4: whether the stacked connectors' taxes add up is decided."""
    rule = "|tax(multi) - (tax(mooncake_both) + tax(lmcache_only))| / tax(multi) is at most 30 % (linear), or is not"
    value = h4.measured.value
    linear = value is not None and abs(value) <= ADDITIVE_WITHIN
    point = "" if value is None else f"{format_percent(value, 1, signed=True)} is {'' if linear else 'not '}linear"
    return _judge_reported("4", "H4 additivity", rule, h4, point, f"{h4.label}: {h4.reason}", h4.outcome.is_decided)


def judge_trends_reported(h5: Judgement, h6: Judgement) -> Judgement:
    """5: sign and magnitude of the TTFT tax along the input length and the TPOT tax along the output length."""
    rule = "tax_ttft_p90 along the input length and tax_tpot_p90 along the output length: sign and magnitude reported"
    parts = [
        _judge_reported("5", "", rule, _add_slope(trend), _describe_sign(trend), trend.reason, trend.outcome.is_decided)
        for trend in (h5, h6)
    ]
    bad = (Outcome.FAILS, Outcome.UNDECIDED)
    worst = next((outcome for outcome in bad if any(part.outcome == outcome for part in parts)), Outcome.HOLDS)
    return Judgement(
        name="5",
        claim="H5 and H6 directional",
        rule=rule,
        outcome=worst,
        numbers={"H5, per doubling": h5.measured, "H6, per doubling": h6.measured},
        reason="; ".join(f"{verdict.name}: {part.reason}" for verdict, part in zip((h5, h6), parts, strict=True)),
    )


def _add_slope(trend: Judgement) -> Judgement:
    """With the slope among its numbers: where one length is left, its tax is known and sign and magnitude are not."""
    return replace(trend, numbers={**trend.numbers, trend.quantity: trend.measured})


def _describe_sign(trend: Judgement) -> str:
    value = trend.measured.value
    if value is None:
        return ""
    return f"{'grows' if value > 0 else 'does not grow'}, {value * 100:+.1f} pp per doubling"


def judge_artifacts_present(
    rows: Sequence[ManifestRow],
    decisions: Mapping[str, PreflightDecision],
    gaps: Sequence[Gap],
    left_out: Sequence[Gap],
    planned: bool,
) -> Judgement:
    """6: every config that ran has its artifacts, every other one a reason in preflight_status.json.

    `gaps`: everything the run lacks; `left_out`: cells that an operator skipped, which are named and lack nothing;
    `planned`: its plan could be read.
    """
    lacking = [f"{gap.artifact} {gap.reason}" for gap in gaps if gap.artifact != "plan.json"]
    lacking += [f"{row.config} did not run and no pre-flight says why" for row in rows if row.status == NOT_RUN]
    lacking += [f"{row.config} was skipped without a reason" for row in rows if _is_unexplained(row, decisions)]
    counts = {status: sum(row.status == status for row in rows) for status in (RAN, SKIP)}
    if lacking:
        outcome, reason = Outcome.FAILS, list_some(lacking, most=3)
    elif not planned or not rows:
        outcome, reason = Outcome.OPEN, "the plan cannot be read: which configs should have run is not known"
    else:
        outcome = Outcome.HOLDS
        reason = f"{counts[RAN]} configs ran and lack nothing; {counts[SKIP]} were skipped, each with its reason"
    if left_out:
        reason += f"; {list_some([f'{gap.artifact} {gap.reason}' for gap in left_out], most=3)}"
    return Judgement(
        name="6",
        claim="All artifacts present",
        rule="every config that ran has config, launch script, logs, environment, and for each cell requests, metrics, "
        "record and (where steps were timed) steps, whole as checksummed; every other config has its reason",
        outcome=outcome,
        measured=Estimate(float(len(lacking))),
        quantity="missing artifacts and reasons",
        numbers={
            "configs that ran": Estimate(float(counts[RAN])),
            "configs skipped": Estimate(float(counts[SKIP])),
        },
        reason=reason,
    )


def _is_unexplained(row: ManifestRow, decisions: Mapping[str, PreflightDecision]) -> bool:
    """Without a pre-flight that failed it was the operator who skipped it."""
    decision = decisions.get(row.config)
    return row.status == SKIP and decision is not None and not decision.included and not decision.reason


def judge_wall_clock(sweep_h: Estimate, whole_h: Estimate, whole: bool) -> Judgement:
    """7: Phase A, Phase B and B' take less than six hours.

    Both in hours from the first cell's start to the last cell's end: of those phases in all trials, and of all cells.
    `whole`: every planned cell was measured.
    """
    hours = sweep_h.value
    if hours is None:
        outcome, reason = Outcome.OPEN, sweep_h.reason or "not known"
    elif hours >= WITHIN_H:
        outcome, reason = Outcome.FAILS, f"{hours:.2f} h"
    elif not whole:
        outcome, reason = Outcome.UNDECIDED, f"{hours:.2f} h so far, and not every planned cell was measured"
    else:
        outcome, reason = Outcome.HOLDS, f"{hours:.2f} h"
    if whole_h.value is not None and whole_h.value != hours:
        reason += f"; with the confirm stage, which the specification does not have, {whole_h.value:.2f} h"
    return Judgement(
        name="7",
        claim=f"Finishes within {WITHIN_H:g} h",
        rule=f"Phase A, B and B' of all trials from the first cell's start to the last cell's end, pauses included, "
        f"take less than {WITHIN_H:g} h; where the confirm stage alone measures the shapes, with the first launch of "
        "each config there",
        outcome=outcome,
        measured=sweep_h,
        quantity="hours of Phase A, B and B'",
        numbers={"with the confirm stage, h": whole_h},
        reason=reason,
    )


def _judge_reported(
    name: str, claim: str, rule: str, verdict: Judgement, point: str, answer: str, decided: bool
) -> Judgement:
    """FAILS where a number it needs is missing; UNDECIDED where the interval gives no answer or may give none.

    `point`: the result by the value alone; `answer`: the result by the interval, where it has `decided`.
    """
    measured = verdict.measured
    missing = next((number for number in verdict.numbers.values() or (measured,) if number.value is None), None)
    if missing is not None:
        reason = missing.reason or "not measured"
        return Judgement(name, claim, rule, Outcome.FAILS, reason, measured, verdict.numbers, verdict.quantity)
    outcome = Outcome.HOLDS if decided and not withheld(measured) else Outcome.UNDECIDED
    by_interval = f"by the interval: {answer if outcome == Outcome.HOLDS else verdict.reason}"
    reason = f"by the point: {point}; {by_interval}" if point else by_interval
    return Judgement(name, claim, rule, outcome, reason, measured, verdict.numbers, verdict.quantity)
