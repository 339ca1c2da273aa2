"""The list of runs as rows."""

from __future__ import annotations

from console import format as say
from console.glyphs import Glyphs
from console.widgets.table import Cell, Column, Row, cell
from state.workspace import RunEntry


def run_columns(width: int) -> tuple[Column, ...]:
    fixed = (
        Column("run", "run", 40, left=True, flex=True),
        Column("state", "state", 13, left=True),
        Column("cells", "cells", 7),
        Column("share", "%", 4),
        Column("process", "process", 8, left=True),
    )
    if width < 110:
        return fixed
    return (*fixed, Column("preset", "preset", 8, left=True), Column("created", "created", 19, left=True))


def run_rows(entries: tuple[RunEntry, ...], glyphs: Glyphs, columns: tuple[Column, ...]) -> tuple[Row, ...]:
    return tuple(_run_row(entry, glyphs, columns) for entry in entries)


def _run_row(entry: RunEntry, glyphs: Glyphs, columns: tuple[Column, ...]) -> Row:
    if entry.problem:
        broken: dict[str, Cell] = {
            "run": ((f"{entry.run}  ", "dim"), (entry.problem, "bad")),
            "state": cell("unreadable", "bad"),
        }
        return Row(str(entry.folder), tuple(broken.get(column.key, cell("")) for column in columns))
    text, tone = glyphs.state(entry.state)
    process: Cell = cell("live", "good") if entry.lease.live else cell("gone", "bad") if entry.orphaned else cell("")
    cells: dict[str, Cell] = {
        "run": cell(entry.run),
        "state": cell(text, tone),
        "cells": cell(f"{entry.progress.ended}/{entry.progress.total}"),
        "share": cell(f"{entry.progress.fraction * 100:.0f}"),
        "process": process,
        "preset": cell(entry.preset, "dim"),
        "created": cell(say.moment(entry.created_unix_s), "dim"),
    }
    return Row(str(entry.folder), tuple(cells[column.key] for column in columns))
