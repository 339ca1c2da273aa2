"""What each connector inside a MultiConnector takes of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from results.measures.summary import CellSummary, Shape, percentile_name
from results.records.schemas import CHILD_FIELDS_US
from results.report.table import Column, Table, make_table
from results.statistics.estimates import Estimate


@dataclass(frozen=True, slots=True)
class ChildTime:
    """The callbacks of one connector inside a MultiConnector in one cell, per step."""

    cell: str
    config: str
    rate_per_s: float
    shape: Shape
    child: str
    """Its class."""
    p50_us: Estimate
    mean_us: Estimate
    all_p50_us: Estimate
    """Of the whole MultiConnector."""


def list_child_times(cells: Sequence[CellSummary]) -> Iterator[ChildTime]:
    for cell in cells:
        children = cell.step_timing.get("children") or ()
        for child, series in zip(children, CHILD_FIELDS_US, strict=False):
            p50, mean = (cell.estimate(percentile_name(series, point)) for point in ("p50", "mean"))
            whole = cell.estimate("connector_total_p50_us")
            yield ChildTime(cell.cell, cell.config, cell.rate_per_s, cell.shape, child, p50, mean, whole)


def children_table(cells: Sequence[CellSummary]) -> Table:
    note = (
        "build_connector_meta, get_finished and start_load_kv of one connector in a step; what the MultiConnector "
        "itself does is the difference to all of it."
    )
    return make_table("Connectors inside a MultiConnector", CHILD_COLUMNS, list_child_times(cells), note)


CHILD_COLUMNS: tuple[Column[ChildTime], ...] = (
    Column("cell", lambda row: row.cell),
    Column("connector", lambda row: row.child),
    Column("callbacks p50", lambda row: row.p50_us.value, "us", digits=3),
    Column("mean", lambda row: row.mean_us.value, "us", digits=3),
    Column("of all p50", lambda row: row.all_p50_us.value, "us", digits=3),
)
