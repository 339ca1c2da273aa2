"""The main curves of a report in a terminal: TTFT p90 over the send rate, a letter per config."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from string import ascii_lowercase
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    import pandas as pd

    from results.connector_tax.analyse import Analysis

HEIGHT = 20
"""Rows."""
_TICKS = (1.0, 2.0, 5.0)


def ttft_curves(analysis: Analysis, width: int) -> RenderableType | None:
    """Both axes logarithmic, `width` columns wide; None where there is nothing to draw (fewer than two rates)."""
    from results.connector_tax.curve_figures import ttft_by_rate
    from results.report.ink import pens

    table = ttft_by_rate(analysis).table
    drawn = table[table["ttft_p90_s"] > 0] if not table.empty else table
    rates = sorted(set(drawn["rate_per_s"])) if len(drawn) else []
    if len(rates) < 2 or width < 40:
        return None
    colors = {config: _parse_color(pen.color) for config, pen in pens(dict.fromkeys(table["config"])).items()}
    legend = Text("  ")
    for letter, (config, color) in zip(cycle(ascii_lowercase), colors.items(), strict=False):
        legend.append(f"{letter} {config}   ", style=f"rgb({color[0]},{color[1]},{color[2]})")
    legend.append("capital: saturated", style="default")
    title = Text("TTFT p90 (ms) by send rate (req/s), Phase A", style="bold")
    return Group(title, Text.from_ansi(_draw_canvas(drawn, rates, colors, width)), legend, Text())


def _parse_color(color: str) -> tuple[int, int, int]:
    """`#d55e00` to its parts; black becomes grey, which is visible on a dark terminal too."""
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return (160, 160, 160) if red + green + blue == 0 else (red, green, blue)


def _draw_canvas(
    drawn: pd.DataFrame, rates: Sequence[float], colors: dict[str, tuple[int, int, int]], width: int
) -> str:
    """plotext draws on its one module-level figure, so this is not re-entrant."""
    import plotext

    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.canvas("default")
    figure.plot_size(width, HEIGHT)
    for letter, (config, color) in zip(cycle(ascii_lowercase), colors.items(), strict=False):
        rows = drawn[drawn["config"] == config]
        pixel = plotext.pixel(color)
        at = [math.log10(rate) for rate in rows["rate_per_s"]]
        height = [math.log10(1e3 * value) for value in rows["ttft_p90_s"]]
        if not at:
            continue
        line = figure.signal(at, height, marker=plotext.marker("braille", pixel))
        line.lines().density("full")
        figure.draw(line)
        for x, y, saturated in zip(at, height, rows["saturated"], strict=True):
            sign = letter.upper() if saturated else letter
            figure.draw(figure.signal([x], [y], marker=plotext.marker(sign, pixel)))
    figure.axes(False, axis="x", side="upper")
    figure.axes(False, axis="y", side="right")
    low, high = math.log10(rates[0]), math.log10(rates[-1])
    room = 0.04 * (high - low)
    bottom, top, ticks = _value_axis(drawn["ttft_p90_s"].tolist())
    labels = [f"{rate:g}" for rate in rates]
    figure.ruler("x", "lower").lim(low - room, high + room).ticks([math.log10(rate) for rate in rates], labels)
    figure.ruler("y", "left").lim(bottom, top).ticks(
        [math.log10(tick) for tick in ticks], [f"{tick:g}" for tick in ticks]
    )
    return str(figure.build().string()).rstrip("\n")


def _value_axis(seconds: Sequence[float]) -> tuple[float, float, list[float]]:
    """Bounds (log10 of ms) and 1-2-5 ticks (ms) around the values."""
    bottom, top = (math.log10(1e3 * value) for value in (min(seconds), max(seconds)))
    room = max(0.05 * (top - bottom), 0.05)
    bottom, top = bottom - room, top + room
    decades = range(math.floor(bottom), math.ceil(top) + 1)
    ticks = [tick * 10.0**decade for decade in decades for tick in _TICKS]
    return bottom, top, [tick for tick in ticks if bottom <= math.log10(tick) <= top]
