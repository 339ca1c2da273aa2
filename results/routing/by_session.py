"""Means, shares and percentiles of rows of a decision log, with replicates that resample the rows' sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from results.routing.measure import Measurements
from results.routing.points import ratios
from results.statistics.estimates import Ranks, Samples, samples_needed, too_small, weighted_quantiles
from results.statistics.trials import MIN_PAIRED, Measured, Trial, unmeasured

Replicates = Callable[[Ranks, Samples], Samples]
"""From the rows' groups and the weights of the groups (draws x groups) to a value per draw."""


def ratio(sessions: Sequence[str], top: Samples, bottom: Samples, measurements: Measurements) -> Trial | None:
    """sum(top) / sum(bottom) over the rows that have both; None where that is nothing. A mean where bottom is 1."""
    known = np.isfinite(top) & np.isfinite(bottom)
    above, below = top[known], bottom[known]
    if not below.sum() > 0:
        return None
    own = [name for name, has in zip(sessions, known, strict=True) if has]
    found = replicated(own, measurements, lambda group, weights: ratios(above, below, group, weights))
    return Trial(float(above.sum() / below.sum()), int(known.sum()), found)


def quantile(sessions: Sequence[str], values: Samples, p: float, measurements: Measurements) -> Trial | None:
    """The p-quantile of the rows that have a value; None where none has."""
    known = np.isfinite(values)
    own = [name for name, has in zip(sessions, known, strict=True) if has]
    found = values[known]
    if not found.size:
        return None
    if found.size < samples_needed(p):
        return Trial(float(np.quantile(found, p)), int(found.size), lambda: too_small(int(found.size), p))
    draws = replicated(own, measurements, lambda group, weights: weighted_quantiles(found, p, group, weights))
    return Trial(float(np.quantile(found, p)), int(found.size), draws)


def replicated(
    sessions: Sequence[str], measurements: Measurements, replicates: Replicates
) -> Callable[[], Samples | str]:
    """The draws of a Trial whose rows are of these sessions."""

    def draws() -> Samples | str:
        weights, group = measurements.weights(), measurements.groups(sessions)
        if isinstance(weights, str) or isinstance(group, str):
            return weights if isinstance(weights, str) else str(group)
        return replicates(group, weights)

    return draws


def over_trials(found: Mapping[int, Trial | None], why: str) -> Measured:
    """The trials that have the number; `why` none has."""
    known = {trial: one for trial, one in found.items() if one is not None}
    return Measured(known) if known else unmeasured(why)


def once(value: float | None, n: int = 1) -> Trial | None:
    """A number that a whole cell has one of."""
    if value is None:
        return None
    return Trial(value, n, lambda: f"one number per trial: an interval needs {MIN_PAIRED} trials")
