"""Any table of a report as a section that fits its width. Import only where there is an analysis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from console.rows.sections import Section, blank_row, heading_row, wrap_text, wrapped_rows
from console.widgets.table import Column, Row, cell
from results.report.table import Table

NAME = (8, 30)
"""The least and the most columns of a name beside its value."""
COMPARED = "policy"
"""The title of a first column whose rows are to be compared."""
_PAIRS = 2


def table_section(table: Table, width: int, head: str = "") -> Section:
    """The table as it is where it fits, else a block per column (of policies) or per row; then `head`, a paragraph."""
    rows = table.rows
    natural = [
        max(1, *map(len, _halves(title)), *(len(row[place]) for row in rows))
        for place, title in enumerate(table.columns)
    ]
    if sum(natural) + len(natural) - 1 <= width:
        columns, made = _whole(table, natural)
    else:
        names = [row[0] for row in rows]
        compared = table.columns[0] == COMPARED and len(set(names)) == len(names)
        room = max(NAME[0], min(NAME[1], max(map(len, names if compared else table.columns[1:]), default=0)))
        columns = (Column("name", "", room, left=True), Column("value", "", 10, left=True, flex=True))
        made = tuple(_by_column(table, room, width) if compared else _by_row(table, room, width))
    if head and made:
        paragraph = wrapped_rows("head", head, 0, width, len(columns), tone="")
        made = (*made, blank_row("blank head", len(columns)), *paragraph)
    return Section(columns, made, table.note, "none")


def _whole(table: Table, natural: Sequence[int]) -> tuple[tuple[Column, ...], tuple[Row, ...]]:
    last = len(natural) - 1
    columns = []
    for place, title in enumerate(table.columns):
        upper, lower = _halves(title)
        left = place == 0 or _is_text(table, place)
        columns.append(Column(f"{place}", upper, natural[place], lower, left=left, flex=place == last))
    rows = tuple(Row(f"row {number}", tuple(map(cell, row))) for number, row in enumerate(table.rows))
    return tuple(columns), rows


def _halves(title: str) -> tuple[str, str]:
    """A title of several words on two lines, as narrow as can be; one of few characters stays on one."""
    words = title.split(" ")
    if len(title) <= NAME[0] or len(words) == 1:
        return title, ""
    cuts = [(" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(1, len(words))]
    return min(cuts, key=lambda halves: max(map(len, halves)))


def _is_text(table: Table, place: int) -> bool:
    return any(character.isalpha() or character == "[" for row in table.rows for character in row[place])


def _by_column(table: Table, room: int, width: int) -> Iterable[Row]:
    """Under each column's title what each row has there: the rows can be compared."""
    for place, title in enumerate(table.columns[1:], 1):
        if place > 1:
            yield blank_row(f"blank {place}", _PAIRS)
        yield heading_row(f"column {place}", title, _PAIRS)
        for number, row in enumerate(table.rows):
            yield from _pair(f"value {place} {number}", row[0], row[place], room, width)


def _by_row(table: Table, room: int, width: int) -> Iterable[Row]:
    """Under each row's name what it has in each column."""
    for number, row in enumerate(table.rows):
        if number:
            yield blank_row(f"blank {number}", _PAIRS)
        yield heading_row(f"row {number}", row[0], _PAIRS)
        for place, title in enumerate(table.columns[1:], 1):
            yield from _pair(f"value {number} {place}", title, row[place], room, width)


def _pair(key: str, name: str, value: str, room: int, width: int) -> Iterable[Row]:
    first, *more = wrap_text(value, width - room - 1) or [""]
    yield Row(key, (cell(name, "dim"), cell(first)), also=f"{name} {value}")
    yield from wrapped_rows(key, " ".join(more), room + 1, width, _PAIRS, tone="")
