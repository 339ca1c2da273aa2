"""The counted repetitions of each configuration in one row, and `summary.csv`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from results.lifecycle.load import Discard
from results.lifecycle.pairs import COMBINED, OVERHEAD, TTFT, balanced, paired_values
from results.lifecycle.phases import BREAKDOWN, MORE
from results.lifecycle.record import LifecycleRecord, RequestConfig
from results.statistics import Estimate, mean, unknown

DURATIONS = (*BREAKDOWN, *MORE)
"""Every duration of a record, by name."""
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
"""The specification's columns of `summary.csv` after the three lengths, and what each holds."""


@dataclass(frozen=True, slots=True)
class ConfigSummary:
    """One configuration."""

    config: RequestConfig
    counted: int
    warmups: int
    discarded: int
    values: Mapping[str, Estimate]
    """Means over the counted repetitions with Student's t interval, milliseconds: DURATIONS; beside them `bytes_gb`
    (10^9), `bw_gbps` (all bytes over all time in which a write was under way), `colo_ttft`, `colo_e2e`, the shares
    `residual_share` and `client_residual_share`, and COUNTED. What is compared with the combined instance is the mean
    of the two orders' means: see results.lifecycle.pairs."""

    def value(self, name: str) -> Estimate:
        """A value by its name; unknown where there is none."""
        return self.values.get(name, unknown("not measured"))


def summaries(records: Sequence[LifecycleRecord], discards: Sequence[Discard]) -> tuple[ConfigSummary, ...]:
    """A row per configuration that has a record, by C, N and O."""
    groups: dict[tuple[int, int, int], list[LifecycleRecord]] = {}
    for record in records:
        groups.setdefault(record.config.key, []).append(record)
    thrown = [one.config.key for one in discards]
    return tuple(_summary(groups[key], thrown.count(key)) for key in sorted(groups))


def _summary(own: Sequence[LifecycleRecord], discarded: int) -> ConfigSummary:
    counted = [record for record in own if record.counted]
    return ConfigSummary(
        config=own[0].config,
        counted=len(counted),
        warmups=sum(record.warmup for record in own),
        discarded=discarded,
        values=values_of(counted),
    )


def values_of(counted: Sequence[LifecycleRecord]) -> dict[str, Estimate]:
    """The values of a ConfigSummary, of any counted records."""
    sizes = [record.transfer_detail.bytes_transferred for record in counted]
    found = {name: _over(counted, name, [record.ms(name) for record in counted]) for name in DURATIONS}
    found["bytes_gb"] = _over(counted, "bytes_transferred", [None if size is None else size / 1e9 for size in sizes])
    found["bw_gbps"] = _bandwidth(counted)
    found["colo_ttft"] = _over(counted, OVERHEAD, [record.colo.ttft_ms for record in counted])
    found["colo_e2e"] = _over(counted, E2E_OVERHEAD, [record.colo.e2e_ms for record in counted])
    for name in (TTFT, COMBINED, OVERHEAD, E2E_OVERHEAD, "colo_e2e"):
        if found[name].value is not None:
            found[name] = balanced(*paired_values(counted, name)[:2]).mean
    for name, of in COUNTED.items():
        found[name] = _over(counted, name, [of(record) for record in counted])
    found["residual_share"] = _over(counted, "", [record.residual_share for record in counted])
    found["client_residual_share"] = _over(counted, "", [record.client_residual_share for record in counted])
    return found


def _over(counted: Sequence[LifecycleRecord], name: str, values: Sequence[float | None]) -> Estimate:
    """The mean of what is known; where nothing is, the records' own reason under `name`."""
    known = [value for value in values if value is not None]
    if known:
        return mean(known)
    if not counted:
        return unknown("no repetition counts")
    return unknown(next((record.gaps[name] for record in counted if name in record.gaps), "a phase is not known"))


def _bandwidth(counted: Sequence[LifecycleRecord]) -> Estimate:
    """All bytes over all time; Student's t interval of this ratio, its error to first order (delta method)."""
    pairs = [
        (size, ms)
        for record in counted
        if (size := record.transfer_detail.bytes_transferred) and (ms := record.transfer_detail.rdma_write_ms)
    ]
    if not pairs:
        return _over(counted, "effective_bw_gbps", [])
    moved, took = np.array(pairs, dtype=np.float64).T
    gbps = 8 * float(moved.sum() / took.sum()) / 1e6
    parts = gbps + (8 * moved / 1e6 - gbps * took) / took.mean()  # what each transfer adds to the error; mean: gbps
    return mean(parts)


def flat(rows: Sequence[ConfigSummary], *, half_step: bool) -> pd.DataFrame:
    """`summary.csv`: the specification's columns, then counts, intervals, the other phases, the combined instance.

    half_step: half of the decode instance's step was taken off `d_promotion`; it is a column, so that no reader of the
    numbers can miss it.
    """
    return pd.DataFrame([{**_flat(row), HALF_STEP: half_step} for row in rows], columns=COLUMNS)


def _flat(row: ConfigSummary) -> dict[str, object]:
    found: dict[str, object] = {
        "prior_context": row.config.prior_context,
        "new_tokens": row.config.current_new_tokens,
        "output_length": row.config.output_length,
        "counted": row.counted,
        "warmups": row.warmups,
        "discarded": row.discarded,
    }
    for column, name in (SPECIFIED | _FURTHER | APPENDED).items():
        value = row.value(name)
        found |= {column: value.value, f"{column}_low": value.low, f"{column}_high": value.high}
    return found


E2E_OVERHEAD = "pdsep_e2e_overhead"
COUNTED: Mapping[str, Callable[[LifecycleRecord], float | None]] = {
    "num_rdma_ops": lambda record: record.transfer_detail.num_rdma_ops,
    "num_blocks": lambda record: record.transfer_detail.num_blocks,
    "build_params_ms": lambda record: record.transfer_detail.build_params_ms,
    "d_step_ms": lambda record: record.counts.d_step_ms,
}
"""What a record counts beside its durations, and `summary.csv` has the mean of."""
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
"""The rest of the specification's Goal, and what is counted of a transfer."""
HALF_STEP = "d_promotion_less_half_step"
COLUMNS = (
    "prior_context", "new_tokens", "output_length", *SPECIFIED, "counted", "warmups", "discarded",
    *(f"{name}_{side}" for name in SPECIFIED for side in ("low", "high")),
    *(column for name in _FURTHER for column in (name, f"{name}_low", f"{name}_high")), HALF_STEP,
    *(column for name in APPENDED for column in (name, f"{name}_low", f"{name}_high")),
)  # fmt: skip
"""Of `summary.csv`: the specification's, then the rest."""
