"""Differences and ratios of estimates from two independent runs.

Their interval follows from the two intervals alone (MOVER; Zou and Donner, Statistics in Medicine 27 (2008) 1693): for
d = b - a with a in [l_a, u_a] and b in [l_b, u_b]
    low = d - sqrt((b - l_b)^2 + (u_a - a)^2),  high = d + sqrt((u_b - b)^2 + (a - l_a)^2).
A ratio is the same on logarithms.

Where the values of two independent samples are at hand, the difference of their means has Welch's t interval.

Whether two estimates are of one true value has a p by Welch's t, with the standard errors that their intervals imply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy.typing as npt

from results.records.estimate import Estimate, unknown
from results.statistics.estimates import (
    ALL_AGREE,
    LEVEL,
    ROUNDING,
    clean,
    compute_student_interval,
    compute_student_p,
    compute_student_quantile,
    standard_error,
)
from results.statistics.trials import MIN_PAIRED

DISJOINT_BY_CHANCE = 0.0056
"""Probability that two equally wide 95 % intervals of one true value share no value: 2 (1 - Phi(1.96 sqrt 2))."""
SYMMETRIC = 1e-6
"""Halves of an interval that differ by less than this share of its width are equal."""
MANY_DEGREES = 1e9
"""Degrees of freedom at which Student's t is the normal distribution."""

Points = tuple[float, float, float]
"""Low bound, value and high bound."""
Scale = Callable[[float], float]
_SCALES: tuple[tuple[Scale, float], ...] = ((float, -math.inf), (math.log, 0.0), (math.log1p, -1.0))
"""On which intervals are made, each with the number above which it is defined: means, ratios, relative changes."""


def subtract_means(first: npt.ArrayLike, second: npt.ArrayLike, *, level: float = LEVEL) -> Estimate:
    """mean(second) - mean(first) of two independent samples, with Welch's t interval (Biometrika 34 (1947) 28).

    Without bounds where a sample has fewer than MIN_PAIRED values, or where no value differs from its mean and the
    means differ. `n` and `launches`: the size of the smaller sample.
    """
    samples = clean(first), clean(second)
    n = min(int(sample.size) for sample in samples)
    if not n:
        return unknown("no samples")
    value = float(samples[1].mean()) - float(samples[0].mean())
    if n < MIN_PAIRED:
        sizes = f"{samples[0].size} and {samples[1].size}"
        why = f"{sizes} values: an interval needs {MIN_PAIRED} of each"
        return Estimate(value, n=n, reason=why, launches=n)
    variances = [standard_error(sample) ** 2 for sample in samples]
    total = math.fsum(variances)
    rounding = ROUNDING * max(float(abs(sample).max()) for sample in samples)
    if math.sqrt(total) <= rounding:
        if abs(value) > rounding:
            return Estimate(value, n=n, reason=ALL_AGREE, launches=n)
        return Estimate(value, value, value, n, launches=n)
    degrees = 1 / math.fsum(
        (variance / total) ** 2 / (sample.size - 1) for variance, sample in zip(variances, samples, strict=True)
    )
    return compute_student_interval(value, math.sqrt(total), degrees, n, level=level, launches=n)


def subtract_estimates(first: Estimate, second: Estimate) -> Estimate:
    """second - first of two independent estimates, with bounds where both have theirs."""
    if first.value is None or second.value is None:
        return unknown("; ".join(_list_reasons(first, second)) or "not measured in both runs")
    value, n = second.value - first.value, min(first.n, second.n)
    launches = min(first.launches, second.launches)
    if first.low is None or first.high is None or second.low is None or second.high is None:
        why = "; ".join(_list_reasons(first, second)) or "a run gives no interval"
        return Estimate(value, n=n, reason=why, launches=launches)
    low = value - math.hypot(second.value - second.low, first.high - first.value)
    high = value + math.hypot(second.high - second.value, first.value - first.low)
    return Estimate(value, low, high, n, launches=launches)


