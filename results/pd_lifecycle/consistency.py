"""Checks of a run that do not follow from the definitions of the phases, and its drift over time.

The nine phases share their stamps: where all stamps exist and are in order, their sum is E2E by definition. These
checks can fail: they compare the clocks of different processes, the probe's bytes with the scheduler's tokens, and the
prefill with the same prefill on the combined instance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from results.measures.drift import DriftVerdict, estimate_drift
from results.pd_lifecycle.paired_requests import COMBINED, TTFT
from results.pd_lifecycle.phases import TURNED
from results.pd_lifecycle.read import CellKey
from results.records.estimate import Estimate
from results.records.frames import Gap
from results.records.lifecycle import LifecycleRecord, RequestConfig
from results.records.lifecycle_cells import MeasuredCell
from results.records.percent import format_percent
from results.statistics.trials import MIN_PAIRED

HANDED_ON = ("p_queue", "p_reply", "d_block_alloc", "zmq_request", "transfer_signal", "d_first_decode")
"""Durations from a send in one process to the receipt in another: a wrong clock or join makes them negative."""
_DRIFTS: Mapping[str, Callable[[LifecycleRecord], float | None]] = {
    COMBINED: lambda record: record.colo.ttft_ms,
    TTFT: lambda record: record.client_ttft_ms,
}
"""TTFT depends on C and N only: cells of other output lengths repeat it."""


@dataclass(frozen=True, slots=True)
class RunDrift:
    """How one TTFT changed from the begin of a launch to its end."""

    series: str
    """What drifts, e.g. `colo_ttft_ms`."""
    over_run: Estimate
    """Relative change; `n` is the number of cells."""
    span_s: float | None
    """Duration of the longest launch, from its first to its last request; None = unknown."""
    verdict: DriftVerdict
    """Whether the interval excludes 0."""
    reason: str
    """The cells that it rests on, or why it cannot be tested."""


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison over all counted requests."""

    what: str
    """What two sources state of one request."""
    agree: int
    """Requests in which they agree."""
    of: int
    """Requests in which both are known."""
    text: str
    """The result in words."""


def run_checks(records: Sequence[LifecycleRecord], cells: Mapping[CellKey, MeasuredCell]) -> tuple[Check, ...]:
    """The checks for which these records, or the commit marks of their cells, have data."""
    counted = [record for record in records if record.counted]
    results = _check_order(counted), _check_bytes(counted), _check_prefill(counted), _check_preemptions(cells)
    return tuple(check for check in results if check.of)


def _check_preemptions(cells: Mapping[CellKey, MeasuredCell]) -> Check:
    """The KV cache, by the engines' counters; its usage is 0 between requests, so its largest share is computed."""
    known = {
        key: [load.preemptions for load in cell.load.values()]
        for key, cell in cells.items()
        if cell.load and all(load.preemptions is not None for load in cell.load.values())
    }
    quiet = sum(not any(counts) for counts in known.values())
    shares = [sum(key[1:]) / cell.capacity_tokens for key, cell in cells.items() if cell.capacity_tokens]
    text = f"the largest request takes {format_percent(max(shares), 1)} of the smallest KV cache" if shares else ""
    return Check("no engine preempted a request within the cell", quiet, len(known), text)


def _check_order(counted: Sequence[LifecycleRecord]) -> Check:
    forwards = [
        (name, value)
        for record in counted
        for name in HANDED_ON
        if (value := record.ms(name)) is not None and not (name == "p_queue" and record.counts.dispatch_late_ms)
    ]
    back = [gap for record in counted for name in HANDED_ON if TURNED in (gap := record.gaps.get(name, ""))]
    back += [
        f"the router stamped its send {late:.3g} ms after the prefill instance had scheduled the request"
        for record in counted
        if (late := record.counts.dispatch_late_ms)
    ]
    least = min(forwards, key=lambda one: one[1], default=("", 0.0))
    text = f"shortest: {least[0]} {least[1]:.3g} ms" if forwards else ""
    text += f"; out of order, for example: {back[0]}" if back else ""
    return Check(
        "messages between processes are received after they were sent", len(forwards), len(forwards) + len(back), text
    )


