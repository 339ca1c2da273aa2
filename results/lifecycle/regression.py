"""Lines through transfers: weighted least squares with HC3 intervals (MacKinnon and White, 1985), and resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.lifecycle.record import LifecycleRecord
from results.statistics import DRAWS, LEVEL, Estimate, Ranks, Samples, resample

MIN_TRANSFERS = 5
MAX_INFLATION = 100.0
"""Variance inflation beyond which bytes and operations say the same thing."""
BASIS = "transfers resampled within each size"


@dataclass(frozen=True, slots=True)
class Transfers:
    """The counted transfers that have both a size and a duration."""

    bytes: Samples
    ms: Samples
    """`rdma_transfer`: from the first write's begin to the last one's end."""
    gbps: Samples
    """The records' `effective_bw_gbps`: over the time in which a write was under way."""
    operations: Samples
    """NaN where it was not counted."""
    size: Ranks
    """Group of equal N."""
    new_tokens: tuple[int, ...]
    """N by group."""
    configuration: Ranks
    """Group of equal C, N and O."""
    run_delay_ms: Samples
    """How long the threads that wrote waited for a core; NaN where it was not counted."""

    @property
    def n(self) -> int:
        return int(self.bytes.size)


def transfers_of(records: Sequence[LifecycleRecord]) -> Transfers:
    """The counted transfers of these records."""
    rows = [
        (record, size, ms, gbps)
        for record in records
        if record.counted
        and (size := record.transfer_detail.bytes_transferred)
        and (ms := record.ms("rdma_transfer"))
        and (gbps := record.transfer_detail.effective_bw_gbps)
    ]
    counted = [row[0] for row in rows]
    sizes = tuple(sorted({record.config.current_new_tokens for record in counted}))
    keys = sorted({record.config.key for record in counted})
    return Transfers(
        bytes=np.array([row[1] for row in rows], dtype=np.float64),
        ms=np.array([row[2] for row in rows], dtype=np.float64),
        gbps=np.array([row[3] for row in rows], dtype=np.float64),
        operations=_known([record.transfer_detail.num_rdma_ops for record in counted]),
        size=np.array([sizes.index(record.config.current_new_tokens) for record in counted], dtype=np.int64),
        new_tokens=sizes,
        configuration=np.array([keys.index(record.config.key) for record in counted], dtype=np.int64),
        run_delay_ms=_known([record.counts.run_delay_us for record in counted]) / 1e3,
    )


def _known(found: Sequence[float | None]) -> Samples:
    return np.array([math.nan if value is None else value for value in found], dtype=np.float64)


def design_of(columns: Sequence[Samples]) -> Samples:
    """A column of ones, then the columns, each scaled to about one."""
    return np.column_stack([np.ones(columns[0].size), *(column / _scale(column) for column in columns)])


def _scale(column: Samples) -> float:
    return float(np.abs(column).mean()) or 1.0


def solve(design: Samples, values: Samples, weights: Samples) -> Samples:
    """The weighted least squares solution."""
    root = np.sqrt(weights)
    return np.asarray(np.linalg.lstsq(design * root[:, None], values * root, rcond=None)[0], dtype=np.float64)


def solved(columns: Sequence[Samples], values: Samples, weights: Samples) -> Samples:
    """Constant and slopes by the weights of each row of `weights` (draws x terms)."""
    design = design_of(columns)
    terms = design.shape[1]
    squares = (weights @ (design[:, :, None] * design[:, None, :]).reshape(-1, terms**2)).reshape(-1, terms, terms)
    right = weights @ (design * values[:, None])
    scale = np.array([1.0, *(_scale(column) for column in columns)])
    return np.asarray((np.linalg.pinv(squares) @ right[:, :, None])[:, :, 0] / scale, dtype=np.float64)


def least_squares(columns: Sequence[Samples], values: Samples, weights: Samples) -> tuple[Estimate, ...]:
    """Constant and slopes of `values` over `columns`, each with its HC3 interval (Student's t)."""
    design = design_of(columns)
    n, terms = design.shape
    solution = solve(design, values, weights)
    bread = np.linalg.inv(design.T @ (design * weights[:, None]))
    leverage = weights * np.einsum("ij,jk,ik->i", design, bread, design)
    residual = weights * (values - design @ solution) / np.maximum(1 - leverage, 1e-9)
    spread = design * residual[:, None]
    half = np.sqrt(np.diag(bread @ (spread.T @ spread) @ bread)) * special.stdtrit(n - terms, (1 + LEVEL) / 2)
    scale = np.array([1.0, *(_scale(column) for column in columns)])
    return tuple(
        Estimate(float(value), float(value - reach), float(value + reach), n, basis="HC3")
        for value, reach in zip(solution / scale, half / scale, strict=True)
    )


def draws(found: Transfers, seed: int) -> Samples | str:
    """How often each transfer counts in each replicate (draws x transfers); every size keeps its number of them."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((DRAWS, found.n))
    counts = np.bincount(found.size)
    if counts.max() < 2:
        return "one transfer of each size: there is nothing to resample"
    for group, count in enumerate(counts.tolist()):
        weights[:, found.size == group] = resample(count, DRAWS, rng)
    return weights


def interval(value: float, replicates: Samples, n: int, basis: str) -> Estimate:
    """The percentile interval."""
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(replicates, (tail, 1 - tail))
    return Estimate(value, float(low), float(high), n, basis=basis)


def inseparable(found: Transfers, weights: Samples) -> str:
    """Why what a byte and what an operation take cannot be told apart; empty where it can."""
    if not np.isfinite(found.operations).all():
        return "write operations were not counted for every transfer"
    if np.ptp(found.operations) == 0:
        return f"every transfer took {found.operations[0]:g} write operations"
    if found.n < MIN_TRANSFERS + 1:
        return f"{found.n} transfers are too few for two slopes"
    r = np.cov(found.bytes, found.operations, aweights=weights)
    together = r[0, 1] ** 2 / (r[0, 0] * r[1, 1])
    if together > 1 - 1 / MAX_INFLATION:
        return "the number of write operations goes with the bytes: their costs cannot be told apart"
    return ""
