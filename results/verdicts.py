"""The hypotheses of specs/connector_tax, each judged by a rule over numbers and their intervals.

The interval decides: a hypothesis is supported where the whole interval agrees with it, refuted where the whole of it
contradicts it, and undecided otherwise, or where a number is missing. Pure functions of estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from results.contrasts import ADDITIVE_WITHIN, MOONCAKE, Additive, Additivity, Decomposition, Trend, additive
from results.statistics import Estimate, unknown

TAX_AT_LEAST = 0.10
"""H1."""
TAX_PRIOR = (0.25, 0.60)
"""H1: the trace replay's +45 % is accepted in here."""
GAP_WITHIN = (0.05, 0.10)
"""H2: tax(mooncake_both) - tax(nixl_both); the trace replay had 7 pp."""
_GAP_RANGE = "[5 pp, 10 pp]"
FRAMEWORK_BELOW = 0.50
"""H3: share of the tax of mooncake_both that noop_connector has; from here on the framework dominates."""
IMPLEMENTATION_BELOW = 0.30
"""H3: below this the implementation dominates."""
FLAT_BELOW = 0.01
"""H5, H6: growth per doubling of the length whose whole interval is below this is none; no limit is specified."""


class Outcome(StrEnum):
    """What the numbers say of a hypothesis."""

    SUPPORTED = "supported"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class HypothesisVerdict:
    """One hypothesis, judged."""

    name: str
    """`H1` to `H6`."""
    claim: str
    rule: str
    """How the interval decides, as text."""
    outcome: Outcome
    label: str
    """What kind of outcome: the cost that dominates, the direction of a gap; may be empty."""
    quantity: str
    """What `measured` is."""
    measured: Estimate
    """The number the rule is about, as a fraction: 0.45 = 45 %, 0.07 = 7 pp."""
    numbers: Mapping[str, Estimate]
    """What it was computed from."""
    prior: str
    """What the trace replay led to expect, and how this compares; empty where there is no prior."""
    reason: str
    """Why this outcome, in numbers."""


def substrate_tax(tax: Estimate) -> HypothesisVerdict:
    """H1, from tax_ttft_p90(mooncake_both, ref_safe)."""
    outcome, reason = _against(tax, TAX_AT_LEAST)
    within = {
        True: "accepted: the interval lies in it",
        False: "revise the prior: the interval lies outside",
        None: "not told: " + _cannot(tax, *TAX_PRIOR),
    }[inside(tax, TAX_PRIOR)]
    return HypothesisVerdict(
        name="H1",
        claim="The substrate tax persists at one instance under synthetic load.",
        rule=f"The interval of the tax lies at or above {TAX_AT_LEAST:.0%}; below it, the trace replay's tax came from "
        "the feedback between its 8 instances.",
        outcome=outcome,
        label="",
        quantity="tax_ttft_p90(mooncake_both) at ref_safe",
        measured=tax,
        numbers={},
        prior=f"+45% in the trace replay, accepted in {_range(TAX_PRIOR)}: {within}",
        reason=reason,
    )


def nixl_gap(gap: Estimate, mooncake: Estimate, nixl: Estimate) -> HypothesisVerdict:
    """H2, from tax_ttft_p90(mooncake_both) - tax_ttft_p90(nixl_both) at ref_safe."""
    low, high = GAP_WITHIN
    held = inside(gap, GAP_WITHIN)
    outcome = {True: Outcome.SUPPORTED, False: Outcome.REFUTED, None: Outcome.UNDECIDED}[held]
    label = ""
    if gap.low is not None and gap.high is not None:
        label = (
            "the gap is larger" if gap.low > high
            else "the gap is inverted" if gap.high < 0
            else "the gap is smaller" if gap.high < low
            else ""
        )  # fmt: skip
    reason = {
        True: f"{gap.points()} lies in {_GAP_RANGE}",
        False: f"{gap.points()} lies outside {_GAP_RANGE}: {label}",
        None: _cannot(gap, *GAP_WITHIN, shown=gap.points()),
    }[held]
    agreement = {True: "agrees", False: "disagrees", None: "not told"}[held]
    return HypothesisVerdict(
        name="H2",
        claim="NIXL costs less than Mooncake by 5 to 10 percentage points: the gap is mechanism, not coupling.",
        rule=f"The interval of tax(mooncake_both) - tax(nixl_both) lies in {_GAP_RANGE}; outside it, the gap "
        "of the trace replay was its coupling's.",
        outcome=outcome,
        label=label,
        quantity="tax_ttft_p90(mooncake_both) - tax_ttft_p90(nixl_both) at ref_safe",
        measured=gap,
        numbers={"tax_ttft_p90(mooncake_both)": mooncake, "tax_ttft_p90(nixl_both)": nixl},
        prior=f"+7 pp (45% - 38%) in the trace replay, accepted in {_GAP_RANGE}: {agreement}",
        reason=reason,
    )