def compare_ratio(first: Estimate, second: Estimate) -> Estimate:
    """second / first - 1 of two independent positive estimates, with bounds where both have theirs."""
    return subtract_estimates(_take_logarithm(first), _take_logarithm(second)).transform(math.expm1)


def are_disjoint(first: Estimate, second: Estimate) -> bool:
    """Whether both have an interval and the two share no value."""
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return False
    return first.high < second.low or second.high < first.low


def find_p_of_equality(
    first: Estimate, second: Estimate, degrees: tuple[float | None, float | None] = (None, None)
) -> float | None:
    """Two-sided p of two independent estimates being of one true value (Welch's t); None without two intervals.

    Assumed: each interval is Student's t at LEVEL over launches, symmetric about its value as it is (a mean), by
    logarithms (a ratio) or by logarithms of 1 + x (a relative change). The scale on which both are symmetric is that of
    the test. A standard error is half a width over Student's quantile: the wider half, because a bound may be cut at
    what the number can be.
    `degrees`: of freedom of both intervals. None = not stated: launches - 1, or more where a residual was pooled, so
    the larger p of launches - 1 and of infinitely many counts.
    """
    points = _list_points(first), _list_points(second)
    if points[0] is None or points[1] is None:
        return None
    both = points[0], points[1]
    scale = _find_scale(both)
    difference = scale(both[1][1]) - scale(both[0][1])
    halves = [max(scale(value) - scale(low), scale(high) - scale(value)) for low, value, high in both]
    if not any(halves):  # the permutation test of launches that all agree
        return 2 / math.comb(first.launches + second.launches, first.launches) if difference else 1.0
    possible = [
        (one.launches - 1, MANY_DEGREES) if stated is None else (stated,)
        for one, stated in zip((first, second), degrees, strict=True)
    ]
    return max(_find_p_of_welch(difference, halves, pair) for pair in product(*possible))


def _list_points(estimate: Estimate) -> Points | None:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    return estimate.low, estimate.value, estimate.high


def _find_scale(both: Sequence[Points]) -> Scale:
    """On which both intervals are symmetric; as they are where none is, because a bound was cut."""
    return next((scale for scale, above in _SCALES if all(_is_symmetric(one, scale, above) for one in both)), float)


def _is_symmetric(points: Points, scale: Scale, above: float) -> bool:
    if min(points) <= above:
        return False
    low, value, high = map(scale, points)
    rounding = ROUNDING * max(abs(low), abs(high))
    return abs(low + high - 2 * value) <= max(SYMMETRIC * (high - low), rounding)


def _find_p_of_welch(difference: float, halves: Sequence[float], degrees: Sequence[float]) -> float:
    """`halves`: half the width of each interval, at least one of them above 0."""
    variances = [(half / compute_student_quantile(own)) ** 2 for half, own in zip(halves, degrees, strict=True)]
    total = math.fsum(variances)
    freedom = 1 / math.fsum((part / total) ** 2 / own for part, own in zip(variances, degrees, strict=True))
    return compute_student_p(difference, math.sqrt(total), freedom)


def _take_logarithm(estimate: Estimate) -> Estimate:
    if estimate.value is None or estimate.value <= 0:
        return unknown(estimate.reason or "the value is not positive", estimate.n)
    bounds = (estimate.low, estimate.high)
    low, high = (math.log(bound) if bound is not None and bound > 0 else None for bound in bounds)
    reaches_zero = estimate.low is not None and estimate.low <= 0
    reason = "its interval reaches 0, so a ratio to it has none" if reaches_zero else estimate.reason
    return replace(estimate, value=math.log(estimate.value), low=low, high=high, reason=reason)


def _list_reasons(first: Estimate, second: Estimate) -> list[str]:
    named = (("first", first), ("second", second))
    return [f"{which}: {one.reason}" for which, one in named if one.reason and None in (one.value, one.low, one.high)]
