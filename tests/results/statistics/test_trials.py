"""What trials say of a comparison, and what one launch can say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.connector_tax.combined_taxes import find_tax
from results.connector_tax.tax import Metric
from results.records.estimate import Estimate
from results.records.reference_rates import REF_SAFE
from results.statistics.estimates import mean
from results.statistics.judgement import Verdict, judged, withheld
from results.statistics.trials import Measured, Trial, combine, estimate, p_value, share, unmeasured
from tests.results.statistics.in_memory import RATES, SIMULATIONS, Truth, as_promised, bounds, covers, measurements

finite = st.floats(-10, 10, allow_nan=False).map(lambda value: round(value, 3))


def collect_trials(values: Sequence[float], spread: float = 0.0, reason: str = "") -> Measured:
    """A number per trial whose draws lie evenly within `spread` of it."""

    def trial(value: float) -> Trial:
        return Trial(value, 100, lambda: value + np.linspace(-spread, spread, 201))

    return Measured({number: trial(value) for number, value in enumerate(values)}, reason)


def taxes(trials: int, seed: int, launch_sigma: float = 0.0, tax: float = 0.45) -> Estimate:
    numbers = range(trials)
    found = measurements(
        [
            Truth("plain", trials=numbers, launch_sigma=launch_sigma),
            Truth("mooncake_both", tax, trials=numbers, launch_sigma=launch_sigma),
        ],
        seed,
    )
    return estimate(find_tax(found, RATES, REF_SAFE, "mooncake_both", Metric.TTFT_P90))


@SIMULATIONS
@pytest.mark.parametrize("trials", [1, 2, 3, 5])
def test_a_known_tax_lies_in_its_interval_as_often_as_promised(trials: int, seeds: Sequence[int]) -> None:
    assert as_promised(covers(taxes(trials, seed), 0.45) for seed in seeds)


@SIMULATIONS
def test_only_trials_hold_what_varies_between_launches(seeds: Sequence[int]) -> None:
    """With launches that differ by 10 %, one launch each promises too much and five trials do not."""
    assert not as_promised(covers(taxes(1, seed, launch_sigma=0.1), 0.45) for seed in seeds)
    assert as_promised(covers(taxes(5, seed, launch_sigma=0.1), 0.45) for seed in seeds)


@pytest.mark.parametrize(
    ("trials", "basis"),
    [(1, "spread within the launch"), (2, "spread within 2 launches"), (3, "over 3 launches, by itself")],
)
def test_an_interval_says_what_it_holds(trials: int, basis: str) -> None:
    assert taxes(trials, 0).basis == basis


@given(st.lists(finite, min_size=3, max_size=6))
def test_a_p_value_is_below_the_level_where_the_interval_excludes_zero(values: list[float]) -> None:
    found, p = estimate(collect_trials(values)), p_value(collect_trials(values))
    if np.ptp(values) == 0 and values[0]:
        assert p == 2.0 ** (1 - len(values)), "equal trials: only their signs tell"
        assert (found.low, found.high) == (None, None)
        return
    low, high = bounds(found)
    assert p is not None
    if min(abs(low), abs(high)) > 1e-6:
        assert (p < 0.05) == (low > 0 or high < 0)


def test_a_p_value_within_a_launch_comes_from_the_draws() -> None:
    assert p_value(collect_trials([1.0], spread=0.5)) == pytest.approx(2 / 202)  # no draw reaches zero
    assert p_value(collect_trials([0.0], spread=1.0)) == pytest.approx(1.0, abs=0.02)
    assert p_value(unmeasured("nothing")) is None


def test_equal_trials_are_no_proof() -> None:
    assert p_value(collect_trials([2.0, 2.0, 2.0])) == 0.25
    assert p_value(collect_trials([0.0, 0.0, 0.0])) == 1.0
    assert p_value(collect_trials([0.3, 0.1 + 0.2, 0.3])) == 0.25, "nor are trials that rounding alone tells apart"
    found = estimate(collect_trials([0.3, 0.1 + 0.2, 0.3]))
    assert found.value == pytest.approx(0.3)
    assert (found.low, found.high) == (None, None)
    assert judged(found) is None
    assert withheld(found) == "all repeats agree to the last digit: nothing tells by how much two of them differ"
    assert judged(estimate(collect_trials([0.0, 0.0, 0.0]))) == Verdict.NOT_DISTINGUISHABLE


@given(st.lists(finite, min_size=3, max_size=8))
def test_from_three_trials_on_it_is_students_t(values: list[float]) -> None:
    found, expected = estimate(collect_trials(values, spread=99.0)), mean(values)
    if len(set(values)) == 1 and values[0]:
        assert found.low is None
        return
    assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=6))
def test_what_all_configs_share_in_a_trial_cancels(pairs: list[tuple[float, float]]) -> None:
    ours, block = ([pair[place] for pair in pairs] for place in (0, 1))
    shifted = combine(np.subtract, collect_trials([a + b for a, b in pairs]), collect_trials(block))
    assert [trial.value for trial in shifted.trials.values()] == pytest.approx(ours)
    plain = combine(np.subtract, collect_trials(ours), collect_trials([0.0] * len(pairs)))
    assert estimate(shifted).low == pytest.approx(estimate(plain).low, abs=1e-6)


def test_only_trials_that_have_every_side_count() -> None:
    plain = Measured(
        {0: collect_trials([1.0]).trials[0], 2: collect_trials([3.0]).trials[0]}, "plain is degraded: slow client"
    )
    found = estimate(combine(np.subtract, collect_trials([5.0, 50.0, 9.0], spread=0.1), plain))
    assert found.value == pytest.approx(((5 - 1) + (9 - 3)) / 2)
    assert found.basis == "spread within 2 launches"
    assert found.reason == "plain is degraded: slow client"


def test_no_common_trial_and_no_trial_at_all_are_unknown_with_a_reason() -> None:
    late = Measured({1: collect_trials([1.0]).trials[0]})
    assert estimate(combine(np.subtract, collect_trials([1.0]), late)).reason == "no trial has every cell it needs"
    found = estimate(combine(np.subtract, collect_trials([1.0]), unmeasured("plain was not measured at this load")))
    assert (found.value, found.low, found.reason) == (None, None, "plain was not measured at this load")


def test_too_few_samples_have_a_value_and_no_interval() -> None:
    few = Measured({0: Trial(1.0, 9, lambda: "9 samples are too few")})
    found = estimate(combine(np.subtract, few, collect_trials([0.5])))
    assert (found.value, found.low, found.reason) == (0.5, None, "9 samples are too few")


@given(
    st.lists(st.tuples(st.floats(0.05, 0.2), st.floats(0.3, 0.5)), min_size=3, max_size=7),
    st.floats(0.0, 1.0),
)
def test_the_interval_of_a_share_agrees_with_the_test_of_the_difference(
    pairs: list[tuple[float, float]], fraction: float
) -> None:
    """A share's interval lies below f just where part - f whole is distinguishably below zero."""
    part, whole = (collect_trials([pair[place] for pair in pairs]) for place in (0, 1))
    found = share(part, whole, "the whole")
    difference = estimate(combine(lambda a, b: a - fraction * b, part, whole))
    if difference.low is None or difference.high is None:
        return
    if found.low is None or found.high is None or min(abs(difference.low), abs(difference.high)) < 1e-9:
        return
    assert (found.high < fraction) == (difference.high < 0)
    assert (found.low > fraction) == (difference.low > 0)


def test_a_share_of_nothing_is_not_told() -> None:
    noisy = share(collect_trials([0.1], 0.01), collect_trials([0.2], 0.5), "the tax of X")
    assert (noisy.value, noisy.low) == (0.5, None)
    assert noisy.reason == "the tax of X may be zero by its spread: a share of it says nothing"
    below = share(collect_trials([0.1], 0.01), collect_trials([-0.2], 0.01), "the tax of X")
    assert below.value is None
    assert below.reason == "the tax of X is not above zero: a share of it says nothing"


@SIMULATIONS
def test_a_known_share_lies_in_its_interval_as_often_as_promised(seeds: Sequence[int]) -> None:
    def cover_truth(seed: int) -> Estimate:
        found = measurements([Truth("plain"), Truth("noop_connector", 0.2), Truth("mooncake_both", 0.5)], seed)
        configs = ("noop_connector", "mooncake_both")
        part, whole = (find_tax(found, RATES, REF_SAFE, config, Metric.TTFT_P90) for config in configs)
        return share(part, whole, "the tax")

    assert as_promised(covers(cover_truth(seed), 0.4) for seed in seeds)