def framework_share(split: Decomposition | None) -> HypothesisVerdict:
    """H3, from the decomposition of tax_ttft_p90(mooncake_both) at ref_safe; None where there is none."""
    none = unknown(f"{MOONCAKE} was not measured in Phase A")
    share, framework, total = (
        (split.framework_share, split.framework, split.total) if split is not None else (none, none, none)
    )
    outcome, reason = _against(share, FRAMEWORK_BELOW)
    flipped = {Outcome.SUPPORTED: Outcome.REFUTED, Outcome.REFUTED: Outcome.SUPPORTED}.get(outcome, outcome)
    label = cost_label(share)
    if not label and outcome != Outcome.UNDECIDED:
        reason += f"; no label: {_cannot(share, IMPLEMENTATION_BELOW)}"
    return HypothesisVerdict(
        name="H3",
        claim="The engine's connector framework is less than half of Mooncake's cost.",
        rule=f"The interval of tax(noop_connector) / tax(mooncake_both) lies below {FRAMEWORK_BELOW:.0%}. Label: "
        f"framework-cost-dominated from {FRAMEWORK_BELOW:.0%} on, implementation-cost-dominated below "
        f"{IMPLEMENTATION_BELOW:.0%}, mixed between.",
        outcome=flipped,
        label=label,
        quantity="tax_ttft_p90(noop_connector) / tax_ttft_p90(mooncake_both) at ref_safe",
        measured=share,
        numbers={"tax_ttft_p90(noop_connector)": framework, "tax_ttft_p90(mooncake_both)": total},
        prior="",
        reason=reason,
    )


def cost_label(share: Estimate) -> str:
    """Which cost dominates, by the interval of the framework's share; empty where it cannot be told."""
    if share.low is None or share.high is None:
        return ""
    if share.low >= FRAMEWORK_BELOW:
        return "framework-cost-dominated"
    if share.high < IMPLEMENTATION_BELOW:
        return "implementation-cost-dominated"
    return "mixed" if share.low >= IMPLEMENTATION_BELOW and share.high < FRAMEWORK_BELOW else ""


def additivity(found: Additivity | None) -> HypothesisVerdict:
    """H4, from the additivity of tax_ttft_p90 at ref_safe; None where none of its configs was measured."""
    none = unknown("neither the stacked connectors nor their parts were measured in Phase A")
    excess = found.relative_excess if found is not None else none
    kind, why = additive(excess)
    outcome = {Additive.LINEAR: Outcome.SUPPORTED, Additive.UNDECIDED: Outcome.UNDECIDED}.get(kind, Outcome.REFUTED)
    meaning = {
        Additive.SUPER: ": the connectors interfere",
        Additive.SUB: ": they share a cost of every step",
    }.get(kind, "")
    return HypothesisVerdict(
        name="H4",
        claim="The costs of stacked connectors add up.",
        rule=f"The interval of (tax(multi) - tax(mooncake_both) - tax(lmcache_only)) / tax(multi) lies within "
        f"{ADDITIVE_WITHIN:.0%} of zero; above it is super-additive, below it sub-additive.",
        outcome=outcome,
        label="" if kind == Additive.UNDECIDED else str(kind),
        quantity="(tax(multi) - sum of both) / tax(multi), of TTFT p90 at ref_safe",
        measured=excess,
        numbers={
            "tax_ttft_p90(mooncake_both)": found.mooncake,
            "tax_ttft_p90(lmcache_only)": found.lmcache,
            "their sum": found.total,
            "tax_ttft_p90(multi_mooncake_lmcache)": found.multi,
        }
        if found is not None
        else {},
        prior="",
        reason=why or f"{excess.percent()} is {kind}{meaning}",
    )


