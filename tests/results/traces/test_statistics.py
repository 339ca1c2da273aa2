"""The specification's own capacity numbers, and skew and spread of traces whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.traces.description import BYTES_PER_TOKEN, GIB, KV_POOL_BYTES
from results.traces.statistics import capacity, kv_footprint, skew, spread


@pytest.mark.parametrize(
    ("percentile", "gib", "fit", "system"),
    [(90, 8.0, 4, (32, 16, 8)), (95, 9.6, 4, (32, 16, 8)), (99, 11.5, 3, (24, 12, 6)), (50, 1.85, 20, (160, 80, 40))],
)
def test_the_specifications_capacity_table(percentile: float, gib: float, fit: int, system: tuple[int, ...]) -> None:
    row = capacity(percentile, gib * GIB, KV_POOL_BYTES)
    assert row.per_instance == fit
    assert tuple(row.concurrent.values()) == system
    assert list(row.concurrent) == ["Combined 8C", "4P+4D", "6P+2D"]


def test_1_8_gib_taken_to_the_letter_fit_21_times() -> None:
    assert capacity(50, 1.8 * GIB, KV_POOL_BYTES).per_instance == 21  # 20 needs the median before it was rounded


def test_the_pool_is_forty_percent_of_96_gib_and_its_token_that_of_the_specification() -> None:
    assert pytest.approx(38.4) == KV_POOL_BYTES / GIB
    assert pytest.approx(3.3, abs=0.01) == 33_600 * BYTES_PER_TOKEN / 1e9  # "33.6k tokens need 3.3 GB"


def test_footprints_are_of_tokens_and_those_beyond_the_pool_are_counted() -> None:
    tokens = np.array([100] * 98 + [1000, 1000])
    found = kv_footprint(tokens, kv_pool_bytes=500.0, bytes_per_token=1.0)
    assert [row.footprint_bytes for row in found.capacity] == pytest.approx([100, 100, 100, 1000])
    assert [row.per_instance for row in found.capacity] == [5, 5, 5, 0]
    assert found.larger_than_pool == pytest.approx(0.02)
    assert found.mean_bytes == pytest.approx(118)
    assert kv_footprint(np.array([], dtype=np.int64), 1.0, 1.0).capacity == ()


def test_skew_of_one_giant_among_equals() -> None:
    found = skew(np.array([1] * 99 + [901]))
    assert [(top.top_share, top.sessions) for top in found.top] == [
        (0.01, 1),
        (0.05, 5),
        (0.10, 10),
        (0.25, 25),
        (0.50, 50),
    ]
    assert [top.input_share for top in found.top] == pytest.approx([0.901, 0.905, 0.91, 0.925, 0.95])
    assert found.curve[0].sessions == 1
    assert (found.curve[-1].sessions, found.curve[-1].input_share) == (100, 1.0)


def test_skew_rounds_up_to_whole_sessions() -> None:
    assert [top.sessions for top in skew(np.ones(30, dtype=np.int64)).top] == [1, 2, 3, 8, 15]
    assert [top.sessions for top in skew(np.array([5])).top] == [1, 1, 1, 1, 1]
    assert skew(np.zeros(3, dtype=np.int64)).top == ()


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300).filter(any))
def test_the_largest_sessions_never_have_less_than_their_share(tokens: list[int]) -> None:
    found = skew(np.array(tokens))
    for points in (found.top, found.curve):
        shares = [point.input_share for point in points]
        assert shares == sorted(shares)
        for point in points:
            assert point.sessions / len(tokens) - 1e-9 <= point.input_share <= 1


def test_spread_is_numpys() -> None:
    values = np.arange(1, 102)
    found = spread(values)
    assert found is not None
    assert (found.n, found.mean, found.p50, found.p90, found.max) == (101, 51, 51, 91, 101)
    assert spread(np.array([])) is None
