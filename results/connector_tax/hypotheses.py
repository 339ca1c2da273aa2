"""The hypotheses of specs/connector_tax, each judged by a rule over numbers and their intervals.

A hypothesis holds where the whole interval agrees with it and fails where the whole interval contradicts it. It is open
where the number is missing, and undecided otherwise, also where the number comes from fewer than three launches. `p` is
the smallest error level at which the interval would still decide; results.statistics corrects all six for each other.
Pure functions of estimates.
"""

from __future__ import annotations

from dataclasses import replace

from results.connector_tax.combined_taxes import (
    ADDITIVE_WITHIN,
    FRAMEWORK,
    FRAMEWORK_BELOW,
    MOONCAKE,
    Additive,
    Additivity,
    Decomposition,
)
from results.connector_tax.tax import Metric
from results.connector_tax.trends import FLAT_BELOW, Trend
from results.records.estimate import Estimate, unknown
from results.records.percent import format_percent
from results.statistics.judgement import (
    TRIALS_REMEDY,
    Judgement,
    Outcome,
    describe_excluded,
    leave_undecided,
    list_some,
    withheld,
    withhold_bounds,
)

TAX_AT_LEAST = 0.10
"""H1."""
TAX_PRIOR = (0.25, 0.60)
"""H1: the trace replay's +45 % is accepted in here."""
_PRIOR_RANGE = "[25 %, 60 %]"
GAP_WITHIN = (0.05, 0.10)
"""H2: tax(mooncake_both) - tax(nixl_both); the trace replay had 7 pp."""
_GAP_RANGE = "[5 pp, 10 pp]"
IMPLEMENTATION_BELOW = 0.30
"""H3: below this the implementation dominates."""


def judge_tax(tax: Estimate, p: float | None = None, remedy: str = TRIALS_REMEDY) -> Judgement:
    """H1, from tax_ttft_p90(mooncake_both, ref_safe); p: of the tax being TAX_AT_LEAST."""
    outcome, reason = _judge_against(tax, TAX_AT_LEAST, remedy=remedy)
    within = {
        True: "accepted: the interval lies in it",
        False: "revise the prior: the interval lies outside",
        None: "undecided: " + _explain_undecided(tax, *TAX_PRIOR, remedy=remedy),
    }[is_inside(tax, TAX_PRIOR)]
    return Judgement(
        name="H1",
        claim="The substrate tax persists at one instance under synthetic load.",
        rule=f"The interval of the tax lies at or above {format_percent(TAX_AT_LEAST)}; below it, the trace replay's "
        "tax came from the feedback between its 8 instances.",
        outcome=outcome,
        quantity="tax_ttft_p90(mooncake_both) at ref_safe",
        measured=tax,
        prior=f"+45 % in the trace replay, accepted in {_PRIOR_RANGE}: {within}",
        reason=reason,
        p=_withhold_p(tax, p),
    )


def _withhold_p(measured: Estimate, p: float | None) -> float | None:
    """None where the bounds are no interval over launches: a spread has no p."""
    return None if withheld(measured) else p


def _compute_p_of_range(
    measured: Estimate, limits: tuple[float, float], p: tuple[float | None, float | None]
) -> float | None:
    """p: of the value being the lower and the upper limit. Inside, both must be excluded; outside, the nearer one."""
    if measured.value is None or p[0] is None or p[1] is None:
        return None
    if measured.value < limits[0]:
        return _withhold_p(measured, p[0])
    return _withhold_p(measured, p[1] if measured.value > limits[1] else max(p[0], p[1]))


def judge_gap(
    gap: Estimate,
    mooncake: Estimate,
    nixl: Estimate,
    p: tuple[float | None, float | None] = (None, None),
    remedy: str = TRIALS_REMEDY,
) -> Judgement:
    """H2, from tax_ttft_p90(mooncake_both) - tax_ttft_p90(nixl_both) at ref_safe; p: of it being each of GAP_WITHIN."""
    held = is_inside(gap, GAP_WITHIN)
    outcome = {True: Outcome.HOLDS, False: Outcome.FAILS, None: leave_undecided(gap)}[held]
    label = ""
    if held is False and gap.low is not None and gap.high is not None:
        label = (
            "the gap is larger" if gap.low > GAP_WITHIN[1]
            else "the gap is inverted" if gap.high < 0
            else "the gap is smaller"
        )  # fmt: skip
    reason = {
        True: f"{gap.points()} lies in {_GAP_RANGE}",
        False: f"{gap.points()} lies outside {_GAP_RANGE}: {label}",
        None: _explain_undecided(gap, *GAP_WITHIN, shown=gap.points(), of="gaps", unit="pp", remedy=remedy),
    }[held]
    agreement = {True: "agrees", False: "disagrees", None: "undecided"}[held]
    return Judgement(
        name="H2",
        claim="NIXL costs less than Mooncake by 5 to 10 percentage points: the gap is mechanism, not coupling.",
        rule=f"The interval of tax(mooncake_both) - tax(nixl_both) lies in {_GAP_RANGE}; below it, the gap "
        "of the trace replay was its coupling's.",
        outcome=outcome,
        label=label,
        quantity="tax_ttft_p90(mooncake_both) - tax_ttft_p90(nixl_both) at ref_safe",
        measured=gap,
        numbers={"tax_ttft_p90(mooncake_both)": mooncake, "tax_ttft_p90(nixl_both)": nixl},
        prior=_describe_gap_prior(agreement),
        reason=reason,
        p=_compute_p_of_range(gap, GAP_WITHIN, p),
    )


