"""The plan of a `connector-tax` run: stages and cells as specs/connector_tax, "Re-run script", orders them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from launch.command import ports_needed
from launch.profile import Capacity, ConnectorConfig, Profile, load_config
from results.connector_tax.configs import BASELINE, REPEAT
from results.records.plan import CellPlan, StagePlan
from results.records.reference_rates import REF_LOAD, REF_SAFE
from runners.campaign.experiment import DraftPlan, RunOptions
from runners.campaign.plan import Sum, duration_text
from runners.errors import RunnerError
from runners.experiments.cold_start import add_cold_starts
from runners.experiments.connector_tax import confirm
from runners.experiments.connector_tax.grid import EXPERIMENT, PLANNED_LAUNCHES, Grid, read_grid
from runners.experiments.connector_tax.load_cells import (
    PHASE_A,
    PHASE_B,
    PHASE_B_PRIME,
    PLACES_PER_BLOCK,
    PlannedLoad,
    make_cell,
    plan_shape,
)
from runners.experiments.connector_tax.sustainable import describe_own_rates, expected_cell_s, list_unsustainable
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
    seed, release_wait_s = grid.seed if options.seed is None else options.seed, profile.launch.release_wait_s
    orders = draw_orders(grid, list(configs), seed)
    order = [*orders[0], *(name for name in configs if name not in orders[0])]
    draft = DraftPlan(
        grid=grid,
        profile=profile,
        seed=seed,
        configs=tuple(configs[name] for name in order),
        stages=STAGES,
        cells=list_cells(grid, orders, order, seed, release_wait_s, profile.capacity),
        ports=max(ports_needed(config) for config in configs.values()),
        inputs={
            "grid": _describe_grid(grid),
            "configs": msgspec.to_builtins(configs),
            "config_names": list(options.configs or grid.configs),
            **({"settings": list(options.settings)} if options.settings else {}),
        },
        sums=estimate_sums(grid, list(configs), release_wait_s, profile.capacity),
        notes=(
            *_describe_hours(grid, list(configs), release_wait_s, profile.capacity),
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


def list_cells(
    grid: Grid,
    orders: Sequence[Sequence[str]],
    configs: Sequence[str],
    seed: int,
    release_wait_s: float,
    capacity: Capacity,
) -> list[CellPlan]:
    """Every cell in the order it runs; `orders`: the configs' names in each sweep; `configs`: all of them."""
    engine_s = grid.engine_start_s + release_wait_s
    sweeps = [_Sweep(grid, seed, engine_s, trial, tuple(order), capacity) for trial, order in enumerate(orders)]
    return [
        *_preflight_cells(configs, grid, engine_s),
        *(cell for sweep in sweeps for cell in sweep.phase_a()),
        CellPlan("reference/rates", "reference", "reference", None, "ref_safe and ref_load", {}, COMPUTE_S),
        *(cell for sweep in sweeps for cell in sweep.phase_b()),
        *confirm.list_cells(grid, configs, seed, engine_s, capacity),
        CellPlan("analysis/revert", "analysis", "revert", None, "remove the step probe", {}, COMPUTE_S),
        CellPlan("analysis/report", "analysis", "analysis", None, "numbers, tax, manifest, report", {}, 2 * COMPUTE_S),
    ]


def _preflight_cells(configs: Sequence[str], grid: Grid, engine_s: float) -> Iterator[CellPlan]:
    yield CellPlan("preflight/probe", "preflight", "probe", None, "apply the step probe", {}, COMPUTE_S)
    for config in configs:
        estimate_s = engine_s + grid.preflight_s
        yield CellPlan(f"preflight/{config}", "preflight", "preflight", config, config, {}, estimate_s)


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Every load cell of the sweep once, config by config. Without a confirm stage each trial is a sweep."""

    grid: Grid
    seed: int
    engine_s: float
    trial: int
    order: tuple[str, ...]
    capacity: Capacity

    def phase_a(self) -> Iterator[CellPlan]:
        phase, enough = self.grid.phase_a, self.grid.min_completed
        for config in self.order:
            for place, rate in enumerate(phase.rates_per_s):
                load = PlannedLoad(PHASE_A, f"r{rate:g}", f"{rate:g} req/s", phase.shape, rate, rate, enough)
                yield self._cell(config, load, place, first=place == 0)

    def phase_b(self) -> Iterator[CellPlan]:
        """Empty where the grid has no Phase B, or a confirm stage that measures it."""
        if self.grid.confirm:
            return
        for config in self.order:
            for place, load in enumerate(_list_shape_loads(self.grid)):
                yield self._cell(config, load, place, first=place == 0)
            if config in self.grid.phase_b_prime.configs:
                for place, load in enumerate(_list_prime_loads(self.grid)):
                    yield self._cell(config, load, place, first=False)

    def _cell(self, config: str, load: PlannedLoad, place: int, *, first: bool) -> CellPlan:
        """The first cell of an engine includes its start and release."""
        block = (PHASE_A, PHASE_B, PHASE_B_PRIME).index(load.phase) + confirm.SWEEP_BLOCKS * self.trial
        return make_cell(
            self.grid,
            self.seed,
            config,
            load,
            trial=self.trial,
            cell_index=block * PLACES_PER_BLOCK + place,
            engine_s=self.engine_s if first else 0.0,
            capacity=self.capacity,
        )


def _list_shape_loads(grid: Grid) -> list[PlannedLoad]:
    """The loads of Phase B in a sweep."""
    return [plan_shape(grid, PHASE_B, shape, REF_SAFE) for shape in grid.phase_b.shapes]


def _list_prime_loads(grid: Grid) -> list[PlannedLoad]:
    """The loads of B' in a sweep."""
    return [plan_shape(grid, PHASE_B_PRIME, shape, REF_LOAD) for shape in grid.shapes_at_ref_load]


