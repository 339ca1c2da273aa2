"""Regression over transfers: weighted least squares with intervals over cells, and resampling of cells.

The repetitions of a cell follow one another: they are no independent transfers. So the intervals are CR3 with the cell
as unit (Bell and McCaffrey, 2002), which is HC3 (MacKinnon and White, 1985) where each cell has one transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from results.measures.latency import Mask
from results.records.estimate import Estimate
from results.records.lifecycle import LifecycleRecord
from results.statistics.estimates import (
    DRAWS,
    Ranks,
    Samples,
    bound_draws,
    compute_student_quantile,
    convert_to_floats,
    resample,
)

MIN_TRANSFERS = 5
MAX_INFLATION = 100.0
"""Variance inflation beyond which the effects of bytes and operations cannot be separated."""


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
    cell: Ranks
    """Index of the transfer's cell: its launch, C, N and O."""
    run_delay_ms: Samples
    """Milliseconds that the writing threads waited for a core; NaN = not counted."""
    launch: Ranks
    """The transfer's trial."""

    @property
    def n(self) -> int:
        return int(self.bytes.size)

    def split_launches(self) -> tuple[Transfers, ...]:
        return tuple(self._select(self.launch == launch) for launch in np.unique(self.launch))

    def _select(self, chosen: Mask) -> Transfers:
        arrays: dict[str, Any] = {
            name: value[chosen] for name in self.__slots__ if isinstance(value := getattr(self, name), np.ndarray)
        }
        return replace(self, **arrays)


def collect_transfers(records: Sequence[LifecycleRecord]) -> Transfers:
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
    return Transfers(
        bytes=np.array([row[1] for row in rows], dtype=np.float64),
        ms=np.array([row[2] for row in rows], dtype=np.float64),
        gbps=np.array([row[3] for row in rows], dtype=np.float64),
        operations=convert_to_floats([record.transfer_detail.num_rdma_ops for record in counted]),
        size=np.array([sizes.index(record.config.current_new_tokens) for record in counted], dtype=np.int64),
        new_tokens=sizes,
        cell=number_cells(counted),
        run_delay_ms=convert_to_floats([record.counts.run_delay_us for record in counted]) / 1e3,
        launch=np.array([record.trial for record in counted], dtype=np.int64),
    )


def number_cells(records: Sequence[LifecycleRecord]) -> Ranks:
    """Index of each record's cell: its launch, C, N and O."""
    keys = sorted({(record.trial, *record.config.key) for record in records})
    return np.array([keys.index((record.trial, *record.config.key)) for record in records], dtype=np.int64)


def build_design(columns: Sequence[Samples]) -> tuple[Samples, Samples]:
    """A column of ones, then the columns, each scaled to a mean of about one; and the scale of each."""
    scale = np.array([1.0, *(float(np.abs(column).mean()) or 1.0 for column in columns)])
    return np.column_stack([np.ones(columns[0].size), *columns]) / scale, scale


def solve_weighted(design: Samples, values: Samples, weights: Samples) -> Samples:
    """The weighted least squares solution in the units of `design`."""
    root = np.sqrt(weights)
    return np.asarray(np.linalg.lstsq(design * root[:, None], values * root, rcond=None)[0], dtype=np.float64)


def solve_each(columns: Sequence[Samples], values: Samples, weights: Samples) -> Samples:
    """Constant and slopes for each row of `weights`: an array of draws x terms."""
    design, scale = build_design(columns)
    terms = scale.size
    squares = (weights @ (design[:, :, None] * design[:, None, :]).reshape(-1, terms**2)).reshape(-1, terms, terms)
    right = weights @ (design * values[:, None])
    return np.asarray((np.linalg.pinv(squares) @ right[:, :, None])[:, :, 0] / scale, dtype=np.float64)


def fit_least_squares(
    columns: Sequence[Samples], values: Samples, weights: Samples, cells: Ranks | None = None
) -> tuple[Estimate, ...]:
    """Constant and slopes of `values` over `columns`, each with its CR3 interval (Student's t).

    cells: the cell of each value; None = each value is one of its own (HC3). Without more cells than terms there are no
    bounds.
    """
    design, scale = build_design(columns)
    n, terms = design.shape
    groups = np.arange(n) if cells is None else cells
    solution = solve_weighted(design, values, weights)
    count = np.unique(groups).size
    if count <= terms:
        why = f"{count} cells: an interval needs more than {terms}"
        return tuple(Estimate(float(value), n=n, reason=why) for value in solution / scale)
    bread = np.asarray(np.linalg.inv(design.T @ (design * weights[:, None])), dtype=np.float64)
    residual = values - design @ solution
    spread = np.array([
        _jackknifed_sum(design[groups == one], weights[groups == one], residual[groups == one], bread)
        for one in np.unique(groups)
    ])  # fmt: skip
    half = np.sqrt(np.diag(bread @ (spread.T @ spread) @ bread)) * compute_student_quantile(count - terms)
    basis = "HC3" if count == n else f"CR3 over {count} cells"
    return tuple(
        Estimate(float(value), float(value - reach), float(value + reach), n, basis=basis)
        for value, reach in zip(solution / scale, half / scale, strict=True)
    )


def _jackknifed_sum(design: Samples, weights: Samples, residual: Samples, bread: Samples) -> Samples:
    """A cell's part of the score, its residuals as if the fit had left the cell out."""
    leverage = design @ bread @ (design * weights[:, None]).T
    left_out = np.linalg.pinv(np.eye(residual.size) - leverage) @ residual
    return np.asarray(design.T @ (weights * left_out), dtype=np.float64)


def draw_weights(transfers: Transfers, seed: int) -> Samples | str:
    """Weights of the replicates (draws x transfers), cells resampled within each size; or why that is impossible."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((DRAWS, transfers.n))
    cells_of_size = [np.unique(transfers.cell[transfers.size == group]) for group in np.unique(transfers.size)]
    if max(cells.size for cells in cells_of_size) < 2:
        return "each size has one cell: nothing to resample"
    for cells in cells_of_size:
        own = np.isin(transfers.cell, cells)
        drawn = resample(int(cells.size), DRAWS, rng)
        weights[:, own] = drawn[:, np.searchsorted(cells, transfers.cell[own])]
    return weights


def make_percentile_interval(value: float, replicates: Samples, n: int) -> Estimate:
    """A number of n transfers with its replicates under `draw_weights`."""
    return Estimate(value, *bound_draws(replicates), n, basis="cells resampled within each size")


def explain_inseparable(transfers: Transfers, weights: Samples) -> str:
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
