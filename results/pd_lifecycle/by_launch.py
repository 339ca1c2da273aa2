"""Numbers of a lifecycle run per launch: the engines of one trial, which no other trial shares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from results.records.lifecycle import LifecycleRecord

Size = tuple[int, int]
"""C, N."""
RatioOf = Callable[[LifecycleRecord], float | None]
"""A ratio of two durations of one repetition; None = one of them is unknown."""


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
            size = (record.config.prior_context, record.config.current_new_tokens)
            order = None if first_of is None else first_of(record)
            own = logs.setdefault(size, {}).setdefault(record.trial, {})
            own.setdefault(order, []).append(math.log(ratio))
    return {
        size: {trial: _balance_medians(orders) for trial, orders in launches.items()}
        for size, launches in sorted(logs.items())
    }


def _balance_medians(orders: Mapping[bool | None, Sequence[float]]) -> float:
    if set(orders) == {True, False}:
        return (median(orders[True]) + median(orders[False])) / 2
    return median([value for values in orders.values() for value in values])
