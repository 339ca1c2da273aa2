"""When requests leave: every arrival of a cell, fixed before it starts. Pure.

The random numbers are raw Philox output turned into uniforms here: NumPy guarantees that stream, but not its
distributions, and the same seed must mean the same schedule on every machine.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_DOMAIN = 0x7363_6865_6475_6C65  # "schedule": keeps this stream apart from the prompts'
_NS = 1_000_000_000


def make_constant_offsets_ns(rate_per_s: float, horizon_s: float) -> NDArray[np.int64]:
    """Arrival i at i / rate, i = 0, 1, ..., all before the horizon."""
    count = math.ceil(horizon_s * rate_per_s)
    offsets = np.rint(np.arange(count, dtype=np.float64) * (_NS / rate_per_s)).astype(np.int64)
    return offsets[offsets < round(horizon_s * _NS)]


def draw_poisson_offsets_ns(
    rate_per_s: float, stretches_s: tuple[float, ...], seed: int, cell_index: int
) -> NDArray[np.int64]:
    """A Poisson process that keeps the exact rate: given their number, its arrivals in a stretch are uniform there.

    So each stretch (the warm-up, then one per expected window) gets rate x length arrivals, the fraction carried to the
    next, and the throughput of a window is not blurred by how many arrivals chance put into it.
    """
    raw = np.random.Philox(key=np.array([seed, _DOMAIN ^ cell_index], dtype=np.uint64))
    pieces: list[NDArray[np.int64]] = []
    begin, placed = 0.0, 0
    for length in stretches_s:
        end = begin + length
        count = round(rate_per_s * end) - placed
        uniform = (raw.random_raw(count) >> np.uint64(11)) * 2.0**-53
        moments = np.sort((begin + uniform * length) * _NS).astype(np.int64)
        pieces.append(np.minimum(moments, int(end * _NS) - 1))
        begin, placed = end, placed + count
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)


def split_horizon(warmup_s: float, window_s: float, horizon_s: float) -> tuple[float, ...]:
    """The warm-up, then windows up to the horizon; their lengths add up to it."""
    lengths = [min(warmup_s, horizon_s)] if warmup_s > 0 else []
    rest = horizon_s - sum(lengths)
    whole = int(rest / window_s + 1e-9)
    lengths += [window_s] * whole
    last = horizon_s - sum(lengths)
    return tuple(lengths) if last <= 1e-9 else (*lengths, last)


def make_offsets_ns(
    arrival: str, *, rate_per_s: float, warmup_s: float, window_s: float, horizon_s: float, seed: int, cell_index: int
) -> NDArray[np.int64]:
    """Offsets of all arrivals from the start of the cell, ascending, none at or after `horizon_s`."""
    if arrival == "constant":
        return make_constant_offsets_ns(rate_per_s, horizon_s)
    return draw_poisson_offsets_ns(rate_per_s, split_horizon(warmup_s, window_s, horizon_s), seed, cell_index)
