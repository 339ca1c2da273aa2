"""Estimates from pairs: a handover and the same request on a combined instance, in either order.

The second request of a pair meets the machine in the state that the first one left. So each size is measured in both
orders, and its estimate is the unweighted mean of the means of both orders: an order effect cancels, and half the
difference of the means is that effect. This is least squares with a column of +1 and -1, whose constant has n - 2
degrees of freedom.

TTFT does not depend on the output length, so a (C, N) is judged over all output lengths. They are separate cells: where
the lengths vary more than the repetitions within them, repetitions are not independent values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.pd_lifecycle.by_launch import Size, read_size, split_launches
from results.records.estimate import Estimate, unknown
from results.records.lifecycle import PLAIN_OVERHEAD, LifecycleRecord
from results.statistics.estimates import (
    LEVEL,
    Samples,
    compute_student_interval,
    compute_student_p,
    compute_student_quantile,
    correct_by_holm,
    mean,
)
from results.statistics.launch_fit import estimate_mean_over_launches
from results.statistics.trials import MIN_PAIRED

OVERHEAD, TTFT, COMBINED, PLAIN = "pdsep_overhead", "client_ttft", "colo_ttft", "plain_ttft"
PAIRED = (OVERHEAD, TTFT, COMBINED)
"""Names of the numbers that are estimated from pairs of the handover and the decode engine alone."""
PAIRED_WITH_PLAIN = (PLAIN_OVERHEAD, TTFT, PLAIN)
"""The same of the handover and the plain combined engine."""
ONE_ORDER = "one order only, or the order is unknown: the value includes the effect of the first request on the second"
_ORDERS = {None: 0, True: 1, False: -1}
_MIN_DOF = 4
"""Within the lengths, to use an F: with fewer its mean has no stable value."""


@dataclass(frozen=True, slots=True)
class Balanced:
    """The estimate for one size, both orders weighted equally."""

    mean: Estimate
    dof: int
    """Degrees of freedom of the interval; 0 = no interval."""
    order: Estimate
    """Combined first minus handover first; unknown with one order."""

    @property
    def p(self) -> float:
        """Two-sided p-value of a zero mean; 1 without an interval. Never 0: of pairs that all agree the sign test's."""
        value, high = self.mean.value, self.mean.high
        if value is None or high is None or self.dof < 1:
            return 1.0
        error = (high - value) / compute_student_quantile(self.dof)
        if error > 0:
            return compute_student_p(value, error, self.dof)
        return 2.0 ** (1 - self.mean.n) if value else 1.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """The F test whether output lengths of one (C, N) differ by more than their repetitions."""

    f: float | None
    """Variance between lengths over variance within; about 1 where they do not differ. None = too few values."""
    p: float | None
    within_dof: int = 0


@dataclass(frozen=True, slots=True)
class OrderEffect:
    """The increase of a number where the combined request comes first."""

    name: str
    """One of PAIRED."""
    prior_context: int | None
    """None: over the whole grid."""
    effect_ms: Estimate
    """Mean over the (C, N), `n` of them. From three launches on: those that every launch has in both orders, with
    Student's t over the launches; below three: Student's t over the (C, N)."""


def collect_pairs(
    records: Sequence[LifecycleRecord], name: str, *, plain: bool = False
) -> tuple[Samples, Samples, Samples]:
    """(value, order, output length) of the records where the value is known, as arrays.

    name: a duration, or `colo_ttft`, `colo_e2e` or `plain_ttft`. Order: +1 = the combined engine (plain: the plain one)
    first, -1 = handover first, 0 = unknown.
    """
    rows = [
        (value, _ORDERS[record.plain.first if plain else record.colo.first], record.config.output_length)
        for record in records
        if (value := value_of(record, name)) is not None
    ]
    columns = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


def value_of(record: LifecycleRecord, name: str) -> float | None:
    """A duration, or the TTFT or E2E of a combined engine, by its name."""
    alone = {COMBINED: record.colo.ttft_ms, "colo_e2e": record.colo.e2e_ms, PLAIN: record.plain.ttft_ms}
    return alone[name] if name in alone else record.ms(name)


def balance_orders(taken: Samples, order: Samples) -> Balanced:
    """The unweighted mean of the means of both orders, with its interval; with one order, its mean."""
    if not _has_both_orders(order):
        return Balanced(replace(mean(taken), basis=ONE_ORDER), max(taken.size - 1, 0), unknown(ONE_ORDER, taken.size))
    early, late = taken[order > 0], taken[order < 0]
    value, effect, dof = float(early.mean() + late.mean()) / 2, float(early.mean() - late.mean()), taken.size - 2
    if dof < 1:
        why = "one pair in each order has no interval"
        return Balanced(Estimate(value, n=taken.size, reason=why), 0, Estimate(effect, n=taken.size, reason=why))
    squares = float(((early - early.mean()) ** 2).sum() + ((late - late.mean()) ** 2).sum())
    error = math.sqrt(squares / dof * (1 / early.size + 1 / late.size)) / 2
    basis = f"{early.size} pairs combined first, {late.size} handover first"
    order_effect = compute_student_interval(effect, 2 * error, dof, taken.size)
    return Balanced(compute_student_interval(value, error, dof, taken.size, basis=basis), dof, order_effect)


