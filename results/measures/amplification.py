"""Amplification of a replay; without pandas and Arrow, because the load process imports it."""

from __future__ import annotations


def compute_amplification_ratio(wall_clock_s: float, trace_span_s: float) -> float | None:
    """Wall clock of the replay over the span of its trace; None where the trace spans no time."""
    return wall_clock_s / trace_span_s if trace_span_s > 0 else None
