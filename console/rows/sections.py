"""What a part of the Results panel is: a table, a note on how to read it, and perhaps a curve."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from console.widgets.table import Cell, Column, Row, Span, cell

ToneOf = Callable[[str], str]
"""A config's tone."""


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the Results panel, for one width."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    note: str
    """How to read it."""
    empty: str = ""
    """Shown where there are no rows."""


def text_row(key: str, spans: tuple[Span, ...], columns: int, also: str = "") -> Row:
    """A row whose text runs over all columns (the first one stands left)."""
    return Row(key, (spans, *(((),) * (columns - 1))), also)


def heading_row(key: str, text: str, columns: int, after: str = "") -> Row:
    """A row that names the rows below it."""
    return text_row(key, ((text, "bold"), (f"  {after}" if after else "", "dim")), columns)


def wrap_text(text: str, width: int) -> list[str]:
    """The text in lines of at most `width`; none where it is empty."""
    return textwrap.wrap(text, max(16, width), break_long_words=True)


def wrapped_rows(key: str, text: str, before: int, width: int, columns: int, tone: str = "dim") -> Iterable[Row]:
    """Rows of wrapped text whose left `before` characters stay free."""
    for number, line in enumerate(wrap_text(text, width - before), 2):
        yield text_row(f"{key}#{number}", ((" " * before, ""), (line, tone)), columns)


def blank_row(key: str, columns: int) -> Row:
    return text_row(key, (("", ""),), columns)


def numbers(values: Iterable[str], tone: str = "") -> tuple[Cell, ...]:
    """One cell per text."""
    return tuple(cell(value, tone) for value in values)
