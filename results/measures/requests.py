"""The numbers of a cell's request records: latencies, counts, throughput.

Only requests due in the measured window count for latencies; warm-up is cut. Completions inside the window count for
throughput whenever they were sent, so that what a window's end cuts off is made up by what its beginning lets in.
"""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from results.measures.columns import metric_samples
from results.measures.latency import METRICS, Samples
from results.measures.summary import percentile_estimates
from results.records.schemas import CellRecord, RequestStatus
from results.statistics.estimates import Estimate, unknown

_UNREADABLE = "the request records cannot be read"


def _due_in_window(frame: pd.DataFrame, record: CellRecord) -> pd.DataFrame:
    return frame[~frame["warmup"].astype(bool) & (frame["t_intended_ns"] < record.t_window_end_ns)]


def request_counts(frame: pd.DataFrame | None, record: CellRecord) -> dict[str, int | None]:
    """Requests due in the window by how they ended, and `warmup`, those due before it; None = unreadable."""
    if frame is None:
        return dict.fromkeys(("completed", "failed", "dropped", "cut", "warmup"))
    states = _due_in_window(frame, record)["status"].value_counts()
    names = {
        "completed": RequestStatus.OK,
        "failed": RequestStatus.ERROR,
        "dropped": RequestStatus.DROPPED,
        "cut": RequestStatus.CUT,
    }
    counts: dict[str, int | None] = {name: int(states.get(status.value, 0)) for name, status in names.items()}
    return counts | {"warmup": int(frame["warmup"].sum())}


def latency_samples(frame: pd.DataFrame, record: CellRecord) -> dict[str, Samples]:
    """Every declared metric of the requests due in the window that it applies to, in the order of the schedule."""
    return metric_samples(pa.Table.from_pandas(_due_in_window(frame, record), preserve_index=False))


def latencies(frame: pd.DataFrame | None, record: CellRecord) -> dict[str, Estimate]:
    """p50, p90 and p99 of every declared metric with their order-statistic intervals."""
    samples = None if frame is None else latency_samples(frame, record)
    estimates: dict[str, Estimate] = {}
    for name in METRICS:
        estimates |= percentile_estimates(name, None if samples is None else samples[name], _UNREADABLE)
    return estimates


def throughput(frame: pd.DataFrame | None, record: CellRecord) -> dict[str, Estimate]:
    """Effective (ended in the window), offered (due in it) and requested throughput per second, and their ratio."""
    requested = float(record.load["rate_per_s"])
    stated = {"requested_throughput_per_s": Estimate(requested)}
    if frame is None:
        why = unknown(_UNREADABLE)
        return stated | dict.fromkeys(
            ("effective_throughput_per_s", "offered_throughput_per_s", "throughput_ratio", "cached_prompt_tokens"), why
        )
    window_s = (record.t_window_end_ns - record.t_window_start_ns) / 1e9
    whole = frame[frame["status"] == RequestStatus.OK.value]
    ended = whole["t_end_ns"]
    inside = int(((ended >= record.t_window_start_ns) & (ended < record.t_window_end_ns)).sum())
    due = len(_due_in_window(frame, record))
    cached = _due_in_window(whole, record)["cached_tokens"]
    return stated | {
        "effective_throughput_per_s": Estimate(inside / window_s, n=inside),
        "offered_throughput_per_s": Estimate(due / window_s, n=due),
        "throughput_ratio": Estimate(inside / window_s / requested, n=inside),
        "cached_prompt_tokens": Estimate(float(cached.sum()), n=int(cached.count()))
        if cached.count()
        else unknown("the engine did not report cached tokens"),
    }
