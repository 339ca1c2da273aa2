"""From lengths and counts to spread, skew and room for KV. Pure functions of arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from results.traces.description import (
    DEPLOYMENTS,
    PERCENTILES,
    TOP_SHARES,
    Capacity,
    Deployment,
    KvFootprint,
    Skew,
    Spread,
    TopSessions,
)

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]

CURVE_POINTS = 80


def spread(values: Numbers) -> Spread | None:
    """None without values."""
    if values.size == 0:
        return None
    p50, p90, p95, p99 = (float(value) for value in np.percentile(values, PERCENTILES))
    return Spread(int(values.size), float(values.mean()), p50, p90, p95, p99, float(values.max()))


def spreads(named: Mapping[str, Numbers]) -> dict[str, Spread]:
    """Of each series that has values."""
    found = {name: spread(values) for name, values in named.items()}
    return {name: value for name, value in found.items() if value is not None}


def skew(session_input_tokens: npt.NDArray[np.int64]) -> Skew:
    """How much of the input the largest sessions have."""
    total = int(session_input_tokens.sum())
    if total == 0:
        return Skew((), ())
    count = session_input_tokens.size
    summed = np.cumsum(np.sort(session_input_tokens)[::-1])

    def top(share: float) -> TopSessions:
        sessions = min(max(math.ceil(round(share * count, 6)), 1), count)  # 0.1 x 30 is not to become 4
        return TopSessions(share, sessions, int(summed[sessions - 1]) / total)

    along = np.unique(np.geomspace(1, count, CURVE_POINTS).round().astype(np.int64)).tolist()
    curve = tuple(TopSessions(sessions / count, sessions, int(summed[sessions - 1]) / total) for sessions in along)
    return Skew(tuple(top(share) for share in TOP_SHARES), curve)


def kv_footprint(
    request_tokens: npt.NDArray[np.int64],
    kv_pool_bytes: float,
    bytes_per_token: float,
    deployments: Sequence[Deployment] = DEPLOYMENTS,
) -> KvFootprint:
    """Percentiles of the requests' KV, and how many of each fit. `request_tokens`: input + output of each request."""
    if request_tokens.size == 0:
        return KvFootprint(kv_pool_bytes, bytes_per_token, None, (), None)
    sizes = np.percentile(request_tokens, PERCENTILES) * bytes_per_token
    return KvFootprint(
        kv_pool_bytes=kv_pool_bytes,
        bytes_per_token=bytes_per_token,
        mean_bytes=float(request_tokens.mean()) * bytes_per_token,
        capacity=tuple(
            capacity(percentile, float(size), kv_pool_bytes, deployments)
            for percentile, size in zip(PERCENTILES, sizes, strict=True)
            if size > 0
        ),
        larger_than_pool=float(np.mean(request_tokens * bytes_per_token > kv_pool_bytes)),
    )


def capacity(
    percentile: float, footprint_bytes: float, kv_pool_bytes: float, deployments: Sequence[Deployment] = DEPLOYMENTS
) -> Capacity:
    """floor(pool / footprint), and that times the decode instances of each deployment (specs/ear)."""
    fit = math.floor(kv_pool_bytes / footprint_bytes + 1e-9)  # 9.6 GiB go four times into 38.4, whatever the last bit
    return Capacity(
        percentile=percentile,
        footprint_bytes=footprint_bytes,
        per_instance=fit,
        concurrent={deployment.name: fit * deployment.decode_instances for deployment in deployments},
    )
