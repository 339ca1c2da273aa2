"""One row per configuration over its counted repetitions, and `summary.csv`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from statistics import median

import numpy as np
import pandas as pd

from results.measures.summary import make_bounded_columns
from results.pd_lifecycle.by_launch import split_launches
from results.pd_lifecycle.paired_requests import COMBINED, OVERHEAD, PLAIN, TTFT, balance_pairs, value_of
from results.pd_lifecycle.phases import BREAKDOWN, MORE
from results.pd_lifecycle.read import Discard
from results.records.estimate import Estimate, unknown
from results.records.lifecycle import PLAIN_OVERHEAD, LifecycleRecord, RequestConfig
from results.report.record_rows import list_columns
from results.statistics.estimates import cut_bounds, mean
from results.statistics.launch_fit import merge_launches
from results.statistics.trials import MIN_PAIRED

DURATIONS = (*BREAKDOWN, *MORE)
"""The names of all durations of a record."""
SPECIFIED = {
    "p_prefill_ms": "p_prefill",
    "rdma_transfer_ms": "rdma_transfer",
    "transfer_total_ms": "transfer_total",
    "d_decode_ms": "d_decode",
    "e2e_ms": "e2e",
    "bytes_GB": "bytes_gb",
    "bw_gbps": "bw_gbps",
    "ttft_overhead_ms": "ttft_overhead_vs_colo",
}
"""The specification's columns of `summary.csv` after the three lengths, to the value that each holds."""


@dataclass(frozen=True, slots=True)
class ConfigSummary:
    config: RequestConfig
    """C, N and O."""
    counted: int
    """Requests that enter the results."""
    warmups: int
    """Warm-up requests."""
    discarded: int
    """Measurements that do not count."""
    values: Mapping[str, Estimate]
    """Means over the counted repetitions with Student's t interval; from three launches on over the means of the
    launches. Milliseconds: DURATIONS, `colo_ttft`, `colo_e2e`, `plain_ttft`.
    Others: `bytes_gb` (10^9), `bw_gbps` (all bytes over all time in which a write was in progress), `residual_share`,
    `client_residual_share`, and COUNTED. A value that is compared with the combined instance is the mean of the means
    of both orders (results.pd_lifecycle.paired_requests)."""
    medians: Mapping[str, float] = field(default_factory=dict)
    """Medians of the known durations and TTFTs, over all counted repetitions; a few slow ones do not move them."""

    def value(self, name: str) -> Estimate:
        return self.values.get(name, unknown("not measured"))


def summarize_configs(records: Sequence[LifecycleRecord], discards: Sequence[Discard]) -> tuple[ConfigSummary, ...]:
    """One row per configuration with a record, by C, N and O."""
    discarded = Counter(one.config.key for one in discards)
    ordered = sorted(records, key=lambda record: record.config.key)
    launches = len(split_launches(records))
    return tuple(
        _summarize_config(tuple(own), discarded[key], launches)
        for key, own in groupby(ordered, key=lambda one: one.config.key)
    )


def _summarize_config(own: Sequence[LifecycleRecord], discarded: int, launches: int) -> ConfigSummary:
    counted = [record for record in own if record.counted]
    warmups = sum(record.warmup for record in own)
    medians = {
        name: median(known)
        for name in (*DURATIONS, COMBINED, PLAIN)
        if (known := [ms for record in counted if (ms := value_of(record, name)) is not None])
    }
    return ConfigSummary(
        own[0].config, len(counted), warmups, discarded, collect_config_values(counted, launches), medians
    )


def collect_config_values(counted: Sequence[LifecycleRecord], of_launches: int) -> dict[str, Estimate]:
    """The values of a ConfigSummary, from any counted records of a run with this many launches."""
    estimates = _estimate_values(counted, of_launches)
    return {name: one if name in SIGNED else cut_bounds(one) for name, one in estimates.items()}


def _estimate_values(counted: Sequence[LifecycleRecord], of_launches: int) -> dict[str, Estimate]:
    """With bounds as Student's t gives them, which may be below 0 for a duration."""
    launches, whole = split_launches(counted), _estimate_values_together(counted)
    if of_launches < MIN_PAIRED:
        return whole
    each = [_estimate_values_together(own) for own in launches.values()]
    merged = {
        name: one if one.value is None else replace(merge_launches([values[name] for values in each]), n=one.n)
        for name, one in whole.items()
    }
    if len(launches) >= MIN_PAIRED:
        return merged
    why = f"{len(launches)} of {of_launches} launches have this configuration"
    return {name: one if one.value is None else replace(one, reason=why) for name, one in merged.items()}


