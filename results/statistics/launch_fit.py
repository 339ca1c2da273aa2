"""Sizes measured in every launch: y = size + launch + residual, with fixed sizes and random launches.

The launch is the unit: y is one number of one size in one launch, for example the logarithm of a ratio of medians. Its
spread over launches is pooled over all sizes, so that many sizes make up for few launches. All sizes of a launch share
one draw, so the degrees of freedom are Satterthwaite's (Biometrics 2, 1946) for the variance of the launches and that
of the rest. A size whose launches vary significantly more has its own spread.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.records.count import format_count
from results.records.estimate import Estimate, unknown
from results.statistics.block_model import LEVEL_OF_F
from results.statistics.blocks import POWER, find_fewest_launches
from results.statistics.estimates import (
    ALL_AGREE,
    LEVEL,
    ROUNDING,
    Samples,
    all_agree,
    bound_sigma,
    compute_student_interval,
    mean,
)
from results.statistics.trials import MIN_PAIRED

Size = TypeVar("Size", bound=Hashable)


@dataclass(frozen=True, slots=True)
class LaunchSpread:
    """Standard deviation of one launch around its size's mean, pooled over the sizes."""

    sigma: float
    """The standard deviation."""
    low: float
    """Lower bound of sigma."""
    high: float
    """Bounds of sigma at LEVEL (chi-square)."""
    degrees: float
    """Degrees of freedom of sigma."""
    launches: int
    """Launches that it comes from."""
    sizes: int
    """Sizes that it is pooled over."""

    def detectable_effect(self, launches: int) -> float:
        """The smallest effect that the mean of a size over this many launches detects with a probability of POWER.

        In the unit of sigma. All sizes are judged together (Bonferroni); the degrees of freedom grow with the
        launches. For planning only.
        """
        quantile = 1 - (1 - LEVEL) / 2 / self.sizes
        degrees = self.degrees * (launches - 1) / (self.launches - 1)
        needed = special.stdtrit(degrees, quantile) + special.stdtrit(degrees, POWER)
        return float(needed) * self.sigma / math.sqrt(launches)

    def plan_launches(self, effect: float) -> int | None:
        """The fewest launches whose detectable effect is at most this one; None above MAX_PLANNED_LAUNCHES."""
        return find_fewest_launches(effect, self.detectable_effect)


@dataclass(frozen=True, slots=True)
class SizeFit(Generic[Size]):
    """All sizes that were measured in every launch."""

    estimates: Mapping[Size, Estimate]
    p: Mapping[Size, float]
    """Two-sided, of a zero mean over launches."""
    overall: Estimate
    """The mean over the sizes; its interval is Student's t over the launches."""
    degrees: float
    """Degrees of freedom of the pooled spread."""
    spread: LaunchSpread | None
    """None where the launches do not differ."""


def fit_sizes(values: Mapping[Size, Mapping[int, float]]) -> SizeFit[Size] | str:
    """The mean of each size over the launches; a sentence where there are too few launches, or no common size.

    values: per size, the number of each launch. A size that lacks a launch is left out.
    """
    common = _find_common(values)
    if isinstance(common, str):
        return common
    sizes, launches, y = common
    variances, degrees = _pool_variances(y)
    means = y.mean(axis=1)
    errors = np.sqrt(variances / len(launches))
    halves = special.stdtrit(degrees, (1 + LEVEL) / 2) * errors
    exact = errors <= ROUNDING * max(float(np.abs(y).max()), 1.0)
    estimates = {
        size: _estimate_mean(float(value), None if agree and value else float(half), len(launches))
        for size, value, half, agree in zip(sizes, means, halves, exact, strict=True)
    }
    t = np.abs(means) / np.where(exact, 1.0, errors)
    signs_alone = np.where(means == 0, 1.0, 2.0 ** (1 - len(launches)))  # without a spread only the signs count
    p = np.where(exact, signs_alone, 2 * special.stdtr(degrees, -t))
    return SizeFit(
        estimates,
        dict(zip(sizes, p.tolist(), strict=True)),
        estimate_mean_over_launches(y.mean(axis=0).tolist()),
        float(degrees.max()),
        _measure_spread(y),
    )


