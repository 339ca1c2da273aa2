"""A p as text: the same in every table, reason and note. Data files have the number."""

from __future__ import annotations

SMALLEST_SHOWN = 0.001
"""A smaller p is the far tail of a distribution fitted to a few launches: its size is not known."""


def format_p(p: float) -> str:
    """`0.012`, or `< 0.001`."""
    return f"< {SMALLEST_SHOWN:g}" if p < SMALLEST_SHOWN else f"{p:.2g}"


def state_p(p: float) -> str:
    """`p = 0.012`, or `p < 0.001`."""
    return f"p {format_p(p)}" if p < SMALLEST_SHOWN else f"p = {format_p(p)}"