def _estimate_values_together(counted: Sequence[LifecycleRecord]) -> dict[str, Estimate]:
    """All repetitions alike, whatever their launch."""
    sizes = [record.transfer_detail.bytes_transferred for record in counted]
    values = {
        name: _compute_mean_or_reason(counted, name, [record.ms(name) for record in counted]) for name in DURATIONS
    }
    gigabytes = [None if size is None else size / 1e9 for size in sizes]
    values["bytes_gb"] = _compute_mean_or_reason(counted, "bytes_transferred", gigabytes)
    values["bw_gbps"] = _compute_mean_bandwidth(counted)
    values["colo_ttft"] = _compute_mean_or_reason(counted, OVERHEAD, [record.colo.ttft_ms for record in counted])
    values["colo_e2e"] = _compute_mean_or_reason(counted, E2E_OVERHEAD, [record.colo.e2e_ms for record in counted])
    values["plain_ttft"] = _compute_mean_or_reason(
        counted, PLAIN_OVERHEAD, [record.plain.ttft_ms for record in counted]
    )
    for name in (PLAIN_OVERHEAD, PLAIN):
        if values[name].value is not None:
            values[name] = balance_pairs(counted, name, plain=True).mean
    for name in (TTFT, COMBINED, OVERHEAD, E2E_OVERHEAD, "colo_e2e"):
        if values[name].value is not None:
            values[name] = balance_pairs(counted, name).mean
    for name, count_of in COUNTED.items():
        values[name] = _compute_mean_or_reason(counted, name, [count_of(record) for record in counted])
    values["residual_share"] = _compute_mean_or_reason(counted, "", [record.residual_share for record in counted])
    values["client_residual_share"] = _compute_mean_or_reason(
        counted, "", [record.client_residual_share for record in counted]
    )
    return values


def _compute_mean_or_reason(counted: Sequence[LifecycleRecord], name: str, values: Sequence[float | None]) -> Estimate:
    """The mean of the known values; without one, the records' gap under `name`."""
    known = [value for value in values if value is not None]
    if known:
        return mean(known)
    if not counted:
        return unknown("no repetition counts")
    return unknown(next((record.gaps[name] for record in counted if name in record.gaps), "a phase is unknown"))


def _compute_mean_bandwidth(counted: Sequence[LifecycleRecord]) -> Estimate:
    """All bytes over all time, with Student's t interval of the ratio to first order (delta method)."""
    pairs = [
        (size, ms)
        for record in counted
        if (size := record.transfer_detail.bytes_transferred) and (ms := record.transfer_detail.rdma_write_ms)
    ]
    if not pairs:
        return _compute_mean_or_reason(counted, "effective_bw_gbps", [])
    moved, took = np.array(pairs, dtype=np.float64).T
    gbps = 8 * float(moved.sum() / took.sum()) / 1e6
    parts = gbps + (8 * moved / 1e6 - gbps * took) / took.mean()  # mean: gbps
    return mean(parts)


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """A row of `summary.csv`: one configuration. The specification's columns come first."""

    prior_context: int
    new_tokens: int
    output_length: int
    p_prefill_ms: float | None
    """Mean over the counted repetitions, as the next seven; empty = not known."""
    rdma_transfer_ms: float | None
    """From the first write call to the last one's completion."""
    transfer_total_ms: float | None
    """From the end of the prefill until the decode instance is notified that the blocks have arrived."""
    d_decode_ms: float | None
    """From the first token to the last."""
    e2e_ms: float | None
    """From the router's decision to the last token."""
    bytes_GB: float | None
    """Transferred, 10^9 bytes."""
    bw_gbps: float | None
    """All bytes over all time in which a write was in progress."""
    ttft_overhead_ms: float | None
    """TTFT less the time of the prefill."""
    counted: int
    """Requests that enter the results."""
    warmups: int
    """Warm-up requests."""
    discarded: int
    """Measurements that do not count."""
    bounds: Mapping[str, float | None]
    """`_low` and `_high` of each of the specification's numbers."""
    further: Mapping[str, float | None]
    """Further durations and shares by name, each with `_low` and `_high` beside it."""
    d_promotion_less_half_step: bool
    """Half of the decode instance's step is subtracted from `d_promotion_ms`."""
    appended: Mapping[str, float | None]
    """Durations inside the decode instance, counts of a transfer and the combined engine without a connector, each with
    `_low` and `_high` beside it."""
    medians: Mapping[str, float | None]
    """Median of every duration with a mean, as `<name>_median_ms`."""


