"""The planned steps of a search are enough for it to end, however many sizes are undecided."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from results.capacity.search import Assessed, Search, Size, answer, estimate_needed, trace_path
from runners.experiments.capacity.plan import count_steps
from tests.results.capacity.test_search import assess_value

MOST = 32
NONE = MOST + 1
HOLDS, LIKELY, UNLIKELY, MISSES = (assess_value(*drawn) for drawn in ((1.0,), (1.9, 1.5), (2.1, 1.5), (9.0,)))
Bounds = tuple[int, int, int]
"""Instances from which a size may hold the objective, meets it on average, and holds it."""


def judge(count: int, bounds: Bounds) -> Assessed:
    possible, likely, fewest = bounds
    if count >= likely:
        return HOLDS if count >= fewest else LIKELY
    return UNLIKELY if count >= possible else MISSES


@pytest.mark.parametrize("start", [1, 8, MOST])
def test_a_search_ends_within_its_steps_and_its_interval_holds_what_is_undecided(start: int) -> None:
    search = Search(start, MOST)
    for bounds in combinations_with_replacement((1, 2, 5, 8, 9, 15, 16, 17, 23, 31, MOST, NONE), 3):
        points: dict[Size, Assessed] = {}
        while (wanted := trace_path(search, points)[1]) is not None:
            points[wanted] = judge(wanted.instances, bounds)
        assert len(points) <= count_steps(search), bounds
        needed = estimate_needed(search, answer(search, points), points, 3)
        low, value, high = (None if bound == NONE else bound for bound in bounds)
        assert (needed.low, needed.value, needed.high) == (low, value, high), bounds


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("bounds", [(2, 9, 16), (5, 17, NONE), (16, 17, 17), (2, 31, MOST), (NONE, NONE, NONE)])
def test_a_search_with_pools_ends_within_its_steps(share: float, bounds: Bounds) -> None:
    """All splits but one miss the objective."""
    search = Search(8, MOST, pooled=True)
    points: dict[Size, Assessed] = {}
    while (wanted := trace_path(search, points)[1]) is not None:
        best = min(wanted.instances - 1, max(1, round(share * wanted.instances)))
        off = abs(wanted.prefill_instances - best)
        points[wanted] = assess_value(9.0 * (1 + off)) if off else judge(wanted.instances, bounds)
    assert len(points) <= count_steps(search)
    low, _, high = (None if bound == NONE else bound for bound in bounds)
    found = answer(search, points)
    assert (found.possible and found.possible.instances, found.fewest and found.fewest.instances) == (low, high)
