"""The bandwidth curve over transfer size: its asymptote, the knee below it, or why there is neither.

A line over bytes describes transfers whose write operations are proportional to their bytes. Where the interval of an
operation's cost excludes 0 and operations are not proportional to bytes, no line over bytes has a meaningful limit.
Where it includes 0, the limit is that of the fit with operations, at the median number of operations per byte. A limit
that the measured sizes exceed is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from results.pd_lifecycle.transfer_regression import (
    Transfers,
    explain_inseparable,
    fit_least_squares,
    make_percentile_interval,
    solve_each,
)
from results.records.estimate import Estimate, figure, unknown
from results.records.percent import format_percent
from results.statistics.estimates import Samples, percentile


@dataclass(frozen=True, slots=True)
class BandwidthPoint:
    """The transfers of one N."""

    new_tokens: int
    bytes: float
    """Median."""
    gbps: Estimate
    """Median of the medians of its cells, `n` of them; from three launches on the inverse of the mean 1 / median."""
    operations: float | None
    """Median count of write operations; None = unknown."""
    of_asymptote: float | None
    """Share of the asymptotic bandwidth; None = unknown."""
    of_link: float | None
    """Share of the link's bandwidth; None = unknown."""


@dataclass(frozen=True, slots=True)
class Knee:
    """The smallest transfer that reaches `share` of the asymptotic bandwidth."""

    share: float
    """Share of the asymptotic bandwidth that the knee reaches."""
    asymptote_gbps: Estimate
    """What larger transfers approach."""
    bytes: Estimate
    """By the fit: alpha / beta x share / (1 - share)."""
    alpha_ms: float | None
    """Intercept of the line with this asymptote."""
    measured_bytes: float | None
    """The smallest measured size from which every larger size reaches `share` too (medians)."""
    reason: str = ""
    """Why there is no knee, or a caution about the measured one."""
    operations: str = ""
    """The operations per byte for which the fit holds, as text."""


def fit_curve(
    transfers: Transfers, weights: Samples, drawn: Samples | str, points: tuple[BandwidthPoint, ...], *,
    gamma: Estimate | None, share: float,
) -> tuple[tuple[BandwidthPoint, ...], Knee]:  # fmt: skip
    """These medians by N, and the knee. gamma: milliseconds per write operation; None = unknown."""
    why = explain_no_line(gamma)
    if why:
        return points, make_unknown_knee(share, why)
    columns, operations = _choose_columns(transfers, weights)
    alpha, beta, *_ = fit_least_squares(columns, transfers.ms, weights, transfers.cell)
    own_weights = drawn if isinstance(drawn, str) else drawn * weights
    knee = _estimate_knee(transfers, columns, alpha, beta, own_weights, share)
    return compare_with_limit(
        points, Knee(share, compute_bandwidth(beta), knee, alpha.value, None, operations=operations)
    )


def explain_no_line(gamma: Estimate | None) -> str:
    """Why no line over bytes has a limit; empty where one may. gamma: milliseconds per operation, None = unknown."""
    if gamma is None or not gamma.excludes(0):
        return ""
    return (
        f"a write operation adds {gamma.text(3)} ms to the time for its bytes, and the number of operations is not "
        "proportional to the bytes: a line over bytes alone has no limit"
    )


def compare_with_limit(points: tuple[BandwidthPoint, ...], fitted: Knee) -> tuple[tuple[BandwidthPoint, ...], Knee]:
    """The medians as shares of the asymptote, and the knee with the measured one.

    fitted: without a measured knee. There is none, and no share, where the medians show that the asymptote is no limit.
    """
    limit = fitted.asymptote_gbps.value
    if limit is None:
        return points, fitted
    why = _explain_no_limit(points, limit)
    if why:
        return points, make_unknown_knee(fitted.share, why)
    shares = tuple(
        point if point.gbps.value is None else replace(point, of_asymptote=point.gbps.value / limit) for point in points
    )
    measured, note = _find_measured_knee(shares, fitted.share)
    return shares, replace(fitted, measured_bytes=measured, reason=note)


def make_unknown_knee(share: float, why: str) -> Knee:
    return Knee(share, unknown(why), unknown(why), None, None, why)


