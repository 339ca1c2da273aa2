"""Curves over the rate, cells and gaps as rows. Import only where there is an analysis."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from console import format as say
from console.rows.results import CONFIG
from console.rows.sections import Section, ToneOf, blank_row, heading_row, wrapped_rows
from console.widgets.rate_plot import Curve, RatePoint
from console.widgets.table import Column, Row, cell
from results.connector_tax.analyse import Analysis
from results.connector_tax.curve_figures import throughput_by_rate, tpot_by_rate, ttft_by_rate
from results.measures.summary import CellSummary
from results.statistics.estimates import Estimate

if TYPE_CHECKING:
    from collections.abc import Callable

    from results.report.figure import Figure


@dataclass(frozen=True, slots=True)
class _Kind:
    figure: Callable[[Analysis], Figure]
    value: str
    scale: float
    note: str


_MARKS = "x saturated, o degraded client; both axes logarithmic."
KINDS = {
    "ttft": _Kind(ttft_by_rate, "ttft_p90_s", 1e3, f"TTFT p90, ms, over the send rate, req/s (Phase A). {_MARKS}"),
    "tpot": _Kind(
        tpot_by_rate, "tpot_p90_s", 1e3, f"TPOT p90, ms per token, over the send rate, req/s (Phase A). {_MARKS}"
    ),
    "throughput": _Kind(
        throughput_by_rate,
        "achieved_per_s",
        1.0,
        f"Completed, req/s, over requested, req/s (Phase A); the faint line is y = x. {_MARKS}",
    ),
}
"""The curves by section."""


def curves(analysis: Analysis, kind: str, tone: ToneOf) -> tuple[Curve, ...]:
    """One line per config, as the figures of the report have it."""
    wanted = KINDS[kind]
    table = wanted.figure(analysis).table
    if table.empty:
        return ()
    points_by_config: dict[str, list[RatePoint]] = {}
    for row in table.to_dict("records"):
        value, low, high = (
            _number(row[name], wanted.scale) for name in (wanted.value, f"{wanted.value}_low", f"{wanted.value}_high")
        )
        if value is None:
            continue
        mark = "degraded" if row["degraded"] else "saturated" if row["saturated"] is True else ""
        point = RatePoint(float(row["rate_per_s"]), value, low, high, mark)
        points_by_config.setdefault(row["config"], []).append(point)
    return tuple(Curve(config, tone(config), tuple(points)) for config, points in points_by_config.items())


def _number(value: float | None, scale: float) -> float | None:
    return None if value is None or math.isnan(value) else value * scale


def curve_section(lines: tuple[Curve, ...], kind: str, width: int, tone: ToneOf) -> Section:
    """The points of a curve as a table: a row per config, a column per rate."""
    grid = sorted({point.rate_per_s for line in lines for point in line.points})
    room = max(5, min(9, (width - CONFIG) // max(1, len(grid)) - 1))
    columns = (
        Column("config", "config", CONFIG, left=True),
        *(Column(f"{rate:g}", f"{rate:g}", room, "req/s") for rate in grid),
    )
    rows = []
    for line in lines:
        at = {point.rate_per_s: point for point in line.points}
        cells = (
            cell(say.digits(at[rate].value), {"saturated": "warn", "degraded": "dim"}.get(at[rate].mark, ""))
            if rate in at
            else cell(say.NOT_MEASURED, "dim")
            for rate in grid
        )
        rows.append(Row(f"curve {kind} {line.name}", (cell(line.name, tone(line.name)), *cells)))
    return Section(columns, tuple(rows), KINDS[kind].note, "no cell of Phase A is measured yet")


# -- cells ----------------------------------------------------------------------------------------------------------


def cell_section(analysis: Analysis, width: int, tone: ToneOf) -> Section:
    """Every measured cell, in the order of phase, load and config."""
    wide = width >= 110
    columns = _cell_columns(wide)
    rows: list[Row] = []
    last = ""
    for summary in sorted(analysis.cells, key=_cell_order):
        group = f"Phase {summary.phase.replace('p', chr(39))}  {summary.rate_per_s:g} req/s  {summary.shape} tokens"
        if group != last:
            if rows:
                rows.append(blank_row(f"blank {group}", len(columns)))
            rows.append(heading_row(group, group, len(columns)))
            last = group
        rows.append(_cell_row(analysis, summary, wide, tone))
    note = "Requests due in the measured window; brackets: 95 % spread within the launch. enter: all numbers of a cell."
    return Section(columns, tuple(rows), note, "no cell is measured yet")


def _cell_order(summary: CellSummary) -> tuple[object, ...]:
    shape = summary.shape
    return (summary.phase, summary.rate_per_s, shape.input_tokens, shape.output_tokens, summary.config, summary.trial)


def _cell_columns(wide: bool) -> tuple[Column, ...]:
    latency = 22 if wide else 7
    return (
        Column("config", "config", CONFIG, left=True),
        Column("ttft", "TTFT p90", latency if wide else 8, "ms"),
        Column("tpot", "TPOT p90", latency if wide else 8, "ms"),
        Column("e2e", "E2E p90", 7, "ms"),
        Column("ratio", "served", 6, "/rate"),
        Column("waiting", "wait", 4, "p50"),
        Column("n", "n", 5),
        Column("marks", "marks", 8, left=True, flex=True),
    )


def _cell_row(analysis: Analysis, summary: CellSummary, wide: bool, tone: ToneOf) -> Row:
    latencies = [summary.estimate(name) for name in ("ttft_p90_s", "tpot_p90_s")]
    texts = [ms_interval(each) if wide else say.ms(each.value) for each in latencies]
    marks = cell_marks(analysis, summary)
    trial = f" #{summary.trial + 1}" if any(other.trial for other in analysis.cells) else ""
    ratio = summary.value("throughput_ratio")
    return Row(
        f"cell {summary.path}",
        (
            cell(f"{summary.config}{trial}", tone(summary.config)),
            *(cell(text) for text in texts),
            cell(say.ms(summary.value("e2e_p90_s"))),
            cell(say.NOT_MEASURED if ratio is None else f"{ratio:.3f}"),
            cell(say.digits(summary.value("waiting_p50"))),
            cell(say.whole(summary.counts.get("completed"))),
            cell(", ".join(marks), "warn" if marks else ""),
        ),
        also=summary.cell,
    )


def ms_interval(estimate: Estimate) -> str:
    """`17.1 [14.5, 27.1]`, in ms, as in the report."""
    return say.NOT_MEASURED if estimate.value is None else estimate.text(digits=3, scale=1e3)


def cell_marks(analysis: Analysis, summary: CellSummary) -> list[str]:
    """What limits the use of a cell's numbers: degraded, saturated, cut."""
    marks = []
    judged = analysis.saturation[summary.path]
    if summary.degraded:
        marks.append("degraded")
    if judged.saturated:
        marks.append(f"sat. {','.join(map(str, judged.fired))}")
    if summary.stop_reason != "complete":
        marks.append(summary.stop_reason)
    marks += [f"{summary.counts[name]} {name}" for name in ("failed", "dropped", "cut") if summary.counts.get(name)]
    return marks


