"""A chart: both axes logarithmic, bars for intervals, marks for what is not clear."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from console.series import Axis, Point
from console.widgets.plot import Canvas, Plot
from console.widgets.table import Cell, flow_entries
from results.report.chart import Chart, Line

SIGNS = {"": "●", "saturated": "x", "degraded": "o"}


class RatePlot(Plot):
    """A chart, with a legend of as many lines as it needs."""

    _chart = Chart("", "", "", ())
    _tones: tuple[str, ...] = ()

    def show_chart(self, chart: Chart, tone_of: Callable[[str], str]) -> None:
        """Draw its lines, each in the tone of its name."""
        self._chart, self._tones = chart, tuple(tone_of(line.name) for line in chart.lines)
        self.change_content(self._chart, self._tones)

    def paint(self, styles: dict[str, Style], width: int, height: int) -> list[Strip]:
        lines = [
            Line(line.name, tuple(point for point in line.points if point.value > 0 and point.x > 0))
            for line in self._chart.lines
        ]
        if not any(line.points for line in lines):
            return []
        legend = self._make_legend_lines(styles, width)
        rows = self._draw_rows(lines, styles, (width, max(4, height - len(legend))))
        return [*legend, *(Strip(row).adjust_cell_length(width) for row in rows)]

    def _make_legend_lines(self, styles: dict[str, Style], width: int) -> list[Strip]:
        """What the values are, then every line's name."""
        entries: list[Cell] = [((f"{self._chart.y_name}  ", "dim"),)]
        for index, (line, tone) in enumerate(zip(self._chart.lines, self._tones, strict=True)):
            entries.append(((f"{self.sign(index, '●')} ", tone), (f"{line.name}  ", "")))
        lines = ([Segment(text, styles[tone]) for text, tone in line] for line in flow_entries(entries, width + 2))
        return [Strip(line).adjust_cell_length(width) for line in lines]

    def _draw_rows(self, lines: Sequence[Line], styles: dict[str, Style], size: tuple[int, int]) -> list[list[Segment]]:
        every = [point for line in lines for point in line.points]
        values = make_log_axis([v for point in every for v in (point.value, point.low, point.high) if v], size[1])
        rates = make_rate_axis([point.x for point in every])
        margin = max(len(label) for label in values.labels) + 2
        column = (rates.upper - rates.lower) / max(1, size[0] - margin)
        canvas = Canvas(size)
        if self._chart.diagonal:
            low, high = max(rates.lower, values.lower), min(rates.upper, values.upper)
            if low < high:
                canvas.line([(low, low), (high, high)], self._choose_stroke("."), styles["faint"])
        drawn = [
            (index, line, _place_points(line, column * (index - (len(lines) - 1) / 2)), styles[self._tones[index]])
            for index, line in enumerate(lines)
            if line.points
        ]
        for _, line, points, style in drawn:
            self._draw_line(canvas, line, points, style)
        for index, line, points, style in drawn:
            for at, point in zip(points, line.points, strict=True):
                canvas.dot(at, self._choose_point_sign(index, point.mark), style)
        return canvas.rows(rates, values, styles["dim"])

    def _draw_line(self, canvas: Canvas, line: Line, points: Sequence[Point], style: Style) -> None:
        """The line, and an upright bar where a point has an interval."""
        canvas.line(points, self._choose_stroke("."), style)
        for (x, _), point in zip(points, line.points, strict=True):
            if point.low is not None and point.high is not None and 0 < point.low < point.high:
                ends = [(x, math.log10(point.low)), (x, math.log10(point.high))]
                canvas.line(ends, self._choose_stroke("|"), style)

    def _choose_stroke(self, letter: str) -> str:
        return letter if self.marker == "letters" else self.marker

    def _choose_point_sign(self, index: int, mark: str) -> str:
        """Without color the line's letter, as a capital where the point is not clear."""
        sign = self.sign(index, SIGNS[mark])
        return sign.upper() if mark and self.marker == "letters" else sign


def _place_points(line: Line, aside: float) -> list[Point]:
    """Where the points are on the axes; lines are set apart sideways so that their bars can be read."""
    return [(math.log10(point.x) + aside, math.log10(point.value)) for point in line.points]


def make_rate_axis(rates: Sequence[float]) -> Axis:
    """Log10 positions of the rates, each labeled, with room at both ends."""
    grid = sorted(set(rates))
    low, high = math.log10(grid[0]), math.log10(grid[-1])
    room = max(0.07 * (high - low), 0.05)
    return Axis(low - room, high + room, tuple(map(math.log10, grid)), tuple(f"{rate:g}" for rate in grid))


def make_log_axis(values: Sequence[float], rows: int) -> Axis:
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
