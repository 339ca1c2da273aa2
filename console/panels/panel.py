"""A panel of a run: the widget that draws it, and what the dashboard, the keys, the help and the docs need of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from textual.containers import Vertical
from textual.message import Message
from textual.widget import Widget

from console.feed import Picture
from console.glossary import Entry
from console.glyphs import UNICODE, Glyphs
from console.widgets.table import Table
from state.model import RunView

Fact = tuple[str, str]
"""Label and text."""


@dataclass(frozen=True, slots=True)
class Look:
    """The operator's display settings."""

    window_s: float | None = 300.0
    follow: bool = True
    glyphs: Glyphs = UNICODE
    marker: str = "braille"
    folded: frozenset[str] = field(default_factory=frozenset)
    """Stages whose cells are hidden."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What enter on a row opens: facts in a dialog, or an instance on its own screen."""

    title: str = ""
    facts: Sequence[Fact] = ()
    command_label: str = ""
    """Names the panel's command line below the facts, filled in with `command_values`; `y` copies it. Empty = none."""
    command_values: Mapping[str, str] = field(default_factory=dict)
    instance: str = ""


@dataclass(frozen=True, slots=True)
class Export:
    """Numbers that can be saved."""

    name: str
    """The file's name, without time and ending."""
    write: Callable[[], tuple[str, bytes]]
    """Returns the file's ending and its content; called in a thread."""


class Panel(Vertical):
    """A titled part of the screen. It draws its part of a picture, and only while it can be seen."""

    DRAW_EVERY_S: ClassVar[float] = 0.0
    """Least time between two drawings of the same look."""
    GROWS: ClassVar[bool] = False
    """New rows appear at the table's end, which the panel follows."""

    class LookChanged(Message):
        """The operator changed fields of the look inside the panel."""

        def __init__(self, **changes: object) -> None:
            super().__init__()
            self.changes = changes

    class Redraw(Message):
        """The panel has something new to show that is not in the picture."""

    def __init__(self, look: Look, run_folder: Path, *content: Widget, id: str) -> None:
        super().__init__(*content, id=id, classes="panel")
        self.look = look
        self.run_folder = run_folder

    def on_resize(self) -> None:
        """What was drawn before was for another room; a finished run brings no picture that would draw it again."""
        self.post_message(self.Redraw())

    @abstractmethod
    def show(self, picture: Picture) -> None:
        """Draw what changed. mypy checks that every panel does; Textual's metaclass rules out ABCMeta."""

    @property
    def table(self) -> Table | None:
        """The table inside, where there is one (it can be filtered and followed)."""
        return None

    @property
    def can_filter(self) -> bool:
        """There are rows that a filter can hide."""
        return self.table is not None

    @property
    def busy(self) -> bool:
        """The panel is still reading what it is about to show."""
        return False

    def open_row(self, table: Table, key: str, picture: Picture) -> Opening | None:
        """What enter on this row of one of the panel's tables opens; None = nothing."""
        return None

    def follows_after(self, table: Table, *, at_end: bool) -> bool | None:
        """Whether to follow new rows after this table was scrolled manually; None = as before."""
        return at_end if self.GROWS and table is self.table else None

    def step(self, by: int) -> None:
        """Go to the next (1) or previous (-1) of what the panel's kind names in `steps_through`."""

    def export(self) -> Export | None:
        """The numbers shown; None while there are none."""
        return None

    def count_wanted_lines(self, view: RunView) -> int | None:
        """Lines on the dashboard; None = the panel's share of the column."""
        return None

    def filter(self, text: str) -> None:
        """Keep the table's rows that contain the text, which the border then shows."""
        if self.table is not None:
            self.table.filter(text)
            self.border_subtitle = f"filter: {text}  (esc clears)" if text else ""

    def focus_content(self) -> None:
        """Focus at once what keys can move in; nothing where there is none."""
        self.screen.set_focus(self.table)


class TablePanel(Panel):
    EMPTY: ClassVar[str] = ""
    """The text in place of rows."""

    def __init__(self, look: Look, run_folder: Path, *, id: str) -> None:
        self._table = Table(empty=self.EMPTY)
        super().__init__(look, run_folder, self._table, id=id)

    @property
    def table(self) -> Table:
        return self._table


class Place(StrEnum):
    """Where a panel is on the dashboard."""

    LEFT = "left"
    """Above, at the left."""
    RIGHT = "right"
    """Above, beside it, one under the other."""
    OWN = "own"
    """Below, at the left: of these the last one that applies to the run."""
    LOWER = "lower"
    """Below, beside it."""
    ALONE = "alone"
    """Not on the dashboard: it takes the whole body."""


@dataclass(frozen=True, slots=True)
class PanelKind:
    name: str
    """Also the id of its widget and of the action that opens it."""
    key: str
    title: str
    help: str
    widget: Callable[..., Panel]
    """Called with the look, the run's folder and `id`."""
    place: Place
    heading: str = ""
    """The border's title where it is another."""
    entries: tuple[Entry, ...] = ()
    """Its numbers, for the help and the docs."""
    applies: Callable[[RunView], bool] = lambda view: True
    """Whether the run has, or may get, something to show on it."""
    large: bool = False
    """On the dashboard it takes more room than its neighbors."""
    command: tuple[str, ...] = ()
    """The equal command line; names in braces are filled in."""
    steps_through: str = ""
    """What left and right go through, e.g. `section`; empty = nothing."""
    exports: str = ""
    """What `e` saves, as an imperative; empty = nothing."""

    def make(self, look: Look, run_folder: Path) -> Panel:
        """The widget, titled with its key."""
        made = self.widget(look, run_folder, id=self.name)
        made.border_title = f"{self.key} {self.heading or self.title}"
        made.set_class(self.large, "large")
        return made
