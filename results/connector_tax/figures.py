"""Figures 1 to 8 of specs/connector_tax, gathered from an analysis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from results.connector_tax import curve_figures as curves
from results.connector_tax import tax_figures as taxes
from results.connector_tax.analyse import Analysis
from results.measures.cells import step_samples
from results.measures.step_durations import STEP_SERIES
from results.measures.summary import CellSummary
from results.records.errors import ArtifactError
from results.report.figure import Figure
from results.statistics.estimates import Samples


def build_figures(analysis: Analysis, root: Path) -> tuple[Figure, ...]:
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
