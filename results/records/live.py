"""Latencies of the last seconds, as the load client's ticks and the journal hold them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveLatency:
    """TTFT and TPOT (results/measures/latency.py) of the last seconds. None = no request to measure them by."""

    ttft_p50_s: float | None = None
    """Nearest rank, as the next three."""
    ttft_p90_s: float | None = None
    """TTFT of requests by their first token."""
    tpot_p50_s: float | None = None
    """TPOT of completed requests."""
    tpot_p90_s: float | None = None
    """TPOT of completed requests."""
