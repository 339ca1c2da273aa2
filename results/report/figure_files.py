"""Figures to files: drawn as PNG and SVG, with their numbers as CSV beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import catch_warnings, simplefilter

from results.records.layout import write_atomic
from results.report.csv_cells import escape_formulas
from results.report.direct_labels import settle_labels
from results.report.figure import Figure
from results.report.ink import FORMATS, STYLE, to_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Drawers = Mapping[int, "Callable[[Figure], Drawing]"]
"""By figure number."""
BESIDE_WIDTH, BESIDE_HEIGHT = 6.4, 2.8
"""Inches of a sheet beside text: its largest width, and the height below which it is not shrunk."""


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