def balance_pairs(records: Sequence[LifecycleRecord], name: str, *, plain: bool = False) -> Balanced:
    """`balance_orders` of what `collect_pairs` takes from these records."""
    taken, order, _ = collect_pairs(records, name, plain=plain)
    return balance_orders(taken, order)


def _has_both_orders(order: Samples) -> bool:
    """Whether both orders occur, and the order of every pair is known."""
    return bool((order > 0).any() and (order < 0).any() and (order != 0).all())


def widen_interval(balanced: Balanced, inflation: float) -> Balanced:
    """Widen the interval to errors with `inflation` times the variance."""
    value, low, high = balanced.mean.value, balanced.mean.low, balanced.mean.high
    if value is None or low is None or high is None:
        return balanced
    by = math.sqrt(inflation)
    widened = replace(balanced.mean, low=value - by * (value - low), high=value + by * (high - value))
    return replace(balanced, mean=widened)


def average_lengths(taken: Samples, order: Samples, length: Samples) -> Balanced:
    """The mean over the estimates of the output lengths, with Student's t over the lengths."""
    own = [balance_orders(taken[length == one], order[length == one]).mean.value for one in np.unique(length)]
    estimate = mean([value for value in own if value is not None])
    basis = f"over {len(own)} output lengths, which differ"
    return Balanced(replace(estimate, basis=basis), max(len(own) - 1, 0), balance_orders(taken, order).order)


def compare_output_lengths(taken: Samples, order: Samples, length: Samples) -> Lengths:
    """The F test of the output lengths, with the order effect removed."""
    groups = np.unique(length)
    if len(groups) < 2:
        return Lengths(None, None)
    column = [order] if _has_both_orders(order) else []
    rough = np.column_stack([np.ones(taken.size), *column])
    fine = np.column_stack([*((length == one).astype(np.float64) for one in groups), *column])
    between, within = len(groups) - 1, taken.size - fine.shape[1]
    if within < 1:
        return Lengths(None, None)
    left, still = _sum_residual_squares(rough, taken), _sum_residual_squares(fine, taken)
    if still <= 1e-18 * max(float((taken**2).sum()), 1.0):
        return Lengths(None, None)
    f = (left - still) / between / (still / within)
    return Lengths(f, float(special.fdtrc(between, within, f)), within)


def _sum_residual_squares(design: Samples, taken: Samples) -> float:
    solution = np.linalg.lstsq(design, taken, rcond=None)[0]
    return float(((taken - design @ solution) ** 2).sum())


def estimate_variance_inflation(lengths: Sequence[Lengths]) -> float:
    """Variance of a mean over the variance for independent values, from all (C, N) together; at least 1.

    Each F is divided by its mean where the lengths do not differ, dof / (dof - 2).
    """
    ratios = [one.f * (one.within_dof - 2) / one.within_dof for one in lengths if one.f and one.within_dof >= _MIN_DOF]
    return max(1.0, float(np.mean(ratios))) if ratios else 1.0


def judge_length_differences(lengths: Sequence[Lengths]) -> tuple[bool, ...]:
    """Where the lengths differ significantly, all (C, N) tested (Holm)."""
    return tuple(p < 1 - LEVEL for p in correct_by_holm([1.0 if one.p is None else one.p for one in lengths]))


def measure_order_effects(records: Sequence[LifecycleRecord]) -> tuple[OrderEffect, ...]:
    """The effects of the counted records over the grid, then at each C."""
    launches = split_launches(records)
    whole = [record for own in launches.values() for record in own]
    groups = list(launches.values()) if len(launches) >= MIN_PAIRED else [whole]
    contexts = sorted({record.config.prior_context for record in whole})
    order_effects = []
    for name in PAIRED:
        each = [_measure_order(own, name) for own in groups]
        for context in (None, *contexts) if len(contexts) > 1 else (None,):
            order_effects.append(OrderEffect(name, context, _average_order(each, context)))
    return tuple(order_effects)


def _measure_order(records: Sequence[LifecycleRecord], name: str) -> Mapping[Size, float]:
    """The order effect at each (C, N) that has both orders."""
    sizes: dict[Size, list[LifecycleRecord]] = {}
    for record in records:
        sizes.setdefault(read_size(record), []).append(record)
    effects = {size: balance_pairs(sizes[size], name).order.value for size in sorted(sizes)}
    return {size: value for size, value in effects.items() if value is not None}


def _average_order(each: Sequence[Mapping[Size, float]], context: int | None) -> Estimate:
    """each: the effects of each launch; or of all repetitions alike, whose mean over the (C, N) has a spread."""
    known = [{size: value for size, value in one.items() if context in (None, size[0])} for one in each]
    if not any(known):
        return unknown(ONE_ORDER)
    if len(known) < MIN_PAIRED:
        return mean(list(known[0].values()))
    common = sorted(set.intersection(*map(set, known)))
    if not common:
        return unknown("no (C, N) has both orders in every launch")
    return replace(estimate_mean_over_launches([fmean(own[size] for size in common) for own in known]), n=len(common))
