"""Requests that failed or were cut count in the percentiles of every declared metric, as in those of TTFT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import pandas as pd
import pyarrow as pa
import pytest

from results.measures.latency import E2E, METRICS, TTFT, LowerBound, RequestMetric, declare
from results.measures.requests import latencies, measure_latencies
from results.measures.summary import flatten_values, name_percentile
from results.records.estimate import Estimate
from results.records.frames import REQUEST_SCHEMA
from results.records.schemas import TIMED_OUT, RequestStatus
from tests.results.measures.test_latency import CUT, WHOLE

FAILED = replace(CUT, status=RequestStatus.ERROR, t_first_token_ns=None, error="HTTP 500: no")
EARLY = replace(CUT, t_first_token_ns=None)
LATE = replace(FAILED, error=f"{TIMED_OUT}: not finished 30 s after the send")
KINDS = {"whole": WHOLE, "cut": CUT, "early": EARLY, "late": LATE, "failed": FAILED}
MINE = RequestMetric("mine_s", "my TTFT", TTFT.reads, TTFT.formula)
"""TTFT of completed requests alone, without a bound for the others."""


@contextmanager
def declared(metric: RequestMetric) -> Iterator[None]:
    declare(metric)
    try:
        yield
    finally:
        del METRICS[metric.name]


def measure(**counts: int) -> dict[str, Estimate]:
    """Percentiles of this many requests of each of KINDS."""
    rows = [msgspec.to_builtins(KINDS[kind]) for kind, count in counts.items() for _ in range(count)]
    table = pa.Table.from_pylist(rows, schema=REQUEST_SCHEMA)
    return latencies(measure_latencies(table.to_pandas(types_mapper=pd.ArrowDtype)))


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ({"whole": 60, "failed": 25, "early": 15}, "failed or were cut or timed out before their first token"),
        ({"whole": 80, "early": 20}, "were cut or timed out before their first token"),
        ({"whole": 80, "cut": 10, "late": 10}, "were cut or timed out"),
        ({"whole": 90, "failed": 10}, "failed"),
        ({"failed": 10}, "failed"),
    ],
)
def test_a_declared_metric_is_unknown_where_many_requests_have_none(counts: dict[str, int], reason: str) -> None:
    with declared(MINE):
        p90 = measure(**counts)["mine_p90_s"]
    due = sum(counts.values())
    assert (p90.value, p90.low, p90.n) == (None, None, due)
    assert p90.reason == f"{due - counts.get('whole', 0)} of {due} requests {reason} and have no my TTFT"


def test_a_few_requests_without_a_value_leave_it_as_they_leave_ttft() -> None:
    with declared(MINE):
        known = measure(whole=96, failed=4)
    assert known["mine_p90_s"] == known["ttft_p90_s"]
    assert known["mine_p90_s"].n == 96


def test_a_declared_bound_counts_requests_that_were_cut_as_slow() -> None:
    bounded = replace(MINE, bound=LowerBound(("t_send_ns", "t_end_ns"), E2E.formula))
    with declared(bounded):
        known = measure(whole=80, early=20)
    assert known["mine_p90_s"] == known["ttft_p90_s"]
    assert known["mine_p90_s"].value is None
    assert known["mine_p90_s"].low == pytest.approx(1.3)


def test_of_a_field_that_the_records_lack_the_number_is_unknown_for_want_of_samples() -> None:
    with declared(replace(MINE, reads=("t_due_ns", "t_first_token_ns"))):
        assert measure(whole=60, failed=40)["mine_p90_s"].reason == "no samples"


def test_a_bound_that_reads_what_no_record_has_is_refused() -> None:
    unrecorded = replace(MINE, bound=LowerBound(("t_never_ns",), TTFT.formula))
    with pytest.raises(ValueError, match="mine_s reads t_never_ns"), declared(unrecorded):
        pass


@pytest.mark.parametrize("point", ["mean", "p90"])
def test_every_declared_metric_has_its_bounds_and_its_count_in_columns(point: str) -> None:
    with declared(MINE):
        row = flatten_values(
            {name_percentile(one, point): Estimate(2.0, 1.0, 3.0, 4) for one in ("mine_s", "ttft_s", "engine_step_us")}
        )
    assert row == {
        f"mine_{point}_s": 2.0, f"mine_{point}_s_low": 1.0, f"mine_{point}_s_high": 3.0, f"mine_{point}_s_n": 4,
        f"ttft_{point}_s": 2.0, f"ttft_{point}_s_low": 1.0, f"ttft_{point}_s_high": 3.0, f"ttft_{point}_s_n": 4,
        f"engine_step_{point}_us": 2.0,
    }  # fmt: skip
