"""The plan of a `connector-tax` run: stages and cells as specs/connector_tax, "Re-run script", orders them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from launch.command import count_ports_needed
from launch.profile import ConnectorConfig, Profile, load_config
from results.connector_tax.configs import BASELINE, REPEAT
from results.records.plan import CellPlan, StagePlan
from results.records.reference_rates import REF_LOAD, REF_SAFE
from runners.campaign.experiment import DraftPlan, RunOptions
from runners.campaign.plan import Sum, format_duration
from runners.errors import RunnerError
from runners.experiments.cold_start import add_cold_starts
from runners.experiments.connector_tax import confirm
from runners.experiments.connector_tax.grid import EXPERIMENT, PLANNED_LAUNCHES, Grid, read_grid
from runners.experiments.connector_tax.load_cells import (
    CELLS_PER_BLOCK,
    PHASE_A,
    PHASE_B,
    PHASE_B_PRIME,
    LoadPlanner,
    PlannedLoad,
    plan_shape,
)
from runners.experiments.connector_tax.sustainable import describe_own_rates, list_unsustainable
from runners.experiments.gates import list_gates
from runners.experiments.settings import refuse_routing_options

STAGES = (
    StagePlan("preflight", "Pre-flight and step probe"),
    StagePlan("phase-a", "Phase A: rate sweep"),
    StagePlan("reference", "Reference rates"),
    StagePlan("phase-b", "Phase B: shape sweep"),
    StagePlan("confirm", "Confirm: repeated launches"),
    StagePlan("analysis", "Probe removal and analysis"),
)
COMPUTE_S = 2.0


def draft_plan(options: RunOptions, profile: Profile) -> DraftPlan:
    """Raises RunnerError or LaunchError naming the wrong key or config."""
    refuse_routing_options(options, f"{EXPERIMENT} routes nothing")
    tables = profile.experiments.get(EXPERIMENT, {})
    grid = read_grid(tables, profile.name, options.preset, settings=options.settings)
    if options.trials is not None:
        grid = msgspec.structs.replace(grid, trials=options.trials)
    names = options.configs or grid.configs
    configs = {config.name: config for config in _load_configs(_add_repeat(names) if grid.confirm else names)}
    seed = grid.seed if options.seed is None else options.seed
    planner = LoadPlanner(grid, seed, profile.launch.release_wait_s, profile.capacity)
    orders = draw_orders(grid, list(configs), seed)
    order = [*orders[0], *(name for name in configs if name not in orders[0])]
    draft = DraftPlan(
        grid=grid,
        profile=profile,
        seed=seed,
        configs=tuple(configs[name] for name in order),
        stages=STAGES,
        cells=list_cells(planner, orders, order),
        ports=max(count_ports_needed(config) for config in configs.values()),
        inputs={
            "grid": _describe_grid(grid),
            "configs": msgspec.to_builtins(configs),
            "config_names": list(options.configs or grid.configs),
            **({"settings": list(options.settings)} if options.settings else {}),
        },
        sums=estimate_sums(planner, list(configs)),
        notes=(
            *_describe_hours(planner, list(configs)),
            *_describe_fixed_rates(grid),
            *describe_own_rates(grid),
            *list_unsustainable(grid, profile.capacity),
        ),
    )
    return add_cold_starts(draft)


def _describe_grid(grid: Grid) -> dict[str, Any]:
    """The grid in the plan: without `confirm`, `shape_rates` and the fixed rates where they are not set, as older
    versions wrote it."""
    described: dict[str, Any] = msgspec.to_builtins(grid)
    if not grid.fixed_rates:
        del described["ref_safe_per_s"], described["ref_load_per_s"]
    if not grid.confirm:
        del described["confirm"]
    if not grid.phase_b.shape_rates:
        del described["phase_b"]["shape_rates"]
    return described


def _add_repeat(names: Sequence[str]) -> tuple[str, ...]:
    """The names with plain's repeat: where launches are compared, plain is measured under both names."""
    return tuple(names) if REPEAT in names else (*names, REPEAT)