def estimate_sums(grid: Grid, configs: Sequence[str], release_wait_s: float, capacity: Capacity) -> tuple[Sum, ...]:
    """The sums of the time estimate of the engine stages (specs/connector_tax, "Updated runtime estimate")."""
    start_s = grid.engine_start_s
    around = f"{start_s:g} s start + {{}} + {release_wait_s:g} s release"
    lines = [
        Sum(
            "preflight",
            f"{len(configs)} configs x ({around.format(f'{grid.preflight_s:g} s checks')})",
            len(configs) * (start_s + grid.preflight_s + release_wait_s),
        ),
        *_sum_sweep(grid, configs, start_s + release_wait_s, around, capacity),
    ]
    if grid.confirm:
        seconds = confirm.stage_s(grid, configs, start_s + release_wait_s, grid.trials, capacity)
        cells = [load.estimate_s(grid, capacity) for load in confirm.list_loads(grid)]
        each = around.format(f"up to ({_join_sum(cells)}) s of cells")
        lines.append(Sum("confirm", f"{grid.trials} launches x {len(configs)} configs x ({each})", seconds))
    return tuple(lines)


def _sum_sweep(grid: Grid, configs: Sequence[str], engine_s: float, around: str, capacity: Capacity) -> Iterator[Sum]:
    swept, phase = _list_swept(grid, configs), grid.phase_a
    count, trials = len(swept), 1 if grid.confirm else grid.trials
    cells_a = [expected_cell_s(grid, capacity, rate, phase.shape, grid.min_completed) for rate in phase.rates_per_s]
    prime = len(set(swept) & set(grid.phase_b_prime.configs))
    times = f"{trials} trials x " if trials > 1 else ""
    yield Sum(
        "phase-a",
        f"{times}{count} configs x ({around.format(f'({_join_sum(cells_a)}) s of cells')})",
        trials * count * (engine_s + sum(cells_a)),
    )
    if grid.confirm or not grid.phase_b.shapes:
        return
    rate = grid.expect_rate(REF_SAFE)
    cells_b = [load.estimate_s(grid, capacity) for load in _list_shape_loads(grid)]
    yield Sum(
        "phase-b",
        f"{times}{count} configs x ({around.format(f'({_join_sum(cells_b)}) s of cells')}), "
        f"if ref_safe is {rate:g} req/s",
        trials * count * (engine_s + sum(cells_b)),
    )
    if prime and grid.shapes_at_ref_load:
        cells_p = [load.estimate_s(grid, capacity) for load in _list_prime_loads(grid)]
        text = f"{times}{prime} configs x ({_join_sum(cells_p)}) s of cells, where ref_load differs from ref_safe"
        yield Sum("phase-b", text, trials * prime * sum(cells_p))


def _describe_hours(grid: Grid, configs: Sequence[str], release_wait_s: float, capacity: Capacity) -> tuple[str, ...]:
    """How long the confirm stage takes with more or fewer launches; empty where there is none."""
    if not grid.confirm:
        return ()
    engine_s = grid.engine_start_s + release_wait_s
    hours = [duration_text(confirm.stage_s(grid, configs, engine_s, count, capacity)) for count in PLANNED_LAUNCHES]
    times = ", ".join(f"{text} with {count}" for text, count in zip(hours, PLANNED_LAUNCHES, strict=True))
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


def _join_sum(values: Sequence[float]) -> str:
    """Equal neighbors as one product: `9 x 70`, `410 + 210 + 4 x 70`."""
    runs = [(value, len(list(same))) for value, same in groupby(round(value) for value in values)]
    return " + ".join(f"{count} x {value:g}" if count > 1 else f"{value:g}" for value, count in runs)
