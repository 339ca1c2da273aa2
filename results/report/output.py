"""The files that every analysis writes: aggregate, verdicts, manifest, report, figures, and the page."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar
from warnings import catch_warnings, simplefilter

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from results.records.layout import RunLayout, write_atomic
from results.report.content import Report
from results.report.csv_cells import escape_formula, escape_formulas
from results.report.direct_labels import settle_labels
from results.report.document import render_markdown
from results.report.figure import Drawers, Figure
from results.report.html import build_page
from results.report.ink import FORMATS, STYLE, to_bytes
from results.report.stored_page import digest_inputs, store_page

_Analysis = TypeVar("_Analysis")
BESIDE_WIDTH, BESIDE_HEIGHT = 6.4, 2.8
"""Inches of a sheet beside text: its largest width, and the height below which it is not shrunk."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Every file that an analysis writes into the folder of its run."""

    aggregate: object
    rows: pd.DataFrame
    """`aggregate.csv` and `.parquet`: a row per cell, or per request."""
    verdicts: object
    manifest: pd.DataFrame
    """`MANIFEST.tsv`: a row per config, policy or configuration."""
    report: Report
    more: Mapping[Path, object] = field(default_factory=dict)
    """Further files by path: a frame as the suffix says, anything else as JSON."""


def write_json(path: Path, value: object) -> None:
    """`value` as indented JSON, whole or not at all. Raises OSError."""
    write_atomic(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")


def write_frame(path: Path, frame: pd.DataFrame) -> None:
    """`frame` as its suffix says (`.csv`, `.tsv` or `.parquet`), whole or not at all. Raises OSError.

    A text that a spreadsheet would execute is escaped in `.csv` and `.tsv`.
    """
    if path.suffix == ".parquet":
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), sink)
        write_atomic(path, sink.getvalue())
        return
    if path.suffix == ".tsv":
        text = frame.map(_format_tsv_cell).to_csv(index=False, sep="\t", lineterminator="\n", quoting=csv.QUOTE_NONE)
    else:
        text = escape_formulas(frame).to_csv(index=False, lineterminator="\n")
    write_atomic(path, text.encode())


def _format_tsv_cell(value: object) -> str:
    """Tabs and newlines inside a value become spaces: no field is quoted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "" if value is None else " ".join(str(value).split())
    return escape_formula(text) if isinstance(value, str) else text


def write_analysis(
    root: Path, analyze: Callable[[Path], _Analysis], build_outputs: Callable[[_Analysis, RunLayout], Outputs]
) -> _Analysis:
    """Analyze the run folder and write every file of its results. The same folder gives the same files.

    A missing or damaged artifact is a gap, not an error. Raises ResultsError where `root` is no folder of such a run,
    OSError where a file cannot be written.
    """
    inputs = digest_inputs(root)  # before the analysis: an artifact that changes meanwhile makes the page stale
    analysis = analyze(root)
    layout = RunLayout(root)
    outputs = build_outputs(analysis, layout)
    _write_outputs(layout, outputs)
    store_page(root, outputs.report.page, inputs)
    return analysis


def _write_outputs(layout: RunLayout, outputs: Outputs) -> None:
    write_json(layout.aggregate_json, outputs.aggregate)
    write_frame(layout.aggregate_csv, outputs.rows)
    write_frame(layout.aggregate_parquet, outputs.rows)
    write_json(layout.verdicts_json, outputs.verdicts)
    write_frame(layout.manifest, outputs.manifest)
    for path, value in outputs.more.items():
        if isinstance(value, pd.DataFrame):
            write_frame(path, value)
        else:
            write_json(path, value)
    _write_report(layout, outputs.report)


def _write_report(layout: RunLayout, report: Report) -> None:
    """`figures/`, `report.md` and `report.html`."""
    drawn = write_figures(report.figures, layout.figures, report.drawers)
    write_atomic(layout.report_md, render_markdown(report.title, report.text, report.figures, report.page).encode())
    beside = {
        figure.number: draw_beside(figure, report.drawers)
        for figure in report.figures
        if figure.number in drawn and figure.number in report.page.figures
    }
    write_atomic(layout.report_html, build_page(report, drawn, beside).encode())


def draw(figure: Figure, by: Drawers) -> dict[str, bytes]:
    """The figure as `png` and `svg`; the same figure gives the same bytes. Raises ValueError where it is missing."""
    if figure.missing:
        raise ValueError(f"figure {figure.label} cannot be drawn: {figure.missing}")
    from matplotlib import rc_context

    with rc_context(STYLE):
        drawing = by[figure.number](figure)
        settle_labels(drawing)
        return {form: to_bytes(drawing, form) for form in FORMATS}


def draw_beside(figure: Figure, by: Drawers) -> str:
    """The figure, or its rows for a page's text, as SVG on a sheet at most BESIDE_WIDTH wide, so that it is legible."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        drawing = by[figure.number](figure if figure.beside is None else replace(figure, table=figure.beside))
        width, height = drawing.get_size_inches()
        shrink = min(1.0, BESIDE_WIDTH / width)
        drawing.set_size_inches(shrink * width, max(shrink * height, min(height, BESIDE_HEIGHT)))
        with catch_warnings():
            simplefilter("error", UserWarning)
            try:
                settle_labels(drawing)
                return to_bytes(drawing, "svg").decode()
            except UserWarning:  # labels leave its panels no room on the small sheet
                drawing.set_size_inches(width, height)
        settle_labels(drawing)
        return to_bytes(drawing, "svg").decode()


def write_figures(figures: Iterable[Figure], folder: Path, by: Drawers) -> Mapping[int, str]:
    """Write `figure_<n>.png`, `.svg` and `.csv` into `folder`; returns the SVG texts by number.

    Files of a figure that cannot be drawn any more are removed. Raises OSError.
    """
    drawn: dict[int, str] = {}
    for figure in figures:
        if figure.missing:
            for suffix in (*FORMATS, "csv"):
                (folder / f"{figure.stem}.{suffix}").unlink(missing_ok=True)
            continue
        images = draw(figure, by)
        for form, image in images.items():
            write_atomic(folder / f"{figure.stem}.{form}", image)
        write_atomic(folder / f"{figure.stem}.csv", escape_formulas(figure.table).to_csv(index=False).encode())
        drawn[figure.number] = images["svg"].decode()
    return drawn
