"""Numbers of a cell's `/metrics` scrapes: gauges inside the measured window, growth of counters over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from results.records.estimate import Estimate, unknown
from results.records.schemas import CellRecord
from results.statistics.estimates import clean, count_samples_needed, too_small

WAITING = "vllm:num_requests_waiting"
RUNNING = "vllm:num_requests_running"
KV_USAGE = "vllm:kv_cache_usage_perc"
PREFIX_HITS = "vllm:prefix_cache_hits_total"
PREEMPTIONS = "vllm:num_preemptions_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"
GENERATION_TOKENS = "vllm:generation_tokens_total"
SAMPLES = (WAITING, RUNNING, KV_USAGE, PREFIX_HITS, PREEMPTIONS, PROMPT_TOKENS, GENERATION_TOKENS)
"""Sample names that are read."""
_TIME = "t_ns"
_Columns = Mapping[str, npt.NDArray[Any]]
"""Columns of scrapes, by name."""


def measure_server_values(frame: pd.DataFrame | None, record: CellRecord) -> dict[str, Estimate]:
    """Queue, KV use, prefix hits, preemptions and token rates of the measured window."""
    gauges = {"waiting_p50": (WAITING, 0.5), "running_p50": (RUNNING, 0.5), "kv_usage_max": (KV_USAGE, 1.0)}
    totals = {"prefix_cache_hit_tokens": PREFIX_HITS, "preemptions": PREEMPTIONS}
    speeds = {"prompt_tokens_per_s": PROMPT_TOKENS, "generation_tokens_per_s": GENERATION_TOKENS}
    if frame is None:
        return dict.fromkeys((*gauges, *totals, *speeds), unknown("the /metrics samples cannot be read"))
    columns = {name: frame[name].to_numpy() for name in (_TIME, *SAMPLES)}
    times = columns[_TIME]
    begin, end = record.t_window_start_ns, record.t_window_end_ns
    inside = _select_rows(columns, (times >= begin) & (times < end))
    around = _select_rows(columns, _find_around(times, begin, end))
    return {
        **{name: _estimate_gauge(inside[sample], quantile) for name, (sample, quantile) in gauges.items()},
        **{name: _estimate_increase(around, sample, per_second=False) for name, sample in totals.items()},
        **{name: _estimate_increase(inside, sample, per_second=True) for name, sample in speeds.items()},
    }


def _select_rows(columns: _Columns, rows: npt.NDArray[np.bool_] | slice) -> _Columns:
    return {name: values[rows] for name, values in columns.items()}


def _find_around(times: npt.NDArray[np.int64], begin: int, end: int) -> slice:
    """The window's scrapes, with the last one before it and the first one after it."""
    first = max(int(np.searchsorted(times, begin, side="right")) - 1, 0)
    return slice(first, int(np.searchsorted(times, end, side="left")) + 1)


def _estimate_gauge(scraped: npt.NDArray[np.float64], quantile: float) -> Estimate:
    """The quantile; with the range of the samples where they are too few for an interval."""
    samples = clean(scraped)
    if samples.size == 0:
        return unknown("no sample of it inside the measured window")
    n = int(samples.size)
    value = float(np.quantile(samples, quantile))
    if quantile in (0.0, 1.0) or n >= count_samples_needed(quantile):
        return Estimate(value, n=n)
    return Estimate(value, float(samples.min()), float(samples.max()), n, too_small(n, quantile))


def _estimate_increase(columns: _Columns, sample: str, *, per_second: bool) -> Estimate:
    """Growth of a counter between the first and the last scrape that have it."""
    known = ~np.isnan(columns[sample])
    values, times = columns[sample][known], columns[_TIME][known]
    n = int(values.size)
    if n < 2:
        return unknown("fewer than two scrapes have it", n)
    if (np.diff(values) < 0).any():
        return unknown("the counter went back: the engine was restarted", n)
    grown = float(values[-1] - values[0])
    span_s = float(times[-1] - times[0]) / 1e9
    return Estimate(grown / span_s if per_second else grown, n=n)
