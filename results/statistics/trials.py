"""Numbers that were measured once per trial, and the estimates computed from them.

A trial is a block in which every config has its turn on fresh engines under the same arrivals and prompts, so configs
are compared inside a trial. From three trials on, the spread of a comparison over trials gives its interval (Student's
t): it holds what varies between launches, over time and inside the cells. Numbers of one load that were compared
together (results.statistics.blocks) have joint draws, which then give value and interval. With fewer trials, the bounds
are the spread within the launches: a bootstrap within the cells, drawn jointly (draw k of every number that depends on
a cell uses the same resampling of that cell). No verdict rests on such a spread (results.statistics.judgement).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.records.estimate import Estimate, unknown
from results.statistics.estimates import (
    ALL_AGREE,
    LEVEL,
    Samples,
    all_agree,
    bound_draws,
    compute_student_interval,
    compute_student_p,
    compute_student_quantile,
    standard_error,
)

MIN_PAIRED = 3
"""From this many trials on, their spread gives the interval."""

SPREAD = "spread within the launch"
"""What the brackets of one launch hold; never called an interval where configs are compared."""

Draws = Callable[[], Samples | str]
"""Bootstrap replicates of a value, all of one length; or why there are none."""


@dataclass(frozen=True, slots=True)
class Trial:
    value: float
    n: int
    """Samples behind it; of several cells, the fewest."""
    draws: Draws
    """Called only where an interval within the trial is needed."""


@dataclass(frozen=True, slots=True)
class Joint:
    """A number out of a comparison of all configs over all launches."""

    comparison: Hashable
    """Draws of one comparison belong together; those of two do not."""
    value: float
    draws: Samples


@dataclass(frozen=True, slots=True)
class Measured:
    trials: Mapping[int, Trial]
    reason: str = ""
    """Why it has no trial, or lacks one."""
    joint: Joint | None = None
    """Over all trials; None where it comes from no comparison, or from two."""
    no_interval: str = ""
    """Why its trials give no interval, whatever their number; empty = they may."""

    @property
    def values(self) -> Samples:
        """One per trial, in their order."""
        return np.array([trial.value for trial in self.trials.values()])


def unmeasured(reason: str) -> Measured:
    return Measured({}, reason)


def combine(compute: Callable[..., Samples], *parts: Measured) -> Measured:
    """`compute` of the parts, trial by trial, in the trials that have them all.

    `compute` takes as many float64 arrays as there are parts, of one length, and works element by element.
    """
    lacking = [part.reason for part in parts if not part.trials]
    if lacking:
        return unmeasured(lacking[0])
    common = sorted(frozenset.intersection(*(frozenset(part.trials) for part in parts)))
    reason = "; ".join(dict.fromkeys(part.reason for part in parts if part.reason))
    if not common:
        lacking_cells = "no trial has every cell it needs"
        return unmeasured(f"{lacking_cells}: {reason}" if reason else lacking_cells)
    trials = {number: _combine_trial(compute, [part.trials[number] for part in parts]) for number in common}
    no_interval = next((part.no_interval for part in parts if part.no_interval), "")
    return Measured(trials, reason, _combine_joint(compute, [part.joint for part in parts]), no_interval)


def _combine_joint(compute: Callable[..., Samples], parts: Sequence[Joint | None]) -> Joint | None:
    joint = [part for part in parts if part is not None]
    if len(joint) < len(parts) or len({part.comparison for part in joint}) > 1:
        return None
    value = compute(*(np.array([part.value]) for part in joint))
    return Joint(joint[0].comparison, float(value[0]), compute(*(part.draws for part in joint)))


def _combine_trial(compute: Callable[..., Samples], parts: list[Trial]) -> Trial:
    def draws() -> Samples | str:
        drawn = [part.draws() for part in parts]
        why = [part for part in drawn if isinstance(part, str)]
        return why[0] if why else compute(*drawn)

    value = compute(*(np.array([part.value]) for part in parts))
    return Trial(float(value[0]), min(part.n for part in parts), draws)


def estimate(measured: Measured, level: float = LEVEL) -> Estimate:
    """The mean over the trials, or the joint value, with its interval; `basis` says what the interval holds."""
    if not measured.trials:
        return unknown(measured.reason)
    values = measured.values
    if values.size < MIN_PAIRED:
        return resampled(measured, level)
    value, n = float(values.mean()), _count_samples(measured)
    if measured.joint is not None:
        low, high = bound_draws(measured.joint.draws, level)
        by_itself = f"over {values.size} launches, by itself"
        return Estimate(measured.joint.value, low, high, n, measured.reason or None, by_itself, values.size)
    why = measured.no_interval or (ALL_AGREE if all_agree(values) else "")
    if why:
        return Estimate(value, n=n, reason=why, basis=basis(measured), launches=values.size)
    return compute_student_interval(
        value, standard_error(values), values.size - 1, n, level=level, reason=measured.reason or None,
        basis=basis(measured), launches=values.size,
    )  # fmt: skip


def resampled(measured: Measured, level: float = LEVEL) -> Estimate:
    """The mean over the trials with the interval that the draws within them give, however many trials there are."""
    if not measured.trials:
        return unknown(measured.reason)
    value, n, launches = float(measured.values.mean()), _count_samples(measured), len(measured.trials)
    draws = _average_draws(measured)
    if isinstance(draws, str):
        return Estimate(value, n=n, reason=draws, launches=launches)
    low, high = bound_draws(draws, level)
    return Estimate(value, low, high, n, measured.reason or None, basis(measured), launches)


def share(part: Measured, whole: Measured, name: str) -> Estimate:
    """mean(part) / mean(whole), a fraction, over the trials that have both; `name`: of the whole, for reasons.

    Its interval holds every fraction f at which mean(part - f whole) is not distinguishable from zero (Fieller), so
    that it agrees with a test of that difference; two numbers of one comparison have the interval of their joint draws.
    Where the whole is not above zero there is no interval, and `reason` says so.
    """
    both = combine(np.subtract, part, whole)
    if not both.trials:
        return unknown(both.reason)
    top, bottom = (
        Measured({number: of.trials[number] for number in both.trials}, both.reason, of.joint, of.no_interval)
        for of in (part, whole)
    )
    base = estimate(bottom)
    if base.value is None or base.value <= 0:
        return unknown(f"{name} is not above zero: a share of it says nothing", base.n)
    launches = len(both.trials)
    joint = _combine_joint(np.divide, (top.joint, bottom.joint)) if launches >= MIN_PAIRED else None
    value = float(top.values.mean()) / base.value if joint is None else joint.value
    if base.low is None:
        return Estimate(value, n=base.n, reason=base.reason, launches=launches)
    if base.low <= 0:
        zero = "is not distinguishable from zero" if launches >= MIN_PAIRED else "may be zero by its spread"
        why = f"{name} {zero}: a share of it says nothing"
        return Estimate(value, n=base.n, reason=why, basis=base.basis, launches=launches)
    bounds = _bound_share(top, bottom, joint)
    if isinstance(bounds, str):
        return Estimate(value, n=base.n, reason=bounds, launches=launches)
    return Estimate(value, *bounds, base.n, base.reason, base.basis, launches)


def _bound_share(part: Measured, whole: Measured, joint: Joint | None) -> tuple[float, float] | str:
    """Bounds where the whole is above zero: its draws that are not are few, and outside its interval."""
    if joint is not None and whole.joint is not None:
        return bound_draws(joint.draws[whole.joint.draws > 0])
    if len(part.trials) >= MIN_PAIRED:
        return _compute_fieller_bounds(part.values, whole.values)
    draws, base_draws = _average_draws(part), _average_draws(whole)
    if isinstance(draws, str):
        return draws
    if isinstance(base_draws, str):
        return base_draws
    above = base_draws > 0
    return bound_draws(draws[above] / base_draws[above])


def p_value(measured: Measured, none: float = 0.0) -> float | None:
    """Two-sided, of the value being `none`: by the joint draws, Student's t or the draws, as in `estimate`.

    None where there is no interval. Draws give no p below 2 / (draws + 1).
    """
    values = measured.values - none
    if values.size < MIN_PAIRED:
        draws = _average_draws(measured) if values.size else ""
        return None if isinstance(draws, str) else _compute_draws_p(draws - none)
    if measured.joint is not None:
        return _compute_draws_p(measured.joint.draws - none)
    if measured.no_interval:
        return None
    if not values.any():
        return 1.0
    if all_agree(values):  # without a spread only the signs count (sign test)
        return float(2.0 ** (1 - values.size))
    return compute_student_p(float(values.mean()), standard_error(values), values.size - 1)


def _compute_draws_p(draws: Samples) -> float:
    finite = draws[np.isfinite(draws)]
    beyond = min(int((finite <= 0).sum()), int((finite >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (finite.size + 1))


def basis(measured: Measured) -> str:
    """What the bounds of a comparison hold."""
    count = len(measured.trials)
    if count >= MIN_PAIRED:
        return f"paired over {count} trials"
    return SPREAD if count == 1 else f"spread within {count} launches"


def _count_samples(measured: Measured) -> int:
    return sum(trial.n for trial in measured.trials.values())


def _average_draws(measured: Measured) -> Samples | str:
    """Replicates of the mean over the trials, or why there are none."""
    drawn = [trial.draws() for trial in measured.trials.values()]
    why = [draws for draws in drawn if isinstance(draws, str)]
    return why[0] if why else np.mean(np.stack([draws for draws in drawn if not isinstance(draws, str)]), axis=0)


def _compute_fieller_bounds(part: Samples, whole: Samples) -> tuple[float, float]:
    """Bounds f where |mean(part - f whole)| = t standard errors; the mean of `whole` is distinguishable from zero."""
    square = compute_student_quantile(part.size - 1) ** 2 / part.size
    var_part, both, _, var_whole = (square * np.cov(part, whole)).ravel()
    top, bottom = float(part.mean()), float(whole.mean())
    a, b, c = bottom**2 - var_whole, top * bottom - both, top**2 - var_part
    root = math.sqrt(max(b * b - a * c, 0.0))
    return float((b - root) / a), float((b + root) / a)
