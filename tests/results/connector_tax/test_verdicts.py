"""Each hypothesis and each success criterion can hold, fail and stay undecided; without a number it is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.connector_tax import hypotheses as rules
from results.connector_tax import verdicts as criteria
from results.connector_tax.combined_taxes import Additive, Additivity, Decomposition, judge_sum
from results.connector_tax.manifest import NOT_RUN, RAN, SKIP
from results.connector_tax.tax import Metric
from results.connector_tax.trends import Trend
from results.records.estimate import Estimate, unknown
from results.records.frames import Gap
from results.records.manifest import ManifestRow
from results.records.run_folder import PreflightDecision
from results.statistics.judgement import Judgement, Outcome, correct_together

HOLDS, FAILS, UNDECIDED, OPEN = Outcome.HOLDS, Outcome.FAILS, Outcome.UNDECIDED, Outcome.OPEN
MISSING = unknown("nixl_both was not measured at this load")
FEW = Estimate(0.3, n=20, reason="20 samples are too few", launches=3)


def about(low: float, high: float) -> Estimate:
    """An estimate in the middle of its interval."""
    return Estimate((low + high) / 2, low, high, 200, basis="paired over 3 trials", launches=3)


def trend(slope: Estimate, *steps: Estimate) -> Trend:
    lengths, taxes = (512, 4096, 32768), (about(0.1, 0.2),) * 3
    rises = steps or (about(0.01, 1),)
    return Trend("mooncake_both", Metric.TTFT_P90, "input_tokens", None, lengths, taxes, rises, slope)


def h2(gap: Estimate) -> Judgement:
    tax = about(0.3, 0.5)
    return rules.judge_gap(gap, tax, tax if gap.value is not None else gap)


def h3(share: Estimate, framework: Estimate | None = None, tax: Estimate | None = None) -> Judgement:
    parts = (tax or about(0.3, 0.5), framework or about(0.0, 0.1), about(0.2, 0.4))
    return rules.judge_framework(Decomposition("mooncake_both", Metric.TTFT_P90, *parts, share))


def h4(relative_excess: Estimate, multi: Estimate | None = None) -> Judgement:
    tax = about(0.1, 0.2)
    taxes = (tax, tax, tax, multi or tax, tax)
    return rules.judge_additivity(Additivity(Metric.TTFT_P90, *taxes, relative_excess, *judge_sum(relative_excess)))


UP, FLAT, DOWN = about(0.02, 0.04), about(-0.001, 0.005), about(-0.04, -0.02)

HYPOTHESES: list[tuple[Judgement, Outcome, str, str]] = [
    # verdict, outcome, label, a part of the reason
    (rules.judge_tax(about(0.30, 0.50)), HOLDS, "", "lies at or above 10 %"),
    (rules.judge_tax(about(0.10, 0.20)), HOLDS, "", "lies at or above 10 %"),
    (rules.judge_tax(about(0.01, 0.09)), FAILS, "", "lies below 10 %"),
    (rules.judge_tax(about(0.05, 0.20)), UNDECIDED, "", "+12.5 % [+5.0, +20.0] straddles 10 %"),
    (rules.judge_tax(about(-0.05, 0.12)), UNDECIDED, "", "straddles 10 %; effects above 12.0 % are excluded"),
    (rules.judge_tax(FEW), UNDECIDED, "", "+30.0 %: no verdict, 20 samples are too few"),
    (rules.judge_tax(unknown("plain is degraded at this load: slow")), OPEN, "", "plain is degraded"),
    (h2(about(0.06, 0.08)), HOLDS, "", "+7.0 pp [+6.0, +8.0] lies in [5 pp, 10 pp]"),
    (h2(about(0.01, 0.03)), FAILS, "the gap is smaller", "lies outside"),
    (h2(about(-0.05, -0.01)), FAILS, "the gap is inverted", "lies outside"),
    (h2(about(0.12, 0.14)), FAILS, "the gap is larger", "lies outside"),
    (h2(about(0.04, 0.08)), UNDECIDED, "", "straddles 5 pp"),
    (h2(about(-0.02, 0.12)), UNDECIDED, "", "straddles 5 pp and 10 pp; gaps above 12.0 pp are excluded"),
    (h2(MISSING), OPEN, "", "nixl_both was not measured"),
    (h3(about(0.1, 0.2)), HOLDS, "implementation-cost-dominated", "lies below 50 %"),
    (h3(about(0.35, 0.45)), HOLDS, "mixed", "lies below 50 %"),
    (h3(about(0.2, 0.4)), HOLDS, "", "no label: +30.0 % [+20.0, +40.0] straddles 30 %"),
    (h3(about(0.5, 0.9)), FAILS, "framework-cost-dominated", "lies at or above 50 %"),
    (h3(about(0.4, 0.6)), UNDECIDED, "", "straddles 50 %"),
    (h3(about(-0.2, 0.6)), UNDECIDED, "", "straddles 50 %; shares above 60.0 % are excluded"),
    (h3(about(2.2, 3.2)), FAILS, "noop_connector costs more", "above 100 %: noop_connector"),
    (h3(about(0.4, 2.4)), UNDECIDED, "", "+140.0 % [+40.0, +240.0] straddles 50 %"),
    (h3(about(-0.3, -0.1)), HOLDS, "implementation-cost-dominated", "is faster than plain"),
    (h3(about(0.6, 0.8), tax=about(-0.1, 0.3)), UNDECIDED, "", "may be zero: it has no"),
    (h3(unknown("not above zero"), tax=about(-0.3, 0.1)), UNDECIDED, "", "effects above 10.0 % are excluded"),
    (h3(unknown("a share of nothing")), OPEN, "", "a share of nothing"),
    (rules.judge_framework(None), OPEN, "", "mooncake_both was not measured at ref_safe"),
    (h4(about(-0.2, 0.2)), HOLDS, "linear", "is linear"),
    (h4(about(0.4, 0.6)), FAILS, "super-additive", "the connectors interfere"),
    (h4(about(-0.6, -0.4)), FAILS, "sub-additive", "they share a cost"),
    (h4(about(0.2, 0.4)), UNDECIDED, "", "+30.0 % [+20.0, +40.0]: the interval straddles +30 %"),
    (rules.judge_additivity(None), OPEN, "", "were measured at ref_safe"),
    (rules.judge_input_trend(trend(UP, about(0.1, 0.2), about(0.01, 0.2))), HOLDS, "", "it grows by +3.0 pp"),
    (rules.judge_input_trend(trend(UP, about(0.1, 0.2), about(-0.1, 0.2))), UNDECIDED, "", "every step (1 of 2 undec"),
    (rules.judge_input_trend(trend(UP, about(0.1, 0.2), about(-0.2, 0.1))), UNDECIDED, "", "perhaps not at every step"),
    (rules.judge_input_trend(trend(UP, about(0.1, 0.2), FEW)), UNDECIDED, "", "perhaps not at every step"),
    (rules.judge_input_trend(trend(UP, about(0.1, 0.4), DOWN)), FAILS, "", "it falls from one length to the next"),
    (rules.judge_input_trend(trend(DOWN)), FAILS, "", "it falls: -3.0 pp"),
    (rules.judge_input_trend(trend(FLAT)), FAILS, "", "it is flat"),
    (rules.judge_input_trend(trend(about(-0.01, 0.05))), UNDECIDED, "", "covers zero"),
    (rules.judge_input_trend(trend(unknown("mooncake_both was not measured"))), OPEN, "", "was not measured"),
    (rules.judge_input_trend(None), OPEN, "", "mooncake_both was not measured at two lengths"),
    (rules.judge_output_trend(trend(UP)), HOLDS, "", "it grows by +3.0 pp [+2.0, +4.0] per doubling"),
    (rules.judge_output_trend(trend(UP, about(0.9, 1.2), about(-0.80, -0.54))), FAILS, "", "it falls from one"),
    (rules.judge_output_trend(trend(UP, about(0.1, 0.2), about(-0.2, 0.1))), UNDECIDED, "", "perhaps not at"),
    (rules.judge_output_trend(trend(DOWN)), FAILS, "", "it falls"),
    (rules.judge_output_trend(trend(FLAT)), FAILS, "", "it is flat"),
    (rules.judge_output_trend(trend(about(-0.01, 0.05))), UNDECIDED, "", "covers zero"),
    (rules.judge_output_trend(None), OPEN, "", "was not measured at two lengths"),
]


def test_a_trend_without_the_longest_length_names_those_that_decide() -> None:
    """The specification's H5 is about 512 to 32,768 tokens: two lengths that grow do not show that the third does."""
    lengths = replace(trend(UP), lengths=(512, 4096), taxes=(about(0.1, 0.2),) * 2, absent=(32768,))
    judged = rules.judge_input_trend(lengths)
    assert (judged.outcome, judged.label) == (HOLDS, "from 512 to 4,096 tokens")
    assert "judged from 512 to 4,096 tokens, without 32,768" in judged.reason
    unsure = rules.judge_input_trend(replace(lengths, slope=about(-0.01, 0.05)))
    assert (unsure.outcome, unsure.label) == (UNDECIDED, "")
    assert "without 32,768" in unsure.reason
    assert "judged from" not in rules.judge_input_trend(trend(UP)).reason


