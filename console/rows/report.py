"""Any table of a report as rows that fit a width, and the facts behind a row."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from console.widgets.rate_plot import SIGNS
from console.widgets.table import Column, Row, Span, cell, count_columns, fit_row
from results.records.named_number import digits
from results.report.chart import Chart
from results.report.content import ReportText
from results.report.document import LIMITS_TITLE
from results.report.table import NOT_MEASURED, Table
from results.statistics.judgement import Outcome, Verdict

NAME = (8, 30)
"""The least and the most columns of a name beside its value."""
COMPARED = "policy"
"""The title of a first column whose rows are compared column by column."""
INDENT = "  "
"""Before the columns that have no room of their own and stand beneath their row."""
BETWEEN = "   "
TONES = {
    str(Outcome.HOLDS): "good", str(Outcome.FAILS): "warn",
    str(Verdict.HIGHER): "warn", str(Verdict.LOWER): "good",
    "DEGRADED": "warn", NOT_MEASURED: "dim",
}  # fmt: skip

ToneOf = Callable[[str], str]
"""The tone of a name, e.g. of a config; empty = none of its own."""


@dataclass(frozen=True, slots=True)
class Section:
    """One table, laid out for one width."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def make_table_section(table: Table, width: int, tone_of: ToneOf, paragraph: str = "") -> Section:
    """The table as it is where it fits. Else policies column by column, other tables with the rest beneath each row.

    `paragraph` comes below the rows. A row's key begins with its number in the table.
    """
    natural = [
        max(1, *map(len, _halve_title(title)), *(len(row[index]) for row in table.rows))
        for index, title in enumerate(table.columns)
    ]
    names = [row[0] for row in table.rows]
    fits = sum(natural) + len(natural) <= width
    if not fits and table.columns[0] == COMPARED and len(set(names)) == len(names):
        room = max(NAME[0], min(NAME[1], max(map(len, names), default=0)))
        columns: tuple[Column, ...] = (
            Column("name", "", room, left=True),
            Column("value", "", 10, left=True, flex=True),
        )
        rows = tuple(_compare_rows(table, room, width, tone_of))
    else:
        beside = _choose_columns(natural, width - 1)
        rest = Column("rest", "", 0, left=True, flex=True)
        columns = (*(_make_column(table, index, min(natural[index], width - 1)) for index in beside), rest)
        rows = tuple(_lay_out_rows(table, beside, width, tone_of))
    if paragraph and rows:
        below = _wrap_rows("paragraph", "", paragraph, width, len(columns))
        rows = (*rows, _make_text_row("blank", (), len(columns)), *below)
    return Section(columns, rows)


def make_report_section(text: ReportText, width: int, tone_of: ToneOf) -> Section:
    """The whole report, a row per line: opening, every table with its note, limits."""
    lines: list[tuple[Span, ...]] = [((line, ""),) for line in _wrap_text(text.opening, width - 1)]
    for table in text.tables:
        lines += [(), ((table.title, "bold"),), *(((line, "dim"),) for line in _wrap_text(table.note, width - 1))]
        section = make_table_section(table, width, tone_of)
        if any(column.title for column in section.columns):
            titles = [tuple(cell(column.title) for column in section.columns)]
            titles += [tuple(cell(column.unit) for column in section.columns)]
            shown = (fit_row(section.columns, each, width) for each in titles if any(map(count_columns, each)))
            lines += [tuple((part, "dim") for part, _ in each) for each in shown]
        lines += [fit_row(section.columns, row.cells, width) for row in section.rows]
    lines += [(), ((LIMITS_TITLE, "bold"),)]
    lines += [((line, ""),) for limit in text.limits
              for line in textwrap.wrap(f"- {limit}", max(16, width - 1), subsequent_indent=INDENT)]  # fmt: skip
    rows = tuple(_make_text_row(f"line {number}", _strip_end(spans), 1) for number, spans in enumerate(lines))
    return Section((Column("line", "", 1, left=True, flex=True),), rows)


def _strip_end(spans: tuple[Span, ...]) -> tuple[Span, ...]:
    """Without the blanks that fill the last column."""
    while spans and not spans[-1][0].strip():
        spans = spans[:-1]
    return spans


def _choose_columns(natural: Sequence[int], width: int) -> list[int]:
    """The columns that are shown beside each other: the widest give way, but the first only to its own width."""
    beside = list(range(len(natural)))
    while len(beside) > 1 and sum(natural[index] for index in beside) + len(beside) - 1 > width:
        beside.remove(max(beside[1:], key=lambda index: (natural[index], index)))
    return beside


def _make_column(table: Table, index: int, width: int) -> Column:
    upper, lower = _halve_title(table.columns[index])
    is_text = any(character.isalpha() or character == "[" for row in table.rows for character in row[index])
    return Column(f"{index}", upper, width, lower, left=index == 0 or is_text)


