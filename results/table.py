"""What a table of a report is, whatever it is drawn on."""

from __future__ import annotations

from dataclasses import dataclass

NOT_MEASURED = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the report; cells are plain text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """What to know before reading it."""
