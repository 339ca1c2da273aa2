"""Pairs of a handover and the same request on a combined instance, of which either may have come first.

Whichever of the two comes second finds the machine as the first one left it. A size is measured in both orders, and
what it takes is the unweighted mean of the two orders' means: an effect of the order cancels, and half the difference
of the means is that effect. That is least squares with a column of +1 and -1, whose constant has n - 2 degrees of
freedom.

TTFT does not depend on how much is generated, so a (C, N) is judged over all output lengths. They are separate cells
nevertheless: where the lengths spread more than the repetitions within them, repetitions are no independent values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.lifecycle.record import LifecycleRecord
from results.statistics import LEVEL, Estimate, Samples, holm, mean, unknown

OVERHEAD, TTFT, COMBINED = "pdsep_overhead", "client_ttft", "colo_ttft"
PAIRED = (OVERHEAD, TTFT, COMBINED)
"""What is estimated from pairs, by name."""
ONE_ORDER = "one order only, or which came first is not known: what the second of a pair owes to the first is in it"
_MIN_DOF = 4
"""Of the spread within the lengths: with fewer the mean of F is not what it says."""


@dataclass(frozen=True, slots=True)
class Balanced:
    """What one size takes, both orders alike."""

    mean: Estimate
    dof: int
    """Of its interval; 0 = there is none."""
    order: Estimate
    """Combined first less handover first; unknown where there was one order."""

    @property
    def p(self) -> float:
        """Two-sided, of the mean being zero; 1 where there is no interval."""
        value, high = self.mean.value, self.mean.high
        if value is None or high is None or self.dof < 1:
            return 1.0
        error = (high - value) / float(special.stdtrit(self.dof, (1 + LEVEL) / 2))
        return float(2 * special.stdtr(self.dof, -abs(value) / error)) if error > 0 else float(value == 0)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Whether the output lengths of one (C, N) differ by more than their repetitions."""

    f: float | None
    """Spread between over spread within; about 1 where they do not. None = too few values."""
    p: float | None
    within_dof: int = 0


@dataclass(frozen=True, slots=True)
class OrderEffect:
    """By how much a number is larger where the combined request came first."""

    name: str
    """One of PAIRED."""
    prior_context: int | None
    """None: over the whole grid."""
    effect_ms: Estimate
    """Mean over the (C, N), Student's t over them."""


def paired_values(records: Sequence[LifecycleRecord], name: str) -> tuple[Samples, Samples, Samples]:
    """A number of these records where it is known, +1 or -1 for the order of its pair, and the output length.

    name: a duration, or `colo_ttft` or `colo_e2e`. +1: combined first; 0: which was first is not known.
    """
    rows = [
        (value, 0 if record.colo.first is None else 1 if record.colo.first else -1, record.config.output_length)
        for record in records
        if (value := _number(record, name)) is not None
    ]
    found = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return found[:, 0], found[:, 1], found[:, 2]


def _number(record: LifecycleRecord, name: str) -> float | None:
    colo = {COMBINED: record.colo.ttft_ms, "colo_e2e": record.colo.e2e_ms}
    return colo[name] if name in colo else record.ms(name)


def balanced(taken: Samples, order: Samples) -> Balanced:
    """The unweighted mean of the two orders' means with its interval; of one order alone, its mean."""
    if not _both(order):
        return Balanced(replace(mean(taken), basis=ONE_ORDER), max(taken.size - 1, 0), unknown(ONE_ORDER, taken.size))
    early, late = taken[order > 0], taken[order < 0]
    value, effect, dof = float(early.mean() + late.mean()) / 2, float(early.mean() - late.mean()), taken.size - 2
    if dof < 1:
        why = "one pair in each order has no interval"
        return Balanced(Estimate(value, n=taken.size, reason=why), 0, Estimate(effect, n=taken.size, reason=why))
    squares = float(((early - early.mean()) ** 2).sum() + ((late - late.mean()) ** 2).sum())
    error = math.sqrt(squares / dof * (1 / early.size + 1 / late.size)) / 2
    basis = f"{early.size} pairs combined first, {late.size} handover first"
    return Balanced(_around(value, error, dof, taken.size, basis), dof, _around(effect, 2 * error, dof, taken.size, ""))


