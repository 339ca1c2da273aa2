"""What draws each figure of specs/connector_tax."""

from __future__ import annotations

from results.connector_tax.curve_draw import draw_cdf, draw_latency, draw_throughput
from results.connector_tax.tax_draw import draw_additivity, draw_bars, draw_decomposition, draw_heatmaps
from results.report.figure_files import Drawers

DRAWERS: Drawers = {
    1: draw_latency,
    2: draw_latency,
    3: draw_throughput,
    4: draw_bars,
    5: draw_heatmaps,
    6: draw_cdf,
    7: draw_decomposition,
    8: draw_additivity,
}
