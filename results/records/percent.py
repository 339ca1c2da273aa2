"""Fractions as per cent."""

from __future__ import annotations


def format_percent(fraction: float, digits: int = 0, *, signed: bool = False) -> str:
    """0.125 as `12.5 %` with one digit after the point, as `+12.5 %` if signed."""
    return f"{100 * fraction:{'+' if signed else ''}.{digits}f} %"
