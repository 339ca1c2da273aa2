"""What a transfer costs by its size: rdma_transfer_ms = alpha + beta x bytes, and the bandwidth curve that follows.

Long transfers spread more than short ones, about in proportion to their length. Ordinary least squares then lets the
longest decide alpha, which the shortest know; the fit that is reported weights each transfer by 1 / fitted^2 (relative
errors, iterated). The ordinary fit stands beside it, and its R^2 is the specification's. Both have HC3 intervals
(MacKinnon and White, 1985), which hold for errors of any unequal size, so also where the weights are not right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.lifecycle.record import LifecycleRecord
from results.statistics import DRAWS, LEVEL, Estimate, Ranks, Samples, percentile, resample, unknown

SEED = 20_310
MIN_SIZES = 3
"""A line through two sizes always fits."""
MIN_TRANSFERS = 5
MAX_INFLATION = 100.0
"""Variance inflation beyond which bytes and operations say the same thing."""
BASIS = "transfers resampled within each size"
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Transfers:
    """The counted transfers that have both a size and a duration."""

    bytes: Samples
    ms: Samples
    operations: Samples
    """NaN where it was not counted."""
    size: Ranks
    """Group of equal N."""
    new_tokens: tuple[int, ...]
    """N by group."""

    @property
    def n(self) -> int:
        return int(self.bytes.size)


@dataclass(frozen=True, slots=True)
class CostModel:
    """One fit."""

    method: str
    """`relative` or `ordinary`."""
    alpha_ms: Estimate
    """What a transfer costs whatever its size."""
    beta_ms_per_mb: Estimate
    """What each 10^6 bytes add."""
    bandwidth_gbps: Estimate
    """1 / beta: what ever larger transfers approach."""
    r2: Estimate
    """Of the unweighted errors."""
    gamma_ms: Estimate | None = None
    """What each write operation adds; None: a fit of bytes alone."""


@dataclass(frozen=True, slots=True)
class BandwidthPoint:
    """The transfers of one N."""

    new_tokens: int
    bytes: float
    """Median."""
    gbps: Estimate
    """Median."""
    of_asymptote: float | None
    of_link: float | None
    """Of what the link can carry, where that is known."""


@dataclass(frozen=True, slots=True)
class Knee:
    """The smallest transfer with nearly the whole bandwidth."""

    share: float
    """Of the asymptote."""
    bytes: Estimate
    """By the model: alpha / beta x share / (1 - share)."""
    measured_bytes: float | None
    """The smallest measured size from which on the median bandwidth is that much."""
    reason: str = ""
    """Why there is no measured one, or what to know of it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Everything that is fitted to the transfers."""

    relative: CostModel
    ordinary: CostModel
    with_operations: CostModel
    curve: tuple[BandwidthPoint, ...]
    knee: Knee


def transfers_of(records: Sequence[LifecycleRecord]) -> Transfers:
    """The counted transfers of these records."""
    rows = [
        (size, ms, record.transfer_detail.num_rdma_ops, record.config.current_new_tokens)
        for record in records
        if record.counted and (size := record.transfer_detail.bytes_transferred) and (ms := record.ms("rdma_transfer"))
    ]
    groups = tuple(sorted({row[3] for row in rows}))
    return Transfers(
        bytes=np.array([row[0] for row in rows], dtype=np.float64),
        ms=np.array([row[1] for row in rows], dtype=np.float64),
        operations=np.array([math.nan if row[2] is None else row[2] for row in rows], dtype=np.float64),
        size=np.array([groups.index(row[3]) for row in rows], dtype=np.int64),
        new_tokens=groups,
    )


def costs(found: Transfers, *, link_gbps: float | None, knee_share: float, seed: int = SEED) -> Costs:
    """The fits, the curve and the knee; unknown with a reason where the transfers do not allow one."""
    why = _too_little(found)
    if why:
        none = CostModel("", unknown(why, found.n), unknown(why), unknown(why), unknown(why))
        return Costs(none, none, none, _curve(found, None, link_gbps), Knee(knee_share, unknown(why), None, why))
    weights = _weights(found)
    drawn = _draws(found, seed)
    relative = _model(found, "relative", weights, drawn)
    asymptote = relative.bandwidth_gbps.value
    curve = _curve(found, asymptote, link_gbps)
    return Costs(
        relative=relative,
        ordinary=_model(found, "ordinary", np.ones(found.n), drawn),
        with_operations=_with_operations(found, weights),
        curve=curve,
        knee=_knee(found, weights, drawn, curve, knee_share),
    )


def _too_little(found: Transfers) -> str:
    if found.n < MIN_TRANSFERS:
        return f"{found.n} counted transfers have a size and a duration; a line needs {MIN_TRANSFERS}"
    if len(found.new_tokens) < MIN_SIZES:
        return f"transfers of {len(found.new_tokens)} sizes; a line needs {MIN_SIZES}, two are always on one"
    return ""


def _weights(found: Transfers) -> Samples:
    """1 / fitted^2 where the fit settles; a fitted value is held above half the shortest transfer."""
    design = _design(found.bytes)
    least = max(float(found.ms.min()) / 2, 1e-9)
    weights = 1 / np.maximum(found.ms, least) ** 2
    for _ in range(_ROUNDS):
        weights = 1 / np.maximum(design @ _solve(design, found.ms, weights), least) ** 2
    return np.asarray(weights / weights.mean(), dtype=np.float64)


def _design(*columns: Samples) -> Samples:
    """A column of ones, then the columns, each scaled to about one."""
    return np.column_stack([np.ones(columns[0].size), *(column / np.abs(column).mean() for column in columns)])


def _solve(design: Samples, values: Samples, weights: Samples) -> Samples:
    root = np.sqrt(weights)
    return np.asarray(np.linalg.lstsq(design * root[:, None], values * root, rcond=None)[0], dtype=np.float64)


def least_squares(columns: Sequence[Samples], values: Samples, weights: Samples) -> tuple[Estimate, ...]:
    """Constant and slopes of `values` over `columns`, each with its HC3 interval (Student's t)."""
    design = _design(*columns)
    n, terms = design.shape
    solution = _solve(design, values, weights)
    bread = np.linalg.inv(design.T @ (design * weights[:, None]))
    leverage = weights * np.einsum("ij,jk,ik->i", design, bread, design)
    residual = weights * (values - design @ solution) / np.maximum(1 - leverage, 1e-9)
    spread = design * residual[:, None]
    half = np.sqrt(np.diag(bread @ (spread.T @ spread) @ bread)) * special.stdtrit(n - terms, (1 + LEVEL) / 2)
    scale = np.array([1.0, *(np.abs(column).mean() for column in columns)])
    return tuple(
        Estimate(float(value), float(value - reach), float(value + reach), n, basis="HC3")
        for value, reach in zip(solution / scale, half / scale, strict=True)
    )


def _model(found: Transfers, method: str, weights: Samples, drawn: Samples | str) -> CostModel:
    alpha, beta = least_squares([found.bytes / 1e6], found.ms, weights)
    return CostModel(method, alpha, beta, _bandwidth(beta), _r2(found, weights, drawn))


def _bandwidth(beta: Estimate) -> Estimate:
    """1 / beta in 10^9 bits per second; a bound that would be infinite is open."""
    if beta.value is None or beta.value <= 0:
        return unknown("larger transfers take no longer: no bandwidth limits them", beta.n)
    low, high = (8 / bound if bound is not None and bound > 0 else None for bound in (beta.high, beta.low))
    return Estimate(8 / beta.value, low, high, beta.n, basis=beta.basis)


def _draws(found: Transfers, seed: int) -> Samples | str:
    """How often each transfer counts in each replicate (draws x transfers); every size keeps its number of them."""
    rng = np.random.default_rng(seed)
    weights = np.zeros((DRAWS, found.n))
    counts = np.bincount(found.size)
    if counts.max() < 2:
        return "one transfer of each size: there is nothing to resample"
    for group, count in enumerate(counts.tolist()):
        weights[:, found.size == group] = resample(count, DRAWS, rng)
    return weights


def _lines(x: Samples, y: Samples, weights: Samples) -> tuple[Samples, Samples]:
    """Constant and slope of the weighted line of each row of `weights`."""
    total = weights.sum(axis=1)
    mean_x, mean_y = weights @ x / total, weights @ y / total
    slope = (weights @ (x * y) / total - mean_x * mean_y) / (weights @ (x * x) / total - mean_x**2)
    return mean_y - slope * mean_x, slope


def _r2(found: Transfers, weights: Samples, drawn: Samples | str) -> Estimate:
    def share(counted: Samples) -> Samples:
        alpha, beta = _lines(found.bytes, found.ms, counted * weights)
        error = found.ms - alpha[:, None] - beta[:, None] * found.bytes
        spread = found.ms - (counted @ found.ms / counted.sum(axis=1))[:, None]
        return np.asarray(1 - (counted * error**2).sum(axis=1) / (counted * spread**2).sum(axis=1), dtype=np.float64)

    value = float(share(np.ones((1, found.n)))[0])
    return _interval(value, drawn if isinstance(drawn, str) else share(drawn), found.n)


def _interval(value: float, replicates: Samples | str, n: int) -> Estimate:
    if isinstance(replicates, str):
        return Estimate(value, n=n, reason=replicates)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(replicates, (tail, 1 - tail))
    return Estimate(value, float(low), float(high), n, basis=BASIS)


def _with_operations(found: Transfers, weights: Samples) -> CostModel:
    """The specification's bytes / bandwidth + per-operation latency x operations, where the two can be told apart."""
    why = _inseparable(found, weights)
    if why:
        return CostModel("relative", unknown(why), unknown(why), unknown(why), unknown(why), unknown(why))
    alpha, beta, gamma = least_squares([found.bytes / 1e6, found.operations], found.ms, weights)
    slopes = [part.value or 0.0 for part in (beta, gamma)]
    error = found.ms - (alpha.value or 0.0) - slopes[0] * found.bytes / 1e6 - slopes[1] * found.operations
    r2 = 1 - float((error**2).sum() / ((found.ms - found.ms.mean()) ** 2).sum())
    return CostModel("relative", alpha, beta, _bandwidth(beta), Estimate(r2, n=found.n, reason="no interval"), gamma)


def _inseparable(found: Transfers, weights: Samples) -> str:
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


def _curve(found: Transfers, asymptote: float | None, link_gbps: float | None) -> tuple[BandwidthPoint, ...]:
    points = []
    for group, tokens in enumerate(found.new_tokens):
        own = found.size == group
        gbps = percentile(8 * found.bytes[own] / np.maximum(found.ms[own], 1e-9) / 1e6, 0.5)
        value = gbps.value or 0.0
        points.append(
            BandwidthPoint(
                new_tokens=tokens,
                bytes=float(np.median(found.bytes[own])),
                gbps=gbps,
                of_asymptote=value / asymptote if asymptote else None,
                of_link=value / link_gbps if link_gbps else None,
            )
        )
    return tuple(points)


def _knee(
    found: Transfers, weights: Samples, drawn: Samples | str, curve: Sequence[BandwidthPoint], share: float
) -> Knee:
    factor = share / (1 - share)
    alpha, beta = (float(part[0]) for part in _lines(found.bytes, found.ms, weights[None, :]))
    measured, note = _reached(curve, share)
    said = "; ".join(text for text in (note, _doubt(curve)) if text)
    if beta <= 0:
        return Knee(share, unknown("larger transfers take no longer", found.n), measured, said)
    if alpha <= 0:
        return Knee(
            share, unknown("no cost per transfer: the smallest has the whole bandwidth", found.n), measured, said
        )
    if isinstance(drawn, str):
        return Knee(share, Estimate(factor * alpha / beta, n=found.n, reason=drawn), measured, said)
    alphas, betas = _lines(found.bytes, found.ms, drawn * weights)
    replicates = factor * np.maximum(alphas, 0) / np.maximum(betas, 1e-3 * beta)
    return Knee(share, _interval(factor * alpha / beta, replicates, found.n), measured, said)


def _doubt(curve: Sequence[BandwidthPoint]) -> str:
    """Whether medians surely lie above the model's limit: then the line, which follows means, is not like most."""
    above = [
        point.of_asymptote
        for point in curve
        if point.of_asymptote and point.gbps.value and point.gbps.low is not None
        if point.of_asymptote * point.gbps.low / point.gbps.value > 1
    ]
    if not above:
        return ""
    return f"medians reach {max(above):.0%} of the asymptote: a few slow transfers pull the line, and the knee with it"


def _reached(curve: Sequence[BandwidthPoint], share: float) -> tuple[float | None, str]:
    """The smallest measured size from which on every one has that share."""
    enough = [point.of_asymptote is not None and point.of_asymptote >= share for point in curve]
    if not enough or not any(enough):
        return None, f"no measured size has {share:.0%} of the asymptote"
    if not enough[-1]:
        return None, f"sizes with {share:.0%} of the asymptote are followed by larger ones with less"
    last_below = max((place for place, one in enumerate(enough) if not one), default=-1)
    note = "the smallest size that was measured has it" if last_below < 0 else ""
    return curve[last_below + 1].bytes, note
