"""The cost of a transfer by its size: rdma_transfer_ms = alpha + beta x bytes, and the bandwidth curve of that model.

The durations of long transfers vary more, about in proportion to their length. Under ordinary least squares the longest
transfers would decide alpha, which only the shortest determine well. So the reported fit weights each transfer by
1 / fitted^2 (relative errors, iterated). The ordinary fit is reported too: its R^2 is the specification's. Both have
HC3 intervals, which hold for unequal errors, also where the weights are wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from results.pd_lifecycle.bandwidth_curve import BandwidthPoint, Knee, bandwidth_of, fit_curve, no_knee, points_of
from results.pd_lifecycle.transfer_regression import (
    BASIS,
    MIN_TRANSFERS,
    Transfers,
    design_of,
    draw_weights,
    fit_least_squares,
    percentile_interval,
    solve_each,
    solve_weighted,
    why_inseparable,
)
from results.statistics.estimates import Estimate, Samples, unknown

SEED = 20_310
MIN_SIZES = 3
"""A line through two sizes always fits."""
SLOW = 3.0
"""A transfer is slow beyond this multiple of the median of its N; one R^2, stated and not judged, leaves it out."""
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class CostModel:
    method: str
    """`relative` or `ordinary`."""
    alpha_ms: Estimate
    """Milliseconds per transfer, whatever its size."""
    beta_ms_per_mb: Estimate
    """Milliseconds per 10^6 bytes."""
    bandwidth_gbps: Estimate
    """1 / beta, in Gbit/s: the limit for large transfers; unknown where half of the measured sizes exceed it."""
    r2: Estimate
    """Of the unweighted errors."""
    gamma_ms: Estimate | None = None
    """Milliseconds per write operation; None: the fit has bytes only."""


@dataclass(frozen=True, slots=True)
class Spread:
    """R^2 of the ordinary fit to subsets of the transfers: stated, not judged."""

    medians: Estimate
    """To the median transfer of each C, N and O."""
    without_slow: Estimate
    """Without those of more than SLOW times the median of their N."""
    slow: int
    """Transfers that `without_slow` leaves out."""
    run_delay_ms: Estimate
    """The longest time that a writing thread waited for a core."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The fits to the transfers, and the bandwidth curve."""

    relative: CostModel
    ordinary: CostModel
    with_operations: CostModel
    curve: tuple[BandwidthPoint, ...]
    knee: Knee
    spread: Spread


def fit_costs(transfers: Transfers, *, link_gbps: float | None, knee_share: float, seed: int = SEED) -> Costs:
    """Fit all models; each is unknown with a reason where the transfers do not suffice."""
    why = _why_no_fit(transfers)
    if why:
        none, nothing = CostModel("", unknown(why, transfers.n), unknown(why), unknown(why), unknown(why)), unknown(why)
        spread = Spread(nothing, nothing, 0, nothing)
        return Costs(none, none, none, points_of(transfers, link_gbps), no_knee(knee_share, why), spread)
    weights, drawn = _relative_weights(transfers), draw_weights(transfers, seed)
    operations = _fit_with_operations(transfers, weights, points_of(transfers, link_gbps))
    gamma = operations.gamma_ms
    points, knee = fit_curve(transfers, weights, drawn, gamma=gamma, link_gbps=link_gbps, share=knee_share)
    return Costs(
        relative=_fit_model(transfers, "relative", weights, drawn, points),
        ordinary=_fit_model(transfers, "ordinary", np.ones(transfers.n), drawn, points),
        with_operations=operations,
        curve=points,
        knee=knee,
        spread=_estimate_spread(transfers),
    )


def _why_no_fit(transfers: Transfers) -> str:
    if transfers.n < MIN_TRANSFERS:
        return f"{transfers.n} counted transfers have a size and a duration; a line needs {MIN_TRANSFERS}"
    if len(transfers.new_tokens) < MIN_SIZES:
        return f"transfers of {len(transfers.new_tokens)} sizes; a line needs {MIN_SIZES}, since two always lie on one"
    return ""


