"""What larger and larger transfers approach: the asymptotic bandwidth, the knee before it, and when there is neither.

A line over bytes describes transfers whose number of write operations goes with their bytes. Where operations surely
cost time of their own and do not go with the bytes, no line over bytes has a limit that means anything; where they do
not surely, the limit is that of the fit with operations, for transfers with so many operations per byte as the median
one. A limit that the measured sizes exceed is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from results.lifecycle.regression import BASIS, Transfers, inseparable, interval, least_squares, solved
from results.statistics import Estimate, Samples, figure, percentile, unknown


@dataclass(frozen=True, slots=True)
class BandwidthPoint:
    """The transfers of one N."""

    new_tokens: int
    bytes: float
    """Median."""
    gbps: Estimate
    """Median."""
    operations: float | None
    """Median number of write operations."""
    of_asymptote: float | None
    of_link: float | None
    """Of what the link can carry, where that is known."""


@dataclass(frozen=True, slots=True)
class Knee:
    """The smallest transfer with nearly the whole bandwidth."""

    share: float
    """Of the asymptote."""
    asymptote_gbps: Estimate
    """What larger transfers approach; unknown where no line over bytes says so."""
    bytes: Estimate
    """By the model: alpha / beta x share / (1 - share)."""
    alpha_ms: float | None
    """Of the line that has this asymptote."""
    measured_bytes: float | None
    """The smallest measured size from which on the median bandwidth is that much."""
    reason: str = ""
    """Why there is no measured one, or what to know of it."""
    operations: str = ""
    """For transfers with how many write operations it holds."""


def curve_of(
    found: Transfers, weights: Samples, drawn: Samples | str, *, gamma: Estimate | None, link_gbps: float | None,
    share: float,
) -> tuple[tuple[BandwidthPoint, ...], Knee]:  # fmt: skip
    """The medians and the knee. gamma: what a write operation adds, in ms; None = that is not known."""
    points = points_of(found, link_gbps)
    if gamma is not None and gamma.low is not None and gamma.high is not None and not gamma.low <= 0 <= gamma.high:
        why = (
            f"a write operation takes {gamma.text(3)} ms beside what the bytes take, and the number of operations does "
            "not go with the bytes: no line over bytes alone has a limit"
        )
        return points, no_knee(share, why)
    columns, operations = _columns(found, weights)
    alpha, limit, knee = _limit(found, weights, drawn, columns, share)
    why = _exceeded(points, limit)
    if why:
        return points, no_knee(share, why)
    points = tuple(
        replace(point, of_asymptote=point.gbps.value / limit.value)
        if limit.value and point.gbps.value is not None
        else point
        for point in points
    )
    measured, note = _reached(points, share) if limit.value else (None, "")
    return points, Knee(share, limit, knee, alpha, measured, note, operations)


def no_knee(share: float, why: str) -> Knee:
    """Nothing is approached, and why."""
    return Knee(share, unknown(why), unknown(why), None, None, why)


def points_of(found: Transfers, link_gbps: float | None) -> tuple[BandwidthPoint, ...]:
    """The median transfer of every N."""
    points = []
    for group, tokens in enumerate(found.new_tokens):
        own = found.size == group
        gbps, operations = percentile(found.gbps[own], 0.5), found.operations[own]
        points.append(
            BandwidthPoint(
                new_tokens=tokens,
                bytes=float(np.median(found.bytes[own])),
                gbps=gbps,
                operations=float(np.median(operations)) if np.isfinite(operations).all() else None,
                of_asymptote=None,
                of_link=gbps.value / link_gbps if link_gbps and gbps.value is not None else None,
            )
        )
    return tuple(points)


def _columns(found: Transfers, weights: Samples) -> tuple[list[Samples], str]:
    """The design whose second coefficient is what a byte adds, its share of operations included; and that share."""
    if not np.isfinite(found.operations).all():
        return [found.bytes / 1e6], "write operations were not counted"
    per_mb = float(np.median(found.operations / (found.bytes / 1e6)))
    if inseparable(found, weights):
        one = np.ptp(found.operations) == 0
        return [found.bytes / 1e6], f"{found.operations[0]:g} operations each" if one else _per_mb(per_mb)
    return [found.bytes / 1e6, found.operations - per_mb * found.bytes / 1e6], _per_mb(per_mb)


def _per_mb(per_mb: float) -> str:
    return f"{figure(per_mb, 3)} operations per 10^6 bytes"


def _limit(
    found: Transfers, weights: Samples, drawn: Samples | str, columns: Sequence[Samples], share: float
) -> tuple[float | None, Estimate, Estimate]:
    """alpha, 1 / beta and the knee."""
    alpha, beta = least_squares(columns, found.ms, weights)[:2]
    limit = bandwidth(beta)
    if limit.value is None or beta.value is None or alpha.value is None:
        return alpha.value, limit, unknown("larger transfers take no longer", found.n)
    if alpha.value <= 0:
        why = "no cost per transfer: the smallest has the whole bandwidth"
        return alpha.value, limit, unknown(why, found.n)
    factor = 1e6 * share / (1 - share)
    value = factor * alpha.value / beta.value
    if isinstance(drawn, str):
        return alpha.value, limit, Estimate(value, n=found.n, reason=drawn)
    found_in = solved(columns, found.ms, drawn * weights)
    replicates = factor * np.maximum(found_in[:, 0], 0) / np.maximum(found_in[:, 1], 1e-3 * beta.value)
    return alpha.value, limit, interval(value, replicates, found.n, BASIS)


def bandwidth(beta: Estimate) -> Estimate:
    """1 / beta in 10^9 bits per second, beta in ms per 10^6 bytes; a bound that would be infinite is open."""
    if beta.value is None or beta.value <= 0:
        return unknown("larger transfers take no longer: no bandwidth limits them", beta.n)
    low, high = (8 / bound if bound is not None and bound > 0 else None for bound in (beta.high, beta.low))
    return Estimate(8 / beta.value, low, high, beta.n, basis=beta.basis)


def _exceeded(points: Sequence[BandwidthPoint], limit: Estimate) -> str:
    """Why what the line approaches is no limit: medians surely lie above it, or half of them do."""
    if limit.value is None:
        return ""
    above = [point.gbps.value for point in points if point.gbps.value is not None and point.gbps.value > limit.value]
    surely = [point for point in points if point.gbps.low is not None and point.gbps.low > limit.value]
    if not surely and 2 * len(above) < len(points):
        return ""
    return (
        f"medians reach {max(above) / limit.value:.0%} of what the line approaches, at {len(above)} of {len(points)} "
        "sizes: a few slow transfers pull it, and it is no limit"
    )


def _reached(points: Sequence[BandwidthPoint], share: float) -> tuple[float | None, str]:
    """The smallest measured size from which on every one has that share."""
    enough = [point.of_asymptote is not None and point.of_asymptote >= share for point in points]
    if not enough or not any(enough):
        return None, f"no measured size has {share:.0%} of the asymptote"
    if not enough[-1]:
        return None, f"sizes with {share:.0%} of the asymptote are followed by larger ones with less"
    last_below = max((place for place, one in enumerate(enough) if not one), default=-1)
    note = "the smallest size that was measured has it" if last_below < 0 else ""
    return points[last_below + 1].bytes, note
