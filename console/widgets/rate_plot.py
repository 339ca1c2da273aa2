"""A value of every config over the send rate: both axes logarithmic, error bars, marks for what is not clear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from console.series import Axis, Point
from console.widgets.plot import LETTERS, Canvas, Plot

SIGNS = {"": "●", "saturated": "x", "degraded": "o"}


@dataclass(frozen=True, slots=True)
class RatePoint:
    """One measured value at one rate."""

    rate_per_s: float
    value: float
    low: float | None = None
    high: float | None = None
    mark: str = ""
    """`saturated`, `degraded`, or empty."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One config's points, by rising rate."""

    name: str
    tone: str
    points: tuple[RatePoint, ...]


class RatePlot(Plot):
    """Curves over the rate, with a legend of as many lines as it needs."""

    def __init__(self, *, id: str | None = None, empty: str = "") -> None:
        super().__init__(id=id, empty=empty)
        self._curves: tuple[Curve, ...] = ()
        self._unit = ""
        self._diagonal = False

    def show_curves(self, curves: Sequence[Curve], unit: str, diagonal: bool = False) -> None:
        """Draw these; `unit` of the values, `diagonal` draws y = x too."""
        wanted = (tuple(curves), unit, diagonal)
        if wanted != (self._curves, self._unit, self._diagonal):
            self._curves, self._unit, self._diagonal = wanted
            self.refresh()

    def content(self) -> tuple[object, ...]:
        return self._curves, self._unit, self._diagonal, self.marker

    def paint(self, styles: dict[str, Style], width: int, height: int) -> list[Strip]:
        curves = [
            replace(curve, points=tuple(p for p in curve.points if p.value > 0 and p.rate_per_s > 0))
            for curve in self._curves
        ]
        if not any(curve.points for curve in curves):
            return []
        legend = self._names(styles, width)
        rows = self._rows(curves, styles, (width, max(4, height - len(legend))))
        return [*legend, *(Strip(row).adjust_cell_length(width) for row in rows)]

    def _names(self, styles: dict[str, Style], width: int) -> list[Strip]:
        """The unit, then every config, on as many lines as they need."""
        lines: list[list[Segment]] = [[Segment(f"{self._unit}  ", styles["dim"])]]
        room = width - len(self._unit) - 2
        for index, curve in enumerate(self._curves):
            sign = LETTERS[index % len(LETTERS)] if self.marker == "letters" else "●"
            if room < len(curve.name) + 2:
                lines.append([])
                room = width
            lines[-1] += [Segment(f"{sign} ", styles[curve.tone]), Segment(f"{curve.name}  ", styles[""])]
            room -= len(curve.name) + 4
        return [Strip(line).adjust_cell_length(width) for line in lines]

    def _rows(self, curves: Sequence[Curve], styles: dict[str, Style], size: tuple[int, int]) -> list[list[Segment]]:
        values = log_axis([v for c in curves for p in c.points for v in (p.value, p.low, p.high) if v], size[1])
        rates = rate_axis([point.rate_per_s for curve in curves for point in curve.points])
        margin = max(len(label) for label in values.labels) + 2
        column = (rates.upper - rates.lower) / max(1, size[0] - margin)
        canvas = Canvas(size)
        if self._diagonal:
            low, high = max(rates.lower, values.lower), min(rates.upper, values.upper)
            if low < high:
                canvas.line([(low, low), (high, high)], self._stroke("."), styles["faint"])
        drawn = [
            (place, curve, _positions(curve, column * (place - (len(curves) - 1) / 2)))
            for place, curve in enumerate(curves)
            if curve.points
        ]
        for _, curve, points in drawn:
            self._draw_lines(canvas, curve, points, styles[curve.tone])
        for place, curve, points in drawn:
            for at, point in zip(points, curve.points, strict=True):
                canvas.dot(at, self._sign(place, point.mark), styles[curve.tone])
        return canvas.rows(rates, values, styles["dim"])

    def _draw_lines(self, canvas: Canvas, curve: Curve, points: Sequence[Point], style: Style) -> None:
        """The line, and an upright bar where a point has an interval."""
        canvas.line(points, self._stroke("."), style)
        for (x, _), point in zip(points, curve.points, strict=True):
            if point.low is not None and point.high is not None and 0 < point.low < point.high:
                ends = [(x, math.log10(point.low)), (x, math.log10(point.high))]
                canvas.line(ends, self._stroke("|"), style)

    def _stroke(self, letter: str) -> str:
        return letter if self.marker == "letters" else self.marker

    def _sign(self, place: int, mark: str) -> str:
        """Without colour a config's letter, as a capital where the point is not clear."""
        if self.marker != "letters":
            return SIGNS[mark]
        letter = LETTERS[place % len(LETTERS)]
        return letter.upper() if mark else letter


def _positions(curve: Curve, aside: float) -> list[Point]:
    """Where the points lie on the axes; configs stand beside each other so that their bars can be read."""
    return [(math.log10(point.rate_per_s) + aside, math.log10(point.value)) for point in curve.points]


def rate_axis(rates: Sequence[float]) -> Axis:
    """Log10 positions of the rates, each labelled, with room at both ends."""
    grid = sorted(set(rates))
    low, high = math.log10(grid[0]), math.log10(grid[-1])
    room = max(0.07 * (high - low), 0.05)
    return Axis(low - room, high + room, tuple(map(math.log10, grid)), tuple(f"{rate:g}" for rate in grid))


def log_axis(values: Sequence[float], rows: int) -> Axis:
    """Log10 bounds around the values, with ticks at round numbers in at most two of three rows."""
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.05 * (high - low), 0.05)
    low, high = low - room, high + room
    for factors in ((1, 1.5, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1,)):
        ticks = [f * 10.0**d for d in range(math.floor(low), math.ceil(high) + 1) for f in factors]
        ticks = [tick for tick in ticks if low <= math.log10(tick) <= high]
        if len(ticks) <= max(2, rows * 2 // 3):
            break
    return Axis(low, high, tuple(map(math.log10, ticks)), tuple(f"{tick:g}" for tick in ticks))