def _halve_title(title: str) -> tuple[str, str]:
    """A title of several words on two lines, as narrow as can be; one of few characters stays on one."""
    words = title.split(" ")
    if len(title) <= NAME[0] or len(words) == 1:
        return title, ""
    cuts = [(" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(1, len(words))]
    return min(cuts, key=lambda halves: max(map(len, halves)))


def _lay_out_rows(table: Table, beside: Sequence[int], width: int, tone_of: ToneOf) -> Iterator[Row]:
    columns = len(beside) + 1
    beneath = [index for index in range(len(table.columns)) if index not in beside]
    for number, row in enumerate(table.rows):
        if len(row[0]) < width:
            cells = (cell(row[index], _choose_cell_tone(row[index], tone_of)) for index in beside)
            yield Row(f"{number}", (*cells, ()), also=" ".join(row[index] for index in beneath))
        else:
            yield from _wrap_rows(f"{number}", "", row[0], width, columns, "bold")
        pairs = [(table.columns[index], row[index]) for index in beneath if row[index]]
        for line, spans in enumerate(_flow_pairs(pairs, width, tone_of)):
            yield _make_text_row(f"{number}#beneath {line}", spans, columns, also=row[0])


def _flow_pairs(pairs: Sequence[tuple[str, str]], width: int, tone_of: ToneOf) -> Iterator[tuple[Span, ...]]:
    """Titles with their values on as few lines as there is room for; a long value is wrapped."""
    line: list[Span] = []
    for title, value in pairs:
        text, tone = f"{title}  {value}", _choose_cell_tone(value, tone_of)
        if line and count_columns(line) + len(BETWEEN) + len(text) > width:
            yield tuple(line)
            line = []
        first, *more = (
            textwrap.wrap(text, max(16, width - len(INDENT)), subsequent_indent=INDENT) if not line else [text]
        )
        line += [(BETWEEN if line else INDENT, ""), (first[: len(title)], "dim"), (first[len(title) :], tone)]
        for part in more:
            yield tuple(line)
            line = [(INDENT, ""), (part, tone)]
        if more:
            yield tuple(line)
            line = []
    if line:
        yield tuple(line)


def _compare_rows(table: Table, room: int, width: int, tone_of: ToneOf) -> Iterator[Row]:
    """Under each column's title what each row has there."""
    for index, title in enumerate(table.columns[1:], 1):
        if index > 1:
            yield _make_text_row(f"blank {index}", (), 2)
        yield _make_text_row(f"column {index}", ((title, "bold"),), 2)
        for number, row in enumerate(table.rows):
            first, *more = _wrap_text(row[index], width - room - 1) or [""]
            name = cell(row[0], tone_of(row[0]) or "dim")
            yield Row(f"{number}#{index}", (name, cell(first, _choose_cell_tone(first, tone_of))))
            yield from _wrap_rows(f"{number}#{index}", " " * (room + 1), " ".join(more), width, 2)


def _choose_cell_tone(text: str, tone_of: ToneOf) -> str:
    """By the verdict that ends the cell, or the name that it is."""
    return TONES.get(text.rpartition(" ")[2]) or tone_of(text)


def _make_text_row(key: str, spans: tuple[Span, ...], columns: int, also: str = "") -> Row:
    """A row whose text runs over all columns."""
    return Row(key, (spans or (("", ""),), *((),) * (columns - 1)), also)


def _wrap_rows(key: str, indent: str, text: str, width: int, columns: int, tone: str = "") -> Iterator[Row]:
    for number, line in enumerate(_wrap_text(text, width - len(indent)), 2):
        yield _make_text_row(f"{key}#{number}", ((indent, ""), (line, tone)), columns)


def _wrap_text(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(16, width), break_long_words=True)


def parse_row_number(key: str) -> int | None:
    """The table's row that a row of its section belongs to; None = none."""
    number = key.partition("#")[0]
    return int(number) if number.isdigit() else None


def list_row_facts(tables: Sequence[Table], table: Table, number: int) -> list[tuple[str, str]]:
    """A row column by column, its further facts, and what the other tables say of the same name."""
    row = table.rows[number]
    facts = [*zip(table.columns, row, strict=True), *(table.facts[number] if table.facts else ())]
    if sum(each[0] == row[0] for each in table.rows) == 1:
        for other in tables:
            same = [each for each in other.rows if each[0] == row[0]]
            if other is not table and other.columns[0] == table.columns[0] and len(same) == 1:
                facts += [(other.title, ""), *zip(other.columns[1:], same[0][1:], strict=True)]
    return [(label, text) for label, text in facts if text or label not in table.columns]


def make_chart_table(chart: Chart) -> Table:
    """The points of a chart: a row per line, a column per `x`."""
    grid = sorted({point.x for line in chart.lines for point in line.points})
    rows = []
    for line in chart.lines:
        texts = {point.x: f"{digits(point.value)}{f' {SIGNS[point.mark]}' if point.mark else ''}"
                 for point in line.points}  # fmt: skip
        rows.append((line.name, *(texts.get(x, NOT_MEASURED) for x in grid)))
    return Table(chart.title, ("", *(f"{x:g} {chart.x_name}" for x in grid)), tuple(rows), chart.note)
