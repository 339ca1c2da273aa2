"""Student's intervals over launches at other levels than LEVEL.

A rule over several numbers has a p like a single number: 1 less the highest level up to which it decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from results.records.estimate import Estimate
from results.statistics.estimates import LEVEL, compute_student_p, compute_student_quantile
from results.statistics.judgement import Outcome, withheld

LEAST_P = 1e-6
"""The lowest p that `find_p_of_rule` returns."""
LARGEST = 600.0
"""Largest logarithm; exp of more than about 709 overflows."""
HALVINGS = 40


def find_p_value(estimate: Estimate, none: float) -> float | None:
    """Two-sided p of the value being `none`, from its Student interval over launches.

    Of a ratio (none = 1) by logarithms. None where no verdict may rest on the estimate. The bound on the side of `none`
    gives the error, so that interval and p agree: the other one may be cut at the number's limit (R^2 at 1).
    """
    if withheld(estimate) or estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    points = [estimate.low, estimate.value, estimate.high]
    low, value, high = [math.log(point) for point in points] if none == 1.0 else [point - none for point in points]
    freedom = estimate.launches - 1
    error = (value - low if value > 0 else high - value) / compute_student_quantile(freedom)
    if error <= 0:  # sign test
        return 2.0 ** (1 - estimate.launches) if value else 1.0
    return compute_student_p(value, error, freedom)


def change_level(estimate: Estimate, level: float, *, is_ratio: bool = False) -> Estimate:
    """The estimate with its interval over launches at this level. `is_ratio`: by logarithms.

    A bound that was cut at the number's limit is taken as it is. Without an interval over launches the estimate is
    unchanged.
    """
    if withheld(estimate) or estimate.value is None or estimate.low is None or estimate.high is None:
        return estimate
    freedom = estimate.launches - 1
    if estimate.low == estimate.high and 1 - level < 2.0**-freedom:
        return replace(estimate, low=None, high=None)  # launches that all agree: the sign test cannot reach the level
    if level == LEVEL:
        return estimate
    by = compute_student_quantile(freedom, level) / compute_student_quantile(freedom)
    if is_ratio:
        logs = (by * math.log(bound / estimate.value) for bound in (estimate.low, estimate.high))
        low, high = (estimate.value * math.exp(max(-LARGEST, min(one, LARGEST))) for one in logs)
    else:
        low, high = (estimate.value + by * (bound - estimate.value) for bound in (estimate.low, estimate.high))
    return replace(estimate, low=low, high=high)


def find_p_of_rule(outcome_at: Callable[[float], Outcome]) -> float:
    """1 less the highest level up to which a rule over intervals decides as at LEVEL; 1 where it is undecided there.

    `outcome_at`: applies the rule to its numbers at a level.
    """
    outcome = outcome_at(LEVEL)
    if not outcome.is_decided:
        return 1.0
    low, high = LEAST_P, 1 - LEVEL
    if outcome_at(1 - low) == outcome:
        return low
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if outcome_at(1 - middle) == outcome else (middle, high)
    return high
