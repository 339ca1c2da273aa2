"""Lines over time: plotext behind one widget, drawn in the console's own tones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rich.ansi import AnsiDecoder
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.strip import Strip

from console.series import GAP_S, Axis, Series, find_gaps, make_time_axis, make_value_axis, thin_line
from console.widgets.drawing import Drawing
from results.records.named_number import digits

LETTERS = "abcdefghijklmnop"


class Plot(Drawing):
    """One quantity of several instances over clock time, with a legend line that gives the newest values."""

    LEAST = (16, 4)

    _lines: tuple[Series, ...] = ()
    _span = (0.0, 1.0)

    def sign(self, index: int, colored: str) -> str:
        """Sign of the line at this index: its letter, or `colored` where color distinguishes the lines."""
        return LETTERS[index % len(LETTERS)] if self.marker == "letters" else colored

    def show(self, lines: Sequence[Series], start: float, end: float) -> None:
        """Draw these lines from `start` to `end` (Unix seconds); nothing happens when nothing changed."""
        self._lines = tuple(lines)
        if any(line.points for line in self._lines):
            self._span = (start, end)
        self.change_content(self._lines, self._span)

    def paint(self, styles: dict[str, Style], width: int, height: int) -> list[Strip]:
        """Legend and canvas; empty where there is nothing to draw."""
        if not any(line.points for line in self._lines):
            return []
        return [self._make_legend_line(styles, width), *self._draw_canvas(styles, width, height - 1)]

    def _make_legend_line(self, styles: dict[str, Style], width: int) -> Strip:
        """The newest lines first, as many as fit."""
        parts: list[Segment] = []
        room = width
        for index, line in reversed(list(enumerate(self._lines))):
            if not line.points:
                continue
            sign = self.sign(index, "●")
            value = digits(line.points[-1][1])
            room -= len(line.name) + len(value) + 5
            if room < -2:
                break
            parts += [
                Segment(f"{sign} ", styles[line.tone]),
                Segment(f"{line.name} ", styles["dim"]),
                Segment(f"{value}  ", styles["bold"]),
            ]
        return Strip(parts).adjust_cell_length(width)

    def _draw_canvas(self, styles: dict[str, Style], width: int, height: int) -> list[Strip]:
        start, end = self._span
        top = max(value for line in self._lines for _, value in line.points)
        values = make_value_axis(top, height - 1)
        margin = max(len(label) for label in values.labels) + 1
        times = make_time_axis(start, end, width - margin)
        canvas = Canvas((width, height))
        for index, line in enumerate(self._lines):
            if line.points:
                points = thin_line(line.points, start, end, width - margin)
                breaks = find_gaps(points, max(GAP_S, 2.5 * (times.upper - times.lower) / width))
                canvas.line(points, self.sign(index, self.marker), styles[line.tone], breaks)
        rows = canvas.rows(times, values, styles["dim"])
        return [Strip(row).adjust_cell_length(width) for row in rows]


class Canvas:
    """plotext's one module-level figure, cleared: draw one at a time."""

    def __init__(self, size: tuple[int, int]) -> None:
        import plotext  # late: 0.2 s that the first frame does not wait for

        plotext.terminal.limit(False, False)  # the widget's size counts, not that of whatever stdout is
        self._plotext = plotext
        self._figure = plotext.figure
        self._figure.clear()
        self._figure.theme("colorless")
        self._figure.canvas("default")
        self._figure.plot_size(*size)

    def line(
        self, points: Sequence[tuple[float, float]], marker: str, style: Style, breaks: Sequence[int] = ()
    ) -> None:
        """A line through the points; those at the indices `breaks` are not joined to the one before."""
        signal = self._make_signal(points, marker, style)
        signal.lines().density("full")
        for index in breaks:
            signal.line(index, False)
        self._figure.draw(signal)

    def dot(self, point: tuple[float, float], sign: str, style: Style) -> None:
        """One character."""
        self._figure.draw(self._make_signal([point], sign, style))

    def _make_signal(self, points: Sequence[tuple[float, float]], marker: str, style: Style) -> Any:  # noqa: ANN401 (untyped there)
        pixel = self._plotext.pixel(tuple(style.color.get_truecolor()) if style.color else None)
        shape = self._plotext.marker(marker, pixel)
        return self._figure.signal([x for x, _ in points], [y for _, y in points], marker=shape)

    def rows(self, across: Axis, up: Axis, base: Style) -> list[list[Segment]]:
        """What was drawn between these axes, row by row; axes and labels take the base style."""
        self._figure.axes(False, axis="x", side="upper")
        self._figure.axes(False, axis="y", side="right")
        for name, side, axis in (("x", "lower", across), ("y", "left", up)):
            self._figure.ruler(name, side).lim(axis.lower, axis.upper).ticks(list(axis.ticks), list(axis.labels))
        decoder = AnsiDecoder()
        rows = self._figure.build().string().rstrip("\n").split("\n")
        return [_decode_segments(decoder.decode_line(row), base) for row in rows]


def _decode_segments(row: Text, base: Style) -> list[Segment]:
    """A decoded row; what carries no color of its own (axes and labels) takes the base style."""
    cuts = sorted({0, len(row), *(edge for span in row.spans for edge in (span.start, span.end))})
    parts: list[Segment] = []
    for start, end in pairwise(cuts):
        style = base
        for span in row.spans:
            if span.start <= start < span.end and isinstance(span.style, Style):
                style = style + span.style
        parts.append(Segment(row.plain[start:end], style))
    return parts
