"""The cost of a transfer by its size: rdma_transfer_ms = alpha + beta x bytes, and the bandwidth curve of that model.

The durations of long transfers vary more, about in proportion to their length. Under ordinary least squares the longest
transfers would decide alpha, which only the shortest determine well. So the reported fit weights each transfer by
1 / fitted^2 (relative errors, iterated). The ordinary fit is reported too: its R^2 is the specification's. Both have
intervals over cells (CR3), which hold for unequal errors, also where the weights are wrong. From three launches on each
launch is fitted by itself, and every number is the mean over the launches with Student's t interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from results.pd_lifecycle.bandwidth_curve import (
    BandwidthPoint,
    Knee,
    compare_with_limit,
    compute_bandwidth,
    explain_no_line,
    fit_curve,
    make_unknown_knee,
    measure_curve_points,
)
from results.pd_lifecycle.transfer_regression import (
    MIN_TRANSFERS,
    Transfers,
    build_design,
    draw_weights,
    explain_inseparable,
    fit_least_squares,
    make_percentile_interval,
    solve_each,
    solve_weighted,
)
from results.records.estimate import Estimate, unknown
from results.statistics.estimates import Samples, cut_bounds
from results.statistics.launch_fit import estimate_mean_over_launches, merge_launches
from results.statistics.trials import MIN_PAIRED

SEED = 20_310
MIN_SIZES = 3
"""A line through two sizes always fits."""
SLOW = 3.0
"""A transfer is slow beyond this multiple of the median of its N; one R^2, stated and not judged, leaves it out."""
ORDINARY = "ordinary"
"""`CostModel.method` of the least squares without weights."""
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
    """R2 of the unweighted errors."""
    gamma_ms: Estimate | None = None
    """Milliseconds per write operation; None: the fit has bytes only."""


@dataclass(frozen=True, slots=True)
class Spread:
    """R^2 of the ordinary fit to subsets of the transfers: stated, not judged."""

    medians: Estimate
    """To the median transfer of each cell."""
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
    """The fit of least relative errors."""
    ordinary: CostModel
    """The ordinary fit of least squares."""
    with_operations: CostModel
    """The relative fit with a cost per write operation."""
    curve: tuple[BandwidthPoint, ...]
    """By N."""
    knee: Knee
    """Where a transfer reaches most of the bandwidth."""
    spread: Spread
    """How the ordinary fit depends on slow transfers."""


def fit_costs(transfers: Transfers, *, link_gbps: float | None, knee_share: float) -> Costs:
    """Fit all models; each is unknown with a reason where the transfers do not suffice."""
    launches = transfers.split_launches()
    alone = len(launches) < MIN_PAIRED
    fit = partial(_fit_together, link_gbps=link_gbps, knee_share=knee_share, alone=alone)
    return fit(transfers) if alone else _merge_launches(fit(transfers), [fit(one) for one in launches])


def _fit_together(transfers: Transfers, *, link_gbps: float | None, knee_share: float, alone: bool) -> Costs:
    """All transfers alike, whatever their launch.

    alone: no launches decide whether an operation's cost leaves a limit, so the spread over cells does.
    """
    points, why = measure_curve_points(transfers, link_gbps), _explain_no_fit(transfers)
    if why:
        nothing = unknown(why)
        none = CostModel("", unknown(why, transfers.n), nothing, nothing, nothing)
        return Costs(none, none, none, points, make_unknown_knee(knee_share, why), Spread(nothing, nothing, 0, nothing))
    weights, drawn = _compute_relative_weights(transfers), draw_weights(transfers, SEED)
    operations = _fit_with_operations(transfers, weights, points)
    gamma = operations.gamma_ms if alone else None
    points, knee = fit_curve(transfers, weights, drawn, points, gamma=gamma, share=knee_share)
    return Costs(
        relative=_fit_model(transfers, "relative", weights, drawn, points),
        ordinary=_fit_model(transfers, ORDINARY, np.ones(transfers.n), drawn, points),
        with_operations=operations,
        curve=points,
        knee=knee,
        spread=_estimate_spread(transfers),
    )


def _merge_launches(whole: Costs, each: Sequence[Costs]) -> Costs:
    """The fits of the launches merged; what the fit of all transfers lacks stays unknown."""
    points = tuple(_merge_points(point, each) for point in whole.curve)
    why = explain_no_line(_merge_gamma(whole.with_operations, [one.with_operations for one in each]))
    fitted = make_unknown_knee(whole.knee.share, why) if why else _merge_knees(whole.knee, [one.knee for one in each])
    points, knee = compare_with_limit(points, fitted)
    return replace(
        whole,
        relative=_merge_models(whole.relative, [one.relative for one in each], points),
        ordinary=_merge_models(whole.ordinary, [one.ordinary for one in each], points),
        with_operations=_merge_models(whole.with_operations, [one.with_operations for one in each], points),
        curve=points,
        knee=knee,
    )


def _merge_models(whole: CostModel, each: Sequence[CostModel], points: tuple[BandwidthPoint, ...]) -> CostModel:
    r2 = _merge_estimates(whole.r2, [one.r2 for one in each])
    beta = _merge_estimates(whole.beta_ms_per_mb, [one.beta_ms_per_mb for one in each])
    return replace(
        whole,
        alpha_ms=_merge_estimates(whole.alpha_ms, [one.alpha_ms for one in each]),
        beta_ms_per_mb=beta,
        bandwidth_gbps=whole.bandwidth_gbps if whole.bandwidth_gbps.value is None else _compute_asymptote(beta, points),
        r2=_cut_r2(r2, whole.method),
        gamma_ms=_merge_gamma(whole, each),
    )


def _merge_gamma(whole: CostModel, each: Sequence[CostModel]) -> Estimate | None:
    gammas = [one.gamma_ms for one in each if one.gamma_ms is not None]
    return None if whole.gamma_ms is None else _merge_estimates(whole.gamma_ms, gammas)


def _cut_r2(r2: Estimate, method: str) -> Estimate:
    """At most 1. Only the ordinary fit cannot be worse than the mean, whose R^2 is 0."""
    if method == ORDINARY:
        return cut_bounds(r2, 1.0)
    return r2 if r2.high is None else replace(r2, high=min(r2.high, 1.0))


def _merge_estimates(whole: Estimate, each: Sequence[Estimate]) -> Estimate:
    """The mean over the launches; unknown where the fit of all transfers is."""
    return whole if whole.value is None else merge_launches(each)


def _merge_bandwidths(whole: Estimate, each: Sequence[Estimate]) -> Estimate:
    """The inverse of the launches' mean 1 / bandwidth, which is beta; a mean of bandwidths would favor fast launches.

    Unknown where the fit of all transfers is.
    """
    if whole.value is None:
        return whole
    return compute_bandwidth(merge_launches([replace(one, value=8 / one.value if one.value else None) for one in each]))


def _merge_knees(whole: Knee, each: Sequence[Knee]) -> Knee:
    """Without a measured one; as it is where the fit of all transfers has no asymptote."""
    if whole.asymptote_gbps.value is None:
        return whole
    asymptote = _merge_bandwidths(whole.asymptote_gbps, [one.asymptote_gbps for one in each])
    if asymptote.value is None:
        return make_unknown_knee(whole.share, asymptote.reason or "no launch has an asymptote")
    alphas = [one.alpha_ms for one in each if one.asymptote_gbps.value is not None]
    return replace(
        whole,
        asymptote_gbps=asymptote,
        bytes=cut_bounds(_merge_estimates(whole.bytes, [one.bytes for one in each])),
        alpha_ms=estimate_mean_over_launches(alphas).value,
        measured_bytes=None,
        reason="",
    )


def _merge_points(point: BandwidthPoint, each: Sequence[Costs]) -> BandwidthPoint:
    """Without its share of the asymptote."""
    own = [one.gbps for costs in each for one in costs.curve if one.new_tokens == point.new_tokens]
    gbps = replace(_merge_bandwidths(point.gbps, own), n=point.gbps.n)
    link = point.of_link / point.gbps.value if point.of_link and point.gbps.value else None
    of_link = gbps.value * link if link is not None and gbps.value is not None else None
    return replace(point, gbps=gbps, of_asymptote=None, of_link=of_link)


def _explain_no_fit(transfers: Transfers) -> str:
    if transfers.n < MIN_TRANSFERS:
        return f"{transfers.n} counted transfers have a size and a duration; a line needs {MIN_TRANSFERS}"
    sizes = np.unique(transfers.size).size
    if sizes < MIN_SIZES:
        return f"transfers of {sizes} sizes; a line needs {MIN_SIZES}, since two always lie on one"
    return ""


def _compute_relative_weights(transfers: Transfers) -> Samples:
    """1 / fitted^2 at the fixed point. A fitted value is at least half the shortest transfer."""
    design, _ = build_design([transfers.bytes])
    least = max(float(transfers.ms.min()) / 2, 1e-9)
    weights = 1 / np.maximum(transfers.ms, least) ** 2
    for _ in range(_ROUNDS):
        weights = 1 / np.maximum(design @ solve_weighted(design, transfers.ms, weights), least) ** 2
    return np.asarray(weights / weights.mean(), dtype=np.float64)


def _fit_model(
    transfers: Transfers, method: str, weights: Samples, drawn: Samples | str, points: tuple[BandwidthPoint, ...]
) -> CostModel:
    alpha, beta = fit_least_squares([transfers.bytes / 1e6], transfers.ms, weights, transfers.cell)
    return CostModel(method, alpha, beta, _compute_asymptote(beta, points), _estimate_r2(transfers, weights, drawn))


def _compute_asymptote(beta: Estimate, points: tuple[BandwidthPoint, ...]) -> Estimate:
    """1 / beta; unknown where half of the measured sizes exceed it."""
    limit = compute_bandwidth(beta)
    above = sum(limit.value is not None and (point.gbps.value or 0.0) > limit.value for point in points)
    return unknown(f"{above} of {len(points)} sizes exceed it", beta.n) if above and 2 * above >= len(points) else limit


def _estimate_r2(transfers: Transfers, weights: Samples, drawn: Samples | str) -> Estimate:
    def compute_explained_share(counted: Samples) -> Samples:
        line = solve_each([transfers.bytes], transfers.ms, counted * weights)
        error = transfers.ms - line[:, :1] - line[:, 1:] * transfers.bytes
        spread = transfers.ms - (counted @ transfers.ms / counted.sum(axis=1))[:, None]
        return np.asarray(1 - (counted * error**2).sum(axis=1) / (counted * spread**2).sum(axis=1), dtype=np.float64)

    value = float(compute_explained_share(np.ones((1, transfers.n)))[0])
    if isinstance(drawn, str):
        return Estimate(value, n=transfers.n, reason=drawn)
    return make_percentile_interval(value, compute_explained_share(drawn), transfers.n)


def _fit_with_operations(transfers: Transfers, weights: Samples, points: tuple[BandwidthPoint, ...]) -> CostModel:
    """Fit the specification's bytes / bandwidth + latency x operations, where both terms can be separated."""
    why = explain_inseparable(transfers, weights)
    if why:
        return CostModel("relative", unknown(why), unknown(why), unknown(why), unknown(why), unknown(why))
    columns = [transfers.bytes / 1e6, transfers.operations]
    alpha, beta, gamma = fit_least_squares(columns, transfers.ms, weights, transfers.cell)
    slopes = [part.value or 0.0 for part in (beta, gamma)]
    error = transfers.ms - (alpha.value or 0.0) - slopes[0] * transfers.bytes / 1e6 - slopes[1] * transfers.operations
    r2 = 1 - float((error**2).sum() / ((transfers.ms - transfers.ms.mean()) ** 2).sum())
    share = Estimate(r2, n=transfers.n, reason="no interval")
    return CostModel("relative", alpha, beta, _compute_asymptote(beta, points), share, gamma)


def _estimate_spread(transfers: Transfers) -> Spread:
    groups = [transfers.cell == one for one in np.unique(transfers.cell)]
    size, ms = (np.array([np.median(values[own]) for own in groups]) for values in (transfers.bytes, transfers.ms))
    usual = {group: np.median(transfers.ms[transfers.size == group]) for group in np.unique(transfers.size)}
    not_slow = transfers.ms <= SLOW * np.array([usual[group] for group in transfers.size])
    delays = transfers.run_delay_ms[np.isfinite(transfers.run_delay_ms)]
    return Spread(
        medians=_compute_plain_r2(size, ms),
        without_slow=_compute_plain_r2(transfers.bytes[not_slow], transfers.ms[not_slow]),
        slow=int((~not_slow).sum()),
        run_delay_ms=Estimate(float(delays.max()), n=delays.size) if delays.size else unknown("not counted"),
    )


def _compute_plain_r2(size: Samples, ms: Samples) -> Estimate:
    if size.size < MIN_SIZES or np.ptp(size) == 0 or np.ptp(ms) == 0:
        return unknown("too few transfers", size.size)
    return Estimate(float(np.corrcoef(size, ms)[0, 1] ** 2), n=size.size, reason="no interval")
