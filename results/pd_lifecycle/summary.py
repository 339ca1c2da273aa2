"""One row per configuration over its counted repetitions, and `summary.csv`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pandas as pd

from results.pd_lifecycle.load import Discard
from results.pd_lifecycle.pairs import COMBINED, OVERHEAD, TTFT, balance_orders, collect_pairs
from results.pd_lifecycle.phases import BREAKDOWN, MORE
from results.records.lifecycle import LifecycleRecord, RequestConfig
from results.statistics.estimates import Estimate, mean, unknown

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
    counted: int
    warmups: int
    discarded: int
    values: Mapping[str, Estimate]
    """Means over the counted repetitions with Student's t interval. Milliseconds: DURATIONS, `colo_ttft`, `colo_e2e`.
    Others: `bytes_gb` (10^9), `bw_gbps` (all bytes over all time in which a write was in progress), `residual_share`,
    `client_residual_share`, and COUNTED. A value that is compared with the combined instance is the mean of the means
    of both orders (results.pd_lifecycle.pairs)."""

    def value(self, name: str) -> Estimate:
        return self.values.get(name, unknown("not measured"))


def summarise_configs(records: Sequence[LifecycleRecord], discards: Sequence[Discard]) -> tuple[ConfigSummary, ...]:
    """One row per configuration with a record, by C, N and O."""
    discarded = Counter(one.config.key for one in discards)
    ordered = sorted(records, key=lambda record: record.config.key)
    return tuple(
        _summarise_config(tuple(own), discarded[key]) for key, own in groupby(ordered, key=lambda one: one.config.key)
    )


def _summarise_config(own: Sequence[LifecycleRecord], discarded: int) -> ConfigSummary:
    counted = [record for record in own if record.counted]
    warmups = sum(record.warmup for record in own)
    return ConfigSummary(own[0].config, len(counted), warmups, discarded, values_of(counted))


def values_of(counted: Sequence[LifecycleRecord]) -> dict[str, Estimate]:
    """The values of a ConfigSummary, from any counted records."""
    sizes = [record.transfer_detail.bytes_transferred for record in counted]
    values = {name: _mean_or_reason(counted, name, [record.ms(name) for record in counted]) for name in DURATIONS}
    gigabytes = [None if size is None else size / 1e9 for size in sizes]
    values["bytes_gb"] = _mean_or_reason(counted, "bytes_transferred", gigabytes)
    values["bw_gbps"] = _mean_bandwidth(counted)
    values["colo_ttft"] = _mean_or_reason(counted, OVERHEAD, [record.colo.ttft_ms for record in counted])
    values["colo_e2e"] = _mean_or_reason(counted, E2E_OVERHEAD, [record.colo.e2e_ms for record in counted])
    for name in (TTFT, COMBINED, OVERHEAD, E2E_OVERHEAD, "colo_e2e"):
        if values[name].value is not None:
            values[name] = balance_orders(*collect_pairs(counted, name)[:2]).mean
    for name, count_of in COUNTED.items():
        values[name] = _mean_or_reason(counted, name, [count_of(record) for record in counted])
    values["residual_share"] = _mean_or_reason(counted, "", [record.residual_share for record in counted])
    values["client_residual_share"] = _mean_or_reason(counted, "", [record.client_residual_share for record in counted])
    return values


def _mean_or_reason(counted: Sequence[LifecycleRecord], name: str, values: Sequence[float | None]) -> Estimate:
    """The mean of the known values; without one, the records' gap under `name`."""
    known = [value for value in values if value is not None]
    if known:
        return mean(known)
    if not counted:
        return unknown("no repetition counts")
    return unknown(next((record.gaps[name] for record in counted if name in record.gaps), "a phase is unknown"))


def _mean_bandwidth(counted: Sequence[LifecycleRecord]) -> Estimate:
    """All bytes over all time, with Student's t interval of the ratio to first order (delta method)."""
    pairs = [
        (size, ms)
        for record in counted
        if (size := record.transfer_detail.bytes_transferred) and (ms := record.transfer_detail.rdma_write_ms)
    ]
    if not pairs:
        return _mean_or_reason(counted, "effective_bw_gbps", [])
    moved, took = np.array(pairs, dtype=np.float64).T
    gbps = 8 * float(moved.sum() / took.sum()) / 1e6
    parts = gbps + (8 * moved / 1e6 - gbps * took) / took.mean()  # mean: gbps
    return mean(parts)


def build_summary_rows(rows: Sequence[ConfigSummary], *, half_step: bool) -> pd.DataFrame:
    """The rows of `summary.csv`, in the order of COLUMNS.

    half_step: whether half of the decode instance's step is subtracted from `d_promotion`. It has a column, so that
    every reader of the numbers sees it.
    """
    return pd.DataFrame([{**_summary_row(row), HALF_STEP: half_step} for row in rows], columns=COLUMNS)


def _summary_row(row: ConfigSummary) -> dict[str, object]:
    cells: dict[str, object] = {
        "prior_context": row.config.prior_context,
        "new_tokens": row.config.current_new_tokens,
        "output_length": row.config.output_length,
        "counted": row.counted,
        "warmups": row.warmups,
        "discarded": row.discarded,
    }
    for column, name in (SPECIFIED | _FURTHER | APPENDED).items():
        value = row.value(name)
        cells |= {column: value.value, f"{column}_low": value.low, f"{column}_high": value.high}
    return cells


E2E_OVERHEAD = "pdsep_e2e_overhead"
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
}
"""The rest of the specification's Goal, and the counts of a transfer."""
HALF_STEP = "d_promotion_less_half_step"
COLUMNS = (
    "prior_context", "new_tokens", "output_length", *SPECIFIED, "counted", "warmups", "discarded",
    *(f"{name}_{side}" for name in SPECIFIED for side in ("low", "high")),
    *(column for name in _FURTHER for column in (name, f"{name}_low", f"{name}_high")), HALF_STEP,
    *(column for name in APPENDED for column in (name, f"{name}_low", f"{name}_high")),
)  # fmt: skip
"""Columns of `summary.csv`: the specification's first."""