@pytest.mark.parametrize(("verdict", "outcome", "label", "why"), HYPOTHESES)
def test_the_interval_decides(verdict: Judgement, outcome: Outcome, label: str, why: str) -> None:
    assert (verdict.outcome, verdict.label) == (outcome, label)
    assert why in verdict.reason
    assert verdict.claim
    assert verdict.rule


def test_every_hypothesis_is_seen_in_every_outcome() -> None:
    seen = {(verdict.name, outcome) for verdict, outcome, _, _ in HYPOTHESES}
    assert seen == {(f"H{number}", outcome) for number in range(1, 7) for outcome in Outcome}


def test_the_rule_of_h3_names_the_tax_that_has_no_shares() -> None:
    judged = h3(about(0.6, 0.8), tax=about(-0.1, 0.3))
    assert judged.outcome == UNDECIDED, "although the share's own interval lies above 50 %"
    assert "undecided where that of tax(mooncake_both) covers 0" in judged.rule


@pytest.mark.parametrize(
    "judged",
    [
        h3(about(0.4, 2.4)),
        h3(about(-0.5, 0.2)),
        h3(Estimate(-0.012, reason="may be zero", launches=5), tax=about(-0.1, 0.3)),
        h3(Estimate(1.4, 1.2, 1.6, launches=2)),
    ],
)
def test_a_share_that_may_be_a_part_of_the_whole_is_not_said_to_be_none(judged: Judgement) -> None:
    """-1 % that is not distinguishable from none makes no config faster; neither does the spread of a few launches."""
    assert "faster than plain" not in judged.reason
    assert "costs more" not in judged.reason


