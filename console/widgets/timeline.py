"""Pending prefill of every instance over one time axis, and an arrow for each session that moved between two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from console import format as say
from console.glyphs import Glyphs
from console.series import Point, make_time_axis
from console.widgets.drawing import Drawing, place_labels

NAME_WIDTH = (6, 14)
"""The least and the most columns for the names."""
TALLEST = 4
"""Lines of a band, at most."""
HOLD_STEPS = 2.5
"""Steps for which a sample is shown while there is no newer one; after that the line is blank."""

_Canvas = list[list[tuple[str, str]]]
"""Characters with their tones, line by line."""


@dataclass(frozen=True, slots=True)
class Band:
    """One instance."""

    name: str
    tone: str
    points: tuple[Point, ...]
    """Unix seconds and tokens, oldest first."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """A session that moved; `source` and `target` are indexes of bands."""

    t_unix_s: float
    source: int
    target: int
    tone: str


@dataclass(frozen=True, slots=True)
class Scene:
    """Bands, arrows and times to draw."""

    bands: tuple[Band, ...] = ()
    arrows: tuple[Arrow, ...] = ()
    start: float = 0.0
    end: float = 1.0
    step_s: float = 1.0
    """Between two points of a band."""
    hot_above: float | None = None
    """Tokens above which the policy calls an instance hot; None = it has no such threshold, or it is not known."""


HOT_TONE = "warn"
"""Tone of the columns in which a band is hot."""


class Timeline(Drawing):
    """A band per instance, as tall as there is room for; arrows stand in the lines between them."""

    LEAST = (1, 3)

    _scene = Scene()

    def show(self, scene: Scene) -> None:
        self._scene = scene
        self.change_content(scene)

    def paint(self, styles: dict[str, Style], width: int, height: int) -> list[Strip]:
        if not any(band.points for band in self._scene.bands):
            return []
        lines = draw_scene(self._scene, width, height, self.glyphs)
        return [_make_strip(line, styles).adjust_cell_length(width) for line in lines]


def count_band_lines(bands: int, tall: int = TALLEST) -> int:
    """Lines that this many bands of this height need, with their arrows, scale and axis."""
    return bands * tall + max(0, bands - 1) + 2


def draw_scene(scene: Scene, width: int, height: int, glyphs: Glyphs) -> list[list[tuple[str, str]]]:
    """The lines, each as characters with their tones: the scale, the bands, the times. `height` is at least 3."""
    bands = scene.bands[: height - 2]
    names = min(NAME_WIDTH[1], max(NAME_WIDTH[0], *(len(band.name) + 1 for band in bands)))
    columns = max(1, width - names)
    apart = count_band_lines(len(bands), 1) <= height
    tall = max(1, min(TALLEST, (height - count_band_lines(len(bands), 0)) // len(bands))) if apart else 1
    levels = [_find_levels(band, scene, columns) for band in bands]
    top = max((value for row in levels for value in row if value is not None), default=0)
    canvas: _Canvas = []
    for index, (band, row) in enumerate(zip(bands, levels, strict=True)):
        if index and apart:
            canvas.append([(" ", "")] * columns)
        tones = [HOT_TONE if _is_hot(value, scene.hot_above) else band.tone for value in row]
        canvas += [[(_draw_level(value, top, tall, tall - 1 - line, glyphs), tone)
                    for value, tone in zip(row, tones, strict=True)] for line in range(tall)]  # fmt: skip
    first = [index * (tall + apart) for index in range(len(bands))]
    for arrow in scene.arrows:
        column = int((arrow.t_unix_s - scene.start) / max(scene.end - scene.start, 1e-9) * columns)
        if 0 <= column < columns and arrow.source != arrow.target and max(arrow.source, arrow.target) < len(bands):
            _draw_arrow(canvas, arrow, column, first, tall, apart)
    labels = _label_bands(bands, first, tall)
    lines = [_describe_scale(top, len(scene.bands) - len(bands), scene.hot_above)]
    for number, line in enumerate(canvas):
        text, tone = labels.get(number, ("", ""))
        lines.append([(text[: names - 1].ljust(names), tone), *line])
    return [*lines, [(" " * names, ""), (_draw_times(scene, columns), "dim")]]


def _find_levels(band: Band, scene: Scene, columns: int) -> list[int | None]:
    """The highest value in each column's time; where it holds no sample the one before, None where that is too old."""
    width_s = max(scene.end - scene.start, 1e-9) / columns
    levels: list[int | None] = [None] * columns
    ends = [*(later[0] for _, later in pairwise(band.points)), float("inf")]
    for (at, value), until in zip(band.points, ends, strict=True):
        until = min(until, at + HOLD_STEPS * scene.step_s, scene.end)
        first = int((at - scene.start) // width_s)
        last = max(first, int((until - scene.start) / width_s - 1e-9))
        for column in range(max(0, first), min(columns - 1, last) + 1):
            levels[column] = max(int(value), levels[column] or 0)
    return levels


def _is_hot(value: int | None, hot_above: float | None) -> bool:
    return value is not None and hot_above is not None and value > hot_above


def _draw_level(value: int | None, top: int, tall: int, level: int, glyphs: Glyphs) -> str:
    """One column on one line of a band: eighths of a character; nothing pending is a low line, not sampled a blank."""
    if value is None:
        return " "
    if not value or not top:
        return "_" if level == 0 else " "
    eighths = max(1, round(value / top * tall * 8))
    return glyphs.block(eighths, level)


def _draw_arrow(canvas: _Canvas, arrow: Arrow, column: int, first: list[int], tall: int, apart: bool) -> None:
    """The arrow's lines: from below or above its source to its head beside its target."""
    down = arrow.target > arrow.source
    head = "▼" if down else "▲"
    if apart:
        begin = first[arrow.source] + tall if down else first[arrow.source] - 1
        end = first[arrow.target] - 1 if down else first[arrow.target] + tall
    else:  # no line between the bands: it stands on them
        begin, end = first[arrow.source], first[arrow.target]
    for line in range(min(begin, end), max(begin, end) + 1):
        canvas[line][column] = ("│", arrow.tone)
    canvas[end][column] = (head, arrow.tone)


def _label_bands(bands: Sequence[Band], first: Sequence[int], tall: int) -> dict[int, tuple[str, str]]:
    """By line: every band's name and, where it has a second line, its newest value."""
    labels = {}
    for band, line in zip(bands, first, strict=True):
        labels[line] = (band.name, band.tone)
        if tall > 1 and band.points:
            labels[line + 1] = (say.tokens(band.points[-1][1]), "dim")
    return labels


def _describe_scale(top: int, left_out: int, hot_above: float | None) -> list[tuple[str, str]]:
    more = "" if not left_out else f", {left_out} more instance{'s have' if left_out > 1 else ' has'} no room"
    hot = [(f", hot above {say.tokens(hot_above)}", HOT_TONE)] if hot_above is not None else []
    return [(f"pending prefill, full height {say.tokens(top)} tokens", "dim"), *hot, (more, "dim")]


def _draw_times(scene: Scene, columns: int) -> str:
    """Clock times under the columns they belong to, as many as fit without touching."""
    axis = make_time_axis(scene.start, scene.end, columns)
    scale = columns / max(scene.end - scene.start, 1e-9)
    return place_labels(((int((tick - scene.start) * scale), label)
                         for tick, label in zip(axis.ticks, axis.labels, strict=True)), columns)  # fmt: skip


def _make_strip(line: Sequence[tuple[str, str]], styles: Mapping[str, Style]) -> Strip:
    return Strip([Segment(text, styles[tone]) for text, tone in line]).simplify()
