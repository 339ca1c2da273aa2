"""The names of a panel's sections on one line."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import Static

KEYS = "  ← →"
"""What moves between sections, where there is room to say so."""


class SectionBar(Static):
    """A click opens a section. Where the names do not fit, all but the open one are numbers."""

    DEFAULT_CSS = "SectionBar { height: 1; }"

    class Picked(Message):
        def __init__(self, section: str) -> None:
            super().__init__()
            self.section = section

    def __init__(self) -> None:
        super().__init__()
        self._open = ""
        self._sections: Mapping[str, str] = {}
        self._labels: Mapping[str, str] = {}

    def show(self, section: str, sections: Mapping[str, str]) -> None:
        """Mark this section as the open one."""
        self._open, self._sections = section, sections
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        self._labels = label_sections(self._sections, self._open, self.size.width)
        text = Text(no_wrap=True)
        for name, label in self._labels.items():
            text.append(f" {label} ", style="bold reverse" if name == self._open else "dim")
        if self.size.width - text.cell_len >= len(KEYS):
            text.append(KEYS, style="dim")
        self.update(text, layout=False)

    def on_click(self, event: events.Click) -> None:
        end = 0
        for name, label in self._labels.items():
            end += _count_columns(label)
            if event.x < end:
                self.post_message(self.Picked(name))
                return


def label_sections(sections: Mapping[str, str], section: str, width: int) -> Mapping[str, str]:
    """The label of each section: its name where there is room for all, else a number except for the open one.

    Where not even the numbers have room, those farthest from the open one are left out.
    """
    if sum(map(_count_columns, sections.values())) <= width:
        return sections
    shown = [(name, label if name == section else str(n)) for n, (name, label) in enumerate(sections.items(), 1)]
    while len(shown) > 1 and sum(_count_columns(label) for _, label in shown) > width:
        open_at = next((index for index, (name, _) in enumerate(shown) if name == section), 0)
        shown.pop(0 if 2 * open_at >= len(shown) else -1)
    return dict(shown)


def _count_columns(label: str) -> int:
    return len(label) + 2
