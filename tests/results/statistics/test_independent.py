"""The difference of two means: Welch's interval and p, and none where nothing tells how the values vary."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from scipy import stats

from results.records.estimate import Estimate
from results.statistics.estimates import ALL_AGREE, compute_student_interval, cut_bounds, mean
from results.statistics.independent import find_p_of_equality, subtract_means

FIRST, SECOND = [0.10, 0.12, 0.11], [0.30, 0.50, 0.10, 0.45, 0.20]
STATED = (2, 4)
"""Their degrees of freedom."""
WELCH = float(stats.ttest_ind(SECOND, FIRST, equal_var=False).pvalue)


@pytest.mark.parametrize("level", [0.95, 0.99])
def test_two_samples_of_unequal_spread_have_welchs_interval(level: float) -> None:
    first, second = [0.10, 0.12, 0.11], [0.30, 0.50, 0.10, 0.45, 0.20]
    found = subtract_means(first, second, level=level)
    expected = stats.ttest_ind(second, first, equal_var=False).confidence_interval(level)
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert (found.n, found.launches) == (3, 3)


def test_a_sample_that_does_not_vary_leaves_the_others_interval() -> None:
    found = subtract_means([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
    low, high = stats.t.interval(0.95, 2, loc=1.0, scale=stats.sem([1.0, 2.0, 3.0]))
    assert (found.value, found.low, found.high) == pytest.approx((1.0, low, high))


def test_samples_that_do_not_vary_are_certain_only_where_they_are_equal() -> None:
    apart = subtract_means([0.7, 0.7, 0.7], [0.71, 0.71, 0.71])
    assert (apart.low, apart.high, apart.reason) == (None, None, ALL_AGREE)
    same = subtract_means([0.7, 0.7, 0.7], [0.7, 0.7, 0.7])
    assert (same.value, same.low, same.high) == pytest.approx((0.0, 0.0, 0.0))


def test_fewer_than_three_values_have_a_difference_and_no_interval() -> None:
    few = subtract_means([1.0, 2.0, 3.0, 4.0], [5.0, 6.0])
    assert (few.value, few.low, few.high) == (3.0, None, None)
    assert few.reason == "4 and 2 values: an interval needs 3 of each"
    assert subtract_means([], [1.0]).value is None


@pytest.mark.parametrize("made", [float, math.exp, math.expm1])
def test_intervals_on_any_scale_have_welchs_p(made: Callable[[float], float]) -> None:
    first, second = (mean(values).transform(made) for values in (FIRST, SECOND))
    assert find_p_of_equality(first, second, STATED) == pytest.approx(WELCH)
    assert find_p_of_equality(second, first, STATED[::-1]) == pytest.approx(WELCH)


def test_a_bound_that_was_cut_leaves_the_p_as_it_is() -> None:
    first, second = mean([0.1, 0.5, 0.3]), mean([2.0, 4.0, 9.0])
    assert second.low is not None
    assert second.low < 0
    cut = find_p_of_equality(cut_bounds(first), cut_bounds(second), (2, 2))
    assert cut == find_p_of_equality(first, second, (2, 2))


def test_degrees_that_are_not_stated_give_the_larger_p_of_both_extremes() -> None:
    def p_of(difference: float, degrees: tuple[float | None, float | None]) -> float:
        first, second = (Estimate(at, at - 1, at + 1, launches=5) for at in (0.0, difference))
        p = find_p_of_equality(first, second, degrees)
        assert p is not None
        return p

    for difference in (0.5, 1.5, 3.0, 6.0):
        known = [p_of(difference, (degrees, degrees)) for degrees in (4, 16, 32, 1e9)]
        assert p_of(difference, (None, None)) >= 0.99 * max(known)
    assert p_of(6.0, (None, None)) == p_of(6.0, (4, 4)), "few degrees have heavy tails"
    assert p_of(1.0, (None, None)) == p_of(1.0, (1e9, 1e9)), "and a small standard error"


def test_launches_that_all_agree_have_the_p_of_a_permutation() -> None:
    one, other = (Estimate(value, value, value, launches=3) for value in (0.0, 0.1))
    assert find_p_of_equality(one, one) == 1.0
    assert find_p_of_equality(one, other) == pytest.approx(0.1)
    varies = compute_student_interval(0.1, 0.02, 2, 3, launches=3)
    assert find_p_of_equality(one, varies, (2, 2)) == pytest.approx(2 * stats.t.sf(5, 2)), "the other's spread decides"


def test_a_number_without_an_interval_has_no_p() -> None:
    assert find_p_of_equality(Estimate(1.0), mean(FIRST)) is None