def test_the_rule_of_h2_blames_the_coupling_for_a_gap_that_is_gone_only() -> None:
    """The specification's falsifier: the gap shrinks or inverts."""
    assert "below it, the gap of the trace replay was its coupling's" in h2(about(0.12, 0.14)).rule


def test_the_rule_of_h3_says_that_its_labels_are_not_corrected() -> None:
    """30 % has no p: Holm corrects the decision at 50 % alone."""
    assert "Label, by the share's interval (Holm's correction is of 50 % alone): framework-cost" in (
        rules.judge_framework(None).rule
    )


def test_the_p_of_a_trend_is_that_of_a_decision_which_its_interval_takes() -> None:
    """A slope above zero is not flat: an undecided hypothesis with the p of flatness would correct the others less."""
    slightly = trend(about(0.002, 0.008), about(0.001, 0.01), about(-0.001, 0.01))
    judged = rules.judge_input_trend(replace(slightly, p_zero=0.01, p_flat=0.001, p_rise=0.2))
    assert (judged.outcome, judged.p) == (UNDECIDED, 0.2)
    flat = rules.judge_input_trend(replace(trend(FLAT), p_zero=0.3, p_flat=0.001, p_rise=0.2))
    assert (flat.outcome, flat.p) == (FAILS, 0.001)
    assert "below 1 pp per doubling and not above 0" in flat.rule


