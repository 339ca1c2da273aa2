"""The pools of a disaggregated deployment as they were measured: KV in use, and where their prompt tokens came from.

KV in use is what the engines say at 1 Hz (blocks of requests that run; what is only cached does not count), while the
replay ran. Prompt tokens by source are the engines' own counters over a cell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from results.records.turns import RoutedEngine
from results.routing.by_session import once, over_trials
from results.routing.load import LoadedCell
from results.routing.measure import level_interval
from results.routing.occupancy import WALL
from results.statistics.estimates import Estimate, Samples
from results.statistics.trials import Trial

SOURCES = {
    "local_hit_share": "local_cache_hit",
    "external_share": "external_kv_transfer",
    "computed_share": "local_compute",
}
"""Shares of a pool's prompt tokens, by the engines' names."""
NO_SAMPLE = "no sample of this pool states its KV in use"
NO_SOURCE = "the engines' prompt tokens by source were not read"


@dataclass(frozen=True, slots=True)
class Pool:
    """The instances of one role under one label."""

    label: str
    role: str
    deployment: str
    """`1P+1D`; `combined` where every instance does both."""
    instances: int
    values: Mapping[str, Estimate]
    """kv_mean, kv_p90, kv_max (shares of a pool's KV in use at a sample, its instances together), over_wall_share (of
    the samples of single instances, at 90 % or more); local_hit_share, external_share, computed_share of its prompt
    tokens; prompt_tokens, external_tokens per cell."""


def pools(cells: Sequence[LoadedCell], labels: Sequence[str]) -> tuple[Pool, ...]:
    """Of every label, in the order of `labels`; cells whose client fell behind are left out."""
    found = []
    for label in labels:
        own = {cell.record.trial: cell for cell in cells if cell.record.label == label and not cell.degraded}
        first = next(iter(own.values()), None)
        if first is None:
            continue
        roles = dict.fromkeys(engine.role for engine in first.record.engines)
        found += [_pool(label, role, deployment(first.record.engines), own) for role in sorted(roles, reverse=True)]
    return tuple(found)


def deployment(engines: Sequence[RoutedEngine]) -> str:
    """`1P+1D`, or `combined`."""
    prefill, decode = (sum(engine.role == role for engine in engines) for role in ("prefill", "decode"))
    return f"{prefill}P+{decode}D" if prefill or decode else "combined"


def _pool(label: str, role: str, name: str, cells: Mapping[int, LoadedCell]) -> Pool:
    def over(compute: Callable[[LoadedCell], Trial | None], why: str, most: float = 1.0) -> Estimate:
        return level_interval(over_trials({trial: compute(cell) for trial, cell in cells.items()}, why), most)

    def of_use(compute: Callable[[Samples], float]) -> Callable[[LoadedCell], Trial | None]:
        def computed(cell: LoadedCell) -> Trial | None:
            used = in_use(cell, role)
            return once(compute(used), int(used.size)) if used.size else None

        return computed

    values = {
        "kv_mean": over(of_use(lambda used: float(used.mean())), NO_SAMPLE),
        "kv_p90": over(of_use(lambda used: float(np.quantile(used, 0.9))), NO_SAMPLE),
        "kv_max": over(of_use(lambda used: float(used.max())), NO_SAMPLE),
        "over_wall_share": over(lambda cell: _over_wall(cell, role), NO_SAMPLE),
        "prompt_tokens": over(lambda cell: once(_counted(cell, role, "prompt_tokens")), NO_SOURCE, math.inf),
        "external_tokens": over(lambda cell: once(_counted(cell, role, "external_kv_transfer")), NO_SOURCE, math.inf),
    }
    values |= {share: over(partial(_share, role=role, source=source), NO_SOURCE) for share, source in SOURCES.items()}
    engines = next(iter(cells.values())).record.engines
    return Pool(label, role, name, sum(engine.role == role for engine in engines), values)


def in_use(cell: LoadedCell, role: str) -> Samples:
    """Share of the pool's KV in use, one value per second of the replay at which all of its instances said it."""
    names = {engine.instance for engine in cell.record.engines if engine.role == role}
    at: dict[int, dict[str, float]] = {}
    for row in cell.samples:
        if row.instance in names and row.kv_usage is not None and _during(cell, row.t_ns):
            at.setdefault(round((row.t_ns - cell.record.t_start_ns) / 1e9), {})[row.instance] = row.kv_usage
    whole = [float(np.mean(list(found.values()))) for _, found in sorted(at.items()) if len(found) == len(names)]
    return np.array(whole, dtype=np.float64)


def _during(cell: LoadedCell, t_ns: int) -> bool:
    return cell.record.t_start_ns <= t_ns <= cell.record.t_end_ns


def _over_wall(cell: LoadedCell, role: str) -> Trial | None:
    names = {engine.instance for engine in cell.record.engines if engine.role == role}
    used = [
        row.kv_usage >= WALL
        for row in cell.samples
        if row.instance in names and row.kv_usage is not None and _during(cell, row.t_ns)
    ]
    return once(sum(used) / len(used), len(used)) if used else None


def _counted(cell: LoadedCell, role: str, name: str) -> float | None:
    """Summed over the pool; None where one instance's counter was not read."""
    own = [engine for engine in cell.record.engines if engine.role == role]
    counts = [
        engine.prompt_tokens if name == "prompt_tokens" else engine.prompt_tokens_by_source.get(name) for engine in own
    ]
    return None if None in counts else sum(count or 0.0 for count in counts)


def _share(cell: LoadedCell, *, role: str, source: str) -> Trial | None:
    part, whole = _counted(cell, role, source), [_counted(cell, role, name) for name in SOURCES.values()]
    total = None if None in whole else sum(count or 0.0 for count in whole)
    return once(part / total) if part is not None and total else None
