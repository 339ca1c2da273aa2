"""Intervals hold what they promise, and say so where the samples do not suffice for a promise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from results.records.estimate import Estimate
from results.statistics.estimates import (
    Samples,
    bootstrap_quantiles,
    clean,
    compute_weighted_quantiles,
    correct_by_holm,
    count_samples_needed,
    cut_bounds,
    find_order_statistic_ranks,
    mean,
    percentile,
    percentiles,
    proportion,
)

TRIALS = 400
NOMINAL = 0.95
BOUNDS = ((1 - NOMINAL) / 2, (1 + NOMINAL) / 2)
"""Of the replicates of a bootstrap: the interval."""
MONTE_CARLO = 4 * math.sqrt(NOMINAL * (1 - NOMINAL) / TRIALS)
"""Four standard errors of an observed coverage."""

finite = st.floats(-1e6, 1e6, allow_nan=False)


@pytest.mark.parametrize("n", [40, 200, 1000])
@pytest.mark.parametrize("p", [0.5, 0.9])
def test_the_interval_of_a_percentile_covers_the_truth_as_often_as_it_says(n: int, p: float) -> None:
    rng = np.random.default_rng(7)
    truth = float(stats.lognorm.ppf(p, 0.5))
    found = [percentile(rng.lognormal(0, 0.5, n), p) for _ in range(TRIALS)]
    covered = np.mean([e.low <= truth <= e.high for e in found if e.low is not None and e.high is not None])
    assert covered > NOMINAL - MONTE_CARLO  # discrete ranks: at least, often more
    assert covered < 1.0


@pytest.mark.parametrize("n", [5, 36, 200, 368, 5000])
@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
def test_the_ranks_are_the_tightest_that_keep_each_tail(n: int, p: float) -> None:
    low, high = find_order_statistic_ranks(n, p)
    binomial = stats.binom(n, p)
    assert binomial.cdf(low or 0) > 0.025
    assert low is None or binomial.cdf(low - 1) <= 0.025
    assert high is None or (binomial.sf(high - 1) <= 0.025 < binomial.sf(high - 2))
    assert (low is not None and high is not None) == (n >= count_samples_needed(p))


def test_a_bound_that_the_samples_cannot_give_is_none_and_says_what_it_needs() -> None:
    estimate = percentile(np.arange(200.0), 0.99)
    assert estimate.low is not None
    assert estimate.high is None
    assert estimate.reason is not None
    assert "needs 368" in estimate.reason
    assert percentile(np.arange(400.0), 0.99).high is not None


@given(st.lists(finite, min_size=1, max_size=300), st.floats(0.01, 0.99))
def test_a_percentile_lies_inside_its_interval_and_is_numpy_s(values: list[float], p: float) -> None:
    estimate = percentile(values, p)
    assert estimate.value is not None
    assert estimate.value == np.quantile(np.array(values), p)
    assert estimate.n == len(values)
    assert estimate.low is None or estimate.low <= estimate.value
    assert estimate.high is None or estimate.value <= estimate.high


def test_missing_values_do_not_count_and_nothing_is_not_zero() -> None:
    assert percentile([1.0, math.nan, 3.0], 0.5) == percentile([1.0, 3.0], 0.5)
    assert percentile([math.nan], 0.5) == Estimate(None, n=0, reason="no samples")
    assert percentiles([], (0.5, 0.9)) == (Estimate(None, reason="no samples"),) * 2
    assert mean([]).value is None
    assert clean([1.0, math.inf, math.nan]).tolist() == [1.0]


@pytest.mark.parametrize(("p", "n"), [(0.9, 200), (0.5, 200), (0.9, 700)])
def test_the_interval_of_a_ratio_covers_the_true_tax(p: float, n: int) -> None:
    """The bootstrap of a tail quantile is a little narrow; it must not be more than a little."""
    rng = np.random.default_rng(11)
    tax = 0.3
    covered = 0
    trials = 150
    for seed in range(trials):
        draws = np.random.default_rng(seed)
        ours, base = (bootstrap_quantiles(level * rng.lognormal(0, 0.3, n), p, 300, draws) for level in (1 + tax, 1.0))
        low, high = np.quantile(ours / base - 1, BOUNDS)
        covered += bool(low <= tax <= high)
    assert 0.88 < covered / trials < 1.0


def test_alike_neighbors_widen_the_interval_of_a_difference() -> None:
    """Requests that queue together are fewer observations than they look."""
    rng = np.random.default_rng(3)

    def alike(n: int) -> Samples:
        return np.repeat(rng.standard_normal(n // 10), 10)

    trials = 80
    covered = 0
    for seed in range(trials):
        draws = np.random.default_rng(seed)
        ours, base = (bootstrap_quantiles(10 + alike(1000), 0.5, 200, draws) for _ in range(2))
        low, high = np.quantile(ours - base, BOUNDS)
        covered += bool(low <= 0 <= high)
    assert covered / trials > 0.8  # independent resampling would cover about half of the time


def test_the_same_seed_gives_the_same_replicates() -> None:
    values = np.random.default_rng(1).lognormal(size=300)
    first, again, other = (bootstrap_quantiles(values, 0.9, 50, np.random.default_rng(seed)) for seed in (5, 5, 6))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


@pytest.mark.parametrize("n", [300, 200_000])
def test_the_bootstrap_of_many_samples_spreads_as_theory_says(n: int) -> None:
    """Standard error of the median of a normal: sqrt(pi / 2 / n); the rank bins must not hide it."""
    rng = np.random.default_rng(2)
    spread = bootstrap_quantiles(rng.standard_normal(n), 0.5, 2000, rng).std()
    assert spread == pytest.approx(math.sqrt(math.pi / 2 / n), rel=0.3)


def test_holm_corrects_for_what_else_was_tested() -> None:
    assert correct_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert correct_by_holm([]) == ()
    assert correct_by_holm([0.9, 0.8]) == (1.0, 1.0)


@given(st.lists(st.floats(0, 1), max_size=20))
def test_a_corrected_p_value_is_no_smaller_and_keeps_the_order(found: list[float]) -> None:
    corrected = correct_by_holm(found)
    assert all(after >= before for before, after in zip(found, corrected, strict=True))
    assert [corrected[place] for place in np.argsort(found, kind="stable")] == sorted(corrected)


def test_the_mean_has_student_s_interval() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 10.0]
    found = mean(values)
    low, high = stats.t.interval(0.95, 4, loc=4.0, scale=stats.sem(values))
    assert (found.value, found.low, found.high) == pytest.approx((4.0, low, high))
    assert mean([7.0]).low is None


@given(
    st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 4)), min_size=1, max_size=60),
    st.lists(st.integers(0, 3), min_size=5, max_size=5),
    st.sampled_from([0.1, 0.5, 0.9]),
)
def test_a_weighted_quantile_is_that_of_the_values_repeated(
    found: list[tuple[float, int]], times: list[int], p: float
) -> None:
    values, group = np.array([value for value, _ in found]), np.array([which for _, which in found])
    repeated = np.repeat(values, np.array(times)[group])
    (drawn,) = compute_weighted_quantiles(values, p, group, np.array([times], dtype=np.float64))
    if repeated.size:
        assert drawn == pytest.approx(np.quantile(repeated, p), abs=1e-9)
    else:
        assert math.isnan(drawn)


@given(st.integers(1, 40), st.data())
def test_the_interval_of_a_share_keeps_both_tails_exactly(whole: int, data: st.DataObject) -> None:
    part = data.draw(st.integers(0, whole))
    found = proportion(part, whole, "nothing")
    assert found.low is not None
    assert found.high is not None
    assert found.low <= part / whole <= found.high
    assert found.high - found.low > 0, "a share of so few is never certain"
    if part:
        assert stats.binom.sf(part - 1, whole, found.low) == pytest.approx(0.025)
    if part < whole:
        assert stats.binom.cdf(part, whole, found.high) == pytest.approx(0.025)


def test_a_share_of_nothing_says_why() -> None:
    assert (proportion(0, 0, "none arrived").value, proportion(0, 0, "none arrived").reason) == (None, "none arrived")


@pytest.mark.parametrize(
    ("estimate", "bounds"),
    [
        (Estimate(0.5, -0.2, 1.2), (0.0, 1.0)),
        (Estimate(0.5, 0.2, 0.7), (0.2, 0.7)),
        (Estimate(0.5, None, 1.2), (None, 1.2)),
        (Estimate(-0.1, -0.2, 0.1), (-0.2, 0.1)),
        (Estimate(None, reason="not measured"), (None, None)),
    ],
)
def test_bounds_are_cut_where_the_number_cannot_be(
    estimate: Estimate, bounds: tuple[float | None, float | None]
) -> None:
    cut = cut_bounds(estimate, 1.0)
    assert (cut.value, cut.low, cut.high) == (estimate.value, *bounds)
