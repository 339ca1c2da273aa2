"""The confirm stage: every config launched `trials` times, each launch measuring every load that a verdict rests on.

It alone measures the shapes of Phase B and B': one launch of each in a sweep would cost hours and decide nothing.

A block is one launch of each config. The order of configs is a row of a randomly permuted Latin square, so that in a
whole square every config runs once at every position. The order of loads is drawn per block and shared by all configs,
as prompts and arrivals are: what comes before a load is the same for every config of the block.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from results.connector_tax.configs import BASELINE, REPEAT
from results.records.plan import CellPlan
from results.records.reference_rates import REF_LOAD, REF_SAFE
from runners.experiments.connector_tax.grid import Grid
from runners.experiments.connector_tax.load_cells import (
    CELLS_PER_BLOCK,
    PHASE_CONFIRM,
    LoadPlanner,
    PlannedLoad,
    plan_shape,
)

SWEEP_BLOCKS = 3
"""Blocks of cell numbers that a sweep uses: Phase A, B and B'."""


@dataclass(frozen=True, slots=True)
class Block:
    """One launch of each config."""

    number: int
    configs: tuple[str, ...]
    """In the order they are launched."""
    loads: tuple[int, ...]
    """Indexes in `list_loads`, in the order that every launch measures them."""


def draw_latin_square(names: Sequence[str], draw: random.Random) -> list[tuple[str, ...]]:
    """Rows of names; each name is once in every row and once in every column. Rows, columns and names are permuted."""
    size = len(names)
    rows, columns, symbols = (draw.sample(range(size), size) for _ in range(3))
    return [tuple(names[symbols[(row + column) % size]] for column in columns) for row in rows]


def draw_blocks(configs: Sequence[str], loads: int, count: int, seed: int) -> list[Block]:
    """The first `count` rows of as many squares as that takes; fewer blocks are the first of more."""
    of_configs, of_loads = random.Random(f"confirm configs {seed}"), random.Random(f"confirm loads {seed}")
    rows: list[tuple[str, ...]] = []
    while len(rows) < count:
        rows += draw_latin_square(configs, of_configs)
    return [Block(number, row, tuple(of_loads.sample(range(loads), loads))) for number, row in enumerate(rows[:count])]


def list_loads(grid: Grid) -> tuple[PlannedLoad, ...]:
    """Phase A's shape at both reference rates, the shapes of Phase B at ref_safe (or their own rate) and of B' at
    ref_load, each once."""
    swept = grid.phase_a.shape
    at_safe = dict.fromkeys([swept, *grid.phase_b.shapes])
    at_load = dict.fromkeys([swept, *grid.shapes_at_ref_load]) if grid.can_rates_differ else {}
    return tuple(
        plan_shape(grid, PHASE_CONFIRM, shape, rate)
        for rate, shapes in ((REF_SAFE, at_safe), (REF_LOAD, at_load))
        for shape in shapes
    )


def is_measured(grid: Grid, config: str, load: PlannedLoad) -> bool:
    """Whether the config has this load: shapes of B' alone are for the configs that B' names, and plain's repeat."""
    if load.rate != REF_LOAD or load.shape == grid.phase_a.shape:
        return True
    return (BASELINE if config == REPEAT else config) in grid.phase_b_prime.configs


def list_cells(planner: LoadPlanner, configs: Sequence[str]) -> Iterator[CellPlan]:
    """The stage's cells in the order they run; empty where the grid has no such stage."""
    grid = planner.grid
    if not grid.confirm:
        return
    loads = list_loads(grid)
    for block in draw_blocks(configs, len(loads), grid.trials, planner.seed):
        for config in block.configs:
            indexes = [index for index in block.loads if is_measured(grid, config, loads[index])]
            for index in indexes:
                number, is_first = (SWEEP_BLOCKS + block.number) * CELLS_PER_BLOCK + index, index == indexes[0]
                yield planner.make_cell(config, loads[index], trial=block.number, cell_index=number, is_first=is_first)


def estimate_stage_s(planner: LoadPlanner, configs: Sequence[str], launches: int) -> float:
    """Seconds of the stage with this many launches per config."""
    grid = planner.grid
    loads = list_loads(grid)
    cells = sum(planner.estimate_s(load) for config in configs for load in loads if is_measured(grid, config, load))
    return launches * (len(configs) * planner.engine_s + cells)
