"""The Events panel: the feed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from console import format as say
from console.feed import Picture
from console.glyphs import TONES, Glyphs
from console.panels.panel import Fact, Look, Opening, PanelKind, Place, TablePanel
from console.widgets.table import Cell, Column, Row, Table, cell
from state.feed_lines import FeedLine
from state.model import RunView

EVENT_COLUMNS = (
    Column("time", "", 8, left=True),
    Column("level", "", 9, left=True),
    Column("subject", "", 28, left=True),
    Column("text", "", 10, left=True, flex=True),
)
NARROW_EVENT_COLUMNS = (
    Column("time", "", 8, left=True),
    Column("level", "", 1, left=True),
    Column("text", "", 10, left=True, flex=True),
)


def choose_event_columns(width: int) -> tuple[Column, ...]:
    return EVENT_COLUMNS if width >= 90 else NARROW_EVENT_COLUMNS


def make_event_rows(view: RunView, glyphs: Glyphs, width: int, about: frozenset[str] = frozenset()) -> tuple[Row, ...]:
    """The feed, oldest first; with `about`, only the lines about these subjects."""
    rows: list[Row] = []
    wide = width >= 90
    for key, line in key_events(view):
        if about and line.subject not in about:
            continue
        tone = TONES.get(line.level, "")
        sign = glyphs.sign(line.level)
        time = cell(say.clock(line.t_unix_s), "dim")
        text_tone = tone if line.level in ("warning", "error") else ""
        level = cell(f"{sign} {line.level}" if wide else sign, tone)
        cells: tuple[Cell, ...]
        if wide:
            cells = (time, level, cell(line.subject, "dim"), cell(line.text, text_tone))
        else:
            cells = (time, level, ((f"{line.subject}  ", "dim"), (line.text, text_tone)))
        rows.append(Row(key, cells))
    return tuple(rows)


def key_events(view: RunView) -> Iterator[tuple[str, FeedLine]]:
    """The feed's lines with keys that stay the same while older lines fall out."""
    at, nth = 0.0, 0
    for line in view.feed:
        nth = nth + 1 if line.t_unix_s == at else 0
        at = line.t_unix_s
        yield f"{at!r}:{nth}", line


def list_event_facts(view: RunView, key: str) -> list[Fact]:
    """An event line in full."""
    line = dict(key_events(view)).get(key)
    if line is None:
        return [("event", "the feed has dropped it; the journal has it")]
    return [("time", say.moment(line.t_unix_s)), ("level", line.level), ("about", line.subject), ("text", line.text)]


class EventsPanel(TablePanel):
    """The feed; with `about`, only the events about these subjects."""

    GROWS = True
    EMPTY = "nothing has happened yet"

    def __init__(self, look: Look, run_folder: Path, *, id: str, about: frozenset[str] = frozenset()) -> None:
        super().__init__(look, run_folder, id=id)
        self.about = about

    def show(self, picture: Picture) -> None:
        width = self.table.room
        rows = make_event_rows(picture.view, self.look.glyphs, width, self.about)
        self.table.show(choose_event_columns(width), rows)
        if self.look.follow:
            self.table.go_to_end()

    def open_row(self, table: Table, key: str, picture: Picture) -> Opening | None:
        return Opening("Event", list_event_facts(picture.view, key))


PANEL = PanelKind("events", "5", "Events", "what happened, newest last", EventsPanel, Place.LOWER)
