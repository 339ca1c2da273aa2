"""Whether latencies moved over the run for reasons that have nothing to do with a config.

Each config's repeats under the same load give its slope of the logarithm of a latency over time, in which differences
between configs and between loads cancel. The run's slope is the mean of these, weighted by the time between the
repeats. The spread of the configs' slopes gives the interval (jackknife over configs, Student's t), so that the
difference of two launches of one config counts as noise and not as drift.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from results.records.estimate import Estimate, unknown
from results.statistics.estimates import Samples, compute_student_quantile
from results.statistics.judgement import Verdict, judged, withheld

MIN_CONFIGS = 4
"""From this many configs on, their spread gives a reliable interval."""
_LARGEST = 700.0
"""Largest logarithm; exp of more than about 709 overflows."""


class DriftVerdict(StrEnum):
    """What the interval of the slope says."""

    DETECTED = "detected"
    NOT_DETECTED = "not detected"
    NOT_TESTABLE = "not testable"


@dataclass(frozen=True, slots=True)
class Drift:
    """How one latency moved over the run, all configs together."""

    series: str
    """What drifts, e.g. `ttft_p50_s`."""
    slope_per_h: Estimate
    """Relative change per hour: 0.02 = 2 % slower an hour later; n counts cells."""
    span_h: float | None
    """From the first to the last cell that takes part."""
    verdict: DriftVerdict
    """Whether the interval excludes 0."""
    reason: str
    """The cells that it rests on, or why it cannot be tested."""


def estimate_drift(
    series: str,
    groups: Mapping[str, Sequence[Sequence[tuple[float, float]]]],
    what: str,
    *,
    short: str,
    kind: str = "configs",
    least: int = MIN_CONFIGS,
) -> Drift:
    """The drift of values (above 0) that repeat one another: (seconds, value), in groups of one config.

    what: the repeats, in words; short: what too few configs have, in words; kind: what the groups are called;
    least: the fewest groups that give an interval.
    """
    used = [value for repeats in groups.values() for values in repeats for value in values]
    pieces = [(config, *_fit_slope(repeats)) for config, repeats in sorted(groups.items())]
    pieces = [(config, slope, weight) for config, slope, weight in pieces if weight > 0]
    if len(pieces) < least:
        why = f"{len(pieces)} of the {short}; it needs {least}"
        return Drift(series, unknown(why, len(used)), None, DriftVerdict.NOT_TESTABLE, why)
    times = [at for at, _ in used]
    slopes, weights = (np.array(column) for column in list(zip(*pieces, strict=True))[1:])
    slope = _average_slopes(slopes, weights, len(used), kind)
    reason = f"{len(used)} cells of {len(pieces)} {kind}, {what}"
    if why := withheld(slope):
        reason = f"{reason}; {why}"
    return Drift(series, slope, (max(times) - min(times)) / 3600, _name_verdict(judged(slope)), reason)


def _name_verdict(verdict: Verdict | None) -> DriftVerdict:
    if verdict is None:
        return DriftVerdict.NOT_TESTABLE
    return DriftVerdict.NOT_DETECTED if verdict == Verdict.NOT_DISTINGUISHABLE else DriftVerdict.DETECTED


def _fit_slope(groups: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """Slope of log(latency) per hour within the groups, and the sum of squared hours it rests on."""
    products = squares = 0.0
    for values in groups:
        hours, logs = np.array(values, dtype=np.float64).T
        hours, logs = hours / 3600, np.log(logs)
        hours -= hours.mean()
        products += float(hours @ (logs - logs.mean()))
        squares += float(hours @ hours)
    return (products / squares if squares > 0 else 0.0), squares


def _average_slopes(slopes: Samples, weights: Samples, n: int, kind: str) -> Estimate:
    """The weighted mean of the configs' slopes with its jackknife interval, as a relative change per hour."""
    count, part = slopes.size, weights / weights.sum()
    mean = float(part @ slopes)
    left_out = part * (slopes - mean) / (1 - part)  # how far the mean moves without this config
    error = math.sqrt(float(left_out @ left_out) * (count - 1) / count)
    half = compute_student_quantile(count - 1) * error
    low, value, high = (math.expm1(min(one, _LARGEST)) for one in (mean - half, mean, mean + half))
    if half <= 0:
        reason = f"the slopes of all {kind} agree: nothing tells how they vary"
        return Estimate(value, n=n, reason=reason, launches=count)
    return Estimate(value, low, high, n, basis=f"over {count} {kind}", launches=count)