@pytest.mark.parametrize(
    ("tax", "says"),
    [
        (about(0.30, 0.50), "accepted: the interval lies in it"),
        (about(0.12, 0.20), "revise the prior: the interval lies outside"),
        (about(0.70, 0.80), "revise the prior: the interval lies outside"),
        (about(0.20, 0.30), "undecided: +25.0 % [+20.0, +30.0] straddles 25 %"),
    ],
)
def test_the_prior_of_the_trace_replay_is_accepted_or_revised(tax: Estimate, says: str) -> None:
    assert rules.judge_tax(tax).prior == f"+45 % in the trace replay, accepted in [25 %, 60 %]: {says}"


def test_a_gap_that_does_not_survive_the_correction_does_not_agree_with_the_trace_replay() -> None:
    gap = replace(h2(about(0.06, 0.08)), p=0.04)
    (judged,) = correct_together([gap], undefined=1)
    assert (judged.outcome, judged.alone) == (UNDECIDED, HOLDS)
    assert rules.withdraw_agreement(judged).prior.endswith("accepted in [5 pp, 10 pp]: undecided")
    assert rules.withdraw_agreement(gap).prior.endswith("accepted in [5 pp, 10 pp]: agrees")


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0.001, 1))
def test_a_narrower_interval_around_the_same_value_never_changes_a_verdict(
    value: float, width: float, less: float
) -> None:
    """What a wide interval decides, a narrow one inside it decides alike."""
    wide = Estimate(value, value - width, value + width, 200, launches=3)
    narrow = Estimate(value, value - width * less, value + width * less, 200, launches=3)
    judges: list[Callable[[Estimate], Judgement]] = [
        rules.judge_tax,
        h2,
        h3,
        h4,
        lambda estimate: rules.judge_output_trend(trend(estimate)),
    ]
    for judge in judges:
        before, after = judge(wide).outcome, judge(narrow).outcome
        if before != UNDECIDED and not (judge(wide).name == "H6" and before == FAILS):
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
) -> Judgement:
    everyone = rows or (row("plain"), row("lmcache_only", SKIP, reason))
    decisions = {"plain": PreflightDecision(True, ""), "lmcache_only": PreflightDecision(False, reason)}
    return criteria.judge_artifacts_present(everyone, decisions, gaps, (), planned)


GOOD_H5, GOOD_H6 = rules.judge_input_trend(trend(UP)), rules.judge_output_trend(trend(DOWN))
UNDECIDED_H6 = rules.judge_output_trend(trend(about(-0.01, 0.05)))
ONE_LEFT = unknown("fewer than two lengths are left")
ONE_LENGTH = rules.judge_input_trend(replace(trend(ONE_LEFT), lengths=(512,), taxes=(about(0.1, 0.2),), steps=()))