def _load_configs(names: Sequence[str]) -> tuple[ConnectorConfig, ...]:
    configs = tuple(_load_repeat() if name == REPEAT else load_config(name) for name in names)
    names_in_files = [config.name for config in configs]
    if len(set(names_in_files)) < len(configs):
        raise RunnerError(f"a config is named twice among {', '.join(names_in_files)}", remedy="name each one once")
    if BASELINE not in names_in_files:
        raise RunnerError("the configs do not include `plain`", remedy="add it: every tax is measured against it")
    return configs


def _load_repeat() -> ConnectorConfig:
    """The baseline under its second name, for the comparison of plain with itself."""
    return msgspec.structs.replace(
        load_config(BASELINE), name=REPEAT, title="plain, again", why="The baseline once more: its difference is noise"
    )


def draw_orders(grid: Grid, configs: Sequence[str], seed: int) -> list[list[str]]:
    """The order of configs in each sweep. Before a confirm stage there is one sweep, without plain's repeat."""
    draw, swept = random.Random(seed), _list_swept(grid, configs)
    return [draw.sample(swept, len(swept)) for _ in range(1 if grid.confirm else grid.trials)]


def _list_swept(grid: Grid, configs: Sequence[str]) -> list[str]:
    return [name for name in configs if not grid.confirm or name != REPEAT]


def list_cells(planner: LoadPlanner, orders: Sequence[Sequence[str]], configs: Sequence[str]) -> list[CellPlan]:
    """Every cell in the order it runs; `orders`: the configs' names in each sweep; `configs`: all of them."""
    sweeps = tuple(enumerate(orders))
    return [
        CellPlan("preflight/probe", "preflight", "probe", None, "apply the step probe", {}, COMPUTE_S),
        *list_gates(configs, "preflight", planner.engine_s + planner.grid.preflight_s),
        *(cell for trial, order in sweeps for cell in _list_phase_a(planner, trial, order)),
        CellPlan("reference/rates", "reference", "reference", None, "ref_safe and ref_load", {}, COMPUTE_S),
        *(cell for trial, order in sweeps for cell in _list_phase_b(planner, trial, order)),
        *confirm.list_cells(planner, configs),
        CellPlan("analysis/revert", "analysis", "revert", None, "remove the step probe", {}, COMPUTE_S),
        CellPlan("analysis/report", "analysis", "analysis", None, "numbers, tax, manifest, report", {}, 2 * COMPUTE_S),
    ]


def _list_phase_a(planner: LoadPlanner, trial: int, order: Sequence[str]) -> Iterator[CellPlan]:
    """Every load cell of a sweep once, config by config. Without a confirm stage each trial is a sweep."""
    for config in order:
        yield from _measure_loads(planner, trial, config, _list_rate_loads(planner.grid))


def _list_phase_b(planner: LoadPlanner, trial: int, order: Sequence[str]) -> Iterator[CellPlan]:
    """Empty where the grid has no Phase B, or a confirm stage that measures it."""
    grid = planner.grid
    for config in () if grid.confirm else order:
        yield from _measure_loads(planner, trial, config, _list_shape_loads(grid))
        if config in grid.phase_b_prime.configs:
            yield from _measure_loads(planner, trial, config, _list_prime_loads(grid), starts_engine=False)


def _measure_loads(
    planner: LoadPlanner, trial: int, config: str, loads: Sequence[PlannedLoad], *, starts_engine: bool = True
) -> Iterator[CellPlan]:
    """The cells of one phase in a sweep."""
    for index, load in enumerate(loads):
        block = (PHASE_A, PHASE_B, PHASE_B_PRIME).index(load.phase) + confirm.SWEEP_BLOCKS * trial
        number, is_first = block * CELLS_PER_BLOCK + index, starts_engine and index == 0
        yield planner.make_cell(config, load, trial=trial, cell_index=number, is_first=is_first)


def _list_rate_loads(grid: Grid) -> list[PlannedLoad]:
    """The loads of Phase A."""
    phase, enough = grid.phase_a, grid.min_completed
    return [
        PlannedLoad(PHASE_A, f"r{rate:g}", f"{rate:g} req/s", phase.shape, rate, rate, enough)
        for rate in phase.rates_per_s
    ]


def _list_shape_loads(grid: Grid) -> list[PlannedLoad]:
    """The loads of Phase B in a sweep."""
    return [plan_shape(grid, PHASE_B, shape, REF_SAFE) for shape in grid.phase_b.shapes]