# -- gaps -----------------------------------------------------------------------------------------------------------


def gap_section(analysis: Analysis, width: int) -> Section:
    """Configs that did not run, degraded cells, and what is missing or damaged."""
    columns = (Column("what", "", 30, left=True), Column("why", "", 30, left=True, flex=True))
    left_out = [(row.config, row.skip_reason or row.status) for row in analysis.manifest if row.status != "ran"]
    degraded = [(each.cell, each.degraded) for each in analysis.degraded]
    lacking = [(gap.artifact, gap.reason) for gap in analysis.gaps]
    rows: list[Row] = []
    for title, lines in (("Configs that did not run", left_out), ("Degraded cells", degraded), ("Gaps", lacking)):
        count = "none" if not lines else str(len(lines))
        rows += [*([blank_row(f"blank {title}", 2)] if rows else []), heading_row(title, title, 2, count)]
        for place, (what, why) in enumerate(lines):
            rows += _gap_rows(f"{title} {place}", what, why, width)
    note = "No verdict and no tax uses a degraded cell: its client fell behind, and its latencies are the client's own."
    return Section(columns, tuple(rows), note)


def _gap_rows(key: str, what: str, why: str, width: int) -> Iterator[Row]:
    yield Row(key, (cell(what), ()))
    yield from wrapped_rows(key, why, 2, width, 2)
