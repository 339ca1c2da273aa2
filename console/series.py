"""From a view's samples to the lines a plot draws: window, gaps, thinning, axis ticks. Pure."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Point = tuple[float, float]
"""Unix seconds and value."""
_S = TypeVar("_S")

GAP_S = 5.0
"""Samples further apart than this are not joined by a line."""
WINDOWS_S: tuple[float | None, ...] = (60.0, 300.0, 900.0, 3600.0, None)
"""What `[` and `]` step through; None = the whole run."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot."""

    name: str
    tone: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    lower: float
    upper: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]


def format_window(window_s: float | None) -> str:
    if window_s is None:
        return "whole run"
    return f"last {window_s / 60:.0f} min"


def list_measured_points(
    history: Iterable[tuple[float, _S]], value: Callable[[_S], float | None], since: float
) -> tuple[Point, ...]:
    """The measured values from `since` on; seconds without one are left out."""
    values = ((t, value(sample)) for t, sample in history if t >= since)
    return tuple((t, number) for t, number in values if number is not None)


def thin_line(line: Sequence[Point], start: float, end: float, columns: int) -> tuple[Point, ...]:
    """At most one point per column of the axis: the highest, so that no peak is lost."""
    if len(line) <= columns or end <= start:
        return tuple(line)
    highest: dict[int, Point] = {}
    for point in line:
        column = int((point[0] - start) / (end - start) * columns)
        if column not in highest or point[1] > highest[column][1]:
            highest[column] = point
    return tuple(highest.values())


def find_gaps(line: Sequence[Point], limit_s: float = GAP_S) -> list[int]:
    """Indices of points that are not joined to the one before."""
    return [i for i in range(1, len(line)) if line[i][0] - line[i - 1][0] > limit_s]


def make_value_axis(top: float, rows: int) -> Axis:
    """From zero to a round number at or above `top`, with a label about every third row."""
    parts = max(2, min(4, rows // 3))
    step = _round_up(max(top, 1e-9) / parts)
    ticks = tuple(step * i for i in range(math.ceil(top / step - 1e-9) + 1)) if top > 0 else (0.0, step)
    return Axis(0.0, ticks[-1], ticks, tuple(f"{tick:g}" for tick in ticks))


def make_time_axis(start: float, end: float, columns: int) -> Axis:
    """Local clock times at round distances."""
    span = max(end - start, 1.0)
    room = max(1, columns // 9)
    step = next((s for s in _TIME_STEPS if span / s <= room), _TIME_STEPS[-1])
    offset = time.localtime(start).tm_gmtoff
    first = math.ceil((start + offset) / step) * step - offset
    ticks = tuple(first + i * step for i in range(int((end - first) // step) + 1)) if first <= end else ()
    form = "%H:%M:%S" if step < 60 else "%H:%M"
    return Axis(start, max(end, start + 1.0), ticks, tuple(time.strftime(form, time.localtime(tick)) for tick in ticks))


_TIME_STEPS = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= value * 0.999999)
