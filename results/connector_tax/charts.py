"""The curves of Phase A as charts for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from results.connector_tax.analyze import Analysis
from results.connector_tax.configs import CONFIG_PENS
from results.connector_tax.curve_figures import make_latency_by_rate, make_throughput_by_rate
from results.report.chart import Chart, Line, Point
from results.report.figure import Figure
from results.report.ink import pens

_MARKS = "x saturated, o degraded client; both axes logarithmic."


def build_charts(analysis: Analysis) -> tuple[Chart, ...]:
    """TTFT, TPOT and throughput over the send rate, a line per config; without lines where nothing was measured."""
    ttft = _lines(make_latency_by_rate(analysis, 1, "TTFT"), "ttft_p90_s", 1e3)
    tpot = _lines(make_latency_by_rate(analysis, 2, "TPOT"), "tpot_p90_s", 1e3)
    throughput = _lines(make_throughput_by_rate(analysis), "achieved_per_s", 1.0)
    over_rate = "over the send rate, req/s (Phase A)."
    return (
        Chart("TTFT", "req/s", "TTFT p90, ms", ttft, f"TTFT p90, ms, {over_rate} {_MARKS}"),
        Chart("TPOT", "req/s", "TPOT p90, ms per token", tpot, f"TPOT p90, ms per token, {over_rate} {_MARKS}"),
        Chart(
            "Throughput",
            "req/s",
            "completed, req/s",
            throughput,
            f"Completed, req/s, over requested, req/s (Phase A); the faint line is y = x. {_MARKS}",
            diagonal=True,
        ),
    )


def _lines(figure: Figure, value: str, scale: float) -> tuple[Line, ...]:
    points: dict[str, list[Point]] = {}
    for row in figure.table.to_dict("records"):
        measured, low, high = (_scale_value(row[name], scale) for name in (value, f"{value}_low", f"{value}_high"))
        if measured is not None:
            point = Point(float(row["rate_per_s"]), measured, low, high, _mark(row))
            points.setdefault(row["config"], []).append(point)
    ink = pens(points, CONFIG_PENS)
    return tuple(Line(config, tuple(line), ink[config].color) for config, line in points.items())


def _scale_value(value: float | None, scale: float) -> float | None:
    return None if value is None or math.isnan(value) else value * scale


def _mark(row: Mapping[Any, Any]) -> str:
    if row["degraded"]:
        return "degraded"
    return "saturated" if row["saturated"] is True else ""
