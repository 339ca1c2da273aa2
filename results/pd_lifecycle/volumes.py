"""The bytes of the transfers for each N, over prior context C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from results.pd_lifecycle.transfer_regression import fit_least_squares, number_cells
from results.records.estimate import Estimate, unknown
from results.records.lifecycle import LifecycleRecord

MIN_POINTS = 4
"""Transfers that a slope with an interval needs."""


@dataclass(frozen=True, slots=True)
class Volume:
    new_tokens: int
    bytes_by_context: tuple[tuple[int, float], ...]
    """(C, median bytes)."""
    bytes_per_token: float
    """Bytes transferred per token of N."""
    slope: Estimate
    """Additional bytes per token of prior context."""
    spread_bytes: float
    """Largest minus smallest median."""
    block_bytes: float | None
    """Bytes of one KV block over all layers."""
    of_expected: float | None
    """Median bytes over `kv_bytes`; None = unknown."""
    kv_bytes: float | None = None
    """N x the model's KV bytes per token."""
    operations_by_context: tuple[tuple[int, float | None], ...] = ()
    """(C, median number of write operations)."""

    @property
    def spread_blocks(self) -> float | None:
        return None if self.block_bytes is None else self.spread_bytes / self.block_bytes


def measure_volumes(records: Sequence[LifecycleRecord]) -> tuple[Volume, ...]:
    counted = [record for record in records if record.counted and record.transfer_detail.bytes_transferred]
    sizes = sorted({record.config.current_new_tokens for record in counted})
    return tuple(
        _measure_volume(size, [record for record in counted if record.config.current_new_tokens == size])
        for size in sizes
    )


def _measure_volume(size: int, own: Sequence[LifecycleRecord]) -> Volume:
    moved = np.array([record.transfer_detail.bytes_transferred for record in own], dtype=np.float64)
    context = np.array([record.config.prior_context for record in own], dtype=np.float64)
    medians = tuple((int(one), float(np.median(moved[context == one]))) for one in np.unique(context))
    if len(medians) < 2 or len(own) < MIN_POINTS:
        slope = unknown(f"{len(medians)} values of C and {len(own)} transfers: no slope", len(own))
    else:
        centered = moved - np.median(moved)  # equal sizes give a slope of exactly 0
        slope = fit_least_squares([context], centered, np.ones(moved.size), number_cells(own))[1]
    per_block = [
        record.transfer_detail.bytes_transferred / record.transfer_detail.num_blocks
        for record in own
        if record.transfer_detail.num_blocks and record.transfer_detail.bytes_transferred
    ]
    per_token = [record.counts.kv_bytes_per_token for record in own if record.counts.kv_bytes_per_token]
    expected = size * float(np.median(per_token)) if per_token else None
    return Volume(
        new_tokens=size,
        bytes_by_context=medians,
        bytes_per_token=float(np.median(moved)) / size,
        slope=slope,
        spread_bytes=max(value for _, value in medians) - min(value for _, value in medians),
        block_bytes=float(np.median(per_block)) if per_block else None,
        of_expected=float(np.median(moved)) / expected if expected else None,
        kv_bytes=expected,
        operations_by_context=tuple((one, _compute_median_operations(own, one)) for one, _ in medians),
    )


def _compute_median_operations(own: Sequence[LifecycleRecord], context: int) -> float | None:
    counts = [
        record.transfer_detail.num_rdma_ops
        for record in own
        if record.config.prior_context == context and record.transfer_detail.num_rdma_ops is not None
    ]
    return float(np.median(counts)) if counts else None