def _relative_weights(transfers: Transfers) -> Samples:
    """1 / fitted^2 at the fixed point. A fitted value is at least half the shortest transfer."""
    design = design_of([transfers.bytes])
    least = max(float(transfers.ms.min()) / 2, 1e-9)
    weights = 1 / np.maximum(transfers.ms, least) ** 2
    for _ in range(_ROUNDS):
        weights = 1 / np.maximum(design @ solve_weighted(design, transfers.ms, weights), least) ** 2
    return np.asarray(weights / weights.mean(), dtype=np.float64)


def _fit_model(
    transfers: Transfers, method: str, weights: Samples, drawn: Samples | str, points: tuple[BandwidthPoint, ...]
) -> CostModel:
    alpha, beta = fit_least_squares([transfers.bytes / 1e6], transfers.ms, weights)
    return CostModel(method, alpha, beta, _asymptote_of(beta, points), _estimate_r2(transfers, weights, drawn))


def _asymptote_of(beta: Estimate, points: tuple[BandwidthPoint, ...]) -> Estimate:
    """1 / beta; unknown where half of the measured sizes exceed it."""
    limit = bandwidth_of(beta)
    above = sum(limit.value is not None and (point.gbps.value or 0.0) > limit.value for point in points)
    return unknown(f"{above} of {len(points)} sizes exceed it", beta.n) if above and 2 * above >= len(points) else limit


def _estimate_r2(transfers: Transfers, weights: Samples, drawn: Samples | str) -> Estimate:
    def explained_share(counted: Samples) -> Samples:
        line = solve_each([transfers.bytes], transfers.ms, counted * weights)
        error = transfers.ms - line[:, :1] - line[:, 1:] * transfers.bytes
        spread = transfers.ms - (counted @ transfers.ms / counted.sum(axis=1))[:, None]
        return np.asarray(1 - (counted * error**2).sum(axis=1) / (counted * spread**2).sum(axis=1), dtype=np.float64)

    value = float(explained_share(np.ones((1, transfers.n)))[0])
    if isinstance(drawn, str):
        return Estimate(value, n=transfers.n, reason=drawn)
    return percentile_interval(value, explained_share(drawn), transfers.n, BASIS)


def _fit_with_operations(transfers: Transfers, weights: Samples, points: tuple[BandwidthPoint, ...]) -> CostModel:
    """Fit the specification's bytes / bandwidth + latency x operations, where both terms can be separated."""
    why = why_inseparable(transfers, weights)
    if why:
        return CostModel("relative", unknown(why), unknown(why), unknown(why), unknown(why), unknown(why))
    alpha, beta, gamma = fit_least_squares([transfers.bytes / 1e6, transfers.operations], transfers.ms, weights)
    slopes = [part.value or 0.0 for part in (beta, gamma)]
    error = transfers.ms - (alpha.value or 0.0) - slopes[0] * transfers.bytes / 1e6 - slopes[1] * transfers.operations
    r2 = 1 - float((error**2).sum() / ((transfers.ms - transfers.ms.mean()) ** 2).sum())
    share = Estimate(r2, n=transfers.n, reason="no interval")
    return CostModel("relative", alpha, beta, _asymptote_of(beta, points), share, gamma)


def _estimate_spread(transfers: Transfers) -> Spread:
    groups = [transfers.configuration == one for one in np.unique(transfers.configuration)]
    size, ms = (np.array([np.median(values[own]) for own in groups]) for values in (transfers.bytes, transfers.ms))
    usual = np.array([np.median(transfers.ms[transfers.size == group]) for group in range(len(transfers.new_tokens))])
    not_slow = transfers.ms <= SLOW * usual[transfers.size]
    delays = transfers.run_delay_ms[np.isfinite(transfers.run_delay_ms)]
    return Spread(
        medians=_plain_r2(size, ms),
        without_slow=_plain_r2(transfers.bytes[not_slow], transfers.ms[not_slow]),
        slow=int((~not_slow).sum()),
        run_delay_ms=Estimate(float(delays.max()), n=delays.size) if delays.size else unknown("not counted"),
    )


def _plain_r2(size: Samples, ms: Samples) -> Estimate:
    if size.size < MIN_SIZES or np.ptp(size) == 0 or np.ptp(ms) == 0:
        return unknown("too few transfers", size.size)
    return Estimate(float(np.corrcoef(size, ms)[0, 1] ** 2), n=size.size, reason="no interval")
