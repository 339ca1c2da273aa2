"""Lines of toned text, drawn again only where they or the colors changed."""

from __future__ import annotations

from rich.text import Text
from textual.widgets import Static

from console.themes import make_tones
from console.widgets.table import Cell


class Lines(Static):
    """One line or several."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: object = None

    def show_lines(self, *lines: Cell, layout: bool = True) -> None:
        """`layout`: the number of lines may change the layout."""
        content = (lines, self.app.theme)
        if content == self._shown:
            return
        self._shown = content
        styles = make_tones(self.app.theme_variables)
        text = Text(no_wrap=True, overflow="ellipsis")
        for number, line in enumerate(lines):
            text.append("\n" if number else "")
            for part, tone in line:
                text.append(part, style=styles[tone])
        self.update(text, layout=layout)
