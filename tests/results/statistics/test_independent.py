"""The difference of two means: Welch's interval, and none where nothing tells how the values vary."""

from __future__ import annotations

import pytest
from scipy import stats

from results.statistics.estimates import ALL_AGREE
from results.statistics.independent import subtract_means


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
