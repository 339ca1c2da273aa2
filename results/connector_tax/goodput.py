"""Goodput: the requests of a cell that met a latency objective (SLO), per second of its window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from results.connector_tax.read import read_cell_record, read_cell_requests
from results.connector_tax.slo import Slo
from results.measures.latency import TPOT, TTFT, metric_values
from results.measures.requests import due_in_window
from results.records.estimate import Estimate, unknown
from results.records.schemas import RequestStatus


def measure_goodput(cell_json: Path, slo: Slo) -> Estimate:
    """Requests due in the window that completed within the SLO, per second of it; a request of one token has no TPOT.
    Raises ArtifactError where the cell's record cannot be read."""
    record = read_cell_record(cell_json)
    frame, gaps = read_cell_requests(cell_json, record)
    if frame is None:
        return unknown("; ".join(gap.reason for gap in gaps))
    due = due_in_window(frame, record)
    completed = due[due["status"] == RequestStatus.OK.value]
    values = metric_values(pa.Table.from_pandas(completed, preserve_index=False))
    met = np.ones(len(completed), dtype=np.bool_)
    if slo.ttft_s is not None:
        met &= values[TTFT.name] <= slo.ttft_s
    if slo.tpot_s is not None:
        met &= np.isnan(values[TPOT.name]) | (values[TPOT.name] <= slo.tpot_s)
    window_s = (record.t_window_end_ns - record.t_window_start_ns) / 1e9
    return Estimate(float(met.sum()) / window_s, n=len(due))
