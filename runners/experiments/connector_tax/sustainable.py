"""Finds the loads that no config can sustain, by the profile's limit or by Phase A, and estimates their time.

A shape's tokens times its rate cannot exceed the tokens that the device computes in a second. Such a cell measures a
queue, and runs until it has enough completions or to its hard stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from launch.profile import Capacity
from results.connector_tax.read import collect_cells
from results.connector_tax.saturation_criteria import LIMITS
from results.records.percent import format_percent
from results.records.reference_rates import REF_LOAD, REF_SAFE, ReferenceRates
from runners.experiments.connector_tax.grid import Grid, Shape

USABLE = 0.8
"""Share of the limit that an offered rate uses."""
MEASURED = "the most that any config computed in Phase A"
ShapeLoad = tuple[str, float | None, Shape]
"""A rate's name, its value (None = it has none), the shape."""


def load_cell_s(*, rate_per_s: float, min_duration_s: float, min_completed: int, warmup_s: float) -> float:
    """Seconds an open-loop cell takes where the engine keeps up: max(minimum duration, minimum completions) + warm-up.

    Source: specs/connector_tax, "Phase A", column "Duration".
    """
    return max(min_duration_s, min_completed / rate_per_s) + warmup_s


def expected_cell_s(grid: Grid, capacity: Capacity, rate_per_s: float, shape: Shape, min_completed: int) -> float:
    """Seconds a load cell takes, warm-up, hard stop and drain included where the device cannot keep up."""
    kept_up_s = load_cell_s(
        rate_per_s=rate_per_s,
        min_duration_s=grid.min_duration_s,
        min_completed=min_completed,
        warmup_s=grid.warmup_s,
    )
    most_per_s = _compute_sustained_rate(capacity.tokens_per_s, shape)
    if most_per_s is None or rate_per_s <= most_per_s:
        return kept_up_s
    window_s = max(grid.min_duration_s, min_completed / most_per_s)
    window_s = min(window_s, kept_up_s * grid.hard_stop_factor)
    left = min(grid.inflight_cap, (rate_per_s - most_per_s) * (grid.warmup_s + window_s))
    return grid.warmup_s + window_s + min(left / most_per_s, grid.drain_s)


def list_unsustainable(grid: Grid, capacity: Capacity) -> tuple[str, ...]:
    """Sentences for the plan; empty where the profile states no limit, or none is passed."""
    if capacity.tokens_per_s is None:
        return ()
    limit = f"{capacity.tokens_per_s:,.0f} tokens/s ({capacity.source or 'the profile'})"
    swept = grid.phase_a.shape
    most_per_s = _compute_sustained_rate(capacity.tokens_per_s, swept) or 0.0
    beyond = [rate for rate in grid.phase_a.rates_per_s if rate > most_per_s]
    lines = []
    if beyond:
        rates = ", ".join(f"{rate:g}" for rate in beyond)
        lines.append(
            f"Phase A: no config can sustain {rates} req/s of {swept[0]} x {swept[1]} tokens within {limit}. These "
            "cells find the saturation; their time above includes queue, hard stop and drain."
        )
    loads = _list_shape_loads(grid, grid.expect_rate(REF_SAFE))
    return (*lines, *_describe_overloads(loads, capacity.tokens_per_s, limit))


def describe_own_rates(grid: Grid) -> tuple[str, ...]:
    """A sentence for the plan; empty where every shape is measured at ref_safe."""
    own = [f"{shape} at {rate.rate_per_s:g} req/s" for shape, rate in grid.phase_b.shape_rates.items()]
    if not own:
        return ()
    return (
        f"At a rate of their own, not at ref_safe, and left out of B': {', '.join(own)} (`phase_b.shape_rates`). "
        "Reports mark their taxes with it; H5 and H6 compare only lengths at one rate.",
    )


def _list_shape_loads(grid: Grid, ref_safe_per_s: float | None) -> Iterator[ShapeLoad]:
    """Loads of Phase B."""
    for shape in grid.phase_b.shapes:
        own = grid.phase_b.find_own_rate(shape)
        yield (REF_SAFE, ref_safe_per_s, shape) if own is None else ("its own rate", own.rate_per_s, shape)


def list_overloads(root: Path, grid: Grid, rates: ReferenceRates) -> tuple[str, ...]:
    """The shapes of Phase B and B' that need more tokens/s than any config computed in Phase A.

    Empty where the cell that computed the most was not at its limit: it computed all that was sent, and so shows no
    limit. At the limit throughput or queue are saturated; where TTFT alone has grown, all that was sent was still
    computed. A load is left out where a cell without saturation was sent as many tokens/s.
    """
    limited = {cell.cell for cell in rates.cells if LIMITS.intersection(cell.fired)}
    clear = {cell.cell for cell in rates.cells if cell.saturated is False}
    at_limit, below, sustained = 0.0, 0.0, 0.0
    for cell in collect_cells(root, phases=("A",)).summaries:
        if cell.cell in clear:
            sustained = max(sustained, cell.rate_per_s * (cell.shape.input_tokens + cell.shape.output_tokens))
        prompt, generated = cell.value("prompt_tokens_per_s"), cell.value("generation_tokens_per_s")
        if prompt is None or generated is None:
            continue
        if cell.cell in limited:
            at_limit = max(at_limit, prompt + generated)
        else:
            below = max(below, prompt + generated)
    if not at_limit or at_limit < below:
        return ()
    limit = f"{at_limit:,.0f} tokens/s ({MEASURED})"
    primes: list[ShapeLoad] = [(REF_LOAD, rates.ref_load_per_s, shape) for shape in grid.shapes_at_ref_load]
    loads = [
        (name, rate_per_s, shape)
        for name, rate_per_s, shape in (*_list_shape_loads(grid, rates.ref_safe_per_s), *primes)
        if rate_per_s is not None and rate_per_s * sum(shape) > sustained
    ]
    return tuple(_describe_overloads(loads, at_limit, limit))


def _describe_overloads(loads: Iterable[ShapeLoad], tokens_per_s: float, limit: str) -> Iterator[str]:
    for name, rate_per_s, shape in loads:
        most_per_s = _compute_sustained_rate(tokens_per_s, shape)
        if most_per_s is not None and rate_per_s is not None and rate_per_s > most_per_s:
            needed, offered = rate_per_s * sum(shape), f"{USABLE * most_per_s:.2g}"
            yield (
                f"No config can sustain {shape[0]} x {shape[1]} tokens at {name} = {rate_per_s:g} req/s: that needs "
                f"{needed:,.0f} of {limit}; the cell measures a queue, not a tax. At {offered} req/s it would use "
                f"{format_percent(USABLE)} of them (attention over a long prompt takes more): "
                f"`--set phase_b.shape_rates.{shape[0]}x{shape[1]}.rate_per_s={offered}`."
            )


def _compute_sustained_rate(tokens_per_s: float | None, shape: Shape) -> float | None:
    return None if tokens_per_s is None else tokens_per_s / sum(shape)
