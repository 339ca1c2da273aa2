"""A table that repaints only the cells that changed (Textual's DataTable repaints whole)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from console.themes import make_tones

Span = tuple[str, str]
"""Text and the name of its tone."""
Cell = tuple[Span, ...]
GAP = 1
"""Between two columns."""
NO_MATCH = "no row matches the filter: esc clears it"


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    title: str
    width: int
    unit: str = ""
    """Stands under the title; a table with any unit has a second header line."""
    left: bool = False
    """Text stands left, numbers right."""
    flex: bool = False
    """Takes the width that is left over (`width` is then its minimum)."""


@dataclass(frozen=True, slots=True)
class Row:
    key: str
    cells: tuple[Cell, ...]
    also: str = ""
    """Not shown; a filter searches it too."""


def cell(text: str, tone: str = "") -> Cell:
    return ((text, tone),)


class Table(ScrollView, can_focus=True, inherit_bindings=False):
    """Rows under fixed-width columns, with a cursor that stays on its row's key when rows come and go."""

    DEFAULT_CSS = """
    Table {
        height: 1fr; width: 1fr; background: transparent;
        overflow-x: hidden; scrollbar-size: 1 1; scrollbar-gutter: stable;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "cursor(-1)", show=False),
        Binding("down", "cursor(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "edge(0)", show=False),
        Binding("end", "edge(1)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Chosen(Message):
        """Enter, or a second click, on a row."""

        def __init__(self, table: Table, key: str) -> None:
            super().__init__()
            self.table = table
            self.key = key

    class Scrolled(Message):
        """The operator moved away from the end or back to it."""

        def __init__(self, table: Table, at_end: bool) -> None:
            super().__init__()
            self.table = table
            self.at_end = at_end

    def __init__(self, *, id: str | None = None, empty: str = "") -> None:
        super().__init__(id=id)
        self.columns: tuple[Column, ...] = ()
        self.rows: tuple[Row, ...] = ()
        self._all: tuple[Row, ...] = ()
        self._filter = ""
        self._empty = empty
        self._cursor = 0
        self._styles: dict[str, Style] = {}

    @property
    def room(self) -> int:
        """Columns of the table's rows."""
        return max(1, self.scrollable_content_region.width or self.size.width)

    # -- content ------------------------------------------------------------------------------------------------

    def show(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Replace the content; only cells that differ are drawn again."""
        changed = tuple(columns) != self.columns
        self.columns, self._all = tuple(columns), tuple(rows)
        self._swap_rows(self._filter_rows(), changed)

    def filter(self, text: str) -> None:
        """Keep rows whose text holds `text` (case ignored); a leading `!` keeps the others."""
        if text != self._filter:
            self._filter = text
            self._swap_rows(self._filter_rows(), True)

    @property
    def cursor_key(self) -> str | None:
        """The key of the row under the cursor."""
        return self.rows[self._cursor].key if self.rows else None

    def move_to(self, key: str) -> None:
        """Put the cursor on the row with this key, if it is there, and bring it into view."""
        for index, row in enumerate(self.rows):
            if row.key == key:
                self._go_to(index)
                return

    def go_to_end(self) -> None:
        self._go_to(len(self.rows) - 1)

    def text(self) -> list[str]:
        """Header and rows as drawn, without style."""
        width = self.room
        header = [self._make_header_strip(y, width).text for y in range(self.header_height)]
        return header + [self._make_row_strip(row, width, False).text for row in self.rows]

    @property
    def header_height(self) -> int:
        if not any(column.title for column in self.columns):
            return 0
        return 2 if any(column.unit for column in self.columns) else 1

    def _filter_rows(self) -> tuple[Row, ...]:
        wanted = self._filter.strip().lower()
        inverse = wanted.startswith("!")
        wanted = wanted.removeprefix("!").strip()
        if not wanted:
            return self._all
        return tuple(row for row in self._all if (wanted in _join_row_text(row).lower()) is not inverse)

    def _swap_rows(self, rows: tuple[Row, ...], everything: bool) -> None:
        before, key = self.rows, self.cursor_key
        self.rows = rows
        self._cursor = next(
            (i for i, row in enumerate(rows) if row.key == key), min(self._cursor, max(0, len(rows) - 1))
        )
        height = len(rows) + self.header_height
        if self.virtual_size.height != height:
            self.virtual_size = Size(self.size.width, height)
        same_rows = len(before) == len(rows) and all(a.key == b.key for a, b in zip(before, rows, strict=True))
        if everything or not same_rows:
            self.refresh()
            return
        regions = [
            region for y, pair in enumerate(zip(before, rows, strict=True)) for region in self._find_changes(y, *pair)
        ]
        if regions:
            self.refresh(*regions)

    def _find_changes(self, y: int, old: Row, new: Row) -> list[Region]:
        line = y + self.header_height - self.scroll_offset.y
        if old == new or not self.header_height <= line < self.size.height:
            return []
        spans = measure_columns(self.columns, self.room)
        if len(old.cells) != len(new.cells) or len(new.cells) != len(spans):
            return [Region(0, line, self.size.width, 1)]
        if any(
            count_columns(before) > width or count_columns(after) > width
            for (_, width), before, after in zip(spans, old.cells, new.cells, strict=True)
        ):
            return [Region(0, line, self.size.width, 1)]
        pairs = zip(spans, old.cells, new.cells, strict=True)
        return [Region(x, line, width, 1) for (x, width), before, after in pairs if before != after]

    # -- drawing ------------------------------------------------------------------------------------------------

    def notify_style_update(self) -> None:
        self._styles = {}
        super().notify_style_update()

    def _prepare_styles(self) -> None:
        if not self._styles:
            self._styles = make_tones(self.app.theme_variables)

    def render_line(self, y: int) -> Strip:
        self._prepare_styles()
        width = self.room
        if self.columns and not self.rows and (empty := self._empty if not self._all else NO_MATCH):
            text = empty if y == 0 else ""
            return Strip([Segment(text, self._styles["dim"])]).adjust_cell_length(width).apply_style(self.rich_style)
        if y < self.header_height:
            return self._make_header_strip(y, width).apply_style(self.rich_style)
        index = y - self.header_height + self.scroll_offset.y
        if not 0 <= index < len(self.rows):
            return Strip.blank(self.size.width, self.rich_style)
        here = index == self._cursor and self.has_focus
        return self._make_row_strip(self.rows[index], width, here).apply_style(self.rich_style)

    def _make_header_strip(self, y: int, width: int) -> Strip:
        self._prepare_styles()
        parts: list[Segment] = []
        for column, (_, size) in zip(self.columns, measure_columns(self.columns, width), strict=True):
            text = (column.title, column.unit)[y]
            style = self._styles["bold" if y == 0 and column.title else "dim"] + Style(bold=False)
            parts += [*(Segment(part, style) for part, _ in _fit_cell(((text, ""),), size, column.left))]
            parts.append(Segment(" " * GAP))
        return Strip(parts).adjust_cell_length(width)

    def _make_row_strip(self, row: Row, width: int, here: bool) -> Strip:
        self._prepare_styles()
        spans = fit_row(self.columns, row.cells, width)
        strip = Strip([Segment(text, self._styles.get(tone)) for text, tone in spans]).adjust_cell_length(width)
        return Strip(Segment.apply_style(strip, post_style=self._styles["cursor"])) if here else strip

    # -- keys and mouse -----------------------------------------------------------------------------------------

    def _go_to(self, index: int) -> None:
        index = max(0, min(index, len(self.rows) - 1))
        if index != self._cursor:
            for line in (self._cursor, index):
                self.refresh(Region(0, line + self.header_height - self.scroll_offset.y, self.size.width, 1))
            self._cursor = index
        visible = max(1, self.size.height - self.header_height)
        top = self.scroll_offset.y
        if index < top:
            self.scroll_to(y=index, animate=False, force=True)
        elif index >= top + visible:
            self.scroll_to(y=index - visible + 1, animate=False, force=True)

    def _scroll_manually(self, index: int) -> None:
        self._go_to(index)
        self.post_message(self.Scrolled(self, self._cursor >= len(self.rows) - 1))

    def action_cursor(self, step: int) -> None:
        self._scroll_manually(self._cursor + step)

    def action_page(self, step: int) -> None:
        self._scroll_manually(self._cursor + step * max(1, self.size.height - self.header_height - 1))

    def action_edge(self, end: int) -> None:
        self._scroll_manually(len(self.rows) - 1 if end else 0)

    def action_choose(self) -> None:
        if self.cursor_key is not None:
            self.post_message(self.Chosen(self, self.cursor_key))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.post_message(self.Scrolled(self, False))

    def on_click(self, event: events.Click) -> None:
        index = event.y - self.header_height + self.scroll_offset.y
        if event.y < self.header_height or not 0 <= index < len(self.rows):
            return
        if index == self._cursor and event.chain == 2:
            self.action_choose()
        else:
            self._scroll_manually(index)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.rows) + self.header_height)
        self._go_to(self._cursor)  # the row under the cursor stays in view


def measure_columns(columns: Sequence[Column], width: int) -> list[tuple[int, int]]:
    """Where each column starts and how wide it is."""
    fixed = sum(column.width for column in columns) + GAP * max(0, len(columns) - 1)
    extra = max(0, width - fixed) // max(1, sum(column.flex for column in columns))
    spans, x = [], 0
    for column in columns:
        size = column.width + (extra if column.flex else 0)
        spans.append((x, size))
        x += size + GAP
    return spans


def fit_row(columns: Sequence[Column], cells: Sequence[Cell], width: int) -> Cell:
    """The cells side by side, each as wide as its column. Long ones run on over empty cells: text to the right, a
    number to the left."""
    sizes = [size for _, size in measure_columns(columns, width)]
    for index in range(2, len(columns)):
        missing = count_columns(cells[index]) - sizes[index]
        if not columns[index].left and missing > 0 and not count_columns(cells[index - 1]):
            taken = min(missing, sizes[index - 1])
            sizes[index], sizes[index - 1] = sizes[index] + taken, sizes[index - 1] - taken
    parts, index = list[Span](), 0
    while index < len(columns):
        column, content, size = columns[index], cells[index], sizes[index]
        index += 1
        while (
            column.left and index < len(columns) and count_columns(content) > size and not count_columns(cells[index])
        ):
            size += GAP + sizes[index]
            index += 1
        parts += [*_fit_cell(content, size, column.left), (" " * GAP, "")]
    return tuple(parts)


def count_columns(content: Iterable[Span]) -> int:
    return sum(len(text) for text, _ in content)


def clip_spans(content: Cell, width: int) -> Cell:
    """The text in at most `width` columns; what does not fit ends in `…`."""
    if count_columns(content) <= width:
        return content
    spans: list[Span] = []
    room = max(0, width - 1)
    for text, tone in content:
        spans.append((text[:room], tone))
        room -= min(room, len(text))
    return (*spans, ("…" if width > 0 else "", content[-1][1]))


def flow_entries(entries: Iterable[Cell], width: int) -> tuple[Cell, ...]:
    """The entries on as few lines as there is room for."""
    lines: list[list[Span]] = [[]]
    for entry in entries:
        if lines[-1] and count_columns(lines[-1]) + count_columns(entry) > width:
            lines.append([])
        lines[-1] += entry
    return tuple(map(tuple, lines))


def _join_row_text(row: Row) -> str:
    return " ".join((*(text for content in row.cells for text, _ in content), row.also))


def _fit_cell(content: Cell, width: int, left: bool) -> Cell:
    """The cell in exactly `width` columns; what does not fit ends in `…`."""
    padding = (" " * max(0, width - count_columns(content)), "")
    return (*clip_spans(content, width), padding) if left else (padding, *clip_spans(content, width))
