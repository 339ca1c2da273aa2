"""Numbers of a lifecycle run per launch: the engines of one trial, which no other trial shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from results.records.frames import Gap
from results.records.lifecycle import LifecycleRecord
from results.statistics.trials import MIN_PAIRED

Size = tuple[int, int]
"""C, N."""
RatioOf = Callable[[LifecycleRecord], float | None]
"""A ratio of two durations of one repetition; None = one of them is unknown."""


@dataclass(frozen=True, slots=True)
class IncompleteLaunch:
    """A launch that takes no part in what is compared over launches."""

    trial: int
    """From 0."""
    measured: int
    """(C, N) with a counted request."""
    of: int
    """(C, N) that at least one launch measured."""

    @property
    def gap(self) -> Gap:
        why = f"has {self.measured} of {self.of} (C, N): left out of what is compared over launches"
        return Gap(f"launch {self.trial + 1}", f"{why} (trial {self.trial} in the files)")


def find_incomplete_launches(records: Sequence[LifecycleRecord]) -> tuple[IncompleteLaunch, ...]:
    """The launches to leave out: those with fewer than half of the (C, N), if three others remain; else none.

    A size is compared only if every launch measured it, so one short launch would cost all others their sizes. The rule
    reads which (C, N) have a counted request, and no measured value.
    """
    sizes = {trial: {read_size(record) for record in own} for trial, own in split_launches(records).items()}
    total = len({size for own in sizes.values() for size in own})
    short = tuple(IncompleteLaunch(trial, len(own), total) for trial, own in sizes.items() if 2 * len(own) < total)
    return short if len(sizes) - len(short) >= MIN_PAIRED else ()


def drop_launches(
    records: Sequence[LifecycleRecord], left_out: Sequence[IncompleteLaunch]
) -> tuple[LifecycleRecord, ...]:
    trials = {one.trial for one in left_out}
    return tuple(record for record in records if record.trial not in trials)


def read_size(record: LifecycleRecord) -> Size:
    return record.config.prior_context, record.config.current_new_tokens


def split_launches(records: Sequence[LifecycleRecord]) -> Mapping[int, tuple[LifecycleRecord, ...]]:
    """The counted records of each trial, in their order."""
    launches: dict[int, list[LifecycleRecord]] = {}
    for record in records:
        if record.counted:
            launches.setdefault(record.trial, []).append(record)
    return {trial: tuple(launches[trial]) for trial in sorted(launches)}


def measure_log_ratios(
    records: Sequence[LifecycleRecord],
    ratio_of: RatioOf,
    first_of: Callable[[LifecycleRecord], bool | None] | None = None,
) -> Mapping[Size, Mapping[int, float]]:
    """Per (C, N) and launch, the logarithm of the median ratio over all output lengths and counted repetitions.

    first_of: whether the other request of a repetition came first. Where both orders occur, the value is the mean of
    the medians of both orders, in which an effect of the order cancels.
    """
    logs: dict[Size, dict[int, dict[bool | None, list[float]]]] = {}
    for record in records:
        ratio = ratio_of(record) if record.counted else None
        if ratio is not None and ratio > 0:
            order = None if first_of is None else first_of(record)
            own = logs.setdefault(read_size(record), {}).setdefault(record.trial, {})
            own.setdefault(order, []).append(math.log(ratio))
    return {
        size: {trial: _balance_medians(orders) for trial, orders in launches.items()}
        for size, launches in sorted(logs.items())
    }


def _balance_medians(orders: Mapping[bool | None, Sequence[float]]) -> float:
    if set(orders) == {True, False}:
        return (median(orders[True]) + median(orders[False])) / 2
    return median([value for values in orders.values() for value in values])
