"""The statistics of a generated trace; the defaults are those of specs/ear, section 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy import special

from runners.errors import RunnerError

Floats = NDArray[np.float64]

GIB = 1 << 30


class Statistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload in numbers. Shares are 0 to 1, times in seconds."""

    input_output_ratio: float = 75.0
    """Input tokens per output token, over all requests."""
    top_shares: tuple[tuple[float, float], ...] = (
        (0.01, 0.465),
        (0.05, 0.665),
        (0.10, 0.746),
        (0.25, 0.875),
        (0.5, 0.96),
    )
    """(share of the sessions, those with the most input tokens; their share of all input tokens)."""
    kv_footprint_gib: tuple[tuple[float, float], ...] = ((50.0, 1.8), (90.0, 8.0), (95.0, 9.6), (99.0, 11.5))
    """(percentile over requests, GiB of KV)."""
    kv_bytes_per_token: int = 98_304
    intra_share: float = 0.932
    """Share of the reused tokens in blocks first used by the same session."""
    cross_share: float = 0.057
    """Share of the reused tokens in blocks of one other session."""
    shared_prefix_share: float = 0.011
    """Share of the reused tokens in the common prefix of many sessions."""
    apc_bound_any: float = 0.803
    """Share of the input tokens that an infinite cache would hit."""
    apc_bound_intra: float = 0.796
    """The same, within sessions."""
    block_tokens: int = 64
    span_s: float = 600.0
    """Time in which the sessions arrive; later turns may follow it."""
    think_mean_s: float = 2.0
    """Pause between the end of a turn and the next: a tool runs."""
    prefill_tokens_per_s: float = 8000.0
    """Sets, with the next field, the recorded duration of a turn. Only recorded arrivals depend on it."""
    decode_tokens_per_s: float = 50.0


def read_statistics(overrides: Mapping[str, Any] | None) -> Statistics:
    """The defaults with `overrides`. Raises RunnerError, which names a wrong name or value."""
    try:
        statistics = msgspec.convert(dict(overrides or {}), Statistics)
    except msgspec.ValidationError as error:
        names = ", ".join(Statistics.__struct_fields__)
        raise RunnerError(f"the statistics are wrong: {error}", remedy=f"valid names: {names}") from error
    if fault := _find_statistics_fault(statistics):
        raise RunnerError(f"the statistics are wrong: {fault}", remedy="docs/traces.md explains them")
    return statistics


def _find_statistics_fault(statistics: Statistics) -> str:
    for name in ("input_output_ratio", "span_s", "prefill_tokens_per_s", "decode_tokens_per_s"):
        if not 0 < getattr(statistics, name) < float("inf"):
            return f"{name} must be above 0"
    if not 0 <= statistics.think_mean_s < float("inf"):
        return "think_mean_s must not be below 0"
    if statistics.block_tokens < 2 or statistics.kv_bytes_per_token < 1:
        return "block_tokens must be at least 2 and kv_bytes_per_token at least 1"
    return _find_reuse_fault(statistics) or _find_points_fault(statistics)


def _find_reuse_fault(statistics: Statistics) -> str:
    shares = (statistics.intra_share, statistics.cross_share, statistics.shared_prefix_share)
    if min(shares) < 0 or abs(sum(shares) - 1) > 0.005:
        return "intra_share, cross_share and shared_prefix_share must sum to 1"
    if not 0 < statistics.apc_bound_intra <= statistics.apc_bound_any < 1:
        return "apc_bound_intra must be above 0 and not above apc_bound_any, which must be below 1"
    return ""


def _find_points_fault(statistics: Statistics) -> str:
    top = [(0.0, 0.0), *statistics.top_shares, (1.0, 1.0)]
    if not statistics.top_shares or not _is_rising(top):
        return "top_shares must rise in both numbers, between 0 and 1"
    if any(mass < share for share, mass in statistics.top_shares):
        return "top_shares: the share of the input must be at least the share of the sessions"
    percentiles = [(0.0, 0.0), *statistics.kv_footprint_gib]
    if len(statistics.kv_footprint_gib) < 2 or not _is_rising(percentiles) or percentiles[-1][0] >= 100:
        return "kv_footprint_gib must be two points or more that rise in both numbers, with percentiles below 100"
    return ""


def _is_rising(points: Sequence[tuple[float, float]]) -> bool:
    return all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(points))


def compute_request_quantiles(statistics: Statistics, shares: Floats) -> Floats:
    """Tokens of a request's KV at these quantiles (0 to 1): lognormal between and beyond the stated points."""
    at = special.ndtri(np.array([percentile / 100 for percentile, _ in statistics.kv_footprint_gib]))
    tokens = np.log([gib * GIB / statistics.kv_bytes_per_token for _, gib in statistics.kv_footprint_gib])
    z = special.ndtri(shares)
    slopes = np.diff(tokens) / np.diff(at)
    piece = np.clip(np.searchsorted(at, z) - 1, 0, slopes.size - 1)
    return np.asarray(np.exp(tokens[piece] + slopes[piece] * (z - at[piece])))


TOP_EXPONENT = 0.7
"""Input of the largest sessions before the first stated point: share ** 0.7; a choice."""


def compute_session_mass(statistics: Statistics, shares: Floats) -> Floats:
    """Share of all input in the largest `shares` (0 to 1) of the sessions: a power law between stated points."""
    at = np.array([share for share, _ in statistics.top_shares] + [1.0])
    mass = np.array([value for _, value in statistics.top_shares] + [1.0])
    exponents = np.concatenate(([TOP_EXPONENT], np.diff(np.log(mass)) / np.diff(np.log(at))))
    base = np.concatenate(([0], np.arange(at.size - 1)))
    piece = np.clip(np.searchsorted(at, shares), 0, at.size - 1)
    return np.asarray(mass[base[piece]] * (shares / at[base[piece]]) ** exponents[piece])
