"""What a cell's request records say: latencies, counts, throughput.

Only requests due in the measured window count for latencies; warm-up is cut. Completions inside the window count for
throughput whenever they were sent, so that what a window's end cuts off is made up by what its beginning lets in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from results.records import CellRecord, RequestStatus
from results.statistics import Estimate, Samples, percentiles, unknown
from results.summary import LATENCIES, POINTS, percentile_name

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
    """ttft_s, tpot_s, e2e_s of the requests due in the window, in the order of the schedule.

    TTFT counts requests cut after their first token too: leaving them out would leave out the slow ones. TPOT has no
    value for a request of one token.
    """
    due = _due_in_window(frame, record)
    whole = due[due["status"] == RequestStatus.OK.value]
    begun = due[due["status"].isin([RequestStatus.OK.value, RequestStatus.CUT.value])]
    gaps = whole["completion_tokens"] - 1
    return {
        "ttft_s": _seconds(begun["t_first_token_ns"] - begun["t_send_ns"]),
        "tpot_s": _seconds((whole["t_last_token_ns"] - whole["t_first_token_ns"])[gaps > 0]) / _floats(gaps[gaps > 0]),
        "e2e_s": _seconds(whole["t_last_token_ns"] - whole["t_send_ns"]),
    }


def _seconds(ns: pd.Series[Any]) -> Samples:
    return _floats(ns) / 1e9


def _floats(series: pd.Series[Any]) -> Samples:
    return series.to_numpy(dtype=np.float64, na_value=np.nan)


def latencies(frame: pd.DataFrame | None, record: CellRecord) -> dict[str, Estimate]:
    """p50, p90 and p99 of TTFT, TPOT and E2E with their order-statistic intervals (s)."""
    names = [(series, point) for series in LATENCIES for point in POINTS]
    if frame is None:
        return {percentile_name(*name): unknown(_UNREADABLE) for name in names}
    found: dict[str, Estimate] = {}
    for series, samples in latency_samples(frame, record).items():
        for point, estimate in zip(POINTS, percentiles(samples, tuple(POINTS.values())), strict=True):
            found[percentile_name(series, point)] = estimate
    return found


def throughput(frame: pd.DataFrame | None, record: CellRecord) -> dict[str, Estimate]:
    """Effective (ended in the window), offered (due in it) and requested throughput per second, and their ratio."""
    requested = float(record.load["rate_per_s"])
    found = {"requested_throughput_per_s": Estimate(requested)}
    if frame is None:
        why = unknown(_UNREADABLE)
        return found | dict.fromkeys(
            ("effective_throughput_per_s", "offered_throughput_per_s", "throughput_ratio", "cached_prompt_tokens"), why
        )
    window_s = (record.t_window_end_ns - record.t_window_start_ns) / 1e9
    whole = frame[frame["status"] == RequestStatus.OK.value]
    ended = whole["t_end_ns"]
    inside = int(((ended >= record.t_window_start_ns) & (ended < record.t_window_end_ns)).sum())
    due = len(_due_in_window(frame, record))
    cached = _due_in_window(whole, record)["cached_tokens"]
    return found | {
        "effective_throughput_per_s": Estimate(inside / window_s, n=inside),
        "offered_throughput_per_s": Estimate(due / window_s, n=due),
        "throughput_ratio": Estimate(inside / window_s / requested, n=inside),
        "cached_prompt_tokens": Estimate(float(cached.sum()), n=int(cached.count()))
        if cached.count()
        else unknown("the engine did not report cached tokens"),
    }
