"""The plan of a `routing` run: every policy replays one trace, trial by trial, in a new random order each time."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from launch.command import count_ports_needed
from launch.profile import ConnectorConfig, Kind, Profile, load_config
from launch.transfer_request import find_transferring
from results.records.events import CellState
from results.records.layout import sha256
from results.records.plan import CellPlan, StagePlan
from runners.campaign.experiment import DraftPlan, RunOptions
from runners.campaign.plan import Sum
from runners.errors import RunnerError
from runners.experiments.cold_start import add_cold_starts
from runners.experiments.engine_choice import make_counting_profile
from runners.experiments.gates import list_gates
from runners.experiments.routing.engine_model import OTHER_ENGINE, describe_model, read_model
from runners.experiments.routing.grid import (
    DEFAULT_MODEL,
    EXPERIMENT,
    SYNTH,
    Grid,
    PolicyChoice,
    find_policy_file,
    is_drawn,
    make_slug,
    read_grid,
)
from runners.experiments.routing.variations import expand_variations
from runners.experiments.settings import find_preset
from state.model import RunView

PREPARE, TRIALS, INTERFERENCE, ANALYSIS = "prepare", "trials", "interference", "analysis"
TRACE_CELL = "prepare/trace"
PATCHES_CELL = "prepare/patches"
STAGES = (
    StagePlan(PREPARE, "Trace and pre-flight"),
    StagePlan(TRIALS, "Trials: every policy, the same schedule"),
    StagePlan(INTERFERENCE, "Prefill beside decodes"),
    StagePlan(ANALYSIS, "Analysis"),
)
EVENT_PORTS = 2
"""Ports of each instance whose KV events are read: one to publish, one to replay missed events."""
SEEDS_PER_RUN = 1_000
AS_RECORDED = ("trace.sessions=0", "replay.time_scale=1.0")
"""Settings of a trace file: all of it, at its own pace."""
COMPUTE_S = 5.0
PATCH_S = 1.0
PATCHES = "patches"
"""Required by a config whose connector does not work in an unpatched engine."""
DECODE_RUNS_S = 2.0
"""Duration of one repeat of the interference measurement beyond its two settling times, for the time estimate."""


def draft_plan(options: RunOptions, profile: Profile) -> DraftPlan:
    """Raises RunnerError or LaunchError naming the wrong key, policy, parameter, config or trace."""
    presets = profile.experiments.get(EXPERIMENT, {})
    preset, _ = find_preset(presets, EXPERIMENT, profile.name, options.preset)
    settings = (*options.settings, *list_settings(options, has_model="simulation" in preset))
    grid = read_grid(
        presets,
        profile.name,
        options.preset,
        policies=options.policies,
        settings=settings,
    )
    grid = expand_variations(apply_options(grid, options))
    profile = make_counting_profile(profile, grid.engine)
    config = load_config(grid.config)
    seed, moves_kv = grid.seed if options.seed is None else options.seed, can_move(config, profile.engine.kind)
    model = None if grid.simulation is None else read_model(grid)
    draft = DraftPlan(
        grid=grid,
        profile=profile,
        seed=seed,
        configs=(config,),
        stages=STAGES,
        cells=list_cells(
            grid,
            config.name,
            seed,
            profile.launch.release_wait_s,
            patched=needs_patches(config, profile.engine.kind),
            moves_kv=moves_kv and (model is None or model.link is not None),
        ),
        ports=0 if grid.simulation else grid.instances * count_ports_per_instance(grid, count_ports_needed(config)),
        needs_engine=grid.simulation is None,
        has_pace=grid.simulation is not None,
        inputs={
            "grid": _describe_grid(grid),
            **describe_simulation(grid),
            "configs": {config.name: msgspec.to_builtins(config)},
            "config_names": [grid.config],
            "policy_names": list(options.policies),
            "settings": list(settings),
            "trace_path": options.trace,
            "files": digest_files(grid),
        },
        sums=estimate_sums(grid, profile.launch.release_wait_s),
        gpus=grid.gpus or grid.instances,
        engines_per_gpu=-(-grid.instances // grid.gpus) if grid.gpus else 1,
        notes=(*_note_simulation(grid), *(note_transfer_rules(grid) if moves_kv else ())),
    )
    return add_cold_starts(draft, in_turn=grid.instances if grid.gpus else 1)


def list_settings(options: RunOptions, *, has_model: bool) -> Iterator[str]:
    """The options of a simulation as settings of the grid: the plan stores them with the other settings.

    `has_model`: the preset names an engine model, which `--simulated` alone leaves as it is, as it does one of `--set`.
    """
    named = has_model or not _list_keys(options.settings).isdisjoint({"simulation", "simulation.engine"})
    if options.engine or (options.simulated and not named):
        yield f"simulation.engine={options.engine or DEFAULT_MODEL}"
    if options.on:
        yield f"simulation.on={options.on}"
    if options.instances is not None:
        yield f"instances={options.instances}"


def replay_as_recorded(settings: Iterable[str]) -> tuple[str, ...]:
    """The settings, and those that replay all of a trace file at its own pace where they do not set its keys."""
    settings = tuple(settings)
    keys = _list_keys(settings)
    return (*settings, *(text for text in AS_RECORDED if _list_keys([text]).isdisjoint(keys)))


def _list_keys(settings: Iterable[str]) -> set[str]:
    return {text.partition("=")[0].strip() for text in settings}


def _note_simulation(grid: Grid) -> Iterator[str]:
    if grid.simulation is not None:
        yield f"SIMULATED, nothing is measured: engines are the model {describe_model(grid)}"
        traces = _count_traces(grid, "")
        yield f"{traces} traces, one for each trial" if traces > 1 else "one trace for all trials"


def describe_simulation(grid: Grid) -> dict[str, Any]:
    """The engine model, and those that stand in for it, for the plan's inputs; empty where engines are real."""
    if grid.simulation is None:
        return {}
    others = {name: msgspec.to_builtins(read_model(grid, f"{OTHER_ENGINE}{name}")) for name in grid.further_engines}
    return {
        "simulated": describe_model(grid),
        "engine_model": msgspec.to_builtins(read_model(grid)),
        **({"further_engine_models": others} if others else {}),
    }


