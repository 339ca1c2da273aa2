"""The plan of `capacity`: per policy and step of its search one cell for each trace.

Which size a step simulates follows from the points before it; steps that a search does not need are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from launch.profile import Profile, load_config
from results.capacity.search import Search
from results.capacity.slo import Limit, parse_slo
from results.records.count import format_count
from results.records.plan import CellPlan, StagePlan
from results.statistics.trials import MIN_PAIRED
from runners.campaign.experiment import DraftPlan, RunOptions
from runners.campaign.plan import Sum
from runners.errors import RunnerError
from runners.experiments.routing.engine_model import describe_model
from runners.experiments.routing.grid import EXPERIMENT as ROUTING
from runners.experiments.routing.grid import POOLED, Grid, PolicyChoice, make_slug, read_grid
from runners.experiments.routing.plan import (
    TRACE_CELL,
    apply_options,
    count_cores,
    describe_simulation,
    digest_files,
    list_settings,
    replay_as_recorded,
)
from runners.experiments.settings import convert_grid, find_preset, parse_setting, refuse_problems, set_key

EXPERIMENT = "capacity"
PREPARE, SEARCH, ANALYSIS = "prepare", "search", "analysis"
STAGES = (
    StagePlan(PREPARE, "Traces"),
    StagePlan(SEARCH, "Search for the fewest instances"),
    StagePlan(ANALYSIS, "Analysis"),
)
OWN = "search."
"""Begins the settings of the search; all others are those of routing."""
EXAMPLE = "search.max_instances=16"
REMEDY = "correct that key in the profile or in --set; docs/simulator.md lists them"
CHECKS = 4
"""Steps beyond doubling and halving: two neighbors of the answer, and two more where sizes are not monotone."""
COMPUTE_S = 5.0


class SearchChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is searched for."""

    slo: str = "ttft_p90=2s,tpot_p90=50ms"
    """The most that percentiles over all turns may be: of ttft, tpot, e2e or a metric of your own, in ms or s."""
    max_instances: int = 32
    """The search ends there."""


@dataclass(frozen=True, slots=True)
class CapacityGrid:
    """One preset of the experiment."""

    routing: Grid
    """Its `instances` are where the search begins."""
    limits: tuple[Limit, ...]
    most: int

    def search(self, policy: PolicyChoice) -> Search:
        return Search(self.routing.instances, self.most, policy.name == POOLED or policy.prefill_instances > 0)


def draft_plan(options: RunOptions, profile: Profile) -> DraftPlan:
    """Raises RunnerError or LaunchError naming the wrong key, policy, parameter or trace."""
    raw, where = _find_preset(options, profile)
    settings = (*options.settings, *list_settings(options, has_model="simulation" in raw))
    if options.trace:
        settings = replay_as_recorded(settings)
    grid, choice = _read_grid(options, settings, profile.name, raw, where)
    config, seed = load_config(grid.routing.config), grid.routing.seed if options.seed is None else options.seed
    return DraftPlan(
        grid=grid,
        profile=profile,
        seed=seed,
        configs=(config,),
        stages=STAGES,
        cells=list(_list_cells(grid)),
        ports=0,
        needs_engine=False,
        inputs={
            "grid": msgspec.to_builtins(grid.routing),
            **describe_simulation(grid.routing),
            "search": msgspec.to_builtins(choice) | {"searches": _describe_searches(grid)},
            "configs": {config.name: msgspec.to_builtins(config)},
            "config_names": [grid.routing.config],
            "policy_names": list(options.policies),
            "settings": list(settings),
            "trace_path": options.trace,
            "files": digest_files(grid.routing),
        },
        sums=(_estimate_search(grid),),
        notes=tuple(_list_notes(grid.routing)),
    )


def _list_notes(grid: Grid) -> Iterator[str]:
    yield f"SIMULATED, nothing is measured: engines are the model {describe_model(grid)}"
    if grid.trials < MIN_PAIRED:
        yield f"{format_count(grid.trials, 'trace', 'traces')} at each point: an interval takes {MIN_PAIRED}"


def _find_preset(options: RunOptions, profile: Profile) -> tuple[dict[str, Any], str]:
    """As `find_preset`; a preset of capacity is one of routing with a table `search`, perhaps `like` one of routing."""
    own = profile.experiments.get(EXPERIMENT, {})
    tables = {**profile.experiments.get(ROUTING, {}), **own} if options.preset in own else own
    return find_preset(tables, EXPERIMENT, profile.name, options.preset)


