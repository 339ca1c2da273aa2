"""Descriptions with known numbers, for tables and figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from results.traces.cross_session_reuse import CrossReuse, Sum
from results.traces.description import BYTES_PER_TOKEN, GIB, KV_POOL_BYTES, SHARED_FROM, Skew, TraceDescription
from results.traces.reuse_bounds import TokenCounts, bound_reuse
from results.traces.statistics import measure_kv_footprint, measure_skew, measure_spreads

SIZES_GIB = {50: 1.85, 90: 8.0, 95: 9.6, 99: 11.5}
"""Footprints of specs/ear at its percentiles; its 1.8 is a rounded 1.83 to 1.92."""


def described(**changes: Any) -> TraceDescription:
    """The specification's trace: its reuse split, bounds and footprints, over made-up sessions."""
    counted = changes.pop("counted", None) or count()
    bounds = bound_reuse(counted, SHARED_FROM)
    sessions = np.round(1e6 / np.arange(1, 1001) ** 1.1).astype(np.int64)
    fields: dict[str, Any] = {
        "facts": {
            "format": "bailian",
            "source": "qwen_coder.jsonl",
            "block_tokens": 16,
            "tail_rule": "ceil",
            "hash_scope": "global",
            "hashes_chained": False,
            "has_sessions": counted.has_sessions,
        },
        "requests": 4000,
        "sessions": 1000,
        "agents": 1000,
        "span_s": 7200.0,
        "input_tokens": counted.input_tokens,
        "output_tokens": 13_333,
        "input_output_ratio": 75.0,
        "apc_bound_any": bounds.apc_bound_any,
        "apc_bound_intra": bounds.apc_bound_intra,
        "reuse": bounds.reuse,
        "skew": measure_skew(sessions) if counted.has_sessions else Skew((), ()),
        "lengths": measure_spreads({"input_tokens": np.arange(1, 101), "turns": np.array([1, 2, 3])}),
        "kv": measure_kv_footprint(request_tokens(), KV_POOL_BYTES, BYTES_PER_TOKEN),
        "reasons": dict(bounds.reasons) | ({} if counted.has_sessions else {"skew": "the source has no sessions"}),
    }
    return TraceDescription(**(fields | changes))


def count(error: float = 0.0, **changes: Any) -> TokenCounts:
    """Counts that give the split and the bounds of specs/ear, section 2.2."""
    reused = 803_000
    shared, cross = 0.011 * reused, 0.057 * reused
    fields: dict[str, Any] = {
        "input_tokens": 1_000_000,
        "intra_tokens": 796_000,
        "across": CrossReuse(
            Sum(7_000, error), Sum(cross, error), Sum(shared, error), 12_345.0, one_in=4 if error else 1
        ),
        "has_sessions": True,
        "has_hashes": True,
        "local_blocks": 12_500,
    }
    return TokenCounts(**(fields | changes))


def request_tokens() -> npt.NDArray[np.int64]:
    """Requests whose footprints have the percentiles SIZES_GIB."""
    at = np.array([0.0, 50, 90, 95, 99, 100])
    sizes = np.array([0.01, *SIZES_GIB.values(), 14.0])
    tokens: npt.NDArray[np.int64] = (np.interp(np.linspace(0, 100, 2001), at, sizes) * GIB / BYTES_PER_TOKEN).astype(
        np.int64
    )
    return tokens
