"""Regression over transfers: weighted least squares with HC3 intervals (MacKinnon and White, 1985), and resampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.measures.columns import floats_or_nan
from results.records.lifecycle import LifecycleRecord
from results.statistics.estimates import DRAWS, LEVEL, Estimate, Ranks, Samples, resample

MIN_TRANSFERS = 5
MAX_INFLATION = 100.0
"""Variance inflation beyond which the effects of bytes and operations cannot be separated."""
BASIS = "transfers resampled within each size"


@dataclass(frozen=True, slots=True)
class Transfers:
    """The counted transfers with a size and a duration."""

    bytes: Samples
    ms: Samples
    """`rdma_transfer`: from the begin of the first write to the end of the last."""
    gbps: Samples
    """`effective_bw_gbps`: over the time in which a write was in progress."""
    operations: Samples
    """NaN = not counted."""
    size: Ranks
    """Index of the transfer's N in `new_tokens`."""
    new_tokens: tuple[int, ...]
    configuration: Ranks
    """Index of the transfer's (C, N, O)."""
    run_delay_ms: Samples
    """Milliseconds that the writing threads waited for a core; NaN = not counted."""

    @property
    def n(self) -> int:
        return int(self.bytes.size)


def transfers_of(records: Sequence[LifecycleRecord]) -> Transfers:
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
        operations=floats_or_nan([record.transfer_detail.num_rdma_ops for record in counted]),
        size=np.array([sizes.index(record.config.current_new_tokens) for record in counted], dtype=np.int64),
        new_tokens=sizes,
        configuration=np.array([keys.index(record.config.key) for record in counted], dtype=np.int64),
        run_delay_ms=floats_or_nan([record.counts.run_delay_us for record in counted]) / 1e3,
    )


def design_of(columns: Sequence[Samples]) -> Samples:
    """A column of ones, then the columns, each scaled to a mean of about one."""
    return np.column_stack([np.ones(columns[0].size), *(column / _scale_of(column) for column in columns)])


def _scale_of(column: Samples) -> float:
    return float(np.abs(column).mean()) or 1.0


def solve_weighted(design: Samples, values: Samples, weights: Samples) -> Samples:
    """The weighted least squares solution in the units of `design`."""
    root = np.sqrt(weights)
    return np.asarray(np.linalg.lstsq(design * root[:, None], values * root, rcond=None)[0], dtype=np.float64)


def solve_each(columns: Sequence[Samples], values: Samples, weights: Samples) -> Samples:
    """Constant and slopes for each row of `weights`: an array of draws x terms."""
    design = design_of(columns)
    terms = design.shape[1]
    squares = (weights @ (design[:, :, None] * design[:, None, :]).reshape(-1, terms**2)).reshape(-1, terms, terms)
    right = weights @ (design * values[:, None])
    scale = np.array([1.0, *(_scale_of(column) for column in columns)])
    return np.asarray((np.linalg.pinv(squares) @ right[:, :, None])[:, :, 0] / scale, dtype=np.float64)


def fit_least_squares(columns: Sequence[Samples], values: Samples, weights: Samples) -> tuple[Estimate, ...]:
    """Constant and slopes of `values` over `columns`, each with its HC3 interval (Student's t)."""
    design = design_of(columns)
    n, terms = design.shape
    solution = solve_weighted(design, values, weights)
    bread = np.linalg.inv(design.T @ (design * weights[:, None]))
    leverage = weights * np.einsum("ij,jk,ik->i", design, bread, design)
    residual = weights * (values - design @ solution) / np.maximum(1 - leverage, 1e-9)
    spread = design * residual[:, None]
    half = np.sqrt(np.diag(bread @ (spread.T @ spread) @ bread)) * special.stdtrit(n - terms, (1 + LEVEL) / 2)
    scale = np.array([1.0, *(_scale_of(column) for column in columns)])
    return tuple(
        Estimate(float(value), float(value - reach), float(value + reach), n, basis="HC3")
        for value, reach in zip(solution / scale, half / scale, strict=True)
    )


def draw_weights(transfers: Transfers, seed: int) -> Samples | str:
    """Weights of the replicates (draws x transfers), resampled within each size; or why that is impossible."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((DRAWS, transfers.n))
    counts = np.bincount(transfers.size)
    if counts.max() < 2:
        return "each size has one transfer: nothing to resample"
    for group, count in enumerate(counts.tolist()):
        weights[:, transfers.size == group] = resample(count, DRAWS, rng)
    return weights


def percentile_interval(value: float, replicates: Samples, n: int, basis: str) -> Estimate:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(replicates, (tail, 1 - tail))
    return Estimate(value, float(low), float(high), n, basis=basis)


def why_inseparable(transfers: Transfers, weights: Samples) -> str:
    """Why the costs of bytes and operations cannot be separated; empty where they can."""
    if not np.isfinite(transfers.operations).all():
        return "write operations were not counted for every transfer"
    if np.ptp(transfers.operations) == 0:
        return f"every transfer took {transfers.operations[0]:g} write operations"
    if transfers.n < MIN_TRANSFERS + 1:
        return f"two slopes need {MIN_TRANSFERS + 1} transfers, and there are {transfers.n}"
    r = np.cov(transfers.bytes, transfers.operations, aweights=weights)
    together = r[0, 1] ** 2 / (r[0, 0] * r[1, 1])
    if together > 1 - 1 / MAX_INFLATION:
        return "the number of write operations is proportional to the bytes: their costs cannot be separated"
    return ""
