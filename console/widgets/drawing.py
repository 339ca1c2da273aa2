"""A widget that draws itself line by line, and only when its content has changed."""

from __future__ import annotations

import textwrap
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from console.glyphs import UNICODE, Glyphs
from console.themes import make_tones


class Drawing(Widget):
    """Shows what `paint` returns until content, size or theme change; where that is nothing, the text `empty`.

    Before its first content it is blank: what it is to show is still being read.
    """

    DEFAULT_CSS = """
    Drawing { height: 1fr; width: 1fr; background: transparent; }
    """
    LEAST: ClassVar[tuple[int, int]] = (1, 1)
    """Columns and lines that `paint` needs."""

    def __init__(self, *, empty: str = "", glyphs: Glyphs = UNICODE) -> None:
        super().__init__()
        self._empty = empty
        self.glyphs = glyphs
        self.marker = "braille"
        """Marker of plots: `braille`, `hd` (quarter blocks) or `letters` (distinguishes lines without color)."""
        self._content: tuple[object, ...] = ()
        self._drawn: list[Strip] = []
        self._drawn_for: tuple[Any, ...] = ()

    def change_content(self, *content: object) -> None:
        """Draw again where what `paint` draws has changed."""
        if content != self._content:
            self._content = content
            self.refresh()

    @abstractmethod
    def paint(self, styles: dict[str, Style], width: int, height: int) -> list[Strip]:
        """The lines; empty where there is nothing to draw."""

    def text(self) -> list[str]:
        """The lines as drawn, without style."""
        self._draw()
        return [strip.text for strip in self._drawn]

    def render_line(self, y: int) -> Strip:
        self._draw()
        strip = self._drawn[y] if y < len(self._drawn) else Strip.blank(self.size.width)
        return strip.apply_style(self.rich_style)

    def notify_style_update(self) -> None:
        self._drawn_for = ()
        super().notify_style_update()

    def _draw(self) -> None:
        key = (self._content, self.glyphs, self.marker, self.size)
        if key == self._drawn_for:
            return
        self._drawn_for = key
        styles = make_tones(self.app.theme_variables)
        width, height = self.size
        fits = width >= self.LEAST[0] and height >= self.LEAST[1]
        drawn = self.paint(styles, width, height) if fits else []
        self._drawn = drawn or [
            Strip([Segment(line, styles["dim"])]).adjust_cell_length(width)
            for line in textwrap.wrap(self._empty if self._content else "", max(1, width)) or [""]
        ]


def place_labels(labels: Iterable[tuple[int, str]], width: int | None = None) -> str:
    """The labels at their columns, as many as fit without touching."""
    line = ""
    for column, label in labels:
        apart = column >= len(line) + (1 if line else 0)
        if apart and (width is None or column + len(label) <= width):
            line = line.ljust(column) + label
    return line