def measure_curve_points(transfers: Transfers, link_gbps: float | None) -> tuple[BandwidthPoint, ...]:
    """The median transfer of each N."""
    points = []
    for group, tokens in enumerate(transfers.new_tokens):
        own = transfers.size == group
        if not own.any():
            continue
        medians = [np.median(transfers.gbps[transfers.cell == one]) for one in np.unique(transfers.cell[own])]
        gbps, operations = percentile(medians, 0.5), transfers.operations[own]
        points.append(
            BandwidthPoint(
                new_tokens=tokens,
                bytes=float(np.median(transfers.bytes[own])),
                gbps=gbps,
                operations=float(np.median(operations)) if np.isfinite(operations).all() else None,
                of_asymptote=None,
                of_link=gbps.value / link_gbps if link_gbps and gbps.value is not None else None,
            )
        )
    return tuple(points)


def _choose_columns(transfers: Transfers, weights: Samples) -> tuple[list[Samples], str]:
    """The columns of the fit whose slope includes the operations that come with each byte; and their ratio as text."""
    megabytes = transfers.bytes / 1e6
    if not np.isfinite(transfers.operations).all():
        return [megabytes], "write operations were not counted"
    per_mb = float(np.median(transfers.operations / megabytes))
    ratio = f"{figure(per_mb, 3)} operations per 10^6 bytes"
    if not explain_inseparable(transfers, weights):
        return [megabytes, transfers.operations - per_mb * transfers.bytes / 1e6], ratio
    if np.ptp(transfers.operations) == 0:
        ratio = f"{transfers.operations[0]:g} operations each"
    return [megabytes], ratio


def _estimate_knee(
    transfers: Transfers, columns: list[Samples], alpha: Estimate, beta: Estimate, drawn: Samples | str, share: float
) -> Estimate:
    """The bytes at which the line reaches this share of its limit. drawn: weights of the replicates."""
    if alpha.value is None or beta.value is None or beta.value <= 0:
        return unknown("larger transfers take no longer", transfers.n)
    if alpha.value <= 0:
        return unknown("no cost per transfer: the smallest has the whole bandwidth", transfers.n)
    factor = 1e6 * share / (1 - share)
    value = factor * alpha.value / beta.value
    if isinstance(drawn, str):
        return Estimate(value, n=transfers.n, reason=drawn)
    coefficients = solve_each(columns, transfers.ms, drawn)
    replicates = factor * np.maximum(coefficients[:, 0], 0) / np.maximum(coefficients[:, 1], 1e-3 * beta.value)
    return make_percentile_interval(value, replicates, transfers.n)


def compute_bandwidth(beta: Estimate) -> Estimate:
    """1 / beta in Gbit/s, from beta in ms per 10^6 bytes.

    It falls as beta rises: its bounds are the inverses of beta's, swapped. An infinite bound is None.
    """
    if beta.value is None:
        return unknown(beta.reason or "beta is unknown", beta.n)
    if beta.value <= 0:
        return unknown("larger transfers take no longer: no bandwidth limits them", beta.n)
    low, high = (8 / bound if bound is not None and bound > 0 else None for bound in (beta.high, beta.low))
    return Estimate(8 / beta.value, low, high, beta.n, beta.reason, beta.basis, beta.launches)


def _explain_no_limit(points: Sequence[BandwidthPoint], limit: float) -> str:
    """Why the line's asymptote is no limit: the interval of a median, or half of the medians, lie above it."""
    above = [point.gbps.value for point in points if point.gbps.value is not None and point.gbps.value > limit]
    surely = [point for point in points if point.gbps.low is not None and point.gbps.low > limit]
    if not surely and 2 * len(above) < len(points):
        return ""
    return (
        f"medians reach {format_percent(max(above) / limit)} of the line's asymptote, at {len(above)} of "
        f"{len(points)} sizes: a few slow transfers bend the line, so its asymptote is no limit"
    )


def _find_measured_knee(points: Sequence[BandwidthPoint], share: float) -> tuple[float | None, str]:
    """(bytes of the smallest measured size from which every size has that share, a caution or the reason for None)."""
    enough = [point.of_asymptote is not None and point.of_asymptote >= share for point in points]
    if not any(enough):
        return None, f"no measured size has {format_percent(share)} of the asymptote"
    if not enough[-1]:
        return None, f"sizes with {format_percent(share)} of the asymptote are followed by larger ones with less"
    last_below = max((index for index, reached in enumerate(enough) if not reached), default=-1)
    note = "the smallest measured size reaches it" if last_below < 0 else ""
    return points[last_below + 1].bytes, note