def _both(order: Samples) -> bool:
    """Both orders are there, and which it was is known of every pair."""
    return bool((order > 0).any() and (order < 0).any() and (order != 0).all())


def _around(value: float, error: float, dof: int, n: int, basis: str) -> Estimate:
    half = error * float(special.stdtrit(dof, (1 + LEVEL) / 2))
    return Estimate(value, value - half, value + half, n, basis=basis or None)


def widened(found: Balanced, inflation: float) -> Balanced:
    """With an interval for errors of so many times the variance."""
    value, low, high = found.mean.value, found.mean.low, found.mean.high
    if value is None or low is None or high is None:
        return found
    by = math.sqrt(inflation)
    return replace(found, mean=replace(found.mean, low=value - by * (value - low), high=value + by * (high - value)))


def over_lengths(taken: Samples, order: Samples, length: Samples) -> Balanced:
    """The mean over the output lengths' own estimates, with Student's t over them: no repetition counts twice."""
    own = [balanced(taken[length == one], order[length == one]).mean.value for one in np.unique(length)]
    found = mean([value for value in own if value is not None])
    basis = f"over {len(own)} output lengths, which differ"
    return Balanced(replace(found, basis=basis), max(len(own) - 1, 0), balanced(taken, order).order)


def between_lengths(taken: Samples, order: Samples, length: Samples) -> Lengths:
    """The F test of the output lengths, what the order does taken off."""
    groups = np.unique(length)
    if len(groups) < 2:
        return Lengths(None, None)
    column = [order] if _both(order) else []
    rough = np.column_stack([np.ones(taken.size), *column])
    fine = np.column_stack([*((length == one).astype(np.float64) for one in groups), *column])
    between, within = len(groups) - 1, taken.size - fine.shape[1]
    if within < 1:
        return Lengths(None, None)
    left, still = _squares(rough, taken), _squares(fine, taken)
    if still <= 1e-18 * max(float((taken**2).sum()), 1.0):
        return Lengths(None, None)
    f = (left - still) / between / (still / within)
    return Lengths(f, float(special.fdtrc(between, within, f)), within)


def _squares(design: Samples, taken: Samples) -> float:
    solution = np.linalg.lstsq(design, taken, rcond=None)[0]
    return float(((taken - design @ solution) ** 2).sum())


def inflation(found: Sequence[Lengths]) -> float:
    """The variance of a mean over that of independent values, by all (C, N) together; at least 1.

    Each F is divided by what it is on average where the lengths do not differ, dof / (dof - 2).
    """
    ratios = [one.f * (one.within_dof - 2) / one.within_dof for one in found if one.f and one.within_dof >= _MIN_DOF]
    return max(1.0, float(np.mean(ratios))) if ratios else 1.0


def differ(found: Sequence[Lengths]) -> tuple[bool, ...]:
    """Where the lengths surely differ, all (C, N) being asked (Holm)."""
    return tuple(p < 1 - LEVEL for p in holm([1.0 if one.p is None else one.p for one in found]))


def order_effects(sizes: Sequence[Sequence[LifecycleRecord]]) -> tuple[OrderEffect, ...]:
    """Over the grid, then at each C. `sizes`: the counted records of each (C, N)."""
    found = []
    contexts = sorted({own[0].config.prior_context for own in sizes})
    for name in PAIRED:
        effects = [(own[0].config.prior_context, balanced(*paired_values(own, name)[:2]).order.value) for own in sizes]
        for context in (None, *contexts) if len(contexts) > 1 else (None,):
            known = [value for at, value in effects if value is not None and context in (None, at)]
            told = mean(known) if known else unknown(ONE_ORDER)
            found.append(OrderEffect(name, context, told))
    return tuple(found)
