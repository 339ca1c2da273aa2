"""The event feed as rows."""

from __future__ import annotations

from collections.abc import Iterator

from console import format as say
from console.glyphs import TONES, Glyphs
from console.widgets.table import Cell, Column, Row, cell
from state.view import FeedLine, RunView

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


def event_columns(width: int) -> tuple[Column, ...]:
    return EVENT_COLUMNS if width >= 90 else NARROW_EVENT_COLUMNS


def event_rows(view: RunView, glyphs: Glyphs, width: int, about: frozenset[str] = frozenset()) -> tuple[Row, ...]:
    """The feed, oldest first; with `about`, only the lines about these subjects."""
    rows: list[Row] = []
    wide = width >= 90
    for key, line in event_keys(view):
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


def event_keys(view: RunView) -> Iterator[tuple[str, FeedLine]]:
    """The feed's lines with keys that stay the same while older lines fall out."""
    at, nth = 0.0, 0
    for line in view.feed:
        nth = nth + 1 if line.t_unix_s == at else 0
        at = line.t_unix_s
        yield f"{at!r}:{nth}", line


def event_detail(view: RunView, key: str) -> list[tuple[str, str]]:
    """The whole of an event line."""
    line = dict(event_keys(view)).get(key)
    if line is None:
        return [("event", "older than the feed keeps; the journal has it")]
    return [("time", say.moment(line.t_unix_s)), ("level", line.level), ("about", line.subject), ("text", line.text)]
