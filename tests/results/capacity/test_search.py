"""The search for the fewest instances, against fleets whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from results.capacity.search import Answer, Assessed, Search, Size, answer, assess, estimate_needed, trace_path
from results.capacity.slo import Limit, parse_slo
from results.measures.latency import METRICS, TTFT, RequestMetric, declare
from results.statistics.judgement import Outcome

LIMITS = (Limit("ttft", 90, 2.0),)


def run_search(search: Search, assess_size: Callable[[Size], Assessed]) -> tuple[Answer, list[Size]]:
    points: dict[Size, Assessed] = {}
    while (wanted := trace_path(search, points)[1]) is not None:
        assert wanted not in points
        points[wanted] = assess_size(wanted)
    return answer(search, points), list(points)


def assess_value(value: float, spread: float = 1.01) -> Assessed:
    rows = [{"ttft_p90": value / spread}, {"ttft_p90": value}, {"ttft_p90": value * spread}]
    return assess(LIMITS, rows, (1.0, 1.0, 1.0))


@pytest.mark.parametrize("fewest", range(1, 33))
def test_it_finds_the_fewest_instances_in_few_points(fewest: int) -> None:
    found, sizes = run_search(Search(8, 32), lambda size: assess_value(1.0 if size.instances >= fewest else 4.0))
    assert found == Answer(Size(fewest), Size(fewest), (), None)
    assert len(sizes) <= 9
    assert {fewest - 1, fewest, min(fewest + 1, 32)} <= {0, *(size.instances for size in sizes)}


def test_none_holds() -> None:
    found, sizes = run_search(Search(8, 20), lambda _: assess_value(4.0))
    assert found.fewest is None
    assert [size.instances for size in sizes] == [8, 16, 20]


def test_what_is_undecided_below_the_answer_is_followed_to_its_end() -> None:
    def judge(size: Size) -> Assessed:
        if size.instances >= 6:
            return assess_value(1.0)
        return assess_value(2.0, spread=1.5) if size.instances >= 3 else assess_value(9.0)

    found, _ = run_search(Search(8, 32), judge)
    assert (found.fewest, found.possible) == (Size(6), Size(3))


def test_a_larger_size_that_misses_is_named() -> None:
    found, _ = run_search(Search(8, 32), lambda size: assess_value(1.0 if size.instances in (6, 8) else 4.0))
    assert found.fewest == Size(6)
    assert Size(7) in found.not_monotone


@pytest.mark.parametrize(("fewest", "share"), [(2, 0.5), (3, 0.7), (6, 0.75), (9, 0.3), (16, 0.6)])
def test_the_split_of_a_pooled_fleet_is_found(fewest: int, share: float) -> None:
    """The distance grows from the best split to both sides; only the best one holds, from `fewest` instances on."""

    def best(count: int) -> int:
        return min(count - 1, max(1, round(share * count)))

    def judge(size: Size) -> Assessed:
        off = abs(size.prefill_instances - best(size.instances))
        return assess_value((1.0 if size.instances >= fewest else 4.0) * (1 + off) ** 2)

    found, sizes = run_search(Search(8, 32, pooled=True), judge)
    assert found.fewest == Size(fewest, best(fewest))
    assert len(sizes) <= 60


def test_a_size_that_was_not_simulated_in_every_trace_is_asked_for_again() -> None:
    """Points are keyed by size: the same points give the same path, in whatever order they came."""
    judged = {Size(count): assess_value(1.0 if count >= 5 else 4.0) for count in (8, 4, 6, 5, 3)}
    for missing in judged:
        left = {size: point for size, point in judged.items() if size != missing}
        visited, wanted = trace_path(Search(8, 32), left)
        assert wanted == missing
        assert missing not in visited


def test_outcomes() -> None:
    assert assess_value(1.0).outcome is Outcome.HOLDS
    assert assess_value(4.0).outcome is Outcome.FAILS
    assert assess_value(1.95, spread=1.2).outcome is Outcome.UNDECIDED
    unserved = assess(LIMITS, [{"ttft_p90": 1.0}, {"ttft_p90": None}], (1.0, 0.7))
    assert unserved.outcome is Outcome.UNDECIDED
    assert unserved.estimates["ttft_p90"].value is None
    assert "1 of 2 traces" in (unserved.estimates["ttft_p90"].reason or "")
    assert assess(LIMITS, [{"ttft_p90": None}], (0.7,)).outcome is Outcome.FAILS


@pytest.mark.parametrize(
    ("values", "value", "low", "high"),
    [
        ({1: (4.0, 1.01), 2: (1.0, 1.01)}, 2, 2, 2),
        ({2: (9.0, 1.01), 3: (2.2, 1.5), 4: (1.9, 1.5), 5: (1.0, 1.01)}, 4, 3, 5),
        ({3: (2.2, 1.5), 4: (2.1, 1.5), 5: (1.0, 1.01)}, 5, 3, 5),
        ({4: (9.0, 1.01), 5: (2.0, 1.0)}, 5, None, None),
    ],
)
def test_the_interval_of_the_instances_needed_holds_what_is_undecided(
    values: dict[int, tuple[float, float]], value: int, low: int | None, high: int | None
) -> None:
    """The value is by the means alone; traces that all agree have no interval."""
    points = {Size(count): assess_value(*drawn) for count, drawn in values.items()}
    known = replace(answer(Search(1, 8), points), unfinished=None)
    needed = estimate_needed(Search(1, 8), known, points, 3)
    assert (needed.value, needed.low, needed.high) == (value, low, high)
    assert bool(needed.reason) == (low is None)


def test_without_an_answer_the_instances_needed_are_unknown_with_the_reason() -> None:
    missed = {Size(8): assess_value(4.0)}
    for search, points, why in ((Search(1, 8), missed, "not over"), (Search(8, 8), missed, "no size of up to 8")):
        needed = estimate_needed(search, answer(search, points), points, 3)
        assert needed.value is None
        assert why in (needed.reason or "")


@pytest.mark.parametrize(("nearest", "value"), [(1.9, 6), (2.1, None)])
def test_sizes_that_may_hold_it_are_an_interval_without_an_upper_end(nearest: float, value: int | None) -> None:
    """None holds it, so the reason says so; some may."""
    values = {4: (9.0, 1.01), 5: (2.2, 1.5), 6: (nearest, 1.5), 8: (2.1, 1.5)}
    points = {Size(count): assess_value(*drawn) for count, drawn in values.items()}
    known = replace(answer(Search(8, 8), points), unfinished=None)
    assert (known.fewest, known.possible) == (None, Size(5))
    needed = estimate_needed(Search(8, 8), known, points, 3)
    assert (needed.value, needed.low, needed.high) == (value, 5, None)
    assert "no size of up to 8" in (needed.reason or "")
    of_two = estimate_needed(Search(8, 8), known, points, 2)
    assert (of_two.value, of_two.low) == (value, None)
    assert "2 traces" in (of_two.reason or "")


def test_a_split_that_may_hold_it_makes_its_number_of_instances_undecided() -> None:
    """Another split is nearer on average, and misses it for certain."""
    points = {Size(3, 1): assess_value(2.1, spread=1.001), Size(3, 2): assess_value(2.5, spread=1.5)}
    assert points[Size(3, 1)].distance < points[Size(3, 2)].distance
    assert answer(Search(3, 3, pooled=True), points).possible == Size(3, 2)
    found = answer(Search(4, 4, pooled=True), points | {Size(4, 2): assess_value(1.0)})
    assert (found.fewest, found.possible) == (Size(4, 2), Size(3, 2))


def test_an_undecided_size_below_one_that_misses_belongs_to_the_interval() -> None:
    values = {3: (9.0, 1.01), 4: (2.0, 1.5), 5: (9.0, 1.01), 6: (1.0, 1.01), 7: (1.0, 1.01)}
    points = {Size(count): assess_value(*drawn) for count, drawn in values.items()}
    assert answer(Search(6, 8), points).possible == Size(4)


def test_an_objective_is_read_with_its_units() -> None:
    assert parse_slo("ttft_p90=2s, tpot_p99=50ms") == (Limit("ttft", 90, 2.0), Limit("tpot", 99, 0.05))


def test_an_objective_limits_any_declared_metric_in_seconds() -> None:
    (limit,) = parse_slo("e2e_p95=30s")
    assert (limit.name, limit.title) == ("e2e_p95", "E2E p95")
    declare(RequestMetric("first_wait_s", "first wait", TTFT.reads, TTFT.formula))
    try:
        (limit,) = parse_slo("first_wait_p90=500ms")
        assert (limit.name, limit.title, limit.limit_s) == ("first_wait_p90", "first wait p90", 0.5)
    finally:
        del METRICS["first_wait_s"]


@pytest.mark.parametrize("text", ["", "ttft=2s", "ttft_p90=2", "ttft_p90=0s", "itl_p90=2s", "ttft_p90=2s,ttft_p90=3s"])
def test_a_wrong_objective_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="limit"):
        parse_slo(text)
