"""Lines of toned text, drawn again only where they or the colors changed."""

from __future__ import annotations

from textual.widgets import Static

from console.themes import make_tones
from console.widgets.header import style_spans
from console.widgets.table import Cell


class Lines(Static):
    """One line or several."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: object = None

    def show_lines(self, *lines: Cell) -> None:
        content = (lines, self.app.theme)
        if content == self._shown:
            return
        self._shown = content
        spans = [span for number, line in enumerate(lines) for span in ((("\n", ""),) if number else ()) + line]
        self.update(style_spans(spans, make_tones(self.app.theme_variables)))