def _describe_gap_prior(agreement: str) -> str:
    return f"+7 pp (45 % - 38 %) in the trace replay, accepted in {_GAP_RANGE}: {agreement}"


def withdraw_agreement(judgement: Judgement) -> Judgement:
    """H2 with an undecided prior where Holm's correction left it undecided: rule and prior ask the same."""
    if judgement.name != "H2" or judgement.outcome.is_decided:
        return judgement
    return replace(judgement, prior=_describe_gap_prior("undecided"))


def judge_framework(split: Decomposition | None, remedy: str = TRIALS_REMEDY) -> Judgement:
    """H3, from the decomposition of tax_ttft_p90(mooncake_both) at ref_safe; None where there is none."""
    none = unknown(f"{MOONCAKE} was not measured at ref_safe")
    split = split or Decomposition(MOONCAKE, Metric.TTFT_P90, none, none, none, none)
    share, total = split.framework_share, split.total
    outcome, reason = _judge_against(share, FRAMEWORK_BELOW, of="shares", remedy=remedy)
    flipped = {Outcome.HOLDS: Outcome.FAILS, Outcome.FAILS: Outcome.HOLDS}.get(outcome, outcome)
    label = label_cost(share)
    if not label and outcome.is_decided:
        reason += f"; no label: {_explain_undecided(share, IMPLEMENTATION_BELOW, of='shares')}"
    covered = describe_excluded(total)
    if covered:
        flipped, label = Outcome.UNDECIDED, ""
        reason = f"the tax of {MOONCAKE}, {total.percent()}, may be zero: it has no shares; {covered}"
    reason += _name_no_share(share)
    return Judgement(
        name="H3",
        claim="The engine's connector framework is less than half of Mooncake's cost.",
        rule=f"The interval of tax(noop_connector) / tax(mooncake_both) lies below "
        f"{format_percent(FRAMEWORK_BELOW)}; undecided where that of tax(mooncake_both) covers 0. Label, by the "
        f"share's interval (Holm's correction is of {format_percent(FRAMEWORK_BELOW)} alone): "
        f"framework-cost-dominated from {format_percent(FRAMEWORK_BELOW)} on, implementation-cost-dominated below "
        f"{format_percent(IMPLEMENTATION_BELOW)}, mixed between.",
        outcome=flipped,
        label=label,
        quantity="tax_ttft_p90(noop_connector) / tax_ttft_p90(mooncake_both) at ref_safe",
        measured=share,
        numbers={"tax_ttft_p90(noop_connector)": split.framework, "tax_ttft_p90(mooncake_both)": total},
        reason=reason,
        p=_withhold_p(share, split.p_half),
    )


def _name_no_share(share: Estimate) -> str:
    """The meaning of a share that is no part of the whole: its whole interval is above 100 % or below zero."""
    share = withhold_bounds(share)
    if share.low is not None and share.low > 1:
        return f"; above 100 %: {FRAMEWORK} costs more than {MOONCAKE} itself"
    if share.high is not None and share.high < 0:
        return f"; below zero: {FRAMEWORK} is faster than plain"
    return ""


def label_cost(share: Estimate) -> str:
    """The cost that dominates, by the interval of the framework's share; empty where the interval does not decide."""
    share = withhold_bounds(share)
    if share.low is None or share.high is None:
        return ""
    if share.low > 1:
        return f"{FRAMEWORK} costs more"
    if share.low >= FRAMEWORK_BELOW:
        return "framework-cost-dominated"
    if share.high < IMPLEMENTATION_BELOW:
        return "implementation-cost-dominated"
    return "mixed" if share.low >= IMPLEMENTATION_BELOW and share.high < FRAMEWORK_BELOW else ""


