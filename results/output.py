"""What every analysis writes the same way: JSON, tables, and a report with its figures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from results.figures.figure import Figure
from results.figures.files import DRAWERS, Drawers, write_figures
from results.html import Shown, page
from results.layout import RunLayout, write_atomic
from results.report import markdown
from results.table import Table


@dataclass(frozen=True, slots=True)
class Report:
    """What a run's report says."""

    title: str
    opening: str
    tables: Sequence[Table]
    figures: Sequence[Figure]
    """Those that cannot be drawn included."""
    limits: Sequence[str]
    """What its numbers do not say."""
    figures_before: str
    """On the page the figures stand before the first table whose title begins so."""


def write_json(path: Path, value: object) -> None:
    """`value` as indented JSON, whole or not at all. Raises OSError."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """`frame` as its suffix says (`.csv`, `.tsv` or `.parquet`), whole or not at all. Raises OSError."""
    if path.suffix == ".parquet":
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), sink)
        write_atomic(path, sink.getvalue())
        return
    separator = {".csv": ",", ".tsv": "\t"}[path.suffix]
    write_atomic(path, frame.to_csv(index=False, sep=separator, lineterminator="\n").encode())


def write_report(layout: RunLayout, report: Report, by: Drawers = DRAWERS) -> None:
    """Write `figures/`, `report.md` and `report.html`; `by` draws the figures. The same report gives the same files.

    Raises OSError.
    """
    drawn = write_figures(report.figures, layout.figures, by)
    text = markdown(report.title, report.opening, report.tables, report.figures, report.limits)
    write_atomic(layout.report_md, text.encode())
    shown = Shown(report.tables, report.figures, drawn, report.figures_before)
    write_atomic(layout.report_html, page(report.title, report.opening, shown, report.limits).encode())