def _describe_grid(grid: Grid) -> dict[str, Any]:
    """Without `simulation` where engines are real, so that older plans keep their fingerprint."""
    described: dict[str, Any] = msgspec.to_builtins(grid)
    if grid.simulation is None:
        del described["simulation"]
    return described


def count_ports_per_instance(grid: Grid, needed: int) -> int:
    """Consecutive ports of one instance; `needed`: those of its config."""
    return needed + (EVENT_PORTS if grid.router.index == "events" else 0)


def count_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def can_move(config: ConnectorConfig, kind: Kind) -> bool:
    """Whether engines of this config exchange KV, and so have a transfer log."""
    return find_transferring(config, kind) is not None


def needs_patches(config: ConnectorConfig, kind: Kind) -> bool:
    """Whether its connector needs them to work, or to log its transfers."""
    return PATCHES in config.requires_on(kind) or can_move(config, kind)


def note_transfer_rules(grid: Grid) -> Iterator[str]:
    """A line for each rule by which a policy moves KV unlike the others."""
    for policy in grid.policies:
        if policy.reserved_output == "max_tokens":
            yield f"{grid.label(policy)}: room counts each answer's recorded length, which no router knows"
        if not policy.moves_kv:
            yield f"{grid.label(policy)}: no KV is moved, the target of a migration or handover recomputes"
        own, common = grid.transfer_rules(policy), grid.transfer_rules(PolicyChoice(policy.name))
        for name in sorted(policy.transfer):
            yield f"{grid.label(policy)}: transfer.{name} = {getattr(own, name)}, elsewhere {getattr(common, name)}"