def label_value(share: float) -> str:
    """The specification's label of a share, by its value alone."""
    if share >= FRAMEWORK_BELOW:
        return "framework-cost-dominated"
    return "implementation-cost-dominated" if share < IMPLEMENTATION_BELOW else "mixed"


def judge_additivity(stacked: Additivity | None) -> Judgement:
    """H4, from the additivity of tax_ttft_p90 at ref_safe; None where none of its configs was measured."""
    none = "neither the stacked connectors nor their parts were measured at ref_safe"
    excess = stacked.relative_excess if stacked is not None else unknown(none)
    kind, why = (stacked.verdict, stacked.reason) if stacked is not None else (Additive.UNDECIDED, none)
    undecided = why if excess.value is None else f"{excess.percent()}: {why}"
    outcome = {Additive.LINEAR: Outcome.HOLDS, Additive.UNDECIDED: leave_undecided(excess)}.get(kind, Outcome.FAILS)
    meaning = {
        Additive.SUPER: ": the connectors interfere",
        Additive.SUB: ": they share a cost of every step",
    }.get(kind, "")
    return Judgement(
        name="H4",
        claim="The costs of stacked connectors add up.",
        rule=f"The interval of (tax(multi) - tax(mooncake_both) - tax(lmcache_only)) / tax(multi) lies within "
        f"{format_percent(ADDITIVE_WITHIN)} of zero; above it is super-additive, below it sub-additive.",
        outcome=outcome,
        label="" if kind == Additive.UNDECIDED else str(kind),
        quantity="(tax(multi) - sum of both) / tax(multi), of TTFT p90 at ref_safe",
        measured=excess,
        numbers={
            "tax_ttft_p90(mooncake_both)": stacked.mooncake,
            "tax_ttft_p90(lmcache_only)": stacked.lmcache,
            "their sum": stacked.total,
            "tax_ttft_p90(multi_mooncake_lmcache)": stacked.multi,
        }
        if stacked is not None
        else {},
        reason=undecided if why else f"{excess.percent()} is {kind}{meaning}",
        p=_compute_p_of_range(excess, (-ADDITIVE_WITHIN, ADDITIVE_WITHIN), stacked.p_limits)
        if stacked is not None
        else None,
    )


def judge_input_trend(trend: Trend | None, remedy: str = TRIALS_REMEDY) -> Judgement:
    """H5, from mooncake_both's TTFT tax along the input length, the mean over output lengths."""
    claim = "The TTFT tax of mooncake_both grows monotonically with the input length."
    return _judge_trend("H5", claim, "input", trend, remedy)


def judge_output_trend(trend: Trend | None, remedy: str = TRIALS_REMEDY) -> Judgement:
    """H6, from mooncake_both's TPOT tax along the output length, the mean over input lengths."""
    claim = "The TPOT tax of mooncake_both grows with the output length: the connector works at every decode step."
    return _judge_trend("H6", claim, "output", trend, remedy)


def _judge_trend(name: str, claim: str, length: str, trend: Trend | None, remedy: str) -> Judgement:
    trend = trend or _NO_TREND
    outcome, reason = _judge_growth(withhold_bounds(trend.slope, remedy))
    steps = [withhold_bounds(step) for step in trend.steps]
    fell = any(step.high is not None and step.high < 0 for step in steps)
    open_steps = [step for step in steps if step.low is None or step.low <= 0]
    shown = "; ".join(step.points() for step in trend.steps)
    if fell:
        outcome, reason = Outcome.FAILS, f"it falls from one length to the next: {shown}"
    elif outcome == Outcome.HOLDS and open_steps:
        undecided = f"{len(open_steps)} of {len(steps)} undecided"
        outcome, reason = Outcome.UNDECIDED, f"it grows, but perhaps not at every step ({undecided}): {shown}"
    span = _name_span(trend)
    if span:
        reason += f"; judged {span}, without {' and '.join(f'{absent:,}' for absent in trend.absent)}"
    if trend.left_out and trend.slope.value is not None:
        reason += f"; left out: {list_some(trend.left_out, most=2)}"
    if trend.own_rates:
        reason += f"; not at ref_safe: {list_some(trend.own_rates, most=3)}"
    return Judgement(
        name=name,
        claim=claim,
        rule=f"The interval of the slope over log2({length} tokens) lies above 0, and that of every step (all steps "
        "together) too; fails where a step's interval lies below 0, or the slope's below "
        f"{FLAT_BELOW * 100:g} pp per doubling and not above 0.",
        outcome=outcome,
        label=span if outcome.is_decided else "",
        quantity="tax per doubling of the length, at ref_safe",
        measured=trend.slope,
        numbers={
            f"{trend.metric} at {length} {trend.along}": tax
            for length, tax in zip(trend.lengths, trend.taxes, strict=True)
        },
        reason=reason,
        p=_compute_p_of_trend(trend),
    )


