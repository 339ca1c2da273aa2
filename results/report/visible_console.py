"""A console that escapes control characters in all text, so that the terminal does not execute them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from results.records.visible import visible


class VisibleConsole(Console):
    """Used by commands, and by the operator console for what it prints after its screen has closed (a traceback)."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            is_plain = segment.control or segment.text.isprintable()
            yield segment if is_plain else Segment(visible(segment.text), segment.style)
