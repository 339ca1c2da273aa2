"""Each hypothesis can be supported, refuted and undecided; each success criterion met, not met and undecided."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results import success, verdicts
from results.contrasts import Additive, Additivity, Decomposition, Trend, additive
from results.facts import Decision
from results.load import Gap
from results.manifest import NOT_RUN, RAN, SKIP, ManifestRow
from results.statistics import Estimate, unknown
from results.success import Met, SuccessCriterion
from results.tax import Metric
from results.verdicts import HypothesisVerdict, Outcome

SUPPORTED, REFUTED, UNDECIDED = Outcome.SUPPORTED, Outcome.REFUTED, Outcome.UNDECIDED
MISSING = unknown("nixl_both was not measured at this load")
FEW = Estimate(0.3, n=20, reason="20 samples are too few")


def about(low: float, high: float) -> Estimate:
    """An estimate in the middle of its interval."""
    return Estimate((low + high) / 2, low, high, 200, basis="within one launch")


def split(share: Estimate, framework: Estimate | None = None) -> Decomposition:
    tax = about(0.3, 0.5)
    return Decomposition("mooncake_both", Metric.TTFT_P90, tax, framework or about(0.0, 0.1), about(0.2, 0.4), share)


def stacked(relative_excess: Estimate, multi: Estimate | None = None) -> Additivity:
    tax = about(0.1, 0.2)
    verdict, reason = additive(relative_excess)
    return Additivity(Metric.TTFT_P90, tax, tax, tax, multi or tax, tax, relative_excess, verdict, reason)


def trend(slope: Estimate, *steps: Estimate, tax: Estimate | None = None) -> Trend:
    taxes = tuple(tax or about(0.1, 0.2) for _ in range(3))
    return Trend(
        "mooncake_both",
        Metric.TTFT_P90,
        "input_tokens",
        None,
        (512, 4096, 32768),
        taxes,
        steps or (about(0, 1),),
        slope,
    )


def h2(gap: Estimate) -> HypothesisVerdict:
    tax = about(0.3, 0.5)
    return verdicts.nixl_gap(gap, tax, tax if gap.value is not None else gap)


UP, FLAT, DOWN = about(0.02, 0.04), about(-0.001, 0.005), about(-0.04, -0.02)

HYPOTHESES: list[tuple[HypothesisVerdict, Outcome, str, str]] = [
    # verdict, outcome, label, a part of the reason
    (verdicts.substrate_tax(about(0.30, 0.50)), SUPPORTED, "", "lies at or above 10%"),
    (verdicts.substrate_tax(about(0.10, 0.20)), SUPPORTED, "", "lies at or above 10%"),
    (verdicts.substrate_tax(about(0.01, 0.09)), REFUTED, "", "lies below 10%"),
    (verdicts.substrate_tax(about(0.05, 0.20)), UNDECIDED, "", "+12.5% [+5.0%, +20.0%] straddles 10%"),
    (verdicts.substrate_tax(FEW), UNDECIDED, "", "+30.0% has no interval: 20 samples are too few"),
    (verdicts.substrate_tax(unknown("plain is degraded at this load: slow")), UNDECIDED, "", "plain is degraded"),
    (h2(about(0.06, 0.08)), SUPPORTED, "", "+7.0 pp [+6.0, +8.0] lies in [5 pp, 10 pp]"),
    (h2(about(0.01, 0.03)), REFUTED, "the gap is smaller", "lies outside"),
    (h2(about(-0.05, -0.01)), REFUTED, "the gap is inverted", "lies outside"),
    (h2(about(0.12, 0.14)), REFUTED, "the gap is larger", "lies outside"),
    (h2(about(0.04, 0.08)), UNDECIDED, "", "straddles 5%"),
    (h2(MISSING), UNDECIDED, "", "nixl_both was not measured"),
    (verdicts.framework_share(split(about(0.1, 0.2))), SUPPORTED, "implementation-cost-dominated", "lies below 50%"),
    (verdicts.framework_share(split(about(0.35, 0.45))), SUPPORTED, "mixed", "lies below 50%"),
    (
        verdicts.framework_share(split(about(0.2, 0.4))),
        SUPPORTED,
        "",
        "no label: +30.0% [+20.0%, +40.0%] straddles 30%",
    ),
    (verdicts.framework_share(split(about(0.5, 0.9))), REFUTED, "framework-cost-dominated", "lies at or above 50%"),
    (verdicts.framework_share(split(about(0.4, 0.6))), UNDECIDED, "", "straddles 50%"),
    (verdicts.framework_share(split(unknown("a share of nothing"))), UNDECIDED, "", "a share of nothing"),
    (verdicts.framework_share(None), UNDECIDED, "", "mooncake_both was not measured in Phase A"),
    (verdicts.additivity(stacked(about(-0.2, 0.2))), SUPPORTED, "linear", "is linear"),
    (verdicts.additivity(stacked(about(0.4, 0.6))), REFUTED, "super-additive", "the connectors interfere"),
    (verdicts.additivity(stacked(about(-0.6, -0.4))), REFUTED, "sub-additive", "they share a cost"),
    (verdicts.additivity(stacked(about(0.2, 0.4))), UNDECIDED, "", "the interval straddles +30%"),
    (verdicts.additivity(None), UNDECIDED, "", "were measured in Phase A"),
    (verdicts.input_trend(trend(UP, about(0.1, 0.2), about(-0.1, 0.2))), SUPPORTED, "", "it grows by +3.0 pp"),
    (verdicts.input_trend(trend(UP, about(0.1, 0.2), about(-0.2, 0.1))), UNDECIDED, "", "whether at every step"),
    (verdicts.input_trend(trend(UP, about(0.1, 0.4), DOWN)), REFUTED, "", "it falls from one length to the next"),
    (verdicts.input_trend(trend(DOWN)), REFUTED, "", "it falls: -3.0 pp"),
    (verdicts.input_trend(trend(FLAT)), REFUTED, "", "it is flat"),
    (verdicts.input_trend(trend(about(-0.01, 0.05))), UNDECIDED, "", "covers zero"),
    (verdicts.input_trend(trend(unknown("mooncake_both was not measured"))), UNDECIDED, "", "was not measured"),
    (verdicts.input_trend(None), UNDECIDED, "", "Phase B did not measure mooncake_both at two lengths"),
    (verdicts.output_trend(trend(UP)), SUPPORTED, "", "it grows by +3.0 pp [+2.0, +4.0] per doubling"),
    (verdicts.output_trend(trend(UP, DOWN)), SUPPORTED, "", "it grows"),
    (verdicts.output_trend(trend(DOWN)), REFUTED, "", "it falls"),
    (verdicts.output_trend(trend(FLAT)), REFUTED, "", "it is flat"),
    (verdicts.output_trend(trend(about(-0.01, 0.05))), UNDECIDED, "", "covers zero"),
    (verdicts.output_trend(None), UNDECIDED, "", "Phase B did not measure"),
]


@pytest.mark.parametrize(("verdict", "outcome", "label", "why"), HYPOTHESES)
def test_the_interval_decides(verdict: HypothesisVerdict, outcome: Outcome, label: str, why: str) -> None:
    assert (verdict.outcome, verdict.label) == (outcome, label)
    assert why in verdict.reason
    assert verdict.claim
    assert verdict.rule


def test_every_hypothesis_is_seen_in_every_outcome() -> None:
    seen = {(verdict.name, outcome) for verdict, outcome, _, _ in HYPOTHESES}
    assert seen == {(f"H{number}", outcome) for number in range(1, 7) for outcome in Outcome}


@pytest.mark.parametrize(
    ("tax", "says"),
    [
        (about(0.30, 0.50), "accepted: the interval lies in it"),
        (about(0.12, 0.20), "revise the prior: the interval lies outside"),
        (about(0.70, 0.80), "revise the prior: the interval lies outside"),
        (about(0.20, 0.30), "not told: +25.0% [+20.0%, +30.0%] straddles 25%"),
    ],
)
def test_the_prior_of_the_trace_replay_is_accepted_or_revised(tax: Estimate, says: str) -> None:
    assert verdicts.substrate_tax(tax).prior == f"+45% in the trace replay, accepted in [25%, 60%]: {says}"


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0.001, 1))
def test_a_narrower_interval_around_the_same_value_never_changes_a_verdict(
    value: float, width: float, less: float
) -> None:
    """What a wide interval decides, a narrow one inside it decides alike."""
    wide = Estimate(value, value - width, value + width, 200)
    narrow = Estimate(value, value - width * less, value + width * less, 200)
    judges: list[Callable[[Estimate], HypothesisVerdict]] = [
        verdicts.substrate_tax,
        h2,
        lambda found: verdicts.framework_share(split(found)),
        lambda found: verdicts.additivity(stacked(found)),
        lambda found: verdicts.output_trend(trend(found)),
    ]
    for judge in judges:
        before, after = judge(wide).outcome, judge(narrow).outcome
        if before != UNDECIDED and not (judge(wide).name == "H6" and before == REFUTED):
            assert after == before


def row(config: str, status: str = RAN, why: str = "") -> ManifestRow:
    return ManifestRow(
        date="20260131", config=config, status=status, skip_reason=why, vllm_version="", vllm_sha="", torch_version="",
        mooncake_version="", nixl_version="", lmcache_version="", gpu="", launch_command="",
        result_directory=f"results/20260131_{config}", step_timing_available=True, step_timing_reason="", cells_done=7,
        cells_failed=0, cells_dropped=0,
    )  # fmt: skip


def artifacts(
    *gaps: Gap, rows: tuple[ManifestRow, ...] = (), reason: str = "no LMCache", planned: bool = True
) -> SuccessCriterion:
    everyone = rows or (row("plain"), row("lmcache_only", SKIP, reason))
    decisions = {"plain": Decision(True, ""), "lmcache_only": Decision(False, reason)}
    return success.artifacts_present(everyone, decisions, gaps, planned)


GOOD_H5, GOOD_H6 = verdicts.input_trend(trend(UP)), verdicts.output_trend(trend(about(-0.01, 0.05)))

CRITERIA: list[tuple[SuccessCriterion, Met, str]] = [
    (success.tax_reported(verdicts.substrate_tax(about(0.3, 0.5))), Met.YES, "prior +45%"),
    (success.tax_reported(verdicts.substrate_tax(about(0.05, 0.2))), Met.YES, "revise the prior"),
    (success.tax_reported(verdicts.substrate_tax(FEW)), Met.UNDECIDED, "too few"),
    (success.tax_reported(verdicts.substrate_tax(MISSING)), Met.NO, "not measured"),
    (success.gap_reported(h2(about(0.06, 0.08))), Met.YES, "agrees"),
    (success.gap_reported(h2(about(-0.06, -0.02))), Met.YES, "disagrees"),
    (success.gap_reported(h2(FEW)), Met.UNDECIDED, "too few"),
    (success.gap_reported(h2(MISSING)), Met.NO, "nixl_both was not measured"),
    (success.cost_labelled(verdicts.framework_share(split(about(0.1, 0.2)))), Met.YES, "implementation-cost-dominated"),
    (success.cost_labelled(verdicts.framework_share(split(about(0.2, 0.4)))), Met.UNDECIDED, "no label"),
    (success.cost_labelled(verdicts.framework_share(split(unknown("of nothing")))), Met.UNDECIDED, "of nothing"),
    (success.cost_labelled(verdicts.framework_share(split(MISSING, MISSING))), Met.NO, "not measured"),
    (success.additivity_told(verdicts.additivity(stacked(about(-0.1, 0.1)))), Met.YES, "linear"),
    (success.additivity_told(verdicts.additivity(stacked(about(0.5, 0.6)))), Met.YES, "super-additive"),
    (success.additivity_told(verdicts.additivity(stacked(about(0.2, 0.4)))), Met.UNDECIDED, "straddles +30%"),
    (success.additivity_told(verdicts.additivity(stacked(MISSING, MISSING))), Met.NO, "not measured"),
    (success.additivity_told(verdicts.additivity(None)), Met.NO, "measured in Phase A"),
    (success.trends_reported(GOOD_H5, GOOD_H6), Met.YES, "H6: +2.0 pp [-1.0, +5.0] per doubling covers zero"),
    (success.trends_reported(GOOD_H5, verdicts.output_trend(trend(FEW))), Met.UNDECIDED, "H6: 20 samples"),
    (success.trends_reported(GOOD_H5, verdicts.output_trend(None)), Met.NO, "H6: Phase B did not measure"),
    (artifacts(), Met.YES, "1 configs ran and lack nothing; 1 were skipped, each with its reason"),
    (artifacts(Gap("results/20260131_plain/env.txt", "is missing")), Met.NO, "plain/env.txt is missing"),
    (artifacts(rows=(row("plain"), row("nixl_both", NOT_RUN))), Met.NO, "nixl_both did not run"),
    (artifacts(reason=""), Met.NO, "lmcache_only was skipped without a reason"),
    (artifacts(planned=False), Met.UNDECIDED, "the plan cannot be read"),
    (success.wall_clock(Estimate(5.0), 1, whole=True), Met.YES, "5.00 h a pass"),
    (success.wall_clock(Estimate(15.0), 3, whole=True), Met.YES, "5.00 h a pass"),
    (success.wall_clock(Estimate(6.5), 1, whole=True), Met.NO, "6.50 h a pass"),
    (success.wall_clock(Estimate(2.0), 1, whole=False), Met.UNDECIDED, "not every planned cell was measured"),
    (success.wall_clock(unknown("no cell was measured"), 1, whole=False), Met.UNDECIDED, "no cell was measured"),
]


@pytest.mark.parametrize(("criterion", "outcome", "why"), CRITERIA)
def test_success_is_judged_by_what_can_be_told(criterion: SuccessCriterion, outcome: Met, why: str) -> None:
    assert criterion.outcome == outcome
    assert why in criterion.reason
    assert criterion.rule


def test_every_criterion_is_seen_met_not_met_and_undecided() -> None:
    assert {(found.number, outcome) for found, outcome, _ in CRITERIA} == {
        (number, outcome) for number in range(1, 8) for outcome in Met
    }


def test_many_things_that_lack_are_counted() -> None:
    found = artifacts(*(Gap(f"results/x/{number}", "is missing") for number in range(9)))
    assert found.reason.endswith("; and 6 more")


def test_additive_words_are_the_specifications() -> None:
    assert [str(kind) for kind in Additive] == ["linear", "super-additive", "sub-additive", "undecided"]