def _name_span(trend: Trend) -> str:
    """The lengths that decide, where the run has others too; empty where all take part, or too few for a slope."""
    if not trend.absent or trend.slope.value is None:
        return ""
    return f"from {trend.lengths[0]:,} to {trend.lengths[-1]:,} tokens"


def _compute_p_of_trend(trend: Trend) -> float | None:
    """The p of the nearest decision: growth at every step, a step that falls, or no growth.

    A slope whose interval is above 0 grows, however little; that it is below FLAT_BELOW then decides nothing.
    """
    value = trend.slope.value
    if value is None:
        return None
    ways = [trend.p_fall]
    if value > 0 and trend.p_rise is not None and trend.p_zero is not None:
        ways.append(max(trend.p_rise, trend.p_zero))
    if value < FLAT_BELOW and (trend.slope.low is None or trend.slope.low <= 0):
        ways.append(trend.p_flat)
    return _withhold_p(trend.slope, min((p for p in ways if p is not None), default=1.0))


_NO_SLOPE = unknown(f"{MOONCAKE} was not measured at two lengths without saturation")
_NO_TREND = Trend(MOONCAKE, Metric.TTFT_P90, "", None, (), (), (), _NO_SLOPE)


def _judge_growth(slope: Estimate) -> tuple[Outcome, str]:
    """`slope`: as `withhold_bounds` leaves it."""
    if slope.low is None or slope.high is None:
        return leave_undecided(slope), slope.reason or "there is no interval"
    if slope.low > 0:
        return Outcome.HOLDS, f"it grows by {slope.points()} per doubling"
    if slope.high < 0:
        return Outcome.FAILS, f"it falls: {slope.points()} per doubling"
    if slope.high < FLAT_BELOW:
        return Outcome.FAILS, f"it is flat: {slope.points()} per doubling"
    excluded = describe_excluded(slope, of="slopes", unit="pp per doubling")
    return Outcome.UNDECIDED, "; ".join(filter(None, (f"{slope.points()} per doubling covers zero", excluded)))


def _judge_against(estimate: Estimate, limit: float, *, remedy: str, of: str = "effects") -> tuple[Outcome, str]:
    """HOLDS where the whole interval is at or above the limit, FAILS where it is below. `of`: as _explain_undecided."""
    bounds = withhold_bounds(estimate)
    if bounds.low is None or bounds.high is None:
        return leave_undecided(estimate), _explain_undecided(estimate, limit, of=of, remedy=remedy)
    if bounds.low >= limit:
        return Outcome.HOLDS, f"{estimate.percent()} lies at or above {format_percent(limit)}"
    if bounds.high < limit:
        return Outcome.FAILS, f"{estimate.percent()} lies below {format_percent(limit)}"
    return Outcome.UNDECIDED, _explain_undecided(estimate, limit, of=of)


def is_inside(estimate: Estimate, limits: tuple[float, float]) -> bool | None:
    """Whether the interval lies in the range; False where all of it lies outside, None where it straddles a limit."""
    estimate = withhold_bounds(estimate)
    if estimate.low is None or estimate.high is None:
        return None
    low, high = limits
    if low <= estimate.low and estimate.high <= high:
        return True
    return False if estimate.high < low or estimate.low > high else None


def _explain_undecided(
    estimate: Estimate,
    *limits: float,
    shown: str = "",
    of: str = "effects",
    unit: str = "%",
    remedy: str = TRIALS_REMEDY,
) -> str:
    """Why this estimate, written as `shown`, decides nothing against these limits.

    `of`: what is estimated, in the plural; `unit`: `%`, or `pp` of a difference of fractions.
    """
    shown, estimate = shown or estimate.percent(), withhold_bounds(estimate, remedy)
    if estimate.value is None:
        return estimate.reason or "it was not measured"
    if estimate.low is None or estimate.high is None:
        return f"{shown}: no verdict, {estimate.reason}"
    crossed = [f"{100 * limit:.0f} {unit}" for limit in limits if estimate.low <= limit <= estimate.high]
    excluded = describe_excluded(estimate, of=of, unit=unit)
    return "; ".join(filter(None, (f"{shown} straddles {' and '.join(crossed)}", excluded)))
