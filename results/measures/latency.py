"""TTFT, TPOT and E2E of a request: each defined once, for one request and for the columns of many.

The load client's live ticks, the summary at a cell's end and the analysis use these definitions. E2E is the service
time W_turn of specs/ear section 5.4. Every stamp is the client's own (`SentRequest`): one clock, no time of the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from results.records.schemas import STEP_FIELDS_US, STEP_SUMS_US, RequestRecord, RequestStatus
from results.records.turns import TurnRecord

if TYPE_CHECKING:
    import pyarrow as pa  # not when it runs: the load process needs no Arrow

Samples = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Column:
    """One field of many requests."""

    values: npt.NDArray[Any]
    """Integers stay integers: a float does not hold a time in nanoseconds. Any number where it is not known."""
    known: Mask


@dataclass(frozen=True, slots=True)
class LowerBound:
    """The least that a metric is of a request that was cut or timed out before it had a value."""

    reads: tuple[str, ...]
    """Fields of the record, in the order of the formula's arguments; without one of them there is no bound."""
    formula: Callable[..., Any]
    """Formula over arrays of them; never below 0."""


@dataclass(frozen=True, slots=True)
class RequestMetric:
    """A number that follows from the record of one request."""

    name: str
    """With its unit at the end, e.g. `ttft_s`."""
    title: str
    """As tables and figures show it."""
    reads: tuple[str, ...]
    """Fields of the record, in the order of the formula's arguments; a request without one of them has no value."""
    formula: Callable[..., Any]
    """Formula over one request's numbers, or over arrays of them."""
    statuses: tuple[RequestStatus, ...] = (RequestStatus.OK,)
    """Requests with another status have no value."""
    is_defined: Callable[..., Any] | None = None
    """Whether there is a value, by the same arguments; None = always."""
    shown_unit: str = "ms"
    """`s`, `ms`, or another unit that the values have already."""
    bound: LowerBound | None = None
    """None = nothing is known of a request that was cut or timed out before it had a value."""
    min_output_tokens: int = 0
    """Requests that asked for fewer are not missed where they failed or were cut."""

    def value(self, *numbers: Any) -> float | None:
        """The value of one request; None where one of the numbers is."""
        if None in numbers or (self.is_defined is not None and not self.is_defined(*numbers)):
            return None
        return float(self.formula(*numbers))

    def applies(self, columns: Mapping[str, Column], status: npt.NDArray[np.object_]) -> Mask:
        """The requests that the metric is about: those of its statuses for which it is defined."""
        there = np.isin(status, [one.value for one in self.statuses])
        if self.is_defined is None:
            return there
        read = [columns[name] for name in self.reads]
        known = np.logical_and.reduce([column.known for column in read])
        return np.asarray(there & known & self.is_defined(*(column.values for column in read)), dtype=np.bool_)

    def values(self, columns: Mapping[str, Column], status: npt.NDArray[np.object_]) -> Samples:
        """One value per request, NaN where there is none."""
        read = [columns[name] for name in self.reads]
        known = np.logical_and.reduce([self.applies(columns, status), *(column.known for column in read)])
        values = np.full(known.size, np.nan)
        values[known] = self.formula(*(column.values[known] for column in read))
        return values


_WAITED = LowerBound(("t_send_ns", "t_end_ns"), lambda send_ns, end_ns: (end_ns - send_ns) / 1e9)

TTFT = RequestMetric(
    name="ttft_s",
    title="TTFT",
    reads=("t_send_ns", "t_first_token_ns"),
    formula=lambda send_ns, first_ns: (first_ns - send_ns) / 1e9,
    statuses=(RequestStatus.OK, RequestStatus.CUT),  # without those cut after their first token, slow ones would lack
    bound=_WAITED,
)
TPOT = RequestMetric(
    name="tpot_s",
    title="TPOT",
    reads=("t_first_token_ns", "t_last_token_ns", "completion_tokens"),
    formula=lambda first_ns, last_ns, tokens: (last_ns - first_ns) / 1e9 / (tokens - 1),
    is_defined=lambda first_ns, last_ns, tokens: tokens > 1,
    bound=LowerBound(
        ("t_first_token_ns", "t_end_ns", "output_tokens"),
        lambda first_ns, end_ns, tokens: (end_ns - first_ns) / 1e9 / (tokens - 1),
    ),
    min_output_tokens=2,
)
E2E = RequestMetric(
    name="e2e_s",
    title="E2E",
    reads=("t_send_ns", "t_last_token_ns"),
    formula=lambda send_ns, last_ns: (last_ns - send_ns) / 1e9,
    shown_unit="s",
    bound=_WAITED,
)

METRICS: dict[str, RequestMetric] = {}
"""By name, in the order in which tables show them."""
_RECORDED = frozenset(one.name for one in (*fields(RequestRecord), *fields(TurnRecord)))
"""Fields of the records of requests: of the open loop and of replays."""
_COLUMNS = _RECORDED | {*STEP_FIELDS_US, *STEP_SUMS_US, "due_s", "send_s", "first_s", "end_s", "numbers"}
"""Names that a metric would replace, or be replaced by: columns of requests, of steps and of
`results.measures.turns.Turns`."""


def declare(metric: RequestMetric) -> None:
    """Add a metric: frames, summaries and reports have it from now on.

    Raises ValueError where the name is that of a metric or a column, or no record has a field that the metric reads.
    """
    if metric.name in METRICS:
        raise ValueError(f"a metric {metric.name} is declared already: give one of the two another name")
    if metric.name in _COLUMNS:
        raise ValueError(
            f'the metric "{metric.title}" cannot be called {metric.name}: requests, turns or steps have a column of '
            "that name; give the metric another name"
        )
    reads = (*metric.reads, *(metric.bound.reads if metric.bound else ()))
    unrecorded = [name for name in reads if name not in _RECORDED]
    if unrecorded:
        raise ValueError(f"metric {metric.name} reads {', '.join(unrecorded)}, which no record of a request has")
    METRICS[metric.name] = metric


for _metric in (TTFT, TPOT, E2E):
    declare(_metric)


def compute_metric_values(table: pa.Table) -> dict[str, Samples]:
    """Every declared metric of every row of request records, NaN where it has none."""
    columns, status = _read_columns(table)
    return {name: metric.values(columns, status) for name, metric in METRICS.items()}


def collect_metric_samples(table: pa.Table) -> dict[str, Samples]:
    """Every declared metric of the rows it applies to, in their order, NaN where a stamp of such a row is missing."""
    columns, status = _read_columns(table)
    return {name: metric.values(columns, status)[metric.applies(columns, status)] for name, metric in METRICS.items()}


def _read_columns(table: pa.Table) -> tuple[dict[str, Column], npt.NDArray[np.object_]]:
    """The fields that declared metrics read, and the statuses. A field that these records lack, as the open loop's lack
    `t_due_ns`, is known of none.
    """
    lacking = Column(np.zeros(len(table), dtype=np.int64), np.zeros(len(table), dtype=np.bool_))
    columns = {
        name: _make_column(table[name]) if name in table.column_names else lacking
        for metric in METRICS.values()
        for name in metric.reads
    }
    return columns, np.array(table["status"].to_pylist(), dtype=object)


def _make_column(column: pa.ChunkedArray) -> Column:
    return Column(column.fill_null(0).to_numpy(), np.asarray(column.is_valid().to_numpy(), dtype=np.bool_))
