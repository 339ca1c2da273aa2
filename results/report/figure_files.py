"""Figures to files: drawn as PNG and SVG, with their numbers as CSV beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from results.records.layout import write_atomic
from results.report.figure import Figure
from results.report.ink import FORMATS, STYLE, to_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Drawers = Mapping[int, "Callable[[Figure], Drawing]"]
"""By figure number: what draws it."""


def draw(figure: Figure, by: Drawers) -> dict[str, bytes]:
    """The figure as `png` and `svg`; the same figure gives the same bytes. Raises ValueError where it is missing."""
    if figure.missing:
        raise ValueError(f"figure {figure.label} cannot be drawn: {figure.missing}")
    from matplotlib import rc_context

    with rc_context(STYLE):
        drawing = by[figure.number](figure)
        return {form: to_bytes(drawing, form) for form in FORMATS}


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
        write_atomic(folder / f"{figure.stem}.csv", figure.table.to_csv(index=False).encode())
        drawn[figure.number] = images["svg"].decode()
    return drawn
