"""The numbers of a cell's request records: latencies, counts, throughput.

Latencies count only the requests due in the measured window; warm-up is cut. Throughput counts every completion inside
the window, whenever it was sent: those of earlier requests make up for those after its end. Requests that were cut by
the end of the drain, or that timed out, are censored: their wait is a lower bound where the metric declares one. A
censored request without a first token has no TPOT, one that failed otherwise no latency: a percentile is not known
where these are many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from results.measures.latency import METRICS, RequestMetric, Samples, collect_metric_samples, compute_metric_values
from results.measures.summary import NONE_LOST, Lost, estimate_percentiles
from results.records.estimate import Estimate, unknown
from results.records.schemas import TIMED_OUT, CellRecord, RequestStatus
from results.statistics.estimates import compute_student_quantile

_UNREADABLE = "the request records cannot be read"


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of one cell."""

    every: pd.DataFrame
    due: pd.DataFrame
    """`select_due_in_window` of them."""


@dataclass(frozen=True, slots=True)
class Latencies:
    """Every declared metric of the requests due in one cell's window."""

    samples: Mapping[str, Samples]
    """As `collect_latency_samples`."""
    waited: Mapping[str, Samples]
    """Lower bounds of the infinite samples."""
    lost: Mapping[str, Lost]
    """Requests of which not even a bound is known."""


def select_due(frame: pd.DataFrame, record: CellRecord) -> Requests:
    return Requests(frame, select_due_in_window(frame, record))


def select_due_in_window(frame: pd.DataFrame, record: CellRecord) -> pd.DataFrame:
    """The requests whose intended send is in the measured window."""
    return frame[~frame["warmup"].astype(bool) & (frame["t_intended_ns"] < record.t_window_end_ns)]


def _count_timed_out_as_cut(due: pd.DataFrame) -> pd.DataFrame:
    """The requests, with those that timed out as if the drain had cut them."""
    failed = due["status"] == RequestStatus.ERROR.value
    if not failed.any():
        return due
    late = due["error"].str.startswith(TIMED_OUT).fillna(value=False).astype(bool) & failed
    if not late.any():
        return due
    relabeled = due.copy()
    relabeled.loc[late, "status"] = RequestStatus.CUT.value
    return relabeled


def count_requests(requests: Requests | None) -> dict[str, int | None]:
    """Requests due in the window by how they ended, and `warmup`, those due before it; None = unreadable."""
    if requests is None:
        return dict.fromkeys(("completed", "failed", "dropped", "cut", "warmup"))
    states = requests.due["status"].value_counts()
    names = {
        "completed": RequestStatus.OK,
        "failed": RequestStatus.ERROR,
        "dropped": RequestStatus.DROPPED,
        "cut": RequestStatus.CUT,
    }
    counts: dict[str, int | None] = {name: int(states.get(status.value, 0)) for name, status in names.items()}
    return counts | {"warmup": int(requests.every["warmup"].sum())}


def collect_latency_samples(frame: pd.DataFrame, record: CellRecord) -> Mapping[str, Samples]:
    """Every declared metric of the requests due in the window that it applies to, in the order of the schedule.

    Those that were cut or timed out before they had a value follow as infinity where the metric declares a bound that
    is known. A request without a first token has no bound of TPOT: `Latencies.lost`.
    """
    return measure_latencies(select_due_in_window(frame, record)).samples


def measure_latencies(due: pd.DataFrame) -> Latencies:
    """Latencies of these requests, which were due in the window."""
    relabeled = _count_timed_out_as_cut(due)
    table = pa.Table.from_pandas(relabeled, preserve_index=False)
    samples = collect_metric_samples(table)
    if (relabeled["status"] == RequestStatus.OK.value).all():
        return Latencies(samples, {}, {})
    waited, lost = dict[str, Samples](), dict[str, Lost]()
    for name, values in compute_metric_values(table).items():
        waited[name], lost[name] = _censor(METRICS[name], relabeled[np.isnan(values)])
        samples[name] = np.append(samples[name], np.full(waited[name].size, np.inf))
    return Latencies(samples, waited, lost)


def _censor(metric: RequestMetric, without: pd.DataFrame) -> tuple[Samples, Lost]:
    """Lower bounds of the requests that were cut or timed out, and how many requests have not even a bound.

    `without`: the requests without a value.
    """
    if not set(metric.reads) <= set(without.columns):
        return np.empty(0), NONE_LOST  # these records have it of no request, however it ended
    missed = without[without["output_tokens"] >= metric.min_output_tokens]
    failed = missed["status"] == RequestStatus.ERROR.value
    cut = missed[missed["status"] == RequestStatus.CUT.value]
    waited, is_bounded = _bound_censored(metric, cut)
    answered = cut["t_first_token_ns"].notna() & ~is_bounded
    return waited, Lost(int(failed.sum()), len(cut) - waited.size - int(answered.sum()), int(answered.sum()))


