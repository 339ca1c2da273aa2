"""A chart in the output of a command: both axes logarithmic, a letter per line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from string import ascii_lowercase

from rich.console import Group, RenderableType
from rich.text import Text

from results.report.chart import Chart, Line

HEIGHT = 20
"""Rows."""
LEAST_WIDTH = 40
_TICKS = (1.0, 2.0, 5.0)
Color = tuple[int, int, int]


def draw_curves(chart: Chart, width: int) -> RenderableType | None:
    """The chart in `width` columns; None where there is nothing to draw (fewer than two values of x)."""
    lines = [
        replace(line, points=tuple(point for point in line.points if point.x > 0 and point.value > 0))
        for line in chart.lines
    ]
    if len({point.x for line in lines for point in line.points}) < 2 or width < LEAST_WIDTH:
        return None
    colors = [_parse_color(line.color) for line in lines]
    legend = Text("  ")
    for letter, line, (red, green, blue) in zip(cycle(ascii_lowercase), lines, colors, strict=False):
        legend.append(f"{letter} {line.name}   ", style=f"rgb({red},{green},{blue})")
    legend.append("capital: saturated or degraded", style="default")
    title = Text(f"{chart.y_name}, over {chart.x_name}", style="bold")
    return Group(title, Text.from_ansi(_draw_canvas(lines, colors, width)), legend, Text())


def _parse_color(color: str) -> Color:
    """`#d55e00` to its parts; black becomes gray, which is visible on a dark terminal too."""
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return (160, 160, 160) if red + green + blue == 0 else (red, green, blue)


def _draw_canvas(lines: Sequence[Line], colors: Sequence[Color], width: int) -> str:
    """plotext draws on its one module-level figure, so this is not re-entrant."""
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.canvas("default")
    figure.plot_size(width, HEIGHT)
    for letter, line, color in zip(cycle(ascii_lowercase), lines, colors, strict=False):
        if not line.points:
            continue
        pixel = plotext.pixel(color)
        across = [math.log10(point.x) for point in line.points]
        up = [math.log10(point.value) for point in line.points]
        curve = figure.signal(across, up, marker=plotext.marker("braille", pixel))
        curve.lines().density("full")
        figure.draw(curve)
        for x, y, point in zip(across, up, line.points, strict=True):
            sign = letter.upper() if point.mark else letter
            figure.draw(figure.signal([x], [y], marker=plotext.marker(sign, pixel)))
    figure.axes(False, axis="x", side="upper")
    figure.axes(False, axis="y", side="right")
    grid = sorted({point.x for line in lines for point in line.points})
    low, high = math.log10(grid[0]), math.log10(grid[-1])
    room = 0.04 * (high - low)
    bottom, top, ticks = _fit_value_axis([point.value for line in lines for point in line.points])
    figure.ruler("x", "lower").lim(low - room, high + room).ticks(list(map(math.log10, grid)), [f"{x:g}" for x in grid])
    figure.ruler("y", "left").lim(bottom, top).ticks(list(map(math.log10, ticks)), [f"{tick:g}" for tick in ticks])
    return str(figure.build().string()).rstrip("\n")


def _fit_value_axis(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Bounds (log10) and 1-2-5 ticks around the values."""
    bottom, top = math.log10(min(values)), math.log10(max(values))
    room = max(0.05 * (top - bottom), 0.05)
    bottom, top = bottom - room, top + room
    decades = range(math.floor(bottom), math.ceil(top) + 1)
    ticks = [tick * 10.0**decade for decade in decades for tick in _TICKS]
    return bottom, top, [tick for tick in ticks if bottom <= math.log10(tick) <= top]
