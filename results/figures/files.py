"""Every figure of a run: gathered, drawn, and written with its numbers beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from results.cells import step_samples
from results.errors import ArtifactError
from results.figures import curves, draw_curves, draw_taxes, taxes
from results.figures.figure import Figure
from results.figures.ink import FORMATS, STYLE, to_bytes
from results.findings import Analysis
from results.from_steps import STEP_SERIES
from results.layout import write_atomic
from results.statistics import Samples
from results.summary import CellSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Drawers = Mapping[int, "Callable[[Figure], Drawing]"]
"""By figure number: what draws it."""

DRAWERS: Drawers = {
    1: draw_curves.draw_latency,
    2: draw_curves.draw_latency,
    3: draw_curves.draw_throughput,
    4: draw_taxes.draw_bars,
    5: draw_taxes.draw_heatmaps,
    6: draw_curves.draw_cdf,
    7: draw_taxes.draw_decomposition,
    8: draw_taxes.draw_additivity,
}
"""Of figures 1 to 8 of specs/connector_tax."""


def figures(analysis: Analysis, root: Path) -> tuple[Figure, ...]:
    """Figures 1 to 8 of the run folder `root`, those that cannot be drawn included; nothing is written."""

    def steps_of(cell: CellSummary) -> Mapping[str, Samples]:
        try:
            return step_samples(root / cell.path)
        except ArtifactError:  # the cell's record went away since it was analysed
            return dict.fromkeys(STEP_SERIES, np.empty(0))

    return (
        curves.ttft_by_rate(analysis),
        curves.tpot_by_rate(analysis),
        curves.throughput_by_rate(analysis),
        taxes.tax_bars(analysis),
        taxes.shape_heatmaps(analysis),
        curves.step_cdf(analysis, steps_of),
        taxes.decomposition(analysis),
        taxes.additivity(analysis),
    )


def draw(figure: Figure, by: Drawers = DRAWERS) -> dict[str, bytes]:
    """The figure as `png` and `svg`; the same figure gives the same bytes. Raises ValueError where it is missing."""
    if figure.missing:
        raise ValueError(f"figure {figure.label} cannot be drawn: {figure.missing}")
    from matplotlib import rc_context

    with rc_context(STYLE):
        drawing = by[figure.number](figure)
        return {form: to_bytes(drawing, form) for form in FORMATS}


def write_figures(found: Iterable[Figure], folder: Path, by: Drawers = DRAWERS) -> Mapping[int, str]:
    """Write `figure_<n>.png`, `.svg` and `.csv` into `folder`; returns the SVG texts by number.

    Files of a figure that cannot be drawn any more are removed. Raises OSError.
    """
    drawn: dict[int, str] = {}
    for figure in found:
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
