"""The confirm stage: balanced orders, shared by all configs; every load of a launch in one go."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.profile import load_profile
from results.records.plan import CellPlan, RunPlan
from runners.campaign.experiment import RunOptions
from runners.experiments.connector_tax.confirm import draw_blocks, draw_latin_square, list_loads
from runners.experiments.connector_tax.grid import EXPERIMENT, read_grid
from tests.runners.prepared import prepare

FULL = read_grid(load_profile("cpu-tiny").experiments[EXPERIMENT], "cpu-tiny", "full")


def plan_of(preset: str = "full", **more: object) -> RunPlan:
    return prepare(RunOptions(EXPERIMENT, "cpu-tiny", preset, **more)).plan  # type: ignore[arg-type]


def confirm_cells(plan: RunPlan) -> list[CellPlan]:
    return [cell for cell in plan.cells if cell.stage == "confirm"]


@given(st.integers(1, 12), st.integers(0, 2**32))
def test_a_square_has_every_name_once_in_every_row_and_column(size: int, seed: int) -> None:
    names = [f"config{number}" for number in range(size)]
    square = draw_latin_square(names, random.Random(seed))
    assert all(sorted(row) == sorted(names) for row in square)
    assert all(sorted(column) == sorted(names) for column in zip(*square, strict=True))


@given(st.integers(2, 9), st.integers(1, 20), st.integers(1, 20), st.integers(0, 1000))
def test_every_config_is_at_every_position_equally_often_and_fewer_blocks_are_the_first_of_more(
    size: int, count: int, more: int, seed: int
) -> None:
    names = [f"config{number}" for number in range(size)]
    blocks = draw_blocks(names, 5, count, seed)
    assert blocks == draw_blocks(names, 5, count + more, seed)[:count]
    assert all(sorted(block.loads) == list(range(5)) for block in blocks)
    whole = blocks[: count - count % size]
    for position in range(size):
        positions = Counter(block.configs[position] for block in blocks)
        assert max(positions.values()) <= -(-count // size)
        assert set(Counter(block.configs[position] for block in whole).values()) <= {len(whole) // size}


def test_orders_come_from_the_seed() -> None:
    names = ["a", "b", "c", "d"]
    assert draw_blocks(names, 6, 4, 1) == draw_blocks(names, 6, 4, 1)
    assert draw_blocks(names, 6, 4, 1) != draw_blocks(names, 6, 4, 2)


def test_the_loads_are_the_reference_loads_and_every_judged_shape_each_once() -> None:
    loads = [(load.shape, load.rate) for load in list_loads(FULL)]
    assert len(set(loads)) == len(loads)
    shapes = {(i, o) for i in FULL.phase_b.input_tokens for o in FULL.phase_b.output_tokens}
    rates = {shape: FULL.phase_b.find_own_rate(shape) for shape in shapes}
    assert {shape for shape, own in rates.items() if own is not None} == {(2048, 16), (2048, 32), (2048, 64)}
    assert set(loads) == {
        *((shape, "ref_safe" if own is None else own.rate_per_s) for shape, own in rates.items()),
        ((128, 32), "ref_load"), ((512, 32), "ref_load"),
    }  # fmt: skip


def test_a_launch_measures_all_its_loads_in_one_go_in_an_order_that_all_configs_of_the_block_share() -> None:
    cells = confirm_cells(plan_of())
    launches = [(key, list(group)) for key, group in groupby(cells, key=lambda cell: (cell.trial, cell.config))]
    assert len(launches) == len({key for key, _ in launches}) == 8 * 9
    orders: dict[int, set[tuple[str, ...]]] = defaultdict(set)
    costs: dict[str, float] = {}
    for cell in cells:
        costs[cell.label] = min(cell.estimated_s, costs.get(cell.label, cell.estimated_s))
    for (trial, _), launch in launches:
        whole = tuple(cell.label for cell in launch)
        orders[trial].add(tuple(label for label in whole if "ref_load" not in label or "512 x 32" in label))
        starts = [cell.estimated_s > costs[cell.label] for cell in launch]
        assert starts == [True, *[False] * (len(launch) - 1)], "the first cell pays for the engine"
    assert all(len(shared) == 1 for shared in orders.values())
    assert len({next(iter(shared)) for shared in orders.values()}) == 8, "drawn anew for every block"


def test_the_number_of_launches_is_trials_and_the_sweep_has_one() -> None:
    plan = plan_of(trials=3)
    assert Counter(cell.trial for cell in confirm_cells(plan)).keys() == {0, 1, 2}
    assert {cell.trial for cell in plan.cells if cell.stage in ("phase-a", "phase-b")} == {0}
    assert {cell.config for cell in plan.cells if cell.stage == "phase-a"}.isdisjoint({"plain_again"})


def test_plain_is_launched_twice_whatever_configs_are_chosen() -> None:
    plan = plan_of(configs=("plain", "noop_connector"), trials=3)
    assert {cell.config for cell in confirm_cells(plan)} == {"plain", "plain_again", "noop_connector"}


@pytest.mark.parametrize("setting", ["confirm=false", "confirm=true"])
def test_set_switches_the_stage_and_a_plan_without_it_is_that_of_older_versions(setting: str) -> None:
    plan = plan_of("smoke", settings=(setting,), trials=2)
    confirmed = bool(confirm_cells(plan))
    assert confirmed == (setting == "confirm=true")
    assert ("confirm" in plan.inputs["grid"]) == confirmed
    assert {cell.trial for cell in plan.cells if cell.stage == "phase-a"} == ({0} if confirmed else {0, 1})
