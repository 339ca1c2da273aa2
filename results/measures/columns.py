"""Arrow tables of request records to numpy columns, and the declared metrics of every request."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from results.measures.latency import METRICS, Column, Samples

Words = npt.NDArray[np.object_]


def metric_values(table: pa.Table) -> dict[str, Samples]:
    """Every declared metric of every row, NaN where it has none."""
    columns, status = read_columns(table), words(table["status"])
    return {name: metric.values(columns, status) for name, metric in METRICS.items()}


def metric_samples(table: pa.Table) -> dict[str, Samples]:
    """Every declared metric of the rows it applies to, in their order, NaN where a stamp of such a row is missing."""
    columns, status = read_columns(table), words(table["status"])
    return {name: metric.values(columns, status)[metric.applies(columns, status)] for name, metric in METRICS.items()}


def read_columns(table: pa.Table) -> dict[str, Column]:
    """The fields that declared metrics read. One that these records lack, as the open loop's lack `t_due_ns`, is known
    of none.
    """
    names: Iterable[str] = dict.fromkeys(name for metric in METRICS.values() for name in metric.reads)
    lacking = pa.chunked_array([pa.nulls(len(table), pa.int64())])
    return {name: _column(table[name] if name in table.column_names else lacking) for name in names}


def seconds_between(until: pa.ChunkedArray, since: pa.ChunkedArray | int) -> Samples:
    """Between two moments (ns); subtracted as integers, because a float does not hold them."""
    return floats(pc.subtract(until, since)) / 1e9


def floats(column: pa.ChunkedArray) -> Samples:
    """NaN for null."""
    values: Samples = column.cast(pa.float64(), safe=False).to_numpy()
    return values


def floats_or_nan(values: Iterable[float | None]) -> Samples:
    """NaN for None."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def words(column: pa.ChunkedArray) -> Words:
    """Texts; None for null."""
    return np.array(column.to_pylist(), dtype=object)


def _column(column: pa.ChunkedArray) -> Column:
    return Column(pc.fill_null(column, 0).to_numpy(), np.asarray(pc.is_valid(column).to_numpy(), dtype=np.bool_))
