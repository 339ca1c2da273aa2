"""The plan of a pd-lifecycle run: the specification's grid, what it takes, and what is refused beforehand."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.profile import load_profile
from results.records.lifecycle import RequestConfig
from results.records.plan import CellPlan
from runners.campaign.experiment import RunOptions
from runners.campaign.start import rebuild_options
from runners.errors import RunnerError
from runners.experiments.engine_choice import make_counting_profile
from runners.experiments.pd_lifecycle.grid import EXPERIMENT, Expected, Grid, read_grid, read_shape
from runners.experiments.pd_lifecycle.plan import list_cells
from runners.experiments.pd_lifecycle.static_pd_or_combined import COLO, HANDOVER, PLAIN
from tests.runners.prepared import prepare

CPU = load_profile("cpu-tiny")
H20 = "h20-qwen3-coder-30b"


def grid(preset: str = "full", settings: Sequence[str] = ()) -> Grid:
    return read_grid(CPU.experiments[EXPERIMENT], CPU.name, preset, settings=settings)


def cells_of(of: Grid, seed: int = 1) -> list[CellPlan]:
    return list_cells(of, make_counting_profile(CPU, of.engine), seed)


def sweep(cells: Iterable[CellPlan]) -> list[CellPlan]:
    return [cell for cell in cells if cell.kind == "lifecycle"]


def test_the_specifications_grid_is_there_whole() -> None:
    plan = prepare(RunOptions(EXPERIMENT, H20, "full")).plan
    shapes = [read_shape(cell) for cell in sweep(plan.cells) if cell.trial == 0]
    assert len(shapes) == 144
    assert len(sweep(plan.cells)) == 3 * 144
    assert {shape.prior_context for shape in shapes} == {0, 4000, 16000, 32000, 64000, 100000}
    assert {shape.current_new_tokens for shape in shapes} == {512, 2048, 4096, 8192, 16384, 32768}
    assert {shape.output_length for shape in shapes} == {1, 32, 128, 512}
    assert not any(cell.params["why_not"] for cell in sweep(plan.cells)), "C + N stays within 132k"
    assert plan.configs == ("mooncake_producer", "mooncake_consumer", "plain"), "kv_producer and kv_consumer"
    assert plan.inputs["grid"]["repetitions"] == 5
    assert plan.inputs["grid"]["warmup_repetitions"] == 2


@pytest.mark.parametrize("profile", ["cpu-tiny", H20, "h200-qwen3-coder-30b-dummy"])
def test_every_preset_measures_every_cell_of_its_grid(profile: str) -> None:
    for preset in load_profile(profile).experiments[EXPERIMENT]:
        plan = prepare(RunOptions(EXPERIMENT, profile, preset)).plan
        assert [cell.params["why_not"] for cell in sweep(plan.cells)] == [""] * len(sweep(plan.cells))


def test_the_presets_of_this_machine_take_as_long_as_they_promise() -> None:
    assert sum(cell.estimated_s for cell in cells_of(grid("full"))) < 70 * 60
    assert sum(cell.estimated_s for cell in cells_of(grid("demo"))) < 12 * 60
    assert sum(cell.estimated_s for cell in cells_of(grid("smoke"))) < 60


_tokens = st.lists(st.integers(1, 50_000), min_size=1, max_size=4, unique=True).map(sorted)
_grids = st.builds(
    lambda prior, new, output, evict, baseline: Grid(
        tuple(prior), tuple(new), tuple(output), 8.0, Expected(0.01, 0.01, 0.001), evict=evict, baseline=baseline
    ),
    st.lists(st.integers(0, 50_000), min_size=1, max_size=4, unique=True).map(sorted),
    _tokens,
    _tokens,
    st.sampled_from(["reset", "restart"]),
    st.booleans(),
)


@given(of=_grids)
def test_a_trial_has_every_cell_once_and_those_of_one_context_in_a_row(of: Grid) -> None:
    whole = sweep(cells_of(of))
    assert len({cell.cell for cell in whole}) == len(whole)
    assert [trial for trial, _ in groupby(cell.trial for cell in whole)] == [0, 1, 2]
    for trial in range(3):
        _check_trial(of, [cell for cell in whole if cell.trial == trial])


def _check_trial(of: Grid, cells: list[CellPlan]) -> None:
    shapes = [read_shape(cell) for cell in cells]
    assert set(shapes) == {
        RequestConfig(prior, new, output)
        for prior in of.prior_context
        for new in of.new_tokens
        for output in of.output_length
    }
    assert len({cell.cell for cell in cells}) == len(cells) == len(set(shapes))
    levels = [prior for prior, _ in groupby(shape.prior_context for shape in shapes)]
    assert sorted(levels) == list(of.prior_context)
    assert [cell.params["turn"] for cell in cells] == list(range(len(cells)))
    assert {shape: cell.params["position"] for cell, shape in zip(cells, shapes, strict=True)} == {
        shape: place for place, shape in enumerate(of.list_shapes())
    }


def test_the_seed_decides_the_order_of_contexts_and_of_the_cells_within_one() -> None:
    """Else the effects of C, N and O could not be separated from the time since the engines started."""
    plans = [sweep(cells_of(grid("full", ["trials=3"]), seed)) for seed in range(3)]
    assert plans[1] == sweep(cells_of(grid("full", ["trials=3"]), 1))
    orders = [[read_shape(cell) for cell in cells if cell.trial == trial] for cells in plans for trial in range(3)]
    assert len({tuple(shape.key for shape in order) for order in orders}) == 9, "each trial draws its own order"
    firsts = {order[0].prior_context for order in orders}
    assert len(firsts) > 2
    for order in orders:
        assert order != list(grid("full").list_shapes())
        level = [(shape.current_new_tokens, shape.output_length) for shape in order[:18]]
        assert level != sorted(level)
        assert level != [(shape.current_new_tokens, shape.output_length) for shape in order[18:36]]


@given(of=_grids, repetitions=st.integers(2, 7), trial=st.integers(0, 4))
def test_of_any_two_requests_either_comes_first_in_half_of_the_repetitions(
    of: Grid, repetitions: int, trial: int
) -> None:
    """Over the repetitions of a cell, and over those of one C and N: at most one more of either."""
    requests = of.order_requests(next(of.list_shapes()), 1, trial, plain=True)
    for one, other in itertools.combinations(requests, 2):
        for prior, new in itertools.product(of.prior_context, of.new_tokens):
            shapes = [RequestConfig(prior, new, output) for output in of.output_length]
            firsts = [
                [_comes_first(of, shape, number + 1, trial, one, other) for number in range(repetitions)]
                for shape in shapes
            ]
            for cell in firsts:
                assert abs(2 * sum(cell) - len(cell)) <= 1
            assert abs(2 * sum(map(sum, firsts)) - len(firsts) * repetitions) <= 1


def _comes_first(of: Grid, shape: RequestConfig, repetition: int, trial: int, one: str, other: str) -> bool:
    order = of.order_requests(shape, repetition, trial, plain=True)
    return order.index(one) < order.index(other)


def test_each_trial_begins_with_another_request() -> None:
    shape = next(grid("full").list_shapes())
    firsts = [grid("full").order_requests(shape, 2, trial, plain=True)[0] for trial in range(3)]
    assert sorted(firsts) == sorted([HANDOVER, COLO, PLAIN])


def test_what_is_first_can_be_fixed_and_is_in_the_plan() -> None:
    fixed = grid("full", ["order=handover_first"])
    for shape, number in itertools.product(fixed.list_shapes(), range(1, 6)):
        assert fixed.order_requests(shape, number, 1, plain=True) == [HANDOVER, COLO, PLAIN]
    plans = [
        prepare(RunOptions(EXPERIMENT, "cpu-tiny", "smoke", settings=settings)).plan
        for settings in ((), ("order=handover_first",))
    ]
    assert [plan.inputs["grid"]["order"] for plan in plans] == ["counterbalanced", "handover_first"]
    assert plans[0].fingerprint != plans[1].fingerprint


@given(of=_grids)
def test_a_cell_beyond_the_engines_context_is_in_the_plan_with_its_reason_and_costs_nothing(of: Grid) -> None:
    for cell in sweep(cells_of(of)):
        fits = read_shape(cell).tokens <= CPU.engine.max_model_len
        assert bool(cell.params["why_not"]) != fits
        assert (cell.estimated_s > 0) == fits


def test_a_setting_changes_the_grid() -> None:
    changed = grid(
        "smoke",
        ["new_tokens=[64, 128]", "repetitions=9", "analysis.subtract_half_step=true", "engine.block_size=64"],
    )
    assert changed.new_tokens == (64, 128)
    assert changed.repetitions == 9
    assert changed.analysis.subtract_half_step
    assert changed.engine.block_size == 64


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (["new_token=[64]"], "new_token"),
        (["new_tokens=[128, 64]"], "rise"),
        (["new_tokens=[]"], "length"),
        (["output_length=[0]"], "at least 1"),
        (["repetitions=2", "warmup_repetitions=2"], "warmup_repetitions"),
        (["dispatch=concurrent"], "sequential"),
        (["evict=never"], "evict"),
        (["trials=0"], "trials"),
        (["order=random"], "order"),
        (["analysis.half_step=true"], "half_step"),
        (["engine.block_size=64", "prior_context=[0, 100]"], "whole number of blocks"),
        (["prior_context"], "prior_context"),
        (["max_input_tokens=10"], "no cell of the grid"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings: list[str], named: str) -> None:
    with pytest.raises(RunnerError, match=named):
        prepare(RunOptions(EXPERIMENT, "cpu-tiny", "smoke", settings=tuple(settings)))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", ("plain",)), "no connector"),
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", ("lmcache_only",)), "no connector"),
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", ("mooncake_consumer", "mooncake_producer")), "sends"),
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", ("mooncake_producer",)), "receives"),
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", ("mooncake_both", "nixl_both")), "NixlConnector"),
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", ("mooncake_both",) * 3), "configs"),
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", policies=("ear",)), "static_pd"),
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", trace="trace.jsonl"), "static_pd"),
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", settings=("plain=nixl_both",)), "has a connector"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(options: RunOptions, named: str) -> None:
    with pytest.raises(Exception, match=named) as refused:
        prepare(options)
    assert getattr(refused.value, "remedy", "")


@pytest.mark.parametrize("configs", [(), ("nixl_both",), ("mooncake_producer", "mooncake_consumer")])
def test_the_configs_of_both_engines(configs: tuple[str, ...]) -> None:
    prepared = prepare(RunOptions(EXPERIMENT, "cpu-tiny", "smoke", configs))
    expected = configs or ("mooncake_both",)
    assert prepared.plan.configs == (*expected, "plain")
    assert {cell.config for cell in prepared.plan.cells if cell.kind == "preflight"} == {*expected, "plain"}
    assert {cell.config for cell in sweep(prepared.plan.cells)} == {expected[-1]}
    assert prepared.draft.ports == 6


def test_the_trials_are_those_of_the_command_and_the_third_engine_can_be_left_out() -> None:
    options = RunOptions(EXPERIMENT, "cpu-tiny", "smoke", trials=2, settings=("plain=''",))
    prepared = prepare(options)
    cells = sweep(prepared.plan.cells)
    assert {cell.trial for cell in cells} == {0, 1}
    assert {cell.params["plain"] for cell in cells} == {""}
    assert prepared.plan.configs == ("mooncake_both",)
    assert prepared.draft.ports == 4
    assert prepare(rebuild_options(prepared.plan)).plan.fingerprint == prepared.plan.fingerprint
