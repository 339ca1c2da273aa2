"""A table of a report, whatever it is rendered as, and how rows become its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from results.records.estimate import Estimate, figure
from results.records.frames import Gap

NOT_MEASURED = "-"
Row = TypeVar("Row")
Value = Estimate | float | str | None


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the report; cells are plain text."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    """What to know before reading it."""
    facts: tuple[tuple[tuple[str, str], ...], ...] = ()
    """Per row, what has no column, as label and text. The console shows it for the opened row."""
    values: tuple[tuple[Value, ...], ...] = field(default=(), compare=False, repr=False)
    """The cells in full precision, in the units of the headings; empty where the cells are texts."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column: its name, and the value it takes from a row."""

    name: str
    value: Callable[[Row], Value]
    """None is shown as not measured."""
    unit: str = ""
    """After the name, in the heading."""
    digits: int = 4
    """Significant digits of a number with a fraction."""
    scale: float = 1.0
    """Factor from the value's unit to the shown one."""
    form: str = ""
    """How a number is formatted, such as `.1%`; empty = by `digits`."""

    @property
    def heading(self) -> str:
        return f"{self.name} {self.unit}".strip()

    def read_value(self, row: Row) -> Value:
        """The cell's value in full precision, in the shown unit."""
        value = self.value(row)
        if isinstance(value, Estimate):
            return value.transform(lambda part: part * self.scale)
        return value * self.scale if isinstance(value, float) else value

    def show(self, row: Row) -> str:
        value = self.value(row)
        if isinstance(value, Estimate):
            return value.text(self.digits, self.scale)
        if self.form and isinstance(value, int | float):
            return format(value * self.scale, self.form).replace("%", " %")
        if isinstance(value, float):
            return figure(value * self.scale, self.digits)
        return NOT_MEASURED if value is None else str(value)


def make_table(title: str, columns: Sequence[Column[Row]], rows: Iterable[Row], note: str = "") -> Table:
    headings = tuple(column.heading for column in columns)
    lines = tuple(rows)
    shown = tuple(tuple(column.show(row) for column in columns) for row in lines)
    values = tuple(tuple(column.read_value(row) for column in columns) for row in lines)
    return Table(title, headings, shown, note, values=values)


def format_or_reason(estimate: Estimate, digits: int = 3, scale: float = 1.0) -> str:
    """The value with its interval, or `-` with the reason."""
    if estimate.value is None and estimate.reason:
        return f"{NOT_MEASURED} ({estimate.reason})"
    return estimate.text(digits, scale)


def make_gap_table(gaps: Iterable[Gap]) -> Table:
    return make_table("Gaps", GAP_COLUMNS, gaps)


GAP_COLUMNS: tuple[Column[Gap], ...] = (
    Column("artifact", lambda gap: gap.artifact),
    Column("what is wrong", lambda gap: gap.reason),
)
