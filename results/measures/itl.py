"""ITL: the time between two neighboring chunks that carry tokens, by the client's stamps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TokenGaps:
    """The gaps between tokens in one span of time."""

    itl_s: float | None
    """Their mean, the ITL; None = there was none."""
    worst_s: float | None
    gaps: int


def measure_gaps(stamps_ns: Sequence[array[int]], t_from_ns: int, t_to_ns: int, *, overlapping: bool) -> TokenGaps:
    """The gaps that lie inside the span, or that overlap it; `stamps_ns`: of each stream's tokens, rising."""
    gaps_s: list[float] = []
    for stream in stamps_ns:
        times = np.asarray(stream, dtype=np.int64)
        begin, end = times[:-1], times[1:]
        taken = (end > t_from_ns) & (begin < t_to_ns) if overlapping else (begin >= t_from_ns) & (end <= t_to_ns)
        gaps_s += ((end - begin)[taken] / 1e9).tolist()
    if not gaps_s:
        return TokenGaps(None, None, 0)
    return TokenGaps(float(np.mean(gaps_s)), max(gaps_s), len(gaps_s))
