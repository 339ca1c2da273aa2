"""The specification's own capacity numbers, and skew and spread of traces whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.traces.description import GIB, KV_POOL_BYTES
from results.traces.statistics import measure_capacity, measure_kv_footprint, measure_skew, measure_spread


@pytest.mark.parametrize(
    ("percentile", "gib", "fit", "system"),
    [(90, 8.0, 4, (32, 16, 8)), (95, 9.6, 4, (32, 16, 8)), (99, 11.5, 3, (24, 12, 6)), (50, 1.85, 20, (160, 80, 40))],
)
def test_the_specifications_capacity_table(percentile: float, gib: float, fit: int, system: tuple[int, ...]) -> None:
    row = measure_capacity(percentile, gib * GIB, KV_POOL_BYTES)
    assert row.per_instance == fit
    assert tuple(row.concurrent.values()) == system
    assert list(row.concurrent) == ["Combined 8C", "4P+4D", "6P+2D"]


def test_1_8_gib_taken_to_the_letter_fit_21_times() -> None:
    assert measure_capacity(50, 1.8 * GIB, KV_POOL_BYTES).per_instance == 21  # 20 needs the unrounded median


def test_footprints_are_of_tokens_and_those_beyond_the_pool_are_counted() -> None:
    tokens = np.array([100] * 98 + [1000, 1000])
    footprint = measure_kv_footprint(tokens, kv_pool_bytes=500.0, bytes_per_token=1.0)
    assert [row.footprint_bytes for row in footprint.capacity] == pytest.approx([100, 100, 100, 1000])
    assert [row.per_instance for row in footprint.capacity] == [5, 5, 5, 0]
    assert footprint.larger_than_pool == pytest.approx(0.02)
    assert footprint.mean_bytes == pytest.approx(118)
    assert measure_kv_footprint(np.array([], dtype=np.int64), 1.0, 1.0).capacity == ()


def test_skew_of_one_giant_among_equals() -> None:
    skew = measure_skew(np.array([1] * 99 + [901]))
    assert [(top.top_share, top.sessions) for top in skew.top] == [
        (0.01, 1),
        (0.05, 5),
        (0.10, 10),
        (0.25, 25),
        (0.50, 50),
    ]
    assert [top.input_share for top in skew.top] == pytest.approx([0.901, 0.905, 0.91, 0.925, 0.95])
    assert skew.curve[0].sessions == 1
    assert (skew.curve[-1].sessions, skew.curve[-1].input_share) == (100, 1.0)


def test_skew_rounds_up_to_whole_sessions() -> None:
    assert [top.sessions for top in measure_skew(np.ones(30, dtype=np.int64)).top] == [1, 2, 3, 8, 15]
    assert [top.sessions for top in measure_skew(np.array([5])).top] == [1, 1, 1, 1, 1]
    assert measure_skew(np.zeros(3, dtype=np.int64)).top == ()


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300).filter(any))
def test_the_largest_sessions_never_have_less_than_their_share(tokens: list[int]) -> None:
    skew = measure_skew(np.array(tokens))
    for points in (skew.top, skew.curve):
        shares = [point.input_share for point in points]
        assert shares == sorted(shares)
        for point in points:
            assert point.sessions / len(tokens) - 1e-9 <= point.input_share <= 1


def test_spread_is_numpys() -> None:
    values = np.arange(1, 102)
    spread = measure_spread(values)
    assert spread is not None
    assert (spread.n, spread.mean, spread.p50, spread.p90, spread.max) == (101, 51, 51, 91, 101)
    assert measure_spread(np.array([])) is None
