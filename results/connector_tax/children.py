"""The callback time of each connector inside a MultiConnector, per step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from results.connector_tax.summary import CellSummary
from results.measures.step_durations import CALLBACKS
from results.measures.summary import percentile_name
from results.records.schemas import CHILD_FIELDS_US
from results.report.table import Column, Table, make_table


@dataclass(frozen=True, slots=True)
class _ChildTime:
    cell: str
    child: str
    """Its class."""
    p50_us: float | None
    mean_us: float | None
    all_p50_us: float | None
    """p50 of the whole MultiConnector."""


def _list_child_times(cells: Sequence[CellSummary]) -> Iterator[_ChildTime]:
    for cell in cells:
        whole = cell.value(percentile_name(CALLBACKS, "p50"))
        for child, series in zip(cell.step_timing.get("children") or (), CHILD_FIELDS_US, strict=False):
            p50, mean = (cell.value(percentile_name(series, point)) for point in ("p50", "mean"))
            yield _ChildTime(cell.cell, child, p50, mean, whole)


def children_table(cells: Sequence[CellSummary]) -> Table:
    note = (
        "build_connector_meta, get_finished and start_load_kv of one connector in a step; what the MultiConnector "
        "itself does is the difference to all of it."
    )
    return make_table("Connectors inside a MultiConnector", CHILD_COLUMNS, _list_child_times(cells), note)


CHILD_COLUMNS: tuple[Column[_ChildTime], ...] = (
    Column("cell", lambda row: row.cell),
    Column("connector", lambda row: row.child),
    Column("callbacks p50", lambda row: row.p50_us, "us", digits=3),
    Column("mean", lambda row: row.mean_us, "us", digits=3),
    Column("of all p50", lambda row: row.all_p50_us, "us", digits=3),
)
