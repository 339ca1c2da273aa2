"""One gate for every comparison: below three launches there is no verdict, and the reason says what would give one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.connector_tax.combined_taxes import Additive, judge_sum
from results.connector_tax.hypotheses import is_inside, label_cost
from results.pd_lifecycle import verdicts as lifecycle
from results.records.estimate import Estimate, unknown
from results.statistics.judgement import (
    LENGTHS_REMEDY,
    OTHER_LENGTHS,
    Judgement,
    Outcome,
    Verdict,
    explain_few_launches,
    judged,
    name_degraded_remedy,
    name_remedy,
    take_point,
    withheld,
    withhold_bounds,
)
from results.statistics.trials import Measured, Trial, estimate

finite = st.floats(-1e6, 1e6, allow_nan=False)
LATE, LENGTHS = "lateness p99 20 ms is above 10 ms; 0.9 of the scheduled arrivals were handled", f"3 {OTHER_LENGTHS}"
launches = st.integers(1, 2)
widths = st.floats(1e-3, 10.0)


@given(finite, widths, launches, finite)
def test_fewer_than_three_launches_never_give_a_verdict(value: float, width: float, count: int, none: float) -> None:
    found = Estimate(value, value - width, value + width, 500, launches=count)
    assert judged(found, none) is None
    assert "`--trials 3` gives a verdict" in withheld(found)
    assert (withhold_bounds(found).low, withhold_bounds(found).high) == (None, None)
    assert judge_sum(found)[0] is Additive.UNDECIDED
    assert label_cost(found) == ""
    assert is_inside(found, (value - 2 * width, value + 2 * width)) is None


@given(finite, widths, st.integers(3, 9), finite)
def test_from_three_on_the_interval_decides(value: float, width: float, count: int, none: float) -> None:
    found = Estimate(value, value - width, value + width, 500, launches=count)
    expected = Verdict.HIGHER if value - width > none else Verdict.LOWER if value + width < none else None
    assert judged(found, none) == (expected or Verdict.NOT_DISTINGUISHABLE)
    assert withheld(found) == ""
    assert withhold_bounds(found) is found


def test_a_point_decides_without_an_interval_or_launches() -> None:
    one = Estimate(0.1, -0.2, 0.4, launches=1, reason="resampled")
    assert judged(one) is None
    assert judged(take_point(one)) == Verdict.HIGHER
    assert judged(take_point(one), 0.1) == Verdict.NOT_DISTINGUISHABLE
    assert judged(take_point(Estimate(None, reason="not measured"))) is None


@given(st.lists(finite, min_size=1, max_size=6))
def test_an_estimate_knows_its_launches(values: list[float]) -> None:
    trials = {number: Trial(value, 40, lambda: "9 samples are too few") for number, value in enumerate(values)}
    found = estimate(Measured(trials))
    assert found.launches == len(values)
    assert (withheld(found) == "") == (len(values) >= 3 and (len(set(values)) > 1 or not any(values)))


def test_a_number_that_is_missing_says_why_and_not_how_many_launches_it_lacks() -> None:
    assert withheld(unknown("plain was not measured at this load")) == "plain was not measured at this load"
    assert judged(unknown("gone")) is None


def test_a_degraded_trial_is_named_beside_the_launches_that_are_left() -> None:
    found = Estimate(0.3, 0.2, 0.4, 80, reason="plain is degraded: slow client", launches=2)
    assert withheld(found).startswith("2 launches per config")
    assert "plain is degraded: slow client" in withheld(found)


def test_a_run_that_plans_three_launches_is_told_to_measure_those_it_lost() -> None:
    found = Estimate(0.3, 0.2, 0.4, 80, launches=2)
    assert withheld(found, remedy=name_remedy(2)) == withheld(found)
    for text in (withheld(found, remedy=name_remedy(8)), str(withhold_bounds(found, name_remedy(8)).reason)):
        assert "the run plans 8: `tracon retry`" in text
        assert "--trials" not in text


@pytest.mark.parametrize(("count", "text"), [(1, "one launch per engine"), (2, "2 launches per engine"), (3, "")])
def test_a_lifecycle_criterion_that_compares_times_stays_undecided_below_three_launches(count: int, text: str) -> None:
    within = Judgement("3", "", "", Outcome.HOLDS, "R^2 0.99 lies above 0.95", Estimate(0.99, 0.98, 1.0))
    found = lifecycle.require_launches(within, count)
    assert found.outcome == (Outcome.UNDECIDED if text else Outcome.HOLDS)
    assert found.reason.startswith(text)
    assert "R^2 0.99 lies above 0.95" in found.reason
    assert explain_few_launches(count, "engine").startswith(text)


@pytest.mark.parametrize(
    ("reasons", "remedies"),
    [
        ([LATE, LATE], ["a free core"]),
        ([LENGTHS, LENGTHS], [LENGTHS_REMEDY]),
        ([LATE, LENGTHS], ["a free core", LENGTHS_REMEDY]),
        ([f"{LATE}; {LENGTHS}"], ["a free core", LENGTHS_REMEDY]),
    ],
)
def test_the_remedy_of_degraded_cells_fits_what_degraded_them(reasons: list[str], remedies: list[str]) -> None:
    assert name_degraded_remedy(reasons, "a free core").split("; ") == remedies
