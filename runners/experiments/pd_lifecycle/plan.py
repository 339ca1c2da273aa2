"""The plan of a `pd-lifecycle` run: per trial a cell for every C x N x O, all of one C in a row, else in random order.

specs/pd_lifecycle, "Protocol".
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import msgspec

from launch.command import count_ports_needed
from launch.profile import ConnectorConfig, Kind, Profile, load_config
from launch.transfer_request import find_transferring
from results.records.count import format_count
from results.records.lifecycle import RequestConfig
from results.records.plan import CellPlan, StagePlan
from runners.campaign.experiment import DraftPlan, RunOptions
from runners.campaign.plan import Sum
from runners.errors import RunnerError
from runners.experiments.cold_start import add_cold_starts
from runners.experiments.engine_choice import make_counting_profile
from runners.experiments.gates import list_gates
from runners.experiments.pd_lifecycle.grid import EXPERIMENT, PROBE_CELL, Grid, make_shape_params, read_grid
from runners.experiments.settings import refuse_routing_options

PREFLIGHT, SWEEP, ANALYSIS = "preflight", "sweep", "analysis"
STAGES = (
    StagePlan(PREFLIGHT, "Pre-flight and transfer probe"),
    StagePlan(SWEEP, "Sweep: every C x N x O"),
    StagePlan(ANALYSIS, "Probe removal and analysis"),
)
LINK_CELL = "preflight/link"
COMPUTE_S = 2.0
ANALYSIS_S = 8.0


def draft_plan(options: RunOptions, profile: Profile) -> DraftPlan:
    """Draft a run from the user's options. Raises RunnerError or LaunchError, which names the wrong key or config."""
    refuse_routing_options(options, f"{EXPERIMENT} has one policy, static_pd, and no trace")
    grid = read_grid(
        profile.experiments.get(EXPERIMENT, {}),
        profile.name,
        options.preset,
        configs=options.configs,
        settings=options.settings,
    )
    if options.trials is not None:
        grid = msgspec.structs.replace(grid, trials=options.trials)
    profile = make_counting_profile(profile, grid.engine)
    configs = _load_configs(grid, profile.engine.kind)
    grid = msgspec.structs.replace(
        grid,
        configs=tuple(load_config(config).name for config in grid.configs),
        plain=load_config(grid.plain).name if grid.plain else "",
    )
    _require_cells(grid, profile)
    seed = grid.seed if options.seed is None else options.seed
    draft = DraftPlan(
        grid=grid,
        profile=profile,
        seed=seed,
        configs=configs,
        stages=STAGES,
        cells=list_cells(grid, profile, seed),
        ports=_count_engines(grid) * max(count_ports_needed(config) for config in configs),
        inputs={
            "grid": msgspec.to_builtins(grid),
            "configs": {config.name: msgspec.to_builtins(config) for config in configs},
            "config_names": list(options.configs),
            "settings": list(options.settings),
        },
        sums=estimate_sums(grid, profile, seed),
        gpus=grid.gpus or _count_engines(grid),
        engines_per_gpu=-(-_count_engines(grid) // grid.gpus) if grid.gpus else 1,
    )
    return add_cold_starts(draft, in_turn=_count_engines(grid) if grid.gpus else 1)


def list_cells(grid: Grid, profile: Profile, seed: int) -> list[CellPlan]:
    """Every cell in the order it runs. One that does not fit is skipped, with its reason in the plan."""
    engine_s = grid.engine_start_s + profile.launch.release_wait_s
    return [
        CellPlan(PROBE_CELL, PREFLIGHT, "probe", None, "apply the probes", {}, COMPUTE_S),
        *list_gates(grid.all_configs, PREFLIGHT, engine_s + grid.preflight_s),
        CellPlan(LINK_CELL, PREFLIGHT, "link", None, "bandwidth of the link between the engines", {}, COMPUTE_S),
        *(cell for trial in range(grid.trials) for cell in _sweep_cells(grid, profile, seed, trial)),
        CellPlan("analysis/revert", ANALYSIS, "revert", None, "remove the probes", {}, COMPUTE_S),
        CellPlan("analysis/report", ANALYSIS, "analysis", None, "records, fits, figures, report", {}, ANALYSIS_S),
    ]


def estimate_sums(grid: Grid, profile: Profile, seed: int) -> tuple[Sum, ...]:
    """The sums of the time estimate of the engine stages: a line per trial and C, in the order of measurement."""
    release_s, count = profile.launch.release_wait_s, len(grid.all_configs)
    around = f"{grid.engine_start_s:g} s start + {{}} + {release_s:g} s release"
    once_s = grid.engine_start_s + release_s
    lines = [
        Sum(
            PREFLIGHT,
            f"{format_count(count, 'config', 'configs')} x ({around.format(f'{grid.preflight_s:g} s checks')})",
            count * (once_s + grid.preflight_s),
        )
    ]
    for trial in range(grid.trials):
        lines += _sum_trial(grid, profile, seed, trial)
    return tuple(lines)


def _sum_trial(grid: Grid, profile: Profile, seed: int, trial: int) -> Iterator[Sum]:
    shapes_by_prior = groupby(_list_measured_shapes(grid, profile, seed, trial), key=lambda shape: shape.prior_context)
    for turn, (prior, shapes) in enumerate(shapes_by_prior):
        level = list(shapes)
        begins, seed_s = _estimate_begins_s(grid, profile, turn), _estimate_seed_s(grid, prior)
        work_s = sum(_cell_s(grid, shape) for shape in level)
        start = f"{begins:g} s engines + " if begins else ""
        seeding = f"{seed_s:.1f} s seeding + " if prior else ""
        one_s = work_s / len(level) / grid.repetitions
        each = f"{len(level)} cells x {grid.repetitions} repetitions of {one_s:.2f} s on average"
        yield Sum(SWEEP, f"trial {trial + 1}, C = {prior}: {start}{seeding}{each}", begins + seed_s + work_s)


def _sweep_cells(grid: Grid, profile: Profile, seed: int, trial: int) -> Iterator[CellPlan]:
    """The sweep of one trial. The first measured cell of a C includes the time for seeding and for fresh engines."""
    measured, in_order = list(_list_measured_shapes(grid, profile, seed, trial)), list(grid.list_shapes())
    levels = [next(shapes) for _, shapes in groupby(measured, key=lambda shape: shape.prior_context)]
    for turn, shape in enumerate(grid.order_shapes(seed, trial)):
        estimated_s = _cell_s(grid, shape) if shape in measured else 0.0
        if shape in levels:
            estimated_s += _estimate_begins_s(grid, profile, levels.index(shape)) + _estimate_seed_s(
                grid, shape.prior_context
            )
        yield CellPlan(
            cell=f"{SWEEP}/{shape.label}" + (f"/t{trial}" if trial else ""),
            stage=SWEEP,
            kind="lifecycle",
            config=grid.decode_config,
            label=f"C {shape.prior_context}  N {shape.current_new_tokens}  O {shape.output_length}",
            params={
                **make_shape_params(shape),
                "position": in_order.index(shape),
                "turn": turn,
                "load_seed": seed,
                "plain": grid.plain,
                "why_not": grid.why_not(shape, profile.engine.max_model_len),
            },
            estimated_s=estimated_s,
            trial=trial,
        )


def _list_measured_shapes(grid: Grid, profile: Profile, seed: int, trial: int) -> Iterator[RequestConfig]:
    ordered = grid.order_shapes(seed, trial)
    return (shape for shape in ordered if not grid.why_not(shape, profile.engine.max_model_len))


def _estimate_begins_s(grid: Grid, profile: Profile, level: int) -> float:
    """Seconds for engine starts at a C: at a trial's first C, and at every C where fresh engines empty the caches."""
    fresh = level == 0 or grid.evict == "restart"
    return grid.engine_start_s + _estimate_age_s(grid) + profile.launch.release_wait_s if fresh else 0.0


def _estimate_age_s(grid: Grid) -> float:
    return grid.expected.age_s if grid.age else 0.0


def _count_engines(grid: Grid) -> int:
    return 3 if grid.plain else 2


def _estimate_seed_s(grid: Grid, prior_context: int) -> float:
    """Every engine computes the prefix; on shared cores one after the other."""
    return _count_engines(grid) * grid.expected.prefill_s(0, prior_context)


def _cell_s(grid: Grid, shape: RequestConfig) -> float:
    expected, requests = grid.expected, 1 + grid.baseline + bool(grid.plain)
    prefill_s = expected.prefill_s(shape.prior_context, shape.current_new_tokens)
    one_s = prefill_s + (shape.output_length - 1) * expected.token_s
    return grid.repetitions * (requests * one_s + expected.around_s)


def _load_configs(grid: Grid, kind: Kind) -> tuple[ConnectorConfig, ...]:
    """Each config once. Raises RunnerError where one cannot play its part."""
    pair = _load_pair(grid, kind)
    if not grid.plain:
        return pair
    plain = load_config(grid.plain)
    if plain.merge_kv_transfer(kind) is not None:
        raise RunnerError(
            f"config {plain.name} has a connector: it cannot be the plain combined engine",
            remedy="write --set plain=plain, or --set plain='' to leave that engine out",
        )
    return (*pair, plain)


def _load_pair(grid: Grid, kind: Kind) -> tuple[ConnectorConfig, ...]:
    """Raises RunnerError where P and D cannot hand a prompt over to each other."""
    prefill, decode = load_config(grid.prefill_config), load_config(grid.decode_config)
    sender, receiver = find_transferring(prefill, kind), find_transferring(decode, kind)
    for config, part, wrong, side in (
        (prefill, sender, "kv_consumer", "the prefill instance, which sends"),
        (decode, receiver, "kv_producer", "the decode instance, which receives"),
    ):
        if part is None:
            raise RunnerError(
                f"config {config.name} has no connector that moves KV from one engine to another",
                remedy="choose mooncake_both, nixl_both, or mooncake_producer with mooncake_consumer",
            )
        if part.role == wrong:
            raise RunnerError(
                f"config {config.name} is a {part.role}: it cannot be {side}",
                remedy="name the prefill instance's config first: -c mooncake_producer -c mooncake_consumer",
            )
    assert sender is not None
    assert receiver is not None
    if sender.connector != receiver.connector:
        raise RunnerError(
            f"{prefill.name} moves KV by {sender.connector} and {decode.name} by {receiver.connector}",
            remedy="choose two configs of one connector",
        )
    return (prefill,) if prefill.name == decode.name else (prefill, decode)


def _require_cells(grid: Grid, profile: Profile) -> None:
    if not any(_list_measured_shapes(grid, profile, grid.seed, trial=0)):
        why = grid.why_not(next(grid.list_shapes()), profile.engine.max_model_len)
        raise RunnerError(f"no cell of the grid can be measured: {why}", remedy="make the grid smaller with --set")