CRITERIA: list[tuple[Judgement, Outcome, str]] = [
    (criteria.judge_tax_reported(rules.judge_tax(about(0.3, 0.5))), HOLDS, "prior +45 %"),
    (criteria.judge_tax_reported(rules.judge_tax(about(0.05, 0.2))), HOLDS, "revise the prior"),
    (
        criteria.judge_tax_reported(rules.judge_tax(about(0.222, 0.45))),
        UNDECIDED,
        "by the point: +33.6 % accepts the prior",
    ),
    (criteria.judge_tax_reported(rules.judge_tax(FEW)), UNDECIDED, "too few"),
    (criteria.judge_tax_reported(rules.judge_tax(MISSING)), FAILS, "not measured"),
    (criteria.judge_gap_reported(h2(about(0.06, 0.08))), HOLDS, "agrees"),
    (criteria.judge_gap_reported(h2(about(-0.06, -0.02))), HOLDS, "disagrees"),
    (criteria.judge_gap_reported(h2(about(0.04, 0.08))), UNDECIDED, "by the point: +6.0 pp agrees; by the interval"),
    (criteria.judge_gap_reported(h2(FEW)), UNDECIDED, "too few"),
    (criteria.judge_gap_reported(h2(MISSING)), FAILS, "nixl_both was not measured"),
    (criteria.judge_cost_labeled(h3(about(0.1, 0.2))), HOLDS, "implementation-cost"),
    (criteria.judge_cost_labeled(h3(about(0.2, 0.4))), UNDECIDED, "by the point: 30.0 %, mixed;"),
    (criteria.judge_cost_labeled(h3(unknown("of nothing"))), UNDECIDED, "of nothing"),
    (criteria.judge_cost_labeled(h3(MISSING, MISSING)), FAILS, "not measured"),
    (criteria.judge_additivity_decided(h4(about(-0.1, 0.1))), HOLDS, "linear"),
    (criteria.judge_additivity_decided(h4(about(0.5, 0.6))), HOLDS, "super-additive"),
    (criteria.judge_additivity_decided(h4(about(0.132, 0.4))), UNDECIDED, "+26.6 % is linear;"),
    (criteria.judge_additivity_decided(h4(about(0.2, 0.42))), UNDECIDED, "+31.0 % is not linear"),
    (criteria.judge_additivity_decided(h4(MISSING, MISSING)), FAILS, "not measured"),
    (criteria.judge_additivity_decided(rules.judge_additivity(None)), FAILS, "measured at ref_safe"),
    (criteria.judge_trends_reported(GOOD_H5, GOOD_H6), HOLDS, "H6: by the point: does not grow, -3.0 pp per doubling"),
    (criteria.judge_trends_reported(GOOD_H5, UNDECIDED_H6), UNDECIDED, "H6: by the point: grows, +2.0 pp per doubling"),
    (
        criteria.judge_trends_reported(GOOD_H5, rules.judge_output_trend(trend(FEW))),
        UNDECIDED,
        "by the interval: 20 samples",
    ),
    (
        criteria.judge_trends_reported(GOOD_H5, rules.judge_output_trend(None)),
        FAILS,
        "H6: mooncake_both was not measured",
    ),
    (criteria.judge_trends_reported(ONE_LENGTH, GOOD_H6), FAILS, "H5: fewer than two lengths are left"),
    (artifacts(), HOLDS, "1 configs ran and lack nothing; 1 were skipped, each with its reason"),
    (artifacts(Gap("results/20260131_plain/env.txt", "is missing")), FAILS, "plain/env.txt is missing"),
    (artifacts(rows=(row("plain"), row("nixl_both", NOT_RUN))), FAILS, "nixl_both did not run"),
    (artifacts(reason=""), FAILS, "lmcache_only was skipped without a reason"),
    (artifacts(planned=False), OPEN, "the plan cannot be read"),
    (criteria.judge_wall_clock(Estimate(5.0), Estimate(5.0), whole=True), HOLDS, "5.00 h"),
    (criteria.judge_wall_clock(Estimate(5.0), Estimate(16.0), whole=True), HOLDS, "5.00 h; with the confirm stage"),
    (criteria.judge_wall_clock(Estimate(15.0), Estimate(15.0), whole=True), FAILS, "15.00 h"),
    (
        criteria.judge_wall_clock(Estimate(2.0), Estimate(2.0), whole=False),
        UNDECIDED,
        "not every planned cell was measured",
    ),
    (criteria.judge_wall_clock(unknown("no cell"), unknown("no cell"), whole=False), OPEN, "no cell"),
]


@pytest.mark.parametrize(("criterion", "outcome", "why"), CRITERIA)
def test_success_is_judged_by_what_can_be_told(criterion: Judgement, outcome: Outcome, why: str) -> None:
    assert criterion.outcome == outcome
    assert why in criterion.reason
    assert criterion.rule


def test_every_criterion_is_seen_to_hold_to_fail_and_without_an_answer() -> None:
    without = {"6": OPEN}
    assert {(criterion.name, outcome) for criterion, outcome, _ in CRITERIA} - {("7", OPEN)} == {
        (name, outcome) for name in "1234567" for outcome in (HOLDS, FAILS, without.get(name, UNDECIDED))
    }


def test_many_things_that_lack_are_counted() -> None:
    judgement = artifacts(*(Gap(f"results/x/{number}", "is missing") for number in range(9)))
    assert judgement.reason.endswith("; and 6 more")


def test_additive_words_are_the_specifications() -> None:
    assert [str(kind) for kind in Additive] == ["linear", "super-additive", "sub-additive", "undecided"]
