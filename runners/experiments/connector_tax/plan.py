"""The plan of a `connector-tax` run: stages and cells as specs/connector_tax, "Re-run script", orders them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from launch.command import ports_needed
from launch.profile import Capacity, ConnectorConfig, Profile, load_config
from results.records.baseline import BASELINE, REPEAT
from runners.campaign.experiment import DraftPlan, RunOptions
from runners.campaign.plan import Sum
from runners.errors import RunnerError
from runners.experiments.connector_tax.grid import EXPERIMENT, Grid, read_grid
from runners.experiments.connector_tax.sustainable import expected_cell_s, list_unsustainable
from state.run import CellPlan, StagePlan

STAGES = (
    StagePlan("preflight", "Pre-flight and step probe"),
    StagePlan("phase-a", "Phase A: rate sweep"),
    StagePlan("reference", "Reference rates"),
    StagePlan("phase-b", "Phase B: shape sweep"),
    StagePlan("analysis", "Probe removal and analysis"),
)
REF_SAFE = "ref_safe"
REF_LOAD = "ref_load"
COMPUTE_S = 2.0
NO_LIMIT = Capacity()

PHASE_A, PHASE_B, PHASE_B_PRIME = "A", "B", "Bp"
STAGE_OF = {PHASE_A: "phase-a", PHASE_B: "phase-b", PHASE_B_PRIME: "phase-b"}
PLACES_PER_PHASE = 1_000
"""Cells of one phase and trial get numbers from a block of this size: no two cells of a run share a prompt."""


def draft_plan(options: RunOptions, profile: Profile) -> DraftPlan:
    """Raises RunnerError or LaunchError naming the wrong key or config."""
    if options.policies or options.trace:
        raise RunnerError(f"{EXPERIMENT} routes nothing", remedy="--policy and --trace belong to `routing`")
    tables = profile.experiments.get(EXPERIMENT, {})
    grid = read_grid(tables, profile.name, options.preset, settings=options.settings)
    if options.trials is not None:
        grid = msgspec.structs.replace(grid, trials=options.trials)
    configs = {config.name: config for config in _load_configs(options.configs or grid.configs)}
    seed, release_wait_s = grid.seed if options.seed is None else options.seed, profile.launch.release_wait_s
    orders = draw_orders(grid, list(configs), seed)
    return DraftPlan(
        grid=grid,
        profile=profile,
        seed=seed,
        configs=tuple(configs[name] for name in orders[0]),
        stages=STAGES,
        cells=list_cells(grid, orders, seed, release_wait_s, profile.capacity),
        ports=max(ports_needed(config) for config in configs.values()),
        inputs={
            "grid": msgspec.to_builtins(grid),
            "configs": msgspec.to_builtins(configs),
            "config_names": list(options.configs or grid.configs),
            **({"settings": list(options.settings)} if options.settings else {}),
        },
        sums=arithmetic(grid, list(configs), release_wait_s, profile.capacity),
        notes=list_unsustainable(grid, profile.capacity),
    )


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
    """Per trial, the order of configs."""
    draw = random.Random(seed)
    return [draw.sample(configs, len(configs)) for _ in range(grid.trials)]


def list_cells(
    grid: Grid, orders: Sequence[Sequence[str]], seed: int, release_wait_s: float, capacity: Capacity = NO_LIMIT
) -> list[CellPlan]:
    """Every cell in the order it runs; `orders`: per trial, the configs' names."""
    engine_s = grid.engine_start_s + release_wait_s
    trials = [_Trial(grid, seed, engine_s, number, tuple(order), capacity) for number, order in enumerate(orders)]
    return [
        *_preflight_cells(orders[0], grid, engine_s),
        *(cell for trial in trials for cell in trial.phase_a()),
        CellPlan("reference/rates", "reference", "reference", None, "ref_safe and ref_load", {}, COMPUTE_S),
        *(cell for trial in trials for cell in trial.phase_b()),
        CellPlan("analysis/revert", "analysis", "revert", None, "remove the step probe", {}, COMPUTE_S),
        CellPlan("analysis/report", "analysis", "analysis", None, "numbers, tax, manifest, report", {}, 2 * COMPUTE_S),
    ]