def build_summary_rows(rows: Sequence[ConfigSummary], *, half_step: bool) -> pd.DataFrame:
    """The rows of `summary.csv`.

    half_step: whether half of the decode instance's step is subtracted from `d_promotion`. It has a column, so that
    every reader of the numbers sees it.
    """
    return pd.DataFrame([list_columns(_make_summary_row(row, half_step)) for row in rows], columns=COLUMNS)


def _make_summary_row(row: ConfigSummary, half_step: bool) -> SummaryRow:
    specified = _list_bounded(row, SPECIFIED)
    return SummaryRow(
        prior_context=row.config.prior_context,
        new_tokens=row.config.current_new_tokens,
        output_length=row.config.output_length,
        **{column: specified.pop(column) for column in SPECIFIED},
        counted=row.counted,
        warmups=row.warmups,
        discarded=row.discarded,
        bounds=specified,
        further=_list_bounded(row, _FURTHER),
        d_promotion_less_half_step=half_step,
        appended=_list_bounded(row, APPENDED),
        medians={f"{name}_median_ms": row.medians.get(name) for name in MEDIANS},
    )


def _list_bounded(row: ConfigSummary, columns: Mapping[str, str]) -> dict[str, float | None]:
    """`columns`: to the value that each holds."""
    return {
        name: value
        for column, of in columns.items()
        for name, value in make_bounded_columns(column, row.value(of)).items()
    }


E2E_OVERHEAD = "pdsep_e2e_overhead"
SIGNED = frozenset({
    "ttft_overhead_vs_colo", OVERHEAD, E2E_OVERHEAD, PLAIN_OVERHEAD, "residual_share", "client_residual_share",
})  # fmt: skip
"""Differences, which may be below 0. Every other value is a duration, a count, a size or a bandwidth."""
COUNTED: Mapping[str, Callable[[LifecycleRecord], float | None]] = {
    "num_rdma_ops": lambda record: record.transfer_detail.num_rdma_ops,
    "num_blocks": lambda record: record.transfer_detail.num_blocks,
    "build_params_ms": lambda record: record.transfer_detail.build_params_ms,
    "d_step_ms": lambda record: record.counts.d_step_ms,
}
"""Numbers of a record whose means `summary.csv` holds too."""
_OTHER = (
    "routing", "p_queue", "metadata_wait", "zmq_handshake", "transfer_signal", "d_promotion", "d_first_token",
    "zmq_after_metadata", "client_ttft", "colo_ttft", "pdsep_overhead",
)  # fmt: skip
_FURTHER = {
    **{f"{name}_ms": name for name in _OTHER},
    "pdsep_e2e_overhead_ms": "pdsep_e2e_overhead",
    "residual_share": "residual_share",
    "client_residual_share": "client_residual_share",
}
APPENDED = {
    **{f"{name}_ms": name for name in ("d_block_alloc", "d_schedule", "d_first_decode")},
    **{name: name for name in COUNTED},
    "plain_ttft_ms": PLAIN,
    f"{PLAIN_OVERHEAD}_ms": PLAIN_OVERHEAD,
}
"""The rest of the specification's Goal, the counts of a transfer, and the plain combined engine."""
MEDIANS = (
    "p_prefill", "rdma_transfer", "transfer_total", "d_decode", "e2e", "client_ttft", "colo_ttft", "plain_ttft",
    "pdsep_overhead", PLAIN_OVERHEAD, "routing", "p_queue", "metadata_wait", "zmq_handshake", "transfer_signal",
    "d_promotion", "d_first_token", "zmq_after_metadata", "ttft_overhead_vs_colo", "pdsep_e2e_overhead",
    "d_block_alloc", "d_schedule", "d_first_decode",
)  # fmt: skip
"""Every duration with a mean in `summary.csv`."""
COLUMNS = tuple(list_columns(_make_summary_row(ConfigSummary(RequestConfig(0, 0, 0), 0, 0, 0, {}), half_step=False)))
"""Columns of `summary.csv`."""