def list_cells(
    grid: Grid, config: str, seed: int, release_wait_s: float, *, patched: bool = False, moves_kv: bool = False
) -> list[CellPlan]:
    """Every cell in the order it runs; a trial is a block in which each policy has its turn once.

    `patched`: the config needs the patches in the engine environment; they are removed at the end. `moves_kv`: its
    engines exchange KV.
    """
    around_s = grid.engine_start_s + release_wait_s
    trace = CellPlan(TRACE_CELL, PREPARE, "trace", None, "the trace as it is replayed", {}, COMPUTE_S)
    report = CellPlan("analysis/report", ANALYSIS, "analysis", None, "numbers, tables, figures, report", {}, COMPUTE_S)
    if grid.simulation is not None:
        return [trace, *_plan_trial_cells(grid, config, seed, 0.0, moves_kv), report]
    apply = CellPlan(PATCHES_CELL, PREPARE, "patches", None, "patches applied", {}, PATCH_S)
    revert = CellPlan("analysis/patches", ANALYSIS, "revert", None, "patches removed", {}, PATCH_S)
    return [
        trace,
        *([apply] if patched else []),
        *list_gates([config], PREPARE, around_s + grid.preflight_s),
        *_plan_trial_cells(grid, config, seed, around_s, moves_kv),
        *_plan_interference_cells(grid, config, seed, around_s),
        *([revert] if patched else []),
        report,
    ]


def explain_no_trace(view: RunView) -> str:
    """Why there is no trace to replay; empty where its cell has not failed."""
    trace = view.cells.get(TRACE_CELL)
    if trace is None or trace.state not in (CellState.FAILED, CellState.SKIPPED):
        return ""
    return f"there is no trace to replay: {trace.reason}"


def estimate_sums(grid: Grid, release_wait_s: float) -> tuple[Sum, ...]:
    """The sums of the time estimate of the engine stages."""
    around = f"{grid.engine_start_s:g} s start + {{}} + {release_wait_s:g} s release"
    around_s, beside = grid.engine_start_s + release_wait_s, grid.interference
    count, repeat_s = len(grid.policies), _estimate_repeat_s(grid)
    if grid.simulation is not None:
        cell = f"{grid.simulation.expected_cell_s:g} s on {count_cores()} cores"
        text = f"{grid.trials} trials x {count} policies x {cell}"
        return (Sum(TRIALS, text, sum(grid.trials * expect_replay_s(grid, policy) for policy in grid.policies)),)
    replays = [expect_replay_s(grid, policy) for policy in grid.policies]
    replay = f"{sum(replays) / max(count, 1):g} s replay" + (" on average" if len(set(replays)) > 1 else "")
    lines = [
        Sum(PREPARE, f"1 config x ({around.format(f'{grid.preflight_s:g} s checks')})", around_s + grid.preflight_s),
        Sum(
            TRIALS,
            f"{grid.trials} trials x {count} policies x ({around.format(replay)})",
            grid.trials * (count * around_s + sum(replays)),
        ),
    ]
    if beside.prefill_tokens:
        lengths = len(beside.prefill_tokens)
        text = around.format(f"{lengths} lengths x {beside.repeats} x {repeat_s:g} s")
        lines.append(Sum(INTERFERENCE, text, around_s + lengths * beside.repeats * repeat_s))
    return tuple(lines)


def list_traces(grid: Grid) -> list[tuple[str, int]]:
    """Every trace of the run, as name and number, the run's `trace` first.

    A simulated run has one of each name for each trial, where a seed draws another one and the trace is `per_trial`.
    """
    names = ("", *grid.further_traces)
    return [(name, number) for name in names for number in range(_count_traces(grid, name))]


def _count_traces(grid: Grid, name: str) -> int:
    choice = grid.further_traces.get(name, grid.trace)
    return grid.trials if grid.simulation is not None and choice.per_trial and is_drawn(choice) else 1


def expect_replay_s(grid: Grid, policy: PolicyChoice) -> float:
    """Seconds of one replay: in proportion to the policy's time scale, where that is above `replay.time_scale`.

    A simulated one takes a core, and as many run at once as there are cores.
    """
    if grid.simulation is not None:
        return grid.simulation.expected_cell_s / count_cores()
    return grid.expected_replay_s * max(1.0, grid.time_scale(policy) / grid.replay.time_scale)


def _plan_trial_cells(grid: Grid, config: str, seed: int, around_s: float, moves_kv: bool) -> Iterator[CellPlan]:
    """Policies interleaved in random blocks: a drift over the run affects all of them alike."""
    draw = random.Random(seed)
    position = 0
    for trial in range(grid.trials):
        for policy in draw.sample(grid.policies, len(grid.policies)):
            yield CellPlan(
                cell=f"{TRIALS}/{make_slug(grid.label(policy))}/t{trial}",
                stage=TRIALS,
                kind="replay",
                config=config,
                label=grid.label(policy),
                params=make_cell_params(grid, policy, seed, trial, position, moves_kv),
                estimated_s=around_s + expect_replay_s(grid, policy),
                trial=trial,
            )
            position += 1


