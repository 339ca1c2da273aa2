"""The Stages panel: stages, configs and cells with state and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

from console import format as say
from console.feed import Picture
from console.glossary import Entry
from console.glyphs import Glyphs
from console.panels.panel import Fact, Opening, PanelKind, Place, TablePanel
from console.rows.instances import choose_config_tone
from console.rows.routing import REPLAY, plans_replays
from console.widgets.table import Cell, Column, Row, Table, cell, count_columns, measure_columns
from results.records.events import CellState
from results.records.named_number import NOT_MEASURED, digits, name_value
from results.registry import is_measured
from results.report.terms import term
from state.model import CellView, RunView, StageView
from state.run import CELL_ENDED

_LATENCIES = (
    ("ttft_p90_s", Column("ttft", "TTFT p90", 8, "ms")),
    ("tpot_p90_s", Column("tpot", "TPOT p90", 8, "ms")),
)
CELL_NUMBERS = (
    *_LATENCIES,
    ("effective_throughput_per_s", Column("rate", "served", 6, "req/s")),
    ("step_p50_us", Column("step", "step p50", 8, "ms")),
)
"""The numbers of a finished cell that get a column where there is room, the most important first."""
REPLAY_NUMBERS = (
    *_LATENCIES,
    ("apc", Column("apc", "APC", 4, "%")),
    ("amplification", Column("amplification", "wall/span", 9, "x")),
)
"""The same of cells that replay a trace."""
LABEL_END = 6
"""Columns of a long label's end that stay."""
NARROW_CELL_NUMBERS = (Column("ttft", "TTFT", 5, "p90"), Column("tpot", "TPOT", 5, "p90"))


def choose_stage_columns(width: int, *, replays: bool = False) -> tuple[Column, ...]:
    """State and name, then as many of a cell's numbers as fit beside 28 columns of name."""
    fixed = (Column("state", "state", 12, left=True), Column("name", "stage, cell", 13, left=True, flex=True))
    numbers = [column for _, column in (REPLAY_NUMBERS if replays else CELL_NUMBERS)]
    while numbers and sum(column.width + 1 for column in numbers) > width - 13 - 28:
        numbers.pop()
    return (*fixed, *(NARROW_CELL_NUMBERS if len(numbers) < 2 else numbers))


def stage_rows(
    picture: Picture, folded: frozenset[str], glyphs: Glyphs, columns: tuple[Column, ...], width: int
) -> tuple[Row, ...]:
    """The tree: stages, under them configs where a stage has several cells of one, under them cells."""
    room = measure_columns(columns, width)[1][1]
    rows: list[Row] = []
    for stage in picture.view.stages:
        state = picture.view.find_stage_state(stage)
        rows.append(_make_stage_row(stage, state, stage.stage in folded, glyphs, len(columns)))
        if stage.stage in folded:
            continue
        all_cells = [picture.view.cells[name] for name in stage.cells]
        rounds = [(config, list(cells)) for (config, _), cells in groupby(all_cells, key=_find_round)]
        grouped = any(config and len(cells) > 1 for config, cells in rounds)
        for number, (config, cells) in enumerate(rounds):
            if grouped and config:
                rows.append(_make_config_row(f"{stage.stage}:{number}", config, cells, picture.view, len(columns)))
            rows += [_make_cell_row(each, grouped, glyphs, columns, room) for each in cells]
    return tuple(rows)


def _find_round(view: CellView) -> tuple[str | None, int]:
    return view.plan.config, view.plan.trial


def _make_stage_row(stage: StageView, state: str, folded: bool, glyphs: Glyphs, width: int) -> Row:
    waiting = (CellState.PENDING, CellState.RUNNING)
    ended = sum(count for each, count in stage.counts.items() if each not in waiting)
    text, tone = glyphs.state(state)
    mark = (f"{glyphs.closed if folded else glyphs.open} ", "dim")
    title: Cell = (
        (stage.title or stage.stage, "bold"),
        (_count_text(stage), "warn"),
        (_format_reason(stage.reason), "dim"),
    )
    progress = cell(f"{ended}/{len(stage.cells)}", "bold")
    return Row(f"stage:{stage.stage}", _pad_cells(((mark, (text, tone)), title), width, progress))


def _pad_cells(cells: tuple[Cell, ...], width: int, last: Cell) -> tuple[Cell, ...]:
    """`cells`, then empty ones (over which the text before may run on), then `last`."""
    return (*cells, *[cell("")] * (width - len(cells) - 1), last)


def _count_text(stage: StageView) -> str:
    parts = [f"{stage.counts.get(s, 0)} {s}" for s in (CellState.FAILED, CellState.SKIPPED) if stage.counts.get(s, 0)]
    return f"  {', '.join(parts)}" if parts else ""


def _make_config_row(round_key: str, config: str, cells: list[CellView], view: RunView, width: int) -> Row:
    """The head of consecutive cells of one config; `round_key` distinguishes the rounds of repeated trials."""
    ended = sum(each.state in CELL_ENDED for each in cells)
    several = any(each.trial for each in view.plan.cells)
    name: Cell = (
        (config, choose_config_tone(view, config)),
        (f"  trial {cells[0].plan.trial}" if several else "", "dim"),
    )
    progress = cell(f"{ended}/{len(cells)}", "dim")
    return Row(f"config:{config}:{round_key}", _pad_cells((cell(""), name), width, progress))