def _list_prime_loads(grid: Grid) -> list[PlannedLoad]:
    """The loads of B' in a sweep."""
    return [plan_shape(grid, PHASE_B_PRIME, shape, REF_LOAD) for shape in grid.shapes_at_ref_load]


def estimate_sums(planner: LoadPlanner, configs: Sequence[str]) -> tuple[Sum, ...]:
    """The sums of the time estimate of the engine stages (specs/connector_tax, "Updated runtime estimate")."""
    grid = planner.grid
    around = f"{grid.engine_start_s:g} s start + {{}} + {planner.release_wait_s:g} s release"
    lines = [
        Sum(
            "preflight",
            f"{len(configs)} configs x ({around.format(f'{grid.preflight_s:g} s checks')})",
            len(configs) * (planner.engine_s + grid.preflight_s),
        ),
        *_sum_sweep(planner, configs, around),
    ]
    if grid.confirm:
        each = around.format(f"up to ({_join_estimates(planner, confirm.list_loads(grid))}) s of cells")
        text = f"{grid.trials} launches x {len(configs)} configs x ({each})"
        lines.append(Sum("confirm", text, confirm.estimate_stage_s(planner, configs, grid.trials)))
    return tuple(lines)


def _sum_sweep(planner: LoadPlanner, configs: Sequence[str], around: str) -> Iterator[Sum]:
    grid = planner.grid
    swept, trials = _list_swept(grid, configs), 1 if grid.confirm else grid.trials
    prime = [config for config in swept if config in grid.phase_b_prime.configs]
    times = f"{trials} trials x " if trials > 1 else ""

    def total_s(loads: Sequence[PlannedLoad], engine_s: float, count: int) -> float:
        return trials * count * (engine_s + sum(planner.estimate_s(load) for load in loads))

    rates, shapes, primes = _list_rate_loads(grid), _list_shape_loads(grid), _list_prime_loads(grid)
    each = f"{times}{len(swept)} configs x ({around.format('({}) s of cells')})"
    yield Sum("phase-a", each.format(_join_estimates(planner, rates)), total_s(rates, planner.engine_s, len(swept)))
    if grid.confirm or not shapes:
        return
    text = f"{each.format(_join_estimates(planner, shapes))}, if ref_safe is {grid.expect_rate(REF_SAFE):g} req/s"
    yield Sum("phase-b", text, total_s(shapes, planner.engine_s, len(swept)))
    if prime and primes:
        cells = _join_estimates(planner, primes)
        text = f"{times}{len(prime)} configs x ({cells}) s of cells, where ref_load differs from ref_safe"
        yield Sum("phase-b", text, total_s(primes, 0.0, len(prime)))


def _describe_hours(planner: LoadPlanner, configs: Sequence[str]) -> tuple[str, ...]:
    """How long the confirm stage takes with more or fewer launches; empty where there is none."""
    if not planner.grid.confirm:
        return ()
    hours = {count: format_duration(confirm.estimate_stage_s(planner, configs, count)) for count in PLANNED_LAUNCHES}
    times = ", ".join(f"{text} with {count}" for count, text in hours.items())
    return (
        "Verdicts come from the confirm stage. Phase A before it is descriptive: one launch per config.",
        f"The confirm stage takes {times} launches per config (`--trials`).",
    )


def _describe_fixed_rates(grid: Grid) -> tuple[str, ...]:
    """A sentence for the plan; empty where Phase A gives the reference rates."""
    if not grid.fixed_rates:
        return ()
    rates = " and ".join(f"{name} = {rate:g} req/s" for name, rate in grid.fixed_rates.items())
    return (f"The plan fixes {rates}; what Phase A gives is only reported.",)


def _join_estimates(planner: LoadPlanner, loads: Sequence[PlannedLoad]) -> str:
    """The seconds of cells, equal neighbors as one product: `9 x 70`, `410 + 210 + 4 x 70`."""
    estimates = groupby(round(planner.estimate_s(load)) for load in loads)
    runs = [(seconds, len(list(same))) for seconds, same in estimates]
    return " + ".join(f"{count} x {seconds}" if count > 1 else f"{seconds}" for seconds, count in runs)
