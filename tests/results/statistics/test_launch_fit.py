"""Intervals of many sizes over few launches cover what they say, and a shift that all sizes share counts once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats

from results.records.estimate import Estimate, unknown
from results.statistics.estimates import ALL_AGREE, Samples
from results.statistics.launch_fit import (
    LaunchSpread,
    SizeFit,
    estimate_mean_over_launches,
    estimate_slope_over_launches,
    fit_sizes,
    merge_launches,
)
from tests.results.statistics.in_memory import covers

SIZES, LAUNCHES = 12, 3


def _draw(rng: np.random.Generator, *, shared: float, rest: float) -> dict[int, dict[int, float]]:
    y = shared * rng.standard_normal(LAUNCHES) + rest * rng.standard_normal((SIZES, LAUNCHES))
    return _by_size(y)


def _by_size(y: Samples) -> dict[int, dict[int, float]]:
    """Rows of sizes and columns of launches, as they are fitted."""
    return {size: dict(enumerate(map(float, row))) for size, row in enumerate(y)}


def _fit(values: Mapping[Any, Mapping[int, float]]) -> SizeFit[Any]:
    fit = fit_sizes(values)
    assert isinstance(fit, SizeFit)
    return fit


@pytest.mark.parametrize(("shared", "rest"), [(0.0, 1.0), (1.0, 1.0), (1.0, 0.1)])
def test_intervals_of_single_sizes_cover_as_often_as_they_say(shared: float, rest: float) -> None:
    runs, covered, false = 400, 0, 0
    for seed in range(runs):
        fit = _fit(_draw(np.random.default_rng([seed, 7]), shared=shared, rest=rest))
        covered += covers(fit.estimates[0], 0.0)
        false += min(fit.p.values()) * SIZES < 0.05
    assert covered >= 0.95 * runs - 3 * np.sqrt(0.05 * 0.95 * runs)
    assert false <= 0.05 * runs + 3 * np.sqrt(0.05 * 0.95 * runs)


def test_many_sizes_make_up_for_few_launches_only_where_they_share_nothing() -> None:
    rng = np.random.default_rng(5)
    apart, together = (_fit(_draw(rng, shared=shared, rest=1.0)) for shared in (0.0, 100.0))
    assert apart.degrees > 10
    assert together.degrees == pytest.approx(LAUNCHES - 1, abs=0.1)


def test_one_size_is_students_t_over_its_launches() -> None:
    values = [0.3, 0.5, 0.1, 0.4]
    fit = _fit({"only": dict(enumerate(values))})
    known = stats.ttest_1samp(values, 0.0)
    assert fit.p["only"] == pytest.approx(known.pvalue)
    interval = known.confidence_interval(0.95)
    assert (fit.estimates["only"].low, fit.estimates["only"].high) == pytest.approx((interval.low, interval.high))
    assert fit.overall.value == pytest.approx(np.mean(values))


def test_a_size_that_varies_more_has_its_own_spread() -> None:
    rng = np.random.default_rng(8)
    wild = _fit(_draw(rng, shared=0.0, rest=0.01) | {99: {0: -5.0, 1: 0.0, 2: 5.0}}).estimates[99]
    assert (wild.high or 0.0) - (wild.value or 0.0) == pytest.approx(4.302653 * 5 / np.sqrt(3), rel=1e-5)


def test_too_few_launches_and_sizes_that_lack_one_are_said() -> None:
    assert "needs 3" in str(fit_sizes({1: {0: 1.0, 1: 2.0}}))
    assert fit_sizes({1: {0: 1.0, 1: 2.0}, 2: {2: 1.0}}) == "no size was measured in every launch"
    assert set(_fit({1: {0: 1.0, 1: 2.0, 2: 3.0}, 2: {0: 1.0}}).estimates) == {1}


def test_launches_that_agree_to_the_last_digit_have_only_their_signs() -> None:
    fit = _fit({1: dict.fromkeys(range(3), 1.0), 2: dict.fromkeys(range(3), 0.0)})
    assert fit.p == {1: 0.25, 2: 1.0}
    assert (fit.estimates[1].value, fit.estimates[1].low) == (1.0, None)
    assert fit.estimates[1].reason == ALL_AGREE
    same = estimate_mean_over_launches([2.0, 2.0, 2.0])
    assert (same.value, same.low, same.reason) == (2.0, None, ALL_AGREE)


def test_a_mean_over_launches_needs_all_of_them() -> None:
    assert estimate_mean_over_launches([1.0, 2.0, 3.0]).launches == 3
    lacking = estimate_mean_over_launches([1.0, None, 3.0])
    assert (lacking.value, lacking.low) == (2.0, None)
    assert "2 of 3" in (lacking.reason or "")
    assert estimate_mean_over_launches([None]).value is None


def test_the_launches_reasons_survive_their_mean() -> None:
    known = [Estimate(value) for value in (1.0, 2.0, 3.0)]
    assert merge_launches(known) == estimate_mean_over_launches([1.0, 2.0, 3.0])
    lacking = merge_launches([*known[:2], unknown("3 transfers; a line needs 5")])
    assert lacking.value == 1.5
    assert lacking.reason == "2 of 3 launches have this number: 3 transfers; a line needs 5"
    none = merge_launches([unknown("too few"), unknown("no cost"), unknown("too few")])
    assert (none.value, none.reason) == (None, "too few; no cost")


def test_a_slope_over_launches_is_the_regression_of_their_means() -> None:
    rng = np.random.default_rng(17)
    y = 0.05 * np.arange(5) + 0.1 * rng.standard_normal((SIZES, 5)) + np.arange(SIZES)[:, None]
    values = _by_size(y)
    known = stats.linregress(np.arange(5), y.mean(axis=0))
    half = 3.182446 * float(known.stderr)  # 97.5 % of Student's t with 3 degrees of freedom
    for measured in (values, {**values, 99: {0: -50.0, 4: 50.0}}):
        slope = estimate_slope_over_launches(measured)
        value = slope.value or 0.0
        assert value == pytest.approx(float(known.slope))
        assert (slope.low, slope.high) == pytest.approx((value - half, value + half), abs=1e-5)
        assert slope.launches == 5


def test_a_slope_without_noise_or_launches_has_no_interval() -> None:
    line = estimate_slope_over_launches({1: {0: 0.0, 1: 1.0, 2: 2.0}})
    assert (line.value, line.low) == (1.0, None)
    assert "lie on a line" in (line.reason or "")
    assert "needs 3" in (estimate_slope_over_launches({1: {0: 1.0, 1: 2.0}}).reason or "")


def test_sigma_is_found_with_its_own_interval() -> None:
    covered = 0
    for seed in range(200):
        fit = _fit(_draw(np.random.default_rng([seed, 11]), shared=0.0, rest=0.3))
        assert fit.spread is not None
        assert fit.spread.low < fit.spread.sigma < fit.spread.high
        covered += fit.spread.low <= 0.3 <= fit.spread.high
    assert covered >= 180
    assert _fit({"one": dict.fromkeys(range(3), 1.5), "two": dict.fromkeys(range(3), 0.5)}).spread is None


def test_launches_are_planned_that_show_the_effect_as_often_as_promised() -> None:
    spread = LaunchSpread(0.1, 0.08, 0.12, degrees=2.0 * SIZES, launches=3, sizes=SIZES)
    count = spread.plan_launches(0.1)
    assert count is not None
    shown, runs = 0, 300
    for seed in range(runs):
        y = 0.1 + 0.1 * np.random.default_rng([seed, 13]).standard_normal((SIZES, count))
        shown += _fit(_by_size(y)).p[0] * SIZES < 0.05
    assert 0.72 * runs <= shown <= 0.95 * runs
    assert spread.plan_launches(0.0001) is None
