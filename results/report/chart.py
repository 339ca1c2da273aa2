"""A chart for a terminal: lines over one number, on logarithmic axes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value, with the bounds of its interval or range."""

    x: float
    value: float
    low: float | None = None
    high: float | None = None
    mark: str = ""
    """`saturated`, `degraded`, or empty."""


@dataclass(frozen=True, slots=True)
class Line:
    """Points by rising `x`."""

    name: str
    points: tuple[Point, ...]
    color: str = "#000000"
    """As in the figures of the report."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines with the names of both axes, units included."""

    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]
    note: str = ""
    """How to read it."""
    diagonal: bool = False
    """Draw y = x too."""