def make_cell_params(
    grid: Grid, policy: PolicyChoice, seed: int, trial: int, position: int, moves_kv: bool
) -> dict[str, Any]:
    """Prompts depend on seed and trial, never on the policy: all policies of a trial see the same ones.

    `moves_kv`, `transfer`, `reserved_output` and `time_scale` are the cell's; `kv_cache_memory_bytes` and `trace` are
    included only where the policy has its own.
    """
    return {
        "policy": policy.name,
        "parameters": dict(policy.parameters),
        "roles": list(grid.roles(policy)),
        "moves_kv": moves_kv and policy.moves_kv,
        "transfer": msgspec.to_builtins(grid.transfer_rules(policy)),
        "reserved_output": policy.reserved_output,
        "time_scale": grid.time_scale(policy),
        **collect_own_load(policy),
        "position": position,
        "replay_seed": seed * SEEDS_PER_RUN + trial,
        **_number_trace(grid, collect_own_load(policy).get("trace", ""), trial),
    }


def collect_own_load(policy: PolicyChoice) -> dict[str, Any]:
    """The policy's own KV cache, trace and variation, where it has them."""
    names = ("kv_cache_memory_bytes", "trace", "variation")
    return {name: value for name in names if (value := getattr(policy, name)) is not UNSET}


def _number_trace(grid: Grid, name: str, trial: int) -> dict[str, int]:
    """Which of the traces of that name a simulated cell replays; real ones have one."""
    if grid.simulation is None:
        return {}
    return {"trace_number": trial if trial < _count_traces(grid, name) else 0}


def _plan_interference_cells(grid: Grid, config: str, seed: int, around_s: float) -> Iterator[CellPlan]:
    beside = grid.interference
    for index, tokens in enumerate(beside.prefill_tokens):
        params = msgspec.to_builtins(beside) | {"prefill_tokens": tokens, "load_seed": seed}
        yield CellPlan(
            cell=f"{INTERFERENCE}/n{tokens}",
            stage=INTERFERENCE,
            kind="interference",
            config=config,
            label=f"{tokens} tokens",
            params=params,
            estimated_s=beside.repeats * _estimate_repeat_s(grid) + (around_s if index == 0 else 0.0),
        )


def _estimate_repeat_s(grid: Grid) -> float:
    return 2 * grid.interference.settle_s + DECODE_RUNS_S


def apply_options(grid: Grid, options: RunOptions) -> Grid:
    if len(options.configs) > 1:
        raise RunnerError(
            f"{EXPERIMENT} runs all its engines with one config, not {', '.join(options.configs)}",
            remedy="name one with --config; what differs between cells is the policy (--policy)",
        )
    if options.configs:
        grid = msgspec.structs.replace(grid, config=options.configs[0])
    if options.trials is not None:
        grid = msgspec.structs.replace(grid, trials=options.trials)
    if options.trace and grid.further_traces:
        raise RunnerError(
            f"this preset compares traces of its own ({', '.join(grid.further_traces)})",
            remedy="leave out --trace, or choose another preset",
        )
    if options.trace:
        grid = msgspec.structs.replace(grid, trace=msgspec.structs.replace(grid.trace, source=options.trace))
    if grid.trace.source != SYNTH and not Path(grid.trace.source).is_file():
        raise RunnerError(f"there is no trace file {grid.trace.source}", remedy=f"name an existing one, or `{SYNTH}`")
    _require_policies(grid)
    return grid


def _require_policies(grid: Grid) -> None:
    """Refuse an unknown policy or parameter before anything runs."""
    from runners.router.policies import make_policy

    for policy in grid.policies:
        make_policy(policy.name, policy.parameters)


def digest_files(grid: Grid) -> dict[str, str]:
    """SHA-256 of every file that shapes the numbers: the trace, and policies of the user's own."""
    files = [file for policy in grid.policies if (file := find_policy_file(policy.name)) is not None]
    if grid.trace.source != SYNTH:
        files.append(Path(grid.trace.source))
    return {str(file): sha256(file) for file in files}
