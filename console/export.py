"""Saves the numbers behind a section of the results, and other files of the console."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

from console.findings import Report
from results.records.estimate import Estimate
from results.report.chart import Chart
from results.report.csv_cells import escape_formula

if TYPE_CHECKING:
    from results.report.table import Table, Value


def save_file(data: bytes, name: str, folder: Path | None) -> Path:
    """Write the file into `folder`; where that is None or fails, into the folder the console was started in.

    Raises OSError where neither can be written.
    """
    if folder is not None:
        with suppress(OSError):
            folder.mkdir(exist_ok=True)
            return _write_bytes(folder / name, data)
    return _write_bytes(Path.cwd() / name, data)


def _write_bytes(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def export_content(report: Report, section: str) -> tuple[str, bytes]:
    """The file's ending and what it holds: a table or the points of a chart, else the whole report with its page."""
    part = report.sections.get(section)
    if part is None:
        from results.report.document import render_markdown

        return "md", render_markdown("Report", report.text, page=report.page).encode()
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(
        [escape_formula(cell) if isinstance(cell, str) else cell for cell in row] for row in _list_rows(part)
    )
    return "csv", text.getvalue().encode()


def _list_rows(part: Table | Chart) -> Iterator[tuple[object, ...]]:
    if isinstance(part, Chart):
        yield ("name", part.x_name, part.y_name, "low", "high", "mark")
        for line in part.lines:
            yield from ((line.name, *astuple(point)) for point in line.points)
        return
    rows: Sequence[tuple[Value, ...]] = part.values or part.rows
    bounded = {index for row in rows for index, value in enumerate(row) if isinstance(value, Estimate)}
    headings = [(name, f"{name} low", f"{name} high") if index in bounded else (name,)
                for index, name in enumerate(part.columns)]  # fmt: skip
    yield tuple(name for names in headings for name in names)
    for row in rows:
        cells: list[object] = []
        for index, value in enumerate(row):
            if isinstance(value, Estimate):
                cells += [value.value, value.low, value.high]
            else:
                cells += [value, None, None] if index in bounded else [value]
        yield tuple(cells)
