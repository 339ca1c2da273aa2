"""What a transfer costs by its size: rdma_transfer_ms = alpha + beta x bytes, and the bandwidth curve that follows.

Long transfers spread more than short ones, about in proportion to their length. Ordinary least squares then lets the
longest decide alpha, which the shortest know; the fit that is reported weights each transfer by 1 / fitted^2 (relative
errors, iterated). The ordinary fit stands beside it, and its R^2 is the specification's. Both have HC3 intervals,
which hold for errors of any unequal size, so also where the weights are not right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from results.lifecycle.curve import BandwidthPoint, Knee, bandwidth, curve_of, no_knee, points_of
from results.lifecycle.regression import (
    BASIS,
    MIN_TRANSFERS,
    Transfers,
    design_of,
    draws,
    inseparable,
    interval,
    least_squares,
    solve,
    solved,
)
from results.statistics import Estimate, Samples, unknown

SEED = 20_310
MIN_SIZES = 3
"""A line through two sizes always fits."""
SLOW = 3.0
"""Times the median of its N: a transfer beyond it is left out of one of the R^2 that are stated and not judged."""
_ROUNDS = 20


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
    """1 / beta: what ever larger transfers approach; unknown where half of the measured sizes exceed it."""
    r2: Estimate
    """Of the unweighted errors."""
    gamma_ms: Estimate | None = None
    """What each write operation adds; None: a fit of bytes alone."""


@dataclass(frozen=True, slots=True)
class Spread:
    """R^2 of the ordinary fit to other sets of the same transfers: stated, not judged."""

    medians: Estimate
    """To the median transfer of each C, N and O."""
    without_slow: Estimate
    """Without those of more than SLOW times the median of their N."""
    slow: int
    """So many are left out there."""
    run_delay_ms: Estimate
    """The longest wait of a writing thread for a core."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Everything that is fitted to the transfers."""

    relative: CostModel
    ordinary: CostModel
    with_operations: CostModel
    curve: tuple[BandwidthPoint, ...]
    knee: Knee
    spread: Spread


def costs(found: Transfers, *, link_gbps: float | None, knee_share: float, seed: int = SEED) -> Costs:
    """The fits, the curve and the knee; unknown with a reason where the transfers do not allow one."""
    why = _too_little(found)
    if why:
        none, nothing = CostModel("", unknown(why, found.n), unknown(why), unknown(why), unknown(why)), unknown(why)
        spread = Spread(nothing, nothing, 0, nothing)
        return Costs(none, none, none, points_of(found, link_gbps), no_knee(knee_share, why), spread)
    weights, drawn = _weights(found), draws(found, seed)
    operations = _with_operations(found, weights, points_of(found, link_gbps))
    gamma = operations.gamma_ms
    points, knee = curve_of(found, weights, drawn, gamma=gamma, link_gbps=link_gbps, share=knee_share)
    return Costs(
        relative=_model(found, "relative", weights, drawn, points),
        ordinary=_model(found, "ordinary", np.ones(found.n), drawn, points),
        with_operations=operations,
        curve=points,
        knee=knee,
        spread=_spread(found),
    )


def _too_little(found: Transfers) -> str:
    if found.n < MIN_TRANSFERS:
        return f"{found.n} counted transfers have a size and a duration; a line needs {MIN_TRANSFERS}"
    if len(found.new_tokens) < MIN_SIZES:
        return f"transfers of {len(found.new_tokens)} sizes; a line needs {MIN_SIZES}, two are always on one"
    return ""


def _weights(found: Transfers) -> Samples:
    """1 / fitted^2 where the fit settles; a fitted value is held above half the shortest transfer."""
    design = design_of([found.bytes])
    least = max(float(found.ms.min()) / 2, 1e-9)
    weights = 1 / np.maximum(found.ms, least) ** 2
    for _ in range(_ROUNDS):
        weights = 1 / np.maximum(design @ solve(design, found.ms, weights), least) ** 2
    return np.asarray(weights / weights.mean(), dtype=np.float64)


def _model(
    found: Transfers, method: str, weights: Samples, drawn: Samples | str, points: tuple[BandwidthPoint, ...]
) -> CostModel:
    alpha, beta = least_squares([found.bytes / 1e6], found.ms, weights)
    return CostModel(method, alpha, beta, _unexceeded(beta, points), _r2(found, weights, drawn))


def _unexceeded(beta: Estimate, points: tuple[BandwidthPoint, ...]) -> Estimate:
    """1 / beta, unless half of the measured sizes exceed it."""
    limit = bandwidth(beta)
    above = sum(limit.value is not None and (point.gbps.value or 0.0) > limit.value for point in points)
    return unknown(f"{above} of {len(points)} sizes exceed it", beta.n) if above and 2 * above >= len(points) else limit


def _r2(found: Transfers, weights: Samples, drawn: Samples | str) -> Estimate:
    def share(counted: Samples) -> Samples:
        line = solved([found.bytes], found.ms, counted * weights)
        error = found.ms - line[:, :1] - line[:, 1:] * found.bytes
        spread = found.ms - (counted @ found.ms / counted.sum(axis=1))[:, None]
        return np.asarray(1 - (counted * error**2).sum(axis=1) / (counted * spread**2).sum(axis=1), dtype=np.float64)

    value = float(share(np.ones((1, found.n)))[0])
    if isinstance(drawn, str):
        return Estimate(value, n=found.n, reason=drawn)
    return interval(value, share(drawn), found.n, BASIS)


def _with_operations(found: Transfers, weights: Samples, points: tuple[BandwidthPoint, ...]) -> CostModel:
    """The specification's bytes / bandwidth + per-operation latency x operations, where the two can be told apart."""
    why = inseparable(found, weights)
    if why:
        return CostModel("relative", unknown(why), unknown(why), unknown(why), unknown(why), unknown(why))
    alpha, beta, gamma = least_squares([found.bytes / 1e6, found.operations], found.ms, weights)
    slopes = [part.value or 0.0 for part in (beta, gamma)]
    error = found.ms - (alpha.value or 0.0) - slopes[0] * found.bytes / 1e6 - slopes[1] * found.operations
    r2 = 1 - float((error**2).sum() / ((found.ms - found.ms.mean()) ** 2).sum())
    share = Estimate(r2, n=found.n, reason="no interval")
    return CostModel("relative", alpha, beta, _unexceeded(beta, points), share, gamma)


def _spread(found: Transfers) -> Spread:
    groups = [found.configuration == one for one in np.unique(found.configuration)]
    size, ms = (np.array([np.median(values[own]) for own in groups]) for values in (found.bytes, found.ms))
    usual = np.array([np.median(found.ms[found.size == group]) for group in range(len(found.new_tokens))])
    kept = found.ms <= SLOW * usual[found.size]
    delays = found.run_delay_ms[np.isfinite(found.run_delay_ms)]
    return Spread(
        medians=_plain_r2(size, ms),
        without_slow=_plain_r2(found.bytes[kept], found.ms[kept]),
        slow=int((~kept).sum()),
        run_delay_ms=Estimate(float(delays.max()), n=delays.size) if delays.size else unknown("not counted"),
    )


def _plain_r2(size: Samples, ms: Samples) -> Estimate:
    if size.size < MIN_SIZES or np.ptp(size) == 0 or np.ptp(ms) == 0:
        return unknown("too few transfers", size.size)
    return Estimate(float(np.corrcoef(size, ms)[0, 1] ** 2), n=size.size, reason="no interval")