def input_trend(trend: Trend | None) -> HypothesisVerdict:
    """H5, from mooncake_both's TTFT tax along the input length, the mean over output lengths."""
    outcome, reason = _growth(trend)
    fell = trend is not None and any(step.high is not None and step.high < 0 for step in trend.steps)
    dipped = trend is not None and any(step.value is not None and step.value <= 0 for step in trend.steps)
    if fell:
        outcome, reason = Outcome.REFUTED, f"it falls from one length to the next: {_steps(trend)}"
    elif outcome == Outcome.SUPPORTED and dipped:
        outcome, reason = Outcome.UNDECIDED, f"it grows, but whether at every step cannot be told: {_steps(trend)}"
    return _trend_verdict(
        "H5",
        "The TTFT tax of mooncake_both grows monotonically with the input length.",
        f"The interval of the slope over log2(input tokens) lies above 0 and no step goes down; refuted where a step's "
        f"interval lies below 0, or the slope's below {FLAT_BELOW * 100:g} pp per doubling.",
        trend,
        outcome,
        reason,
    )


def output_trend(trend: Trend | None) -> HypothesisVerdict:
    """H6, from mooncake_both's TPOT tax along the output length, the mean over input lengths."""
    return _trend_verdict(
        "H6",
        "The TPOT tax of mooncake_both grows with the output length: the connector works at every decode step.",
        f"The interval of the slope over log2(output tokens) lies above 0; refuted where it lies below "
        f"{FLAT_BELOW * 100:g} pp per doubling.",
        trend,
        *_growth(trend),
    )


def _trend_verdict(
    name: str, claim: str, rule: str, trend: Trend | None, outcome: Outcome, reason: str
) -> HypothesisVerdict:
    numbers: dict[str, Estimate] = {}
    if trend is not None:
        numbers = {
            f"{trend.metric} at {length} {trend.along}": tax
            for length, tax in zip(trend.lengths, trend.taxes, strict=True)
        }
    return HypothesisVerdict(
        name=name,
        claim=claim,
        rule=rule,
        outcome=outcome,
        label="",
        quantity="tax per doubling of the length, at ref_safe",
        measured=trend.slope if trend is not None else unknown(_NO_TREND),
        numbers=numbers,
        prior="",
        reason=reason,
    )


_NO_TREND = f"Phase B did not measure {MOONCAKE} at two lengths"


def _growth(trend: Trend | None) -> tuple[Outcome, str]:
    if trend is None:
        return Outcome.UNDECIDED, _NO_TREND
    slope = trend.slope
    if slope.low is None or slope.high is None:
        return Outcome.UNDECIDED, slope.reason or "there is no interval"
    if slope.low > 0:
        return Outcome.SUPPORTED, f"it grows by {slope.points()} per doubling"
    if slope.high < 0:
        return Outcome.REFUTED, f"it falls: {slope.points()} per doubling"
    if slope.high < FLAT_BELOW:
        return Outcome.REFUTED, f"it is flat: {slope.points()} per doubling"
    return Outcome.UNDECIDED, f"{slope.points()} per doubling covers zero"


def _steps(trend: Trend | None) -> str:
    return "; ".join(step.points() for step in trend.steps) if trend is not None else ""


def _against(found: Estimate, limit: float) -> tuple[Outcome, str]:
    """Supported where the whole interval is at or above the limit, refuted where it is below."""
    if found.low is None or found.high is None:
        return Outcome.UNDECIDED, _cannot(found, limit)
    if found.low >= limit:
        return Outcome.SUPPORTED, f"{found.percent()} lies at or above {limit:.0%}"
    if found.high < limit:
        return Outcome.REFUTED, f"{found.percent()} lies below {limit:.0%}"
    return Outcome.UNDECIDED, _cannot(found, limit)


def inside(found: Estimate, limits: tuple[float, float]) -> bool | None:
    """Whether the interval lies in the range; False where all of it lies outside, None where that cannot be told."""
    if found.low is None or found.high is None:
        return None
    low, high = limits
    if low <= found.low and found.high <= high:
        return True
    return False if found.high < low or found.low > high else None


def _cannot(found: Estimate, *limits: float, shown: str = "") -> str:
    """Why these limits cannot be told from this estimate, written as `shown`."""
    shown = shown or found.percent()
    if found.value is None:
        return found.reason or "it was not measured"
    if found.low is None or found.high is None:
        return f"{shown} has no interval: {found.reason}"
    crossed = [f"{limit:.0%}" for limit in limits if found.low <= limit <= found.high]
    return f"{shown} straddles {' and '.join(crossed)}"


def _range(limits: tuple[float, float]) -> str:
    return f"[{limits[0]:.0%}, {limits[1]:.0%}]"
