"""Intervals and p-values of one number, and of a rule over several, at any level."""

from __future__ import annotations

import pytest

from results.records.estimate import Estimate
from results.statistics.judgement import Outcome, judged
from results.statistics.student import change_level, find_p_of_rule, find_p_value

ABOVE = Estimate(1.0, 0.2, 1.8, launches=3)
RATIO = Estimate(2.0, 1.25, 3.2, launches=4)
ALIKE = Estimate(0.5, 0.5, 0.5, launches=3)


def test_the_p_value_agrees_with_the_interval() -> None:
    assert find_p_value(Estimate(0.5, 0.0, 1.0, launches=3), 0.0) == pytest.approx(0.05)
    assert find_p_value(Estimate(2.0, 1.0, 4.0, launches=5), 1.0) == pytest.approx(0.05)
    assert find_p_value(Estimate(0.5, 0.0, 1.0, launches=1), 0.0) is None
    assert find_p_value(ALIKE, 0.0) == 0.25


def test_a_bound_that_is_cut_at_what_the_number_can_be_does_not_lower_the_p_value() -> None:
    """R^2 over launches ends at 1: where its interval covers 0.95, its p is above 0.05."""
    for low, decides in ((0.949, False), (0.951, True)):
        p = find_p_value(Estimate(0.99, low, 1.0, launches=3), 0.95)
        assert p is not None
        assert (p < 0.05) is decides


def test_an_interval_covers_no_effect_from_the_level_of_its_p_value_on() -> None:
    for estimate, none in ((ABOVE, 0.0), (RATIO, 1.0)):
        p = find_p_value(estimate, none)
        assert p is not None
        below, above = (change_level(estimate, 1 - p * by, is_ratio=none == 1.0) for by in (1.001, 0.999))
        assert (below.low or 0) > none > (above.low or 0)
    assert change_level(ABOVE, 0.95) == ABOVE


def test_a_rule_over_one_number_has_its_p_value() -> None:
    def apply(level: float) -> Outcome:
        return Outcome.HOLDS if judged(change_level(ABOVE, level)) == "higher" else Outcome.UNDECIDED

    assert find_p_of_rule(apply) == pytest.approx(find_p_value(ABOVE, 0.0), rel=1e-3)
    assert find_p_of_rule(lambda level: Outcome.UNDECIDED) == 1.0
    assert 0 < find_p_of_rule(lambda level: Outcome.FAILS) < 1e-5, "never 0"


def test_launches_that_all_agree_do_not_make_a_p_of_zero() -> None:
    assert find_p_of_rule(lambda level: Outcome.HOLDS if change_level(ALIKE, level).low else Outcome.OPEN) == 1.0
    assert find_p_value(ALIKE, 0.0) == 0.25
