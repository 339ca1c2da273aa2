"""Computes spread, skew and KV capacity from lengths and counts. Pure functions of arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from results.traces.description import (
    DEPLOYMENTS,
    PERCENTILES,
    TOP_SHARES,
    Capacity,
    KvFootprint,
    Skew,
    Spread,
    TopSessions,
)

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]

CURVE_POINTS = 80


def measure_spread(values: Numbers) -> Spread | None:
    """None without values."""
    if values.size == 0:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.percentile(values, PERCENTILES))
    return Spread(int(values.size), float(values.mean()), p50, p90, p95, p99, float(values.max()))


def measure_spreads(named: Mapping[str, Numbers]) -> dict[str, Spread]:
    """The spread of each series with values."""
    spreads = {name: measure_spread(values) for name, values in named.items()}
    return {name: value for name, value in spreads.items() if value is not None}


def measure_skew(session_input_tokens: npt.NDArray[np.int64]) -> Skew:
    """The share of the input tokens in the largest sessions."""
    total = int(session_input_tokens.sum())
    if total == 0:
        return Skew((), ())
    count = session_input_tokens.size
    summed = np.cumsum(np.sort(session_input_tokens)[::-1])

    def select_top(share: float) -> TopSessions:
        sessions = min(max(math.ceil(round(share * count, 6)), 1), count)  # 0.1 x 30 exceeds 3
        return TopSessions(share, sessions, int(summed[sessions - 1]) / total)

    along = np.unique(np.geomspace(1, count, CURVE_POINTS).round().astype(np.int64)).tolist()
    curve = tuple(TopSessions(sessions / count, sessions, int(summed[sessions - 1]) / total) for sessions in along)
    return Skew(tuple(select_top(share) for share in TOP_SHARES), curve)


def measure_kv_footprint(
    request_tokens: npt.NDArray[np.int64], kv_pool_bytes: float, bytes_per_token: float
) -> KvFootprint:
    """Percentiles of the requests' KV, and the capacity for each. `request_tokens`: input + output per request."""
    if request_tokens.size == 0:
        return KvFootprint(kv_pool_bytes, bytes_per_token, None, (), None)
    sizes = np.percentile(request_tokens, PERCENTILES) * bytes_per_token
    return KvFootprint(
        kv_pool_bytes=kv_pool_bytes,
        bytes_per_token=bytes_per_token,
        mean_bytes=float(request_tokens.mean()) * bytes_per_token,
        capacity=tuple(
            measure_capacity(percentile, float(size), kv_pool_bytes)
            for percentile, size in zip(PERCENTILES, sizes, strict=True)
            if size > 0
        ),
        larger_than_pool=float(np.mean(request_tokens * bytes_per_token > kv_pool_bytes)),
    )


def measure_capacity(percentile: float, footprint_bytes: float, kv_pool_bytes: float) -> Capacity:
    """floor(pool / footprint), times the decode instances of each deployment (specs/ear)."""
    fit = math.floor(kv_pool_bytes / footprint_bytes + 1e-9)  # 38.4 GiB / 9.6 GiB is 4 in spite of rounding
    return Capacity(
        percentile=percentile,
        footprint_bytes=footprint_bytes,
        per_instance=fit,
        concurrent={name: fit * instances for name, instances in DEPLOYMENTS.items()},
    )
