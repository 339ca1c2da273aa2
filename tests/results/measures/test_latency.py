"""TTFT, TPOT and E2E by their definitions, of one request and of columns alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from results.measures.latency import E2E, METRICS, TPOT, TTFT, compute_metric_values, declare
from results.measures.step_durations import STEP_SERIES
from results.measures.turns import Turns
from results.records.frames import REQUEST_SCHEMA, TURN_SCHEMA
from results.records.schemas import RequestRecord, RequestStatus

SENT_NS = 123 * 86_400 * 1_000_000_000 + 7
"""Of a host that has been up for months: a float does not hold it to the nanosecond."""
FIRST_NS, LAST_NS = SENT_NS + 250_000_000, SENT_NS + 1_250_000_000
WHOLE = RequestRecord(
    index=0,
    status=RequestStatus.OK,
    t_send_ns=SENT_NS,
    t_first_token_ns=FIRST_NS,
    t_last_token_ns=LAST_NS,
    t_end_ns=LAST_NS + 50_000_000,
    input_tokens=8,
    output_tokens=5,
    prompt_tokens=8,
    completion_tokens=5,
    cached_tokens=0,
    chunks=3,
    warmup=False,
    t_intended_ns=SENT_NS - 1_000_000,
    inflight_at_send=1,
)
CUT = replace(WHOLE, status=RequestStatus.CUT, t_last_token_ns=None, completion_tokens=None)
CASES: Mapping[str, tuple[RequestRecord, tuple[float | None, float | None, float | None]]] = {
    "from the send, not from when it was due; per token after the first": (WHOLE, (0.25, 0.25, 1.25)),
    "one token": (replace(WHOLE, completion_tokens=1, t_last_token_ns=FIRST_NS), (0.25, None, 0.25)),
    "unknown number of tokens": (replace(WHOLE, completion_tokens=None), (0.25, None, 1.25)),
    "cut after its first token": (CUT, (0.25, None, None)),
    "cut before it": (replace(CUT, t_first_token_ns=None), (None, None, None)),
    "failed": (replace(WHOLE, status=RequestStatus.ERROR), (None, None, None)),
}
"""A request, and its TTFT, TPOT and E2E in seconds."""


@pytest.mark.parametrize("case", CASES)
def test_a_latency_is_as_it_is_defined(case: str) -> None:
    record, expected = CASES[case]
    columns = compute_metric_values(pa.Table.from_pylist([msgspec.to_builtins(record)], schema=REQUEST_SCHEMA))
    for metric, value in zip((TTFT, TPOT, E2E), expected, strict=True):
        column = columns[metric.name]
        assert (None if np.isnan(column[0]) else column[0]) == value, metric.title
        if record.status in metric.statuses:
            assert metric.value(*(getattr(record, name) for name in metric.reads)) == value, metric.title


@pytest.mark.parametrize(
    "column",
    sorted({*REQUEST_SCHEMA.names, *TURN_SCHEMA.names, *STEP_SERIES, *(one.name for one in fields(Turns))}),
)
def test_a_metric_with_the_name_of_a_column_is_refused_with_the_remedy(column: str) -> None:
    """It would replace the column in every frame, or a step's percentiles would replace its own."""
    try:
        with pytest.raises(ValueError, match=f'"TTFT" cannot be called {column}: .* give the metric another name'):
            declare(replace(TTFT, name=column))
    finally:
        METRICS.pop(column, None)
