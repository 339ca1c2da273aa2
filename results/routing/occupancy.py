"""What the KV pools of decode instances would hold: occupancy against the footprint of a request (figure f4b).

The run's own requests say how many decode at once. If each of them held a given number of tokens, and only some of the
instances' pools were there for decoding, this is the share of those pools that they would take. A model over measured
concurrency, not a measurement of a disaggregated deployment: no KV was moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.measures.turns import Turns, in_flight_over_time
from results.routing.load import LoadedCell
from results.statistics.estimates import Estimate, Samples, percentiles, unknown

DEPLOYMENTS: Mapping[str, float] = {"combined 8C": 1.0, "4P+4D": 0.5, "6P+2D": 0.25}
"""The specification's deployments of 8 instances to the share of the KV pools that decodes."""
WALL = 0.9
"""The specification's memory wall."""
FOOTPRINT_POINTS: Mapping[str, float] = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Footprints:
    """What a run's requests hold, and how many decode at once."""

    tokens: Mapping[str, Estimate]
    """Percentiles of prompt + output tokens of a completed turn, by FOOTPRINT_POINTS."""
    mean_tokens: float | None
    """Mean of the same."""
    pool_tokens: float | None
    """KV capacity of all instances together."""
    decodes_mean: float | None
    """Requests past their first token at once, over all instances: mean over time and over cells."""
    decodes_p90: float | None
    """The number that is reached or passed a tenth of the time; mean over cells."""
    reason: str
    """Why one of them is not known."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """One deployment at one footprint."""

    deployment: str
    decode_share: float
    point: str
    """Which percentile of the footprints; empty = only a point of the curve."""
    footprint_tokens: float
    mean: float
    """Share of the decode pools held by the mean number of decodes; above 1 = does not fit."""
    p90: float
    """The same by the number that is passed a tenth of the time."""
    fit_per_pool: int
    """Requests of this footprint that all decode pools hold at once."""


def measure_footprints(cells: Sequence[LoadedCell]) -> Footprints:
    """Of all cells that count."""
    read = [(cell, cell.turns) for cell in cells if cell.turns is not None]
    if not read:
        none = {name: unknown("no turn records") for name in FOOTPRINT_POINTS}
        return Footprints(none, None, None, None, None, "no turn records can be read")
    held = np.concatenate([_held_tokens(turns) for _, turns in read])
    points = percentiles(held, tuple(FOOTPRINT_POINTS.values()))
    loads = [load for _, turns in read if (load := _decodes_at_once(turns)) is not None]
    pool = _kv_capacity(cells)
    why = [
        *(["an instance's KV capacity is not known"] if pool is None else []),
        *(["no turn got past its first token"] if not loads else []),
    ]
    return Footprints(
        tokens=dict(zip(FOOTPRINT_POINTS, points, strict=True)),
        mean_tokens=float(held.mean()) if held.size else None,
        pool_tokens=pool,
        decodes_mean=float(np.mean([mean for mean, _ in loads])) if loads else None,
        decodes_p90=float(np.mean([p90 for _, p90 in loads])) if loads else None,
        reason="; ".join(why),
    )


def compute_occupancies(footprints: Footprints, points: int = 40) -> tuple[Occupancy, ...]:
    """Every deployment at the footprints' percentiles and along a curve beyond them; empty where a term is missing."""
    if footprints.pool_tokens is None or footprints.decodes_mean is None or footprints.decodes_p90 is None:
        return ()
    marks = [(name, held.value) for name, held in footprints.tokens.items() if held.value]
    if not marks:
        return ()
    sizes = [size for _, size in marks]
    walled = (
        WALL * DEPLOYMENTS["4P+4D"] * footprints.pool_tokens / footprints.decodes_p90 if footprints.decodes_p90 else 0.0
    )
    farthest = max(4 * max(sizes), 1.2 * walled)  # as far as the wall, wherever this run stands
    along = [("", float(size)) for size in np.geomspace(min(sizes) / 4, farthest, points)]
    return tuple(
        _compute_occupancy(deployment, share, point, size, footprints)
        for deployment, share in DEPLOYMENTS.items()
        for point, size in (*marks, *along)
    )


def _compute_occupancy(deployment: str, share: float, point: str, size: float, footprints: Footprints) -> Occupancy:
    pool = share * (footprints.pool_tokens or 0.0)
    return Occupancy(
        deployment=deployment,
        decode_share=share,
        point=point,
        footprint_tokens=size,
        mean=(footprints.decodes_mean or 0.0) * size / pool,
        p90=(footprints.decodes_p90 or 0.0) * size / pool,
        fit_per_pool=int(pool // size),
    )


def _held_tokens(turns: Turns) -> Samples:
    """Prompt as counted (as asked where the engine did not say) + output."""
    done = turns.completed
    prompts = np.where(np.isfinite(turns.prompt_tokens), turns.prompt_tokens, turns.input_tokens)
    return np.asarray((prompts + turns.output_tokens)[done], dtype=np.float64)


def _decodes_at_once(turns: Turns) -> tuple[float, float] | None:
    """Mean and p90 over time of the requests past their first token, while any request was in flight."""
    counts, lengths_s = in_flight_over_time(turns.first_s, turns.end_s)
    busy = in_flight_over_time(turns.send_s, turns.end_s)
    served_s = float(busy[1][busy[0] > 0].sum())
    if not counts.size or served_s <= 0:
        return None
    mean = float((counts * lengths_s).sum()) / served_s
    idle_s = max(served_s - float(lengths_s[counts > 0].sum()), 0.0)  # in flight, but nothing past its first token
    numbers = np.concatenate(([0.0], counts[counts > 0]))
    weights = np.concatenate(([idle_s], lengths_s[counts > 0]))
    order = np.argsort(numbers, kind="stable")
    passed = np.cumsum(weights[order]) / weights.sum()
    return mean, float(numbers[order][int(np.searchsorted(passed, 0.9))])


def _kv_capacity(cells: Sequence[LoadedCell]) -> float | None:
    """KV capacity of one cell's instances: all cells of a run have the same engines."""
    for cell in cells:
        sizes = [engine.kv_capacity_tokens for engine in cell.record.engines]
        if sizes and None not in sizes:
            return float(sum(size or 0 for size in sizes))
    return None