def _preflight_cells(order: Sequence[str], grid: Grid, engine_s: float) -> Iterator[CellPlan]:
    yield CellPlan("preflight/probe", "preflight", "probe", None, "apply the step probe", {}, COMPUTE_S)
    for config in order:
        estimate = engine_s + grid.preflight_s
        yield CellPlan(f"preflight/{config}", "preflight", "preflight", config, config, {}, estimate)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Every load cell once: a block in which each config has its turn."""

    grid: Grid
    seed: int
    engine_s: float
    number: int
    order: tuple[str, ...]
    capacity: Capacity

    def phase_a(self) -> Iterator[CellPlan]:
        phase = self.grid.phase_a
        shape = {"input_tokens": phase.input_tokens, "output_tokens": phase.output_tokens}
        for config in self.order:
            for place, rate in enumerate(phase.rates_per_s):
                load = shape | {"rate_per_s": rate}
                yield self._cell(PHASE_A, config, place, f"r{rate:g}", f"{rate:g} req/s", load, rate, first=place == 0)

    def phase_b(self) -> Iterator[CellPlan]:
        """Empty where the grid has no Phase B."""
        shapes = [(i, o) for i in self.grid.phase_b.input_tokens for o in self.grid.phase_b.output_tokens]
        for config in self.order:
            for place, shape in enumerate(shapes):
                yield self._shape_cell(PHASE_B, config, place, shape, REF_SAFE, first=place == 0)
            if shapes and config in self.grid.phase_b_prime.configs:
                for place, shape in enumerate(self.grid.phase_b_prime.shapes):
                    yield self._shape_cell(PHASE_B_PRIME, config, place, shape, REF_LOAD, first=False)

    def _shape_cell(
        self, phase: str, config: str, place: int, shape: tuple[int, int], rate: str, *, first: bool
    ) -> CellPlan:
        input_tokens, output_tokens = shape
        label = f"{input_tokens} x {output_tokens}" + (f" at {rate}" if phase == PHASE_B_PRIME else "")
        load = {"input_tokens": input_tokens, "output_tokens": output_tokens, "rate": rate}
        expected = self.grid.expected_ref_safe_per_s
        return self._cell(phase, config, place, f"{input_tokens}x{output_tokens}", label, load, expected, first=first)

    def _cell(
        self,
        phase: str,
        config: str,
        place: int,
        stem: str,
        label: str,
        load: Mapping[str, Any],
        expected_rate_per_s: float,
        *,
        first: bool,
    ) -> CellPlan:
        """A load cell. Its arrivals and prompts depend on seed, trial and place in the grid, never on the config: all
        configs see the same ones. The first cell of a config on an engine pays for that engine's start and release."""
        grid = self.grid
        block = (PHASE_A, PHASE_B, PHASE_B_PRIME).index(phase) + 3 * self.number
        params: dict[str, Any] = {
            "phase": phase,
            "stem": stem if self.number == 0 else f"{stem}_t{self.number}",
            "load_seed": self.seed,
            "cell_index": block * PLACES_PER_PHASE + place,
            "arrival": grid.arrival,
            "warmup_s": grid.warmup_s,
            "min_duration_s": grid.min_duration_s,
            "min_completed": grid.min_completed,
            "hard_stop_factor": grid.hard_stop_factor,
            "inflight_cap": grid.inflight_cap,
            "drain_s": grid.drain_s,
            "lateness_p99_s": grid.fidelity.lateness_p99_s,
            "achieved_ratio": grid.fidelity.achieved_ratio,
        }
        prime = "-prime" if phase == PHASE_B_PRIME else ""
        trial = "" if self.number == 0 else f"/t{self.number}"
        return CellPlan(
            cell=f"{STAGE_OF[phase]}{prime}/{config}/{stem}{trial}",
            stage=STAGE_OF[phase],
            kind="load",
            config=config,
            label=label,
            params={**params, **load},
            estimated_s=expected_cell_s(
                grid, self.capacity, expected_rate_per_s, (load["input_tokens"], load["output_tokens"])
            )
            + (self.engine_s if first else 0.0),
            trial=self.number,
        )


def arithmetic(
    grid: Grid, configs: Sequence[str], release_wait_s: float, capacity: Capacity = NO_LIMIT
) -> tuple[Sum, ...]:
    """How the estimate of the engine stages comes about (specs/connector_tax, "Updated runtime estimate")."""
    count, start_s, trials = len(configs), grid.engine_start_s, grid.trials
    around = f"{start_s:g} s start + {{}} + {release_wait_s:g} s release"
    swept = (grid.phase_a.input_tokens, grid.phase_a.output_tokens)
    cells_a = [expected_cell_s(grid, capacity, rate, swept) for rate in grid.phase_a.rates_per_s]
    shapes = [(i, o) for i in grid.phase_b.input_tokens for o in grid.phase_b.output_tokens]
    prime = len(set(configs) & set(grid.phase_b_prime.configs))
    times = f"{trials} trials x " if trials > 1 else ""
    lines = [
        Sum(
            "preflight",
            f"{count} configs x ({around.format(f'{grid.preflight_s:g} s checks')})",
            count * (start_s + grid.preflight_s + release_wait_s),
        ),
        Sum(
            "phase-a",
            f"{times}{count} configs x ({around.format(f'({_join_sum(cells_a)}) s of cells')})",
            trials * count * (start_s + sum(cells_a) + release_wait_s),
        ),
    ]
    if not shapes:
        return tuple(lines)
    rate = grid.expected_ref_safe_per_s
    cells_b = [expected_cell_s(grid, capacity, rate, shape) for shape in shapes]
    lines.append(
        Sum(
            "phase-b",
            f"{times}{count} configs x ({around.format(f'({_join_sum(cells_b)}) s of cells')}), "
            f"if ref_safe is {rate:g} req/s",
            trials * count * (start_s + sum(cells_b) + release_wait_s),
        )
    )
    if prime and grid.phase_b_prime.shapes:
        cells_p = [expected_cell_s(grid, capacity, rate, shape) for shape in grid.phase_b_prime.shapes]
        text = f"{times}{prime} configs x ({_join_sum(cells_p)}) s of cells, where ref_load differs from ref_safe"
        lines.append(Sum("phase-b", text, trials * prime * sum(cells_p)))
    return tuple(lines)


def _join_sum(values: Sequence[float]) -> str:
    """Equal neighbours as one product: `9 x 70`, `410 + 210 + 4 x 70`."""
    runs = [(value, len(list(same))) for value, same in groupby(round(value) for value in values)]
    return " + ".join(f"{count} x {value:g}" if count > 1 else f"{value:g}" for value, count in runs)