def _check_bytes(counted: Sequence[LifecycleRecord]) -> Check:
    """Compare the bytes by the writing side's probe with the tokens by the decode instance's scheduler."""
    ratios = []
    agree = 0
    for record in counted:
        detail, counts = record.transfer_detail, record.counts
        moved, blocks = detail.bytes_transferred, detail.num_blocks
        if moved is None or not counts.external_tokens or not counts.kv_bytes_per_token or not blocks:
            continue
        expected = counts.external_tokens * counts.kv_bytes_per_token
        ratios.append(moved / expected)
        agree += abs(moved - expected) <= moved / blocks
    text = f"bytes over tokens x KV per token: {min(ratios):.4g} to {max(ratios):.4g}" if ratios else ""
    what = "the bytes written are those of the tokens for which the decode instance waited, within a block"
    return Check(what, agree, len(ratios), text)


def _check_prefill(counted: Sequence[LifecycleRecord]) -> Check:
    shares = [
        prefill / record.colo.ttft_ms
        for record in counted
        if (prefill := record.ms("p_prefill")) is not None and record.colo.ttft_ms
    ]
    text = ""
    if shares:
        middle, largest = format_percent(median(shares), 1), format_percent(max(shares), 1)
        text = f"p_prefill over combined TTFT: median {middle}, largest {largest}"
    what = "the prefill takes no longer than the combined instance's TTFT for the same number of tokens"
    return Check(what, sum(share <= 1 for share in shares), len(shares), text)


def find_size_mismatches(records: Sequence[LifecycleRecord], block_tokens: Mapping[CellKey, int]) -> tuple[Gap, ...]:
    """Records whose bytes differ from blocks x block tokens x KV per token, as one gap per configuration.

    block_tokens: by trial, C, N and O.
    """
    ratios: dict[tuple[int, int, int], list[float]] = {}
    for record in records:
        key, detail = record.config.key, record.transfer_detail
        moved, blocks = detail.bytes_transferred, detail.num_blocks
        each, per_token = block_tokens.get((record.trial, *key)), record.counts.kv_bytes_per_token
        if record.counted and moved and blocks and each and per_token and moved != blocks * each * per_token:
            ratios.setdefault(key, []).append(moved / (blocks * each * per_token))
    return tuple(
        Gap(
            RequestConfig(*key).label,
            f"{len(own)} transfers: bytes are not blocks x block tokens x KV bytes per token, but {min(own):.3g} to "
            f"{max(own):.3g} times that",
        )
        for key, own in sorted(ratios.items())
    )


def measure_drifts(records: Sequence[LifecycleRecord]) -> tuple[RunDrift, ...]:
    """The change of each TTFT over a launch, which is the unit, from the (C, N) that have several output lengths."""
    counted = [record for record in records if record.counted]
    return tuple(_measure_drift(name, ttft_of, counted) for name, ttft_of in _DRIFTS.items())


def _measure_drift(
    name: str, ttft_of: Callable[[LifecycleRecord], float | None], counted: Sequence[LifecycleRecord]
) -> RunDrift:
    cells: dict[tuple[int, int, int], dict[int, list[tuple[float, float]]]] = {}
    times: dict[int, list[float]] = {}
    for record in counted:
        config, at, value = record.config, record.timestamps_ns.t0_proxy_recv, ttft_of(record)
        if at is not None and value is not None and value > 0:
            own = cells.setdefault((record.trial, config.prior_context, config.current_new_tokens), {})
            own.setdefault(config.output_length, []).append((at / 1e9, value))
            times.setdefault(record.trial, []).append(at / 1e9)
    span_s = max((max(own) - min(own) for own in times.values()), default=0.0)
    unit = 3600 / span_s if span_s > 0 else 1.0  # scale a launch to an hour: its slope per hour is the change over it
    groups: dict[str, list[list[tuple[float, float]]]] = {}
    for (trial, _, _), lengths in cells.items():
        if len(lengths) > 1:
            medians = [np.median(points, axis=0).tolist() for points in lengths.values()]
            groups.setdefault(f"launch {trial}", []).append([(at * unit, value) for at, value in medians])
    what = "medians of cells of one size and several output lengths"
    short = "launches have a (C, N) of several output lengths"
    drift = estimate_drift(f"{name}_ms", groups, what, short=short, kind="launches", least=MIN_PAIRED)
    return RunDrift(drift.series, drift.slope_per_h, span_s or None, drift.verdict, drift.reason)
