"""Lines of toned text, drawn again only where they or the colours changed."""

from __future__ import annotations

from textual.widgets import Static

from console.themes import tones
from console.widgets.header import styled
from console.widgets.table import Cell


class Lines(Static):
    """Says one line or several."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._said: object = None

    def say(self, *lines: Cell) -> None:
        """Show these lines."""
        said = (lines, self.app.theme)
        if said == self._said:
            return
        self._said = said
        spans = [span for number, line in enumerate(lines) for span in ((("\n", ""),) if number else ()) + line]
        self.update(styled(spans, tones(self.app.theme_variables)))