def _find_common(values: Mapping[Size, Mapping[int, float]]) -> tuple[list[Size], list[int], Samples] | str:
    """The sizes that every launch measured, the launches, and sizes x launches; a sentence where there are too few."""
    launches = sorted({launch for by_launch in values.values() for launch in by_launch})
    if len(launches) < MIN_PAIRED:
        count = format_count(len(launches), "launch", "launches")
        return f"{count} of each engine: an interval over launches needs {MIN_PAIRED}"
    sizes = [size for size, by_launch in values.items() if len(by_launch) == len(launches)]
    if not sizes:
        return "no size was measured in every launch"
    return sizes, launches, np.array([[values[size][launch] for launch in launches] for size in sizes])


def estimate_slope_over_launches(values: Mapping[Size, Mapping[int, float]]) -> Estimate:
    """Change of the mean over the sizes per launch, by the launches' numbers.

    Least squares over the launches' means; Student's t with launches - 2 degrees of freedom. values: as of
    `fit_sizes`. Unknown, with the reason, where there are too few launches.
    """
    common = _find_common(values)
    if isinstance(common, str):
        return unknown(common)
    _, launches, table = common
    y = table.mean(axis=0)
    x = np.array(launches, dtype=np.float64) - float(np.mean(launches))
    squares, count = float(x @ x), len(launches)
    slope = float(x @ y) / squares
    rest = y - y.mean() - slope * x
    error = math.sqrt(float(rest @ rest) / (count - 2) / squares)
    if error <= ROUNDING * max(float(np.abs(y).max()), 1.0):
        why = "the launches lie on a line: nothing tells how they vary"
        return Estimate(slope, n=count, reason=why, launches=count)
    return compute_student_interval(slope, error, count - 2, count, basis=f"over {count} launches", launches=count)


def _estimate_mean(value: float, half: float | None, launches: int) -> Estimate:
    """half: of its interval; None = the launches do not differ."""
    if half is None:
        return Estimate(value, n=launches, reason=ALL_AGREE, launches=launches)
    return Estimate(value, value - half, value + half, launches, None, f"over {launches} launches", launches)


def _pool_variances(y: Samples) -> tuple[Samples, Samples]:
    """Per size, the variance of one launch around the size's mean, and its degrees of freedom."""
    count, launches = y.shape
    by_size = y.var(axis=1, ddof=1)
    pooled, degrees = _pool_all(y)
    variances, freedom = np.full(count, pooled), np.full(count, degrees)
    for index in range(count if count > 1 else 0):
        others = float(np.delete(by_size, index).mean())
        if others > 0 and special.fdtrc(launches - 1, degrees, by_size[index] / others) < LEVEL_OF_F:
            variances[index], freedom[index] = by_size[index], launches - 1
    return variances, freedom


def _pool_all(y: Samples) -> tuple[float, float]:
    """Over all sizes, the variance of one launch around a size's mean, and its degrees of freedom (Satterthwaite)."""
    count, launches = y.shape
    pooled = float(y.var(axis=1, ddof=1).mean())
    if count < 2 or pooled <= 0:
        return pooled, float(launches - 1)
    shared = float(y.mean(axis=0).var(ddof=1))  # holds a part of the rest too
    rest = max(pooled - shared, 0.0)
    return pooled, pooled**2 / (shared**2 / (launches - 1) + rest**2 / ((count - 1) * (launches - 1)))


def _measure_spread(y: Samples) -> LaunchSpread | None:
    pooled, degrees = _pool_all(y)
    if pooled <= (ROUNDING * max(float(np.abs(y).max()), 1.0)) ** 2:
        return None
    low, high = bound_sigma(pooled, degrees)
    return LaunchSpread(math.sqrt(pooled), low, high, degrees, y.shape[1], y.shape[0])


def estimate_mean_over_launches(values: Sequence[float | None]) -> Estimate:
    """The mean of one number per launch with Student's t interval; none below three launches."""
    known = [value for value in values if value is not None]
    if not known:
        return unknown("not measured")
    value, launches = math.fsum(known) / len(known), len(known)
    if launches < MIN_PAIRED or launches < len(values):
        why = f"{launches} of {len(values)} launches have this number"
        return Estimate(value, n=launches, reason=why, launches=launches)
    if all_agree(known):
        return _estimate_mean(value, None, launches)
    return replace(mean(known), basis=f"over {launches} launches", launches=launches)


def merge_launches(each: Sequence[Estimate]) -> Estimate:
    """`estimate_mean_over_launches` of one estimate per launch; where launches lack the value, with their reasons."""
    merged = estimate_mean_over_launches([one.value for one in each])
    why = "; ".join(dict.fromkeys(one.reason for one in each if one.value is None and one.reason))
    if not why:
        return merged
    return replace(merged, reason=why if merged.value is None else f"{merged.reason}: {why}")
