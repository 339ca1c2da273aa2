"""All differences of two runs are judged together: few false ones, and a true one among hundreds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from scipy import stats

from results.records.estimate import Estimate
from results.records.run_folder import RunFacts
from results.report.comparison import Comparable, Comparison, Measure, compare, to_json
from results.report.comparison_text import describe_comparison
from results.statistics.estimates import Samples, compute_student_interval

RUNS = 2000
SIGMA = 0.2
"""Of the logarithm of a launch's number."""


def estimate_mean(values: Samples) -> Estimate:
    error = float(values.std(ddof=1)) / math.sqrt(values.size)
    return compute_student_interval(float(values.mean()), error, values.size - 1, 90, launches=values.size)


def measure(index: int, logs: Samples, *, states_degrees: bool = True) -> Measure:
    """A mean time, a ratio or a tax, in turn, from the logarithms that the launches measured."""
    key, degrees = {"number": str(index)}, logs.size - 1 if states_degrees else None
    if index % 3 == 0:
        return Measure("Policies", key, estimate_mean(np.exp(logs)), "ms", degrees=degrees)
    if index % 3 == 1:
        return Measure("Ratios", key, estimate_mean(logs).transform(math.exp), "times", degrees=degrees)
    return Measure("Taxes", key, estimate_mean(logs).transform(math.expm1), "%", ratio=False, degrees=degrees)


def draw_run(
    rng: np.random.Generator, numbers: int, launches: int, *, shared: float = 0.0, states_degrees: bool = True
) -> Comparable:
    """`shared`: of the variance, what all numbers of a launch have in common."""
    noise = math.sqrt(1 - shared) * rng.standard_normal((numbers, launches))
    noise += math.sqrt(shared) * rng.standard_normal(launches)
    measures = [measure(index, SIGMA * row, states_degrees=states_degrees) for index, row in enumerate(noise)]
    return Comparable(RunFacts("x", "toy"), measures)


def plant(run: Comparable, index: int, factor: float) -> Comparable:
    measures = list(run.measures)
    changed = measures[index].estimate.transform(lambda value: factor * value)
    measures[index] = replace(measures[index], estimate=changed)
    return replace(run, measures=measures)


@pytest.mark.parametrize(
    ("launches", "shared", "states_degrees"), [(3, 0.0, True), (5, 0.7, True), (5, 0.0, False)]
)  # fmt: skip
def test_of_equal_runs_at_most_one_in_twenty_has_a_difference_that_stands(
    launches: int, shared: float, states_degrees: bool
) -> None:
    rng = np.random.default_rng(launches)

    def draw() -> Comparable:
        return draw_run(rng, 12, launches, shared=shared, states_degrees=states_degrees)

    comparisons = [compare(draw(), draw()) for _ in range(RUNS)]
    assert {one.family for one in comparisons} == {12}
    error = math.sqrt(0.05 * 0.95 / RUNS)
    assert sum(bool(one.standing) for one in comparisons) / RUNS <= 0.05 + 3 * error
    by_itself = sum(any((change.p or 0) < 0.05 for change in one.changes) for one in comparisons)
    assert by_itself / RUNS > 0.2, "without the correction many of them would have one"


def test_a_planted_difference_among_four_hundred_stands_alone() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        first, second = draw_run(rng, 400, 5), draw_run(rng, 400, 5)
        comparison = compare(first, plant(second, 10, 10.0))
        assert [one.key["number"] for one in comparison.standing] == ["10"]
        text = describe_comparison(comparison)
        assert "Over 400 differences 1 stands after Holm's correction. One by one, 400 numbers" in text.opening
        assert text.tables[0].title == "Differences that stand"
        assert text.tables[0].rows[0][0] == "Ratios: 10"
        assert "higher, intervals disjoint, stands" in text.tables[0].rows[0][3]


def by_hand() -> Comparison:
    """Three differences of two means over three launches each, standard errors 0.3 and 0.4: 5, 1 and 0.1."""
    sides = [
        Comparable(RunFacts(name, "toy"), [
            Measure(
                "Policies", {"number": str(index)}, compute_student_interval(10 + index + at, error, 2, 90, launches=3),
                "ms", degrees=2,
            )
            for index, at in enumerate(values)
        ])
        for name, error, values in (("monday", 0.3, (0, 0, 0)), ("tuesday", 0.4, (5, 1, 0.1)))
    ]  # fmt: skip
    return compare(*sides)


def test_each_difference_has_welchs_p_and_holms() -> None:
    comparison = by_hand()
    freedom = 0.25**2 / (0.09**2 / 2 + 0.16**2 / 2)
    p = [2 * stats.t.sf(difference / 0.5, freedom) for difference in (5, 1, 0.1)]
    assert [one.p for one in comparison.changes] == pytest.approx(p)
    assert [one.p_corrected for one in comparison.changes] == pytest.approx([3 * p[0], 2 * p[1], p[2]])
    assert [one.stands for one in comparison.changes] == [True, False, False]
    rows = next(one.rows for one in describe_comparison(comparison).tables if one.title == "Policies")
    assert rows[1][-1] == f"{p[1]:.2g}, {2 * p[1]:.2g}"


def test_the_data_have_the_family() -> None:
    data = json.loads(msgspec.json.encode(to_json(by_hand())))
    assert (data["family"], data["standing"], data["disjoint"]) == (3, 1, 1)
    assert data["disjoint_by_chance"] == pytest.approx(3 * 0.0056)
    assert data["answer"] == "Over 3 differences 1 stands after Holm's correction."
    assert [one["stands"] for one in data["changes"]] == [True, False, False]
    assert all(one["p"] < one["p_corrected"] for one in data["changes"][:2])


def test_a_spread_within_a_launch_is_no_part_of_the_family() -> None:
    rng = np.random.default_rng(2)
    first, second = draw_run(rng, 2, 5), draw_run(rng, 2, 5)
    single = replace(second.measures[1], estimate=replace(second.measures[1].estimate, launches=1))
    comparison = compare(first, replace(second, measures=[second.measures[0], single]))
    assert [one.p is None for one in comparison.changes] == [False, True]
    assert comparison.changes[0].p_corrected == comparison.changes[0].p
    assert comparison.family == 1


def test_no_interval_on_both_sides_makes_no_family() -> None:
    run = draw_run(np.random.default_rng(3), 1, 5)
    (number,) = run.measures
    single = replace(run, measures=[replace(number, estimate=replace(number.estimate, launches=1))])
    text = describe_comparison(compare(run, single))
    assert "No number has an interval over launches on both sides." in text.opening
    assert "Disjoint intervals" not in text.opening
    assert not any("one in twenty" in limit for limit in text.limits)