def _bound_censored(metric: RequestMetric, cut: pd.DataFrame) -> tuple[Samples, npt.NDArray[np.bool_]]:
    """The known bounds of these requests, and which requests have one."""
    if metric.bound is None:
        return np.empty(0), np.zeros(len(cut), dtype=np.bool_)
    read = cut[list(metric.bound.reads)]
    is_known = read.notna().all(axis=1).to_numpy(dtype=np.bool_)
    columns = (read.loc[is_known, name].to_numpy() for name in metric.bound.reads)
    return np.asarray(metric.bound.formula(*columns), dtype=np.float64), is_known


def latencies(measured: Latencies | None) -> dict[str, Estimate]:
    """p50, p90 and p99 of every declared metric with their order-statistic intervals; None = unreadable."""
    estimates: dict[str, Estimate] = {}
    if measured is None:
        for name in METRICS:
            estimates |= estimate_percentiles(name, None, _UNREADABLE)
        return estimates
    for name, values in measured.samples.items():
        waited, lost = measured.waited.get(name), measured.lost.get(name, NONE_LOST)
        estimates |= estimate_percentiles(name, values, _UNREADABLE, waited, lost)
    return estimates


def throughput(requests: Requests | None, record: CellRecord) -> dict[str, Estimate]:
    """Effective (ended in the window), offered (due in it) and requested throughput per second; both ratios."""
    requested = float(record.load["rate_per_s"])
    stated = {"requested_throughput_per_s": Estimate(requested)}
    if requests is None:
        names = ("effective_throughput_per_s", "offered_throughput_per_s", "throughput_ratio", "cohort_ratio")
        return stated | dict.fromkeys((*names, "cached_prompt_tokens"), unknown(_UNREADABLE))
    window_s = (record.t_window_end_ns - record.t_window_start_ns) / 1e9
    every, due = requests.every, requests.due
    ended = every["t_end_ns"][every["status"] == RequestStatus.OK.value]
    inside = int(((ended >= record.t_window_start_ns) & (ended < record.t_window_end_ns)).sum())
    cached = due["cached_tokens"][due["status"] == RequestStatus.OK.value]
    return stated | {
        "effective_throughput_per_s": Estimate(inside / window_s, n=inside),
        "offered_throughput_per_s": Estimate(len(due) / window_s, n=len(due)),
        "throughput_ratio": Estimate(inside / window_s / requested, n=inside),
        "cohort_ratio": _estimate_cohort_ratio(due),
        "cached_prompt_tokens": Estimate(float(cached.sum()), n=int(cached.count()))
        if cached.count()
        else unknown("the engine did not report cached tokens"),
    }


def _estimate_cohort_ratio(due: pd.DataFrame) -> Estimate:
    """Completion rate of the requests due in the window over the rate at which they were due.

    (completions - 1) / (last - first completion) over (requests - 1) / (last - first send); a request that the cap on
    requests in flight dropped has its intended send. Where the drain cut some, only an upper bound is known: they would
    have completed after it.
    """
    sends = due["t_send_ns"].fillna(due["t_intended_ns"])
    is_ok, is_cut = (due["status"] == status.value for status in (RequestStatus.OK, RequestStatus.CUT))
    n, cut = int(is_ok.sum()), int(is_cut.sum())
    ends = due["t_end_ns"][is_ok | is_cut]
    if len(ends) < 2 or len(sends) < 2:
        return unknown(f"{n} of the window's requests completed: too few for a rate", n)
    sending_ns, completing_ns = int(sends.max() - sends.min()), int(ends.max() - ends.min())
    if sending_ns <= 0 or completing_ns <= 0:
        return unknown("all requests of the window were sent or completed at one moment", n)
    ratio = (len(ends) - 1) / completing_ns / ((len(sends) - 1) / sending_ns)
    if cut:
        why = f"{cut} of {len(due)} requests were cut by the end of the drain: the ratio is at most {ratio:.3f}"
        return Estimate(None, high=ratio, n=n, reason=why)
    low, high = _compute_cohort_bounds(due, ratio) if len(due) == n else (ratio, ratio)
    return Estimate(ratio, low, high, n)


def _compute_cohort_bounds(completed: pd.DataFrame, ratio: float) -> tuple[float | None, float | None]:
    """Bounds of the cohort's ratio: those of the slope of completion over send time (least squares, Student's t).

    The ratio rests on the first and the last completion: one slow request at an end moves the ratio, not the slope.
    """
    sends = completed["t_send_ns"].to_numpy(dtype=np.int64)
    ends = completed["t_end_ns"].to_numpy(dtype=np.int64)
    x, y = (sends - sends.min()) / 1e9, (ends - ends.min()) / 1e9
    degrees = x.size - 2
    spread = float(((x - x.mean()) ** 2).sum())
    if degrees < 1 or spread <= 0:
        return None, None
    slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
    residual = y - y.mean() - slope * (x - x.mean())
    error = math.sqrt(float(residual @ residual) / degrees / spread)
    half = compute_student_quantile(degrees) * error
    low = 1 / (slope + half) if slope + half > 0 else None
    high = 1 / (slope - half) if slope - half > 0 else None
    return (None if low is None else min(low, ratio)), (None if high is None else max(high, ratio))
