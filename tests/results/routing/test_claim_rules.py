"""One number decides a claim by its interval; beside it is what the value alone and the specification say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from results.routing.scale import Scale
from results.routing.verdicts import UNIFIED
from results.statistics.judgement import Outcome
from tests.results.routing.test_verdicts import LARGE, ROWS, SMALL, SOME, compare_two, judge, judge_order, labels_of


def test_beside_the_interval_is_what_the_value_alone_says_and_what_the_specification_states() -> None:
    labels = labels_of(ROWS) | {"sticky": "sticky", UNIFIED: "unified"}
    wide = compare_two("worker_ttft_p90_median_s", "sticky", "unified", -0.1, 0.5)
    once = replace(wide, ratio=replace(wide.ratio or SOME, launches=1))
    below = compare_two("apc", "stays", "ear", -0.10, -0.02)
    for slower in (wide, once):
        claims = judge(labels, [slower, below])
        sticky, locality = claims["3.3: sticky slows every instance"], claims["ablation: affinity only keeps locality"]
        assert (sticky.outcome, locality.outcome) == (Outcome.UNDECIDED, Outcome.UNDECIDED)
        placed = "; outside the interval" if slower is wide else ""
        assert sticky.point == f"holds: 1.22 times (specified: 20.3 s and 10.3 s{placed})", "a launch has no interval"
        assert locality.point == "fails: -6.0 pp (specified: 77.2 % (sticky) and 79.4 %)"
        assert locality.reason == "the interval allows both: -6.0 pp [-10.0, -2.0]", "no effect is not in it"
        assert claims["ablation: migration only loses locality"].point == "", "no value, no point"


@pytest.mark.parametrize(
    ("low", "high", "placed"),
    [(60, 65, "inside"), (65, 66, "inside"), (70, 90, "inside"), (10, 61, "outside"), (73, 80, "outside")],
)
def test_the_specified_size_is_held_against_the_interval(low: float, high: float, placed: str) -> None:
    labels = {name: name for name in ("load-balance", "static PD-disagg")}
    wall = compare_two("ttft_p50_s", "static PD-disagg", "load-balance", math.log(low), math.log(high))
    claim = judge(labels, [wall])["3.2: static pools meet the KV wall"]
    assert claim.outcome == Outcome.HOLDS, "its direction is what holds"
    assert claim.point.endswith(f"(specified: 62 to 72 times; {placed} the interval)")


@pytest.mark.parametrize("scale", [SMALL, replace(LARGE, no_loop={"sticky": "no steady state"})])
def test_a_claim_that_the_run_is_too_small_for_places_no_specified_size(scale: Scale) -> None:
    """Its interval is of another system than the specification's."""
    labels = {"sticky": "sticky", UNIFIED: "unified", "LMetric": "LMetric"}
    pairs = [
        compare_two("worker_ttft_p90_median_s", "sticky", "unified", math.log(1.5), math.log(2.0)),
        compare_two("ttft_p90_s", "LMetric", "unified", math.log(1.1), math.log(1.2)),
        compare_two("apc", "LMetric", "sticky", -0.3, -0.2),
    ]
    claims = judge(labels, pairs, scale=scale)
    assert claims["3.3: sticky slows every instance"].point == "holds: 1.73 times (specified: 20.3 s and 10.3 s)"
    assert ("the interval" in claims["log: unified gains little"].point) == (scale is not SMALL)
    assert claims["3.1: load balance loses locality"].point.endswith("; inside the interval)"), "APC needs no scale"


def test_launches_that_agree_to_the_last_digit_place_no_specified_size() -> None:
    labels = {name: name for name in ("LMetric", "sticky")}
    claim = judge(labels, [compare_two("apc", "LMetric", "sticky", 0.0, 0.0)])["3.1: load balance loses locality"]
    assert claim.point.endswith("(specified: 56.9 % and 77.2 %)")


def test_an_undecided_claim_says_which_effects_its_interval_excludes() -> None:
    labels = labels_of(ROWS) | {"sticky": "sticky", UNIFIED: "unified"}
    wide = compare_two("worker_ttft_p90_median_s", "sticky", "unified", math.log(0.9), math.log(1.3))
    claims = judge(labels, [wide, compare_two("apc", "leaves", "ear", -0.4, 0.2)])
    slow, local = claims["3.3: sticky slows every instance"], claims["ablation: migration only loses locality"]
    both = "the interval allows both: effects below"
    assert slow.reason == f"{both} -10.0 % and above +30.0 % are excluded"
    assert local.reason == f"{both} -40.0 pp and above +20.0 pp are excluded"
    within = judge(labels, [compare_two("apc", "stays", "ear", -0.1, 0.02)])["ablation: affinity only keeps locality"]
    assert within.reason == f"{both} -10.0 pp and above +2.0 pp are excluded"
    alike = judge(labels, [compare_two("apc", "leaves", "ear", 0.0, 0.0)])["ablation: migration only loses locality"]
    assert alike.reason == "the trials agree to the last digit: an interval has no width"


@pytest.mark.parametrize(
    ("apc", "ttft", "outcomes"),
    [
        ((-0.02, 0.01), (0.10, 0.12), (Outcome.HOLDS, Outcome.HOLDS)),
        ((-0.231, -0.23), (0.5, 0.51), (Outcome.FAILS, Outcome.FAILS)),
        ((-0.06, -0.04), (0.15, 0.18), (Outcome.UNDECIDED, Outcome.UNDECIDED)),
    ],
)
def test_lmetric_is_like_unified_within_a_limit_in_apc_and_in_ttft(
    apc: tuple[float, float], ttft: tuple[float, float], outcomes: tuple[Outcome, Outcome]
) -> None:
    """The limit of the ratio is 0.85, whose logarithm is -0.163."""
    claims = judge_order(
        [compare_two("apc", "LMetric", UNIFIED, *apc), compare_two("ttft_p90_s", "LMetric", UNIFIED, *ttft)]
    )
    alike = claims["log: LMetric places like unified"], claims["log: unified gains little"]
    assert tuple(one.alone or one.outcome for one in alike) == outcomes
    assert [one.p is None for one in alike] == [False, False]
    if outcomes[1] == Outcome.FAILS:
        assert alike[1].reason.startswith("at least 39.3 % below: 0.604 [0.600, 0.607] times")
