"""What a reader sees of a lifecycle run: its latest requests by phase, and their results so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, median
from typing import Any

from results.records.events import LifecycleMeasured

MAX_REQUESTS = 2_000
"""Requests in the view: more than twice the whole sweep of specs/pd_lifecycle.md."""
SHOWN = 20
"""Requests in `tracon status --json`: the newest."""


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """One request as it was measured."""

    t_unix_s: float
    event: LifecycleMeasured

    @property
    def counts(self) -> bool:
        """Results count it: it is no warm-up, and was not discarded."""
        return not (self.event.warmup or self.event.discarded)


@dataclass(frozen=True, slots=True)
class LifecycleCounts:
    """The requests of the last attempt at a cell."""

    attempt: int
    counted: int = 0
    warmups: int = 0
    discarded: int = 0


@dataclass(frozen=True, slots=True)
class LifecycleView:
    """The measured requests of a run."""

    requests: tuple[MeasuredRequest, ...] = ()
    """Oldest first, at most `MAX_REQUESTS`."""
    cells: Mapping[str, LifecycleCounts] = field(default_factory=dict)
    """In the order of their first request."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What disaggregating prefill and decode costs at one size, by the requests measured so far.

    Means over pairs, as in the report: where both orders were measured, the mean of the two orders' means, in which an
    effect of the order cancels.
    """

    context_tokens: int
    new_tokens: int
    ttft_ms: float
    colo_ttft_ms: float
    requests: int
    both_orders: bool

    @property
    def overhead_ms(self) -> float:
        """Below 0: it pays."""
        return self.ttft_ms - self.colo_ttft_ms


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bandwidth of transfers of this many bytes, over the requests measured so far."""

    bytes: int
    median_gbps: float
    low_gbps: float
    high_gbps: float
    requests: int


def fold_request_into_lifecycle(
    before: LifecycleView | None, event: LifecycleMeasured, t_unix_s: float, attempt: int
) -> LifecycleView:
    """The view after one more request. Another attempt at a cell replaces the previous one."""
    view = LifecycleView() if before is None else before
    counts = view.cells.get(event.cell)
    requests = view.requests
    if counts is None or counts.attempt != attempt:
        counts = LifecycleCounts(attempt)
        requests = tuple(each for each in requests if each.event.cell != event.cell)
    request = MeasuredRequest(t_unix_s, event)
    return LifecycleView(
        (*requests[1 - MAX_REQUESTS :], request), {**view.cells, event.cell: _count_request(counts, request)}
    )


def _count_request(counts: LifecycleCounts, request: MeasuredRequest) -> LifecycleCounts:
    if request.event.discarded:
        return replace(counts, discarded=counts.discarded + 1)
    if request.event.warmup:
        return replace(counts, warmups=counts.warmups + 1)
    return replace(counts, counted=counts.counted + 1)


def list_counted(view: LifecycleView) -> Iterator[LifecycleMeasured]:
    """The requests that results count."""
    return (each.event for each in view.requests if each.counts)


def list_overheads(view: LifecycleView) -> tuple[Overhead, ...]:
    """Per (C, N) the TTFT disaggregated and combined, of requests with both; by C, then N."""
    pairs_by_size: dict[tuple[int, int], list[tuple[float, float, bool | None]]] = {}
    for event in list_counted(view):
        if event.ttft_ms is not None and event.colo_ttft_ms is not None:
            pair = event.ttft_ms, event.colo_ttft_ms, event.colo_first
            pairs_by_size.setdefault((event.context_tokens, event.new_tokens), []).append(pair)
    return tuple(_compute_mean_overhead(size, pairs_by_size[size]) for size in sorted(pairs_by_size))


def _compute_mean_overhead(size: tuple[int, int], pairs: Sequence[tuple[float, float, bool | None]]) -> Overhead:
    both = {first for _, _, first in pairs} == {True, False}
    orders = [[pair for pair in pairs if pair[2] is first] for first in (True, False)] if both else [pairs]
    apart = fmean(fmean(ttft_ms for ttft_ms, _, _ in own) for own in orders)
    combined = fmean(fmean(colo_ms for _, colo_ms, _ in own) for own in orders)
    return Overhead(*size, apart, combined, len(pairs), both)


def list_bandwidths(view: LifecycleView) -> tuple[Bandwidth, ...]:
    """Bandwidth per transfer size, by rising bytes."""
    gbps_by_size: dict[int, list[float]] = {}
    for event in list_counted(view):
        if event.bytes and event.bytes > 0 and event.bandwidth_gbps is not None:
            gbps_by_size.setdefault(event.bytes, []).append(event.bandwidth_gbps)
    return tuple(
        Bandwidth(size, median(values), min(values), max(values), len(values))
        for size, values in sorted(gbps_by_size.items())
    )


def find_worst_residual(view: LifecycleView) -> float | None:
    """The largest residual share of a counted request; None = none is measured."""
    return max((event.residual_share for event in list_counted(view) if event.residual_share is not None), default=None)


def make_lifecycle_json(view: LifecycleView) -> dict[str, Any]:
    """The part `lifecycle` of `tracon status --json`."""
    return {
        "cells": [{"cell": cell, **asdict(counts)} for cell, counts in view.cells.items()],
        "worst_residual_share": find_worst_residual(view),
        "bandwidths": [asdict(each) for each in list_bandwidths(view)],
        "overheads": [{**asdict(each), "overhead_ms": each.overhead_ms} for each in list_overheads(view)],
        "latest": [{"t_unix_s": each.t_unix_s, **asdict(each.event)} for each in view.requests[-SHOWN:]],
    }
