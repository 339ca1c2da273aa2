"""The pools of a disaggregated deployment as measured: KV in use, and where their prompt tokens came from.

KV in use is what the engines report at 1 Hz during the replay: blocks of running requests, not those that are only
cached. Prompt tokens by source are the engines' own counters over a cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from results.records.estimate import Estimate
from results.records.turns import RoutedEngine
from results.routing.measurements import Measurements, collect_trials, estimate_level_interval, make_trial_of_number
from results.routing.occupancy import WALL
from results.routing.read import LoadedCell
from results.statistics.estimates import Samples

SOURCES = {
    "local_hit_share": "local_cache_hit",
    "external_share": "external_kv_transfer",
    "computed_share": "local_compute",
}
"""Shares of a pool's prompt tokens, by the engines' names."""
NO_SAMPLE = "no sample of this pool states its KV in use"
NO_SOURCE = "the engines' prompt tokens by source were not read"


@dataclass(frozen=True, slots=True)
class InstancePool:
    """The instances of one role under one label."""

    label: str
    role: str
    """`both`, `prefill` or `decode`."""
    deployment: str
    """`1P+1D`; `combined` where every instance does both."""
    instances: int
    """Instances with this role."""
    values: Mapping[str, Estimate]
    """kv_mean, kv_p90, kv_max (shares of a pool's KV in use at a sample, its instances together), over_wall_share (of
    the samples of single instances, at 90 % or more); local_hit_share, external_share, computed_share of its prompt
    tokens; prompt_tokens, external_tokens per cell."""


def measure_pools(
    cells: Sequence[LoadedCell], labels: Sequence[str], measurements: Measurements
) -> tuple[InstancePool, ...]:
    """Those of every label, in the order of `labels`; cells whose client fell behind are left out."""
    pools = []
    for label in labels:
        own = {cell.record.trial: cell for cell in cells if cell.record.label == label and not cell.degraded}
        if own:
            engines = next(iter(own.values())).record.engines
            roles = sorted({one.role for one in engines})[::-1]
            pools += [_measure_pool(label, role, engines, own, measurements) for role in roles]
    return tuple(pools)


def name_deployment(engines: Sequence[RoutedEngine]) -> str:
    """`1P+1D`, or `combined`."""
    prefill, decode = (sum(engine.role == role for engine in engines) for role in ("prefill", "decode"))
    return f"{prefill}P+{decode}D" if prefill or decode else "combined"


def _measure_pool(
    label: str,
    role: str,
    engines: Sequence[RoutedEngine],
    cells: Mapping[int, LoadedCell],
    measurements: Measurements,
) -> InstancePool:
    used = {trial: measure_pool_usage(cell, role) for trial, cell in cells.items()}
    single = {
        trial: np.array([float(share >= WALL) for _, _, share in _list_used_samples(cell, role)])
        for trial, cell in cells.items()
    }
    counts = {trial: _sum_token_counts(cell, role) for trial, cell in cells.items()}

    def estimate_samples(samples: Mapping[int, Samples], compute: Callable[[Samples], float]) -> Estimate:
        by_trial = {
            trial: make_trial_of_number(float(compute(own)), int(own.size))
            for trial, own in samples.items()
            if own.size
        }
        return estimate_level_interval(measurements.withhold(collect_trials(by_trial, NO_SAMPLE), label), 1.0)

    def estimate_tokens(compute: Callable[[Mapping[str, float | None]], float | None], most: float) -> Estimate:
        values = {trial: compute(own) for trial, own in counts.items()}
        by_trial = {trial: make_trial_of_number(value) for trial, value in values.items() if value is not None}
        return estimate_level_interval(measurements.withhold(collect_trials(by_trial, NO_SOURCE), label), most)

    values = {
        "kv_mean": estimate_samples(used, np.mean),
        "kv_p90": estimate_samples(used, lambda own: np.quantile(own, 0.9)),
        "kv_max": estimate_samples(used, np.max),
        "over_wall_share": estimate_samples(single, np.mean),
        "prompt_tokens": estimate_tokens(lambda own: own["prompt_tokens"], math.inf),
        "external_tokens": estimate_tokens(lambda own: own["external_kv_transfer"], math.inf),
        **{
            share: estimate_tokens(partial(_compute_share_of_source, source=source), 1.0)
            for share, source in SOURCES.items()
        },
    }
    return InstancePool(label, role, name_deployment(engines), sum(engine.role == role for engine in engines), values)


def _list_used_samples(cell: LoadedCell, role: str) -> list[tuple[int, str, float]]:
    """(second, instance, share of KV in use) of the role's instances while the replay ran."""
    record = cell.record
    names = {engine.instance for engine in record.engines if engine.role == role}
    return [
        (round((row.t_ns - record.t_start_ns) / 1e9), row.instance, row.kv_usage)
        for row in cell.samples
        if row.instance in names and row.kv_usage is not None and record.t_start_ns <= row.t_ns <= record.t_end_ns
    ]


def measure_pool_usage(cell: LoadedCell, role: str) -> Samples:
    """Share of the pool's KV in use, one value per second of the replay in which all of its instances reported it."""
    instances = sum(engine.role == role for engine in cell.record.engines)
    at: dict[int, dict[str, float]] = {}
    for second, instance, share in _list_used_samples(cell, role):
        at.setdefault(second, {})[instance] = share
    whole = [float(np.mean(list(own.values()))) for _, own in sorted(at.items()) if len(own) == instances]
    return np.array(whole, dtype=np.float64)


def _sum_token_counts(cell: LoadedCell, role: str) -> dict[str, float | None]:
    """Summed over the pool, by source and in all; None where one instance's counter was not read."""
    own = [engine for engine in cell.record.engines if engine.role == role]
    counts = {source: [engine.prompt_tokens_by_source.get(source) for engine in own] for source in SOURCES.values()}
    counts["prompt_tokens"] = [engine.prompt_tokens for engine in own]
    return {name: None if None in each else sum(count or 0.0 for count in each) for name, each in counts.items()}


def _compute_share_of_source(counts: Mapping[str, float | None], *, source: str) -> float | None:
    known = [counts[name] for name in SOURCES.values()]
    total = sum(count or 0.0 for count in known)
    return None if None in known or not total else (counts[source] or 0.0) / total
