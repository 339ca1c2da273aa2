from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runners.load.schedule import draw_poisson_offsets_ns, make_constant_offsets_ns, make_offsets_ns, split_horizon

RATES = st.floats(0.1, 300.0)
HORIZONS = st.floats(0.5, 60.0)
SEEDS = st.integers(0, 2**64 - 1)
CELLS = st.integers(0, 2**32 - 1)


@given(rate=RATES, horizon=HORIZONS)
def test_constant_arrivals_lie_on_the_grid_and_fill_the_horizon(rate: float, horizon: float) -> None:
    offsets = make_constant_offsets_ns(rate, horizon)
    assert offsets[0] == 0
    assert np.all(np.abs(offsets - np.arange(len(offsets)) * 1e9 / rate) <= 1)
    assert offsets[-1] < horizon * 1e9 <= offsets[-1] + 1e9 / rate + 1


@given(rate=RATES, warmup=st.floats(0, 10), window=st.floats(0.5, 30), windows=st.floats(1, 4), seed=SEEDS, cell=CELLS)
def test_poisson_keeps_the_exact_rate_in_the_warmup_and_in_every_window(
    rate: float, warmup: float, window: float, windows: float, seed: int, cell: int
) -> None:
    horizon = warmup + window * windows
    offsets = make_offsets_ns(
        "poisson", rate_per_s=rate, warmup_s=warmup, window_s=window, horizon_s=horizon, seed=seed, cell_index=cell
    )
    assert np.all(np.diff(offsets) >= 0)
    assert len(offsets) == 0 or (offsets[0] >= 0 and offsets[-1] < horizon * 1e9)
    edges = np.cumsum([0.0, *split_horizon(warmup, window, horizon)])
    for begin, end in pairwise(edges):
        inside = np.count_nonzero((offsets >= begin * 1e9 - 1) & (offsets < end * 1e9 - 1))
        assert abs(inside - rate * (end - begin)) <= 1.001


@given(seed=SEEDS, cell=CELLS)
def test_a_schedule_is_a_function_of_seed_and_cell(seed: int, cell: int) -> None:
    def again(seed: int, cell: int) -> list[int]:
        offsets: list[int] = draw_poisson_offsets_ns(20.0, (1.0, 3.0), seed, cell).tolist()
        return offsets

    assert again(seed, cell) == again(seed, cell)
    assert again(seed, cell) != again(seed ^ 1, cell)
    assert again(seed, cell) != again(seed, cell ^ 1)


def test_the_same_seed_means_the_same_schedule_on_every_machine() -> None:
    """Pinned: a change here makes runs of different versions incomparable."""
    offsets = draw_poisson_offsets_ns(4.0, (0.5, 1.0), 42, 7)
    assert offsets.tolist() == PINNED


PINNED = [225544783, 246651389, 573423441, 1053535628, 1244924496, 1300571245]


def test_poisson_gaps_are_exponential() -> None:
    offsets = draw_poisson_offsets_ns(50.0, (400.0,), 1, 1)
    gaps = np.diff(offsets) / 1e9 * 50.0
    assert gaps.std() == pytest.approx(1.0, abs=0.05)
    assert np.mean(gaps > 1.0) == pytest.approx(np.exp(-1), abs=0.02)