def _read_grid(
    options: RunOptions, settings: tuple[str, ...], profile: str, raw: dict[str, Any], where: str
) -> tuple[CapacityGrid, SearchChoice]:
    """`profile`: its name; `raw`, `where`: as `_find_preset` has them."""
    tuning: dict[str, Any] = {"search": raw.pop("search", {})}
    for text in settings:
        if text.startswith(OWN):
            set_key(tuning, *parse_setting(text, EXAMPLE))
    choice = convert_grid(tuning["search"], SearchChoice, where, REMEDY)
    others = [text for text in settings if not text.startswith(OWN)]
    others += [f"trace.source={options.trace}"] if options.trace else []
    routing = read_grid({options.preset: raw}, profile, options.preset, policies=options.policies, settings=others)
    routing = apply_options(routing, options)
    if routing.simulation is None:
        raise RunnerError(f"{where} has no engine model", remedy="name one with --engine")
    _refuse_problems(routing, choice, where)
    try:
        limits = parse_slo(choice.slo)
    except ValueError as error:
        raise RunnerError(f"{where}: search.slo: {error}", remedy="write it as ttft_p90=2s,tpot_p90=50ms") from error
    return CapacityGrid(_drop_splits(routing), limits, choice.max_instances), choice


def _refuse_problems(grid: Grid, choice: SearchChoice, where: str) -> None:
    labels = [make_slug(grid.label(policy)) for policy in _drop_splits(grid).policies]
    problems = [
        (choice.max_instances < 1, "search.max_instances must be at least 1"),
        (grid.sensitivity is not UNSET, "a search has no variations: leave out sensitivity"),
        (
            len(set(labels)) < len(labels),
            "two policies have the same label without their prefill_instances, which the search varies, among "
            f"{', '.join(labels)}",
        ),
    ]
    refuse_problems(problems, where, REMEDY)


def _drop_splits(grid: Grid) -> Grid:
    """The grid without the split of pools in the labels that it makes: the search varies it."""
    policies = (
        msgspec.structs.replace(policy, label=grid.label(msgspec.structs.replace(policy, prefill_instances=0)))
        if policy.prefill_instances
        else policy
        for policy in grid.policies
    )
    return msgspec.structs.replace(grid, policies=tuple(policies))


def _describe_searches(grid: CapacityGrid) -> Mapping[str, Any]:
    """By label, in the order of tables."""
    return {
        grid.routing.label(policy): {
            "start": grid.routing.instances,
            "most": grid.most,
            "pooled": grid.search(policy).pooled,
        }
        for policy in grid.routing.policies
    }


def _list_cells(grid: CapacityGrid) -> Iterator[CellPlan]:
    """Step by step: in each of them every policy, and of each policy every trace."""
    yield CellPlan(TRACE_CELL, PREPARE, "trace", None, "the traces as they are replayed", {}, COMPUTE_S)
    policies = {grid.routing.label(policy): policy for policy in grid.routing.policies}
    steps = {label: count_steps(grid.search(policy)) for label, policy in policies.items()}
    for step in range(max(steps.values())):
        for label, policy in policies.items():
            if step >= steps[label]:
                continue
            expected_s = _expect_cell_s(grid) if step < expect_steps(grid.search(policy)) else 0.0
            for trial in range(grid.routing.trials):
                yield CellPlan(
                    cell=f"{SEARCH}/{make_slug(label)}/s{step:02}/t{trial}",
                    stage=SEARCH,
                    kind="point",
                    config=grid.routing.config,
                    label=label,
                    params={"label": label, "step": step},
                    estimated_s=expected_s,
                    trial=trial,
                )
    yield CellPlan("analysis/report", ANALYSIS, "analysis", None, "numbers, table, figure, report", {}, COMPUTE_S)


def count_steps(search: Search) -> int:
    """The most steps of a search: doubling, halving down to one size, halving twice below it, and CHECKS.

    With pools each number of instances takes two splits per halving of their range.
    """
    doubling = max(0, math.ceil(math.log2(search.most / search.start)))
    halving = math.ceil(math.log2(max(search.start, search.most / 2, 2)))
    undecided = 2 * math.ceil(math.log2(max(search.most, 2)))
    splits = max(1, 2 * math.ceil(math.log2(max(search.most - 1, 1)))) if search.pooled else 1
    return (1 + doubling + halving + undecided + CHECKS) * splits


def expect_steps(search: Search) -> int:
    """The steps of a search that ends near its start."""
    return (2 + math.ceil(math.log2(max(search.start, 2)))) * (2 if search.pooled else 1)


def _expect_cell_s(grid: CapacityGrid) -> float:
    assert grid.routing.simulation is not None
    return grid.routing.simulation.expected_cell_s / count_cores()


def _estimate_search(grid: CapacityGrid) -> Sum:
    steps = sum(expect_steps(grid.search(policy)) for policy in grid.routing.policies)
    text = f"about {steps} points x {grid.routing.trials} traces x {_expect_cell_s(grid):g} s on {count_cores()} cores"
    return Sum(SEARCH, text, steps * grid.routing.trials * _expect_cell_s(grid))
