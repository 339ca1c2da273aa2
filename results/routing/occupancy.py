"""What the KV pools of decode instances would hold: occupancy against the footprint of a request (figure f4b).

An arm's own requests say how many decode at once under it. If each of them held a given number of tokens, this is the
share of the pools of the instances that decode which they would take, and how many fit: whole footprints per instance,
times the instances, because a request's KV lies in one instance. For pools that no arm had, the concurrency is that of
a combined arm: a model, not a measurement of a disaggregated deployment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from results.measures.turns import Turns, count_in_flight_over_time
from results.records.estimate import Estimate, unknown
from results.routing.read import LoadedCell
from results.statistics.estimates import Samples, percentiles

MODELLED_SHARES = (2, 4)
"""The specification's disaggregated deployments: one instance in this many decodes (of 8: 4P+4D and 6P+2D)."""
WALL = 0.9
"""The specification's memory wall."""
FOOTPRINT_POINTS: Mapping[str, float] = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
CURVE_POINTS = 40
UNREAD = "no turn records can be read"


@dataclass(frozen=True, slots=True)
class Footprints:
    """What a run's requests hold."""

    tokens: Mapping[str, Estimate]
    """Percentiles of prompt + output tokens of a completed turn, by FOOTPRINT_POINTS."""
    mean_tokens: float | None
    """Mean of the same."""
    reason: str
    """Why they are not known."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """Instances of which some decode, and how many requests decode at once there."""

    name: str
    """`combined 8C`, `4P+4D`."""
    arm: str
    """The label whose requests were counted."""
    is_measured: bool
    """The arm had these pools; else it was a combined one."""
    decoding: int
    """Instances that decode."""
    pool_tokens: float
    """KV capacity of one of them."""
    decodes_mean: float
    """Requests past their first token at once, over all instances: mean over time and over the arm's cells."""
    decodes_p90: float
    """The number that is reached or passed a tenth of the time; mean over the arm's cells."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """One deployment at one footprint."""

    deployment: str
    """`combined 8C`, `4P+4D`."""
    arm: str
    """The label whose requests were counted."""
    is_measured: bool
    """The arm had these pools; else it was a combined one."""
    decoding: int
    """Instances that decode."""
    point: str
    """Which percentile of the footprints; empty = only a point of the curve."""
    footprint_tokens: float
    """Prompt and output tokens of one request."""
    mean: float
    """Share of the decode pools held by the mean number of decodes; above 1 = does not fit."""
    p90: float
    """The same by the number that is passed a tenth of the time."""
    fit_in_all_pools: int
    """Requests of this footprint that the decode instances hold at once: whole ones in each."""


def measure_footprints(cells: Sequence[LoadedCell]) -> Footprints:
    """`cells`: all that count."""
    read = [cell.turns for cell in cells if cell.turns is not None]
    if not read:
        return Footprints({name: unknown("no turn records") for name in FOOTPRINT_POINTS}, None, UNREAD)
    held = np.concatenate([_count_held_tokens(turns) for turns in read])
    points = percentiles(held, tuple(FOOTPRINT_POINTS.values()))
    return Footprints(
        tokens=dict(zip(FOOTPRINT_POINTS, points, strict=True)),
        mean_tokens=float(held.mean()) if held.size else None,
        reason="" if held.size else "no turn was completed",
    )


def measure_deployments(cells: Sequence[LoadedCell], labels: Sequence[str]) -> tuple[tuple[Deployment, ...], str]:
    """The combined deployment, those that an arm had, and those of MODELLED_SHARES; and why there are none.

    `labels`: in the order of tables. Of several arms with one deployment the first counts.
    """
    arms = {label: own for label in labels if (own := [cell for cell in cells if cell.record.label == label])}
    if not any(cell.turns is not None for cell in cells):
        return (), UNREAD
    measured: dict[tuple[int, int], Deployment] = {}
    for label, own in arms.items():
        roles = [engine.role for engine in own[0].record.engines]
        split = roles.count("prefill"), len(roles) - roles.count("prefill")
        if split not in measured and (one := _measure_arm(label, own, split)) is not None:
            measured[split] = one
    if not measured:
        return (), "an instance's KV capacity is not known, or no turn got past its first token"
    combined = next((one for (prefilling, _), one in measured.items() if not prefilling), None)
    if combined is not None:
        for decoding in filter(None, (combined.decoding // share for share in MODELLED_SHARES)):
            split = combined.decoding - decoding, decoding
            model = replace(combined, name=_name_split(split), is_measured=False, decoding=decoding)
            measured.setdefault(split, model)
    return tuple(measured[split] for split in sorted(measured)), ""


def _measure_arm(label: str, cells: Sequence[LoadedCell], split: tuple[int, int]) -> Deployment | None:
    loads = [
        load for cell in cells if cell.turns is not None and (load := _measure_decodes_at_once(cell.turns)) is not None
    ]
    sizes = [engine.kv_capacity_tokens for engine in cells[0].record.engines if engine.role != "prefill"]
    known = [size for size in sizes if size is not None]
    if not loads or not known or len(known) < len(sizes):
        return None
    mean, p90 = (float(np.mean(numbers)) for numbers in zip(*loads, strict=True))
    return Deployment(_name_split(split), label, True, split[1], float(min(known)), mean, p90)


def _name_split(split: tuple[int, int]) -> str:
    prefilling, decoding = split
    return f"{prefilling}P+{decoding}D" if prefilling else f"combined {decoding}C"


def compute_occupancies(footprints: Footprints, deployments: Sequence[Deployment]) -> tuple[Occupancy, ...]:
    """Every deployment at the footprints' percentiles and along a curve beyond them; empty where a term is missing."""
    marks = [(name, held.value) for name, held in footprints.tokens.items() if held.value]
    if not (marks and deployments):
        return ()
    sizes = [size for _, size in marks]
    walls = [WALL * one.decoding * one.pool_tokens / one.decodes_p90 for one in deployments if one.decodes_p90]
    farthest = max(4 * max(sizes), 1.2 * max(walls, default=0.0))  # as far as the wall, wherever this run stands
    along = [("", float(size)) for size in np.geomspace(min(sizes) / 4, farthest, CURVE_POINTS)]
    return tuple(_compute_occupancy(one, point, size) for one in deployments for point, size in (*marks, *along))


def _compute_occupancy(one: Deployment, point: str, size: float) -> Occupancy:
    pools = one.decoding * one.pool_tokens
    return Occupancy(
        deployment=one.name,
        arm=one.arm,
        is_measured=one.is_measured,
        decoding=one.decoding,
        point=point,
        footprint_tokens=size,
        mean=one.decodes_mean * size / pools,
        p90=one.decodes_p90 * size / pools,
        fit_in_all_pools=math.floor(one.pool_tokens / size + 1e-9) * one.decoding,
    )


def _count_held_tokens(turns: Turns) -> Samples:
    """Prompt as counted (as asked where the engine did not say) + output."""
    done = turns.completed
    prompts = np.where(np.isfinite(turns.prompt_tokens), turns.prompt_tokens, turns.input_tokens)
    return np.asarray((prompts + turns.output_tokens)[done], dtype=np.float64)


def _measure_decodes_at_once(turns: Turns) -> tuple[float, float] | None:
    """Mean and p90 over time of the requests past their first token, while any request was in flight."""
    counts, lengths_s = count_in_flight_over_time(turns.first_s, turns.end_s)
    busy = count_in_flight_over_time(turns.send_s, turns.end_s)
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
