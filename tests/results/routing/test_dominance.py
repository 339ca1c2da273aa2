"""EAR dominates only where all comparisons of a claim (C3, 5.4) say so, and what decided it is shown."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from results.report.page import split_judgements
from results.routing.pairs import Pair
from results.statistics.judgement import Outcome
from tests.results.routing.test_verdicts import BASELINES, LARGE, SMALL, WITH_BASELINES, compare_two, judge, paper

DIMENSIONS = ("ttft_p90_s", "tpot_p90_s", "apc", "worker_ttft_p90_max_s", "amplification")
BETTER, MORE = (-0.501, -0.5), (0.1, 0.101)


def against_all(times: tuple[float, float], apc: tuple[float, float]) -> list[Pair]:
    """EAR against every baseline in every dimension, with these bounds."""
    bounds = {metric: apc if metric == "apc" else times for metric in DIMENSIONS}
    return [compare_two(metric, "ear", name, *bounds[metric]) for name in BASELINES for metric in DIMENSIONS]


@pytest.mark.parametrize(
    ("apc", "outcome", "begin"),
    [
        (MORE, Outcome.HOLDS, "the least clear: "),
        ((-0.101, -0.1), Outcome.FAILS, "worse: APC against load-balance -10.1 pp [-10.1, -10.0]"),
        ((-0.1, 0.2), Outcome.UNDECIDED,
         "not distinguishable, among others: APC against load-balance +5.0 pp [-10.0, +20.0]"),
    ],
)  # fmt: skip
def test_ear_dominates_only_where_every_comparison_says_so_and_the_page_shows_what_decided(
    apc: tuple[float, float], outcome: Outcome, begin: str
) -> None:
    claim = judge(WITH_BASELINES, against_all(BETTER, apc))["C3: EAR dominates"]
    assert claim.outcome == outcome
    assert claim.reason.startswith(begin)
    answers, questions = split_judgements([claim], lambda _: "", 1)
    (text,) = [one.text for one in answers] + [one.text for one in questions]
    assert "[" in text
    assert "no interval" not in text


def test_one_loss_by_chance_among_wins_does_not_fail_dominance() -> None:
    """The p of the wins says nothing for the loss."""
    wins = [one for one in against_all(BETTER, MORE) if (one.second, one.metric) != ("sticky", "tpot_p90_s")]
    loss = compare_two("tpot_p90_s", "ear", "sticky", 0.01, 2.0)
    assert paper(*wins, loss)["C3: EAR dominates"] == Outcome.UNDECIDED


def test_what_the_undecided_comparisons_exclude_is_listed() -> None:
    pairs = against_all((math.log(0.8), math.log(1.1)), MORE)
    dominates = judge(WITH_BASELINES, pairs)["C3: EAR dominates"]
    assert "in 20 comparisons (" in dominates.reason
    assert "against load-balance: effects below -20.0 % and above +10.0 % are excluded; " in dominates.reason


def test_dominance_by_the_point_counts_every_comparison() -> None:
    pairs = against_all((-0.6, 0.1), (-0.1, 0.3))
    for known, point in ((pairs, "holds: better in 25 of 25"), (pairs[:-1], "fails: better in 24 of 25")):
        claim = judge(WITH_BASELINES, known)["C3: EAR dominates"]
        assert claim.outcome == Outcome.UNDECIDED
        assert claim.point.startswith(f"{point} comparisons (specified: of its prototype: TTFT p90 7.35 s")


@pytest.mark.parametrize(
    ("apc", "outcome"), [((-0.101, -0.1), Outcome.FAILS), (MORE, Outcome.OPEN), ((-0.1, 0.2), Outcome.OPEN)]
)
def test_one_baseline_suffices_to_contradict_dominance_and_not_to_show_it(
    apc: tuple[float, float], outcome: Outcome
) -> None:
    few = {name: label for name, label in WITH_BASELINES.items() if label not in BASELINES or label == "sticky"}
    own = [one for one in against_all(BETTER, apc) if one.second == "sticky"]
    claim = judge(few, own)["C3: EAR dominates"]
    assert claim.outcome == outcome
    assert "not in this run: load-balance, LMetric, kvcache+load, static PD-disagg; " in claim.reason
    if outcome == Outcome.OPEN:
        assert (claim.p, claim.needs.endswith("in the same run")) == (1.0, True), "it might have failed: in the family"
        return
    complete = judge(WITH_BASELINES, against_all(BETTER, apc))["C3: EAR dominates"]
    assert claim.p == pytest.approx(complete.p), "by the number of all comparisons, whichever were run"


LEAST_SERVICE = "5.4: EAR has the least service time"


def in_the_corner(service: tuple[float, float], amplification: tuple[float, float] = BETTER) -> list[Pair]:
    """EAR against every baseline in the two dimensions of figure 8."""
    bounds = {"e2e_mean_s": service, "amplification": amplification}
    return [compare_two(metric, "ear", name, *bounds[metric]) for name in BASELINES for metric in bounds]


@pytest.mark.parametrize(
    ("service", "outcome"), [(BETTER, Outcome.HOLDS), (MORE, Outcome.FAILS), ((-0.5, 0.1), Outcome.UNDECIDED)]
)
def test_ear_is_in_the_corner_of_least_service_time_only_against_every_baseline(
    service: tuple[float, float], outcome: Outcome
) -> None:
    claim = judge(WITH_BASELINES, in_the_corner(service))[LEAST_SERVICE]
    assert claim.outcome == outcome
    assert claim.rule.startswith("holds where all 10 comparisons")
    assert claim.point.startswith("fails: better in 5" if service == MORE else "holds: better in 10")


def test_the_corner_needs_a_loop_and_instances_of_their_own_and_no_hot_sessions() -> None:
    pairs = in_the_corner(BETTER)
    few_hot = judge(WITH_BASELINES, pairs, scale=replace(LARGE, hot_sessions=1))[LEAST_SERVICE]
    assert few_hot.outcome == Outcome.HOLDS
    held_back = replace(LARGE, max_inflight_sessions=64, no_loop={"sticky": "a limit held back 40 % of the sessions"})
    limited = judge(WITH_BASELINES, pairs, scale=held_back)[LEAST_SERVICE]
    assert (limited.outcome, limited.p) == (Outcome.OPEN, 1.0)
    assert "2 not compared" in limited.reason
    small = judge(WITH_BASELINES, pairs, scale=SMALL)[LEAST_SERVICE]
    assert (small.outcome, small.label, small.p) == (Outcome.OPEN, "not testable at this scale", None)


def test_a_corner_that_the_data_leave_open_stays_in_the_family() -> None:
    """Without a loop under EAR nothing is compared: the size of the family must not depend on that."""
    scale = replace(LARGE, no_loop={"ear": "no steady state: queues grow"})
    claim = judge(WITH_BASELINES, in_the_corner(BETTER), scale=scale)[LEAST_SERVICE]
    assert (claim.outcome, claim.p) == (Outcome.OPEN, 1.0)
    assert "10 not compared, as no loop of dispatch coupling is stated (ear: no steady state" in claim.reason
    assert "a rate that all of these sustain" in claim.reason
    unmeasured = judge(WITH_BASELINES, [], scale=scale)[LEAST_SERVICE]
    assert (unmeasured.outcome, unmeasured.p) == (Outcome.OPEN, None), "no trial gave an interval"


def test_a_comparison_without_an_interval_leaves_the_p_of_dominance_at_one() -> None:
    pairs = against_all(BETTER, MORE)
    whole, cut = (judge(WITH_BASELINES, own)["C3: EAR dominates"] for own in (pairs, pairs[:-1]))
    assert (whole.outcome, whole.p is not None and whole.p < 0.05) == (Outcome.HOLDS, True)
    assert (cut.outcome, cut.p) == (Outcome.UNDECIDED, 1.0)


@pytest.mark.parametrize("worse", [False, True])
def test_ear_dominates_no_policy_by_times_that_depend_on_the_length_of_the_replay(worse: bool) -> None:
    scale = replace(LARGE, no_loop={"load-balance": "no steady state: queues grow"})
    pairs = against_all(BETTER, (-0.101, -0.1) if worse else MORE)
    claim = judge(WITH_BASELINES, pairs, scale=scale)["C3: EAR dominates"]
    assert claim.outcome == (Outcome.FAILS if worse else Outcome.OPEN), "its APC and its TPOT are compared"
    assert "3 not compared, as they depend on the length of the replay (load-balance: no steady state" in claim.reason
    assert ("better in 17, worse in 5" if worse else "better in 22, worse in 0") in claim.reason
    assert claim.point == ""
    assert worse or claim.p == 1.0
    limited = judge(WITH_BASELINES, pairs, scale=replace(scale, max_inflight_sessions=9))["C3: EAR dominates"]
    assert "not compared" not in limited.reason