def _make_cell_row(view: CellView, grouped: bool, glyphs: Glyphs, columns: tuple[Column, ...], room: int) -> Row:
    text, tone = glyphs.state("degraded" if view.state is CellState.DONE and view.degraded else view.state)
    narrow = columns[2:] == NARROW_CELL_NUMBERS
    measured = view.state is CellState.DONE and is_measured(view.plan.kind) and _has_numbers(view, columns)
    notes = make_cell_note(view, glyphs, narrow)
    label = shorten_label(view.plan.label, room - 1 - count_columns(notes)) if measured else view.plan.label
    name: Cell = cell(f" {label}" if grouped else view.plan.config or label)
    if not grouped and view.plan.config and view.plan.label != view.plan.config:
        name = (*name, (f"  {view.plan.label}", "dim"))
    first: tuple[Cell, ...] = ((("  ", ""), (text, tone)), (*name, *notes))
    if view.state is CellState.RUNNING:
        return Row(
            f"cell:{view.cell}",
            _pad_cells(first, len(columns), cell(f"{view.fraction * 100:.0f} %", "bold")),
            view.cell,
        )
    numbers = tuple(cell(format_cell_number(view.summary, column.key) if measured else "") for column in columns[2:])
    return Row(f"cell:{view.cell}", (*first, *numbers), view.cell)


def _has_numbers(view: CellView, columns: tuple[Column, ...]) -> bool:
    """Cells of its kind have one of these numbers; without any, the label may run on over their columns."""
    return any(_find_summary_key(column.key) in view.summary for column in columns[2:])


def _find_summary_key(column: str) -> str:
    return next(key for key, each in (*CELL_NUMBERS, *REPLAY_NUMBERS) if each.key == column)


def shorten_label(label: str, room: int) -> str:
    """A label of two parts without its middle: its end (a load) distinguishes cells that begin alike."""
    if len(label) <= room or room < 2 * LABEL_END:
        return label
    return f"{label[: room - LABEL_END - 1]}…{label[-LABEL_END:]}"


def format_cell_number(summary: Mapping[str, Any], column: str) -> str:
    """One of CELL_NUMBERS or REPLAY_NUMBERS as its column shows it."""
    value = summary.get(_find_summary_key(column))
    return _SHOWN[column](value if isinstance(value, int | float) else None)


_SHOWN: Mapping[str, Callable[[float | None], str]] = {
    "ttft": say.ms,
    "tpot": say.ms,
    "rate": digits,
    "step": say.us_as_ms,
    "apc": say.percent,
    "amplification": digits,
}


def make_cell_note(view: CellView, glyphs: Glyphs, narrow: bool) -> Cell:
    """The text behind a cell's name: its progress, why it is not done, or what is wrong with it."""
    if view.state is CellState.RUNNING:
        full, empty = say.bar(view.fraction, 8, glyphs.full, glyphs.empty)
        return () if narrow else (("  ", ""), (full, "live"), (empty, "faint"), (f"  {view.note}", "dim"))
    if view.state is CellState.DONE:
        saturated = view.summary.get("saturated") is True
        notes = (view.degraded, ("sat" if narrow else "saturated") if saturated else "")
        return tuple((f"{' ' if narrow else '  '}{note}", "warn") for note in notes if note)
    return cell(_format_reason(view.reason), "bad" if view.state is CellState.FAILED else "dim")


def _format_reason(reason: str) -> str:
    return f"  {reason}" if reason else ""


def list_cell_facts(view: CellView) -> list[Fact]:
    """All facts of a cell, as label and text."""
    lines: list[Fact] = [
        ("cell", view.cell),
        ("state", str(view.state) + (", degraded" if view.degraded else "")),
        ("config", view.plan.config or NOT_MEASURED),
        ("policy" if view.plan.kind == REPLAY else "load", view.plan.label),
        (
            "attempts",
            ", ".join(f"{a.attempt} {a.state}{_format_spent(a.spent_s)}" for a in view.attempts) or "none yet",
        ),
        ("estimated", say.duration(view.plan.estimated_s)),
        ("took", say.duration(view.observed_s)),
    ]
    lines += [
        (label, text)
        for label, text in (("reason", view.reason), ("degraded", view.degraded), ("note", view.note))
        if text
    ]
    lines += [name_value(key, value) for key, value in view.summary.items()]
    return lines


def _format_spent(seconds: float | None) -> str:
    return "" if seconds is None else f" after {say.duration(seconds)}"


# -- the panel ----------------------------------------------------------------------------------------------------


class StagesPanel(TablePanel):
    """The tree; enter folds a stage or opens a cell."""

    EMPTY = "no plan yet"

    def show(self, picture: Picture) -> None:
        columns = choose_stage_columns(self.table.room, replays=plans_replays(picture.view))
        self.table.show(columns, stage_rows(picture, self.look.folded, self.look.glyphs, columns, self.table.room))
        running = picture.view.current_cells
        if self.look.follow and running:
            self.table.move_to(f"cell:{running[0].cell}")

    def open_row(self, table: Table, key: str, picture: Picture) -> Opening | None:
        sort, _, name = key.partition(":")
        if sort == "stage":
            self.post_message(self.LookChanged(folded=self.look.folded ^ {name}))
        if sort != "cell":
            return None
        view = picture.view.cells[name]
        return Opening(view.cell, list_cell_facts(view))

    def follows_after(self, table: Table, *, at_end: bool) -> bool | None:
        return False


PANEL = PanelKind(
    "stages",
    "1",
    "Stages",
    "stages and cells: state, progress, headline numbers",
    StagesPanel,
    Place.LEFT,
    entries=(
        Entry("served", term("effective throughput"), "load client", "below 95 % of the rate: perhaps saturated"),
        Entry("APC", term("APC"), "engine counters of the cell"),
        Entry("wall/span", term("replay amplification"), "replay client, trace"),
    ),
)
