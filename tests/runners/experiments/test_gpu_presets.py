"""The presets for GPU hosts: every piece of them fits into eight minutes, and engines share a GPU's memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from launch.gpu_fit import estimate_engine_bytes
from launch.profile import EngineSettings, Profile, load_profile
from runners.campaign.experiment import DraftPlan, RunOptions
from runners.experiments.cold_start import PIECE_S, list_pieces
from runners.experiments.engine_choice import make_counting_profile
from runners.experiments.registry import select_experiment
from runners.simulator.calibrate import COEFFICIENTS, BusySteps, join_steps, list_busy_steps, list_told_apart

GPU_PAGE = Path(__file__).resolve().parents[3] / "docs" / "gpu.md"
CODER, SMALL = PROFILES = ("h200-qwen3-coder-30b-dummy", "h200-qwen3-0.6b-dummy")
PRESETS = [
    (profile, experiment, preset)
    for profile, experiment, presets in (
        (CODER, "connector-tax", ("gpu-demo", "calibrate")),
        (CODER, "routing", ("gpu-demo", "two-gpus")),
        (CODER, "pd-lifecycle", ("gpu-demo", "two-gpus")),
        (SMALL, "connector-tax", ("gpu-demo", "calibrate")),
        (SMALL, "routing", ("two", "four", "eight", "two-gpus")),
        (SMALL, "pd-lifecycle", ("gpu-demo", "two-gpus")),
    )
    for preset in presets
]


def draft(profile: str, experiment: str, preset: str, *configs: str) -> DraftPlan:
    options = RunOptions(experiment=experiment, profile=profile, preset=preset, configs=configs)
    return select_experiment(experiment).draft_plan(options, load_profile(profile))


@pytest.mark.parametrize(
    ("profile", "experiment", "preset", "configs"),
    [
        *((*preset, ()) for preset in PRESETS),
        *((*preset, ("nixl_both",)) for preset in PRESETS if preset[1] != "connector-tax"),  # which has it, with plain
    ],
)
def test_every_piece_ends_within_eight_minutes(
    profile: str, experiment: str, preset: str, configs: tuple[str, ...]
) -> None:
    plan = draft(profile, experiment, preset, *configs)
    assert {cell: seconds for cell, seconds in list_pieces(plan) if seconds > PIECE_S} == {}
    assert not [note for note in plan.notes if "longer than 8 minutes" in note]


@pytest.mark.parametrize(("profile", "experiment", "preset"), PRESETS)
def test_the_pre_flight_of_every_config_pays_for_a_cold_start(profile: str, experiment: str, preset: str) -> None:
    plan, launch = draft(profile, experiment, preset), load_profile(profile).launch
    gates = {cell.config: cell.estimated_s for cell in plan.cells if cell.kind == "preflight"}
    assert isinstance(launch.cold_start_s, float)
    once_s = launch.cold_start_s + plan.grid.preflight_s + launch.release_wait_s
    assert gates == {
        config: once_s + (plan.grid.engine_start_s + launch.release_wait_s if config == "nixl_both" else 0.0)
        for config in gates
    }
    assert plan.sums[0].seconds == pytest.approx(sum(gates.values()))
    assert launch.ready_timeout_s > 2 * launch.cold_start_s


@pytest.mark.parametrize(
    ("profile", "experiment", "preset", "start_s"),
    [
        ("h200-qwen3-coder-30b-dummy", "routing", "gpu-demo", 180 / 2),
        ("h200-qwen3-coder-30b-dummy", "routing", "two-gpus", 90),
        ("h200-qwen3-coder-30b-dummy", "pd-lifecycle", "gpu-demo", 180 / 2),
        ("h200-qwen3-0.6b-dummy", "routing", "eight", 320 / 8),
    ],
)
def test_the_second_engine_of_a_proof_starts_alone_also_where_those_of_a_cell_start_in_turn(
    profile: str, experiment: str, preset: str, start_s: float
) -> None:
    plan, launch = draft(profile, experiment, preset, "nixl_both"), load_profile(profile).launch
    assert isinstance(launch.cold_start_s, float)
    (gate,) = (cell for cell in plan.cells if cell.kind == "preflight")
    first_s = launch.cold_start_s + plan.grid.preflight_s + launch.release_wait_s
    assert gate.estimated_s == first_s + start_s + launch.release_wait_s
    assert plan.sums[0].seconds == gate.estimated_s


def first_measured(plan: DraftPlan) -> dict[str, float]:
    """Seconds of each config's first cell after pre-flight."""
    seconds: dict[str, float] = {}
    for cell in plan.cells:
        if cell.kind != "preflight" and cell.config is not None:
            seconds.setdefault(cell.config, cell.estimated_s)
    return seconds


@pytest.mark.parametrize("profile", PROFILES)
def test_a_config_that_two_engines_on_one_gpu_prove_pays_a_second_cold_start(profile: str) -> None:
    """They run with smaller steps than the measured engine, which vLLM therefore compiles again."""
    plan, launch = draft(profile, "connector-tax", "gpu-demo"), load_profile(profile).launch
    seconds = first_measured(plan)
    assert isinstance(launch.cold_start_s, float)
    added_s = launch.cold_start_s - plan.grid.engine_start_s
    assert added_s > 0
    assert seconds.pop("nixl_both") == seconds["plain"] + added_s
    assert seconds["mooncake_both"] == seconds["plain"], "proven by one engine, with the settings that are measured"
    (line,) = (one for one in plan.sums if "nixl_both" in one.text)
    assert (line.stage, line.seconds) == ("phase-a", added_s)


@pytest.mark.parametrize("preset", ["gpu-demo", "two-gpus"])
def test_where_the_proof_has_the_measured_settings_its_config_pays_one_cold_start(preset: str) -> None:
    """Both engines share a GPU in the measurement too, or each has one of its own in both."""
    profile = "h200-qwen3-coder-30b-dummy"
    plans = [draft(profile, "pd-lifecycle", preset, config) for config in ("nixl_both", "mooncake_both")]
    nixl, mooncake = (list(first_measured(plan).values()) for plan in plans)
    assert nixl == mooncake


def test_a_plan_says_which_pieces_are_longer_than_eight_minutes() -> None:
    profile, settings = "h200-qwen3-coder-30b-dummy", ("engine_start_s=300",)
    options = RunOptions("pd-lifecycle", profile, "gpu-demo", configs=("nixl_both",), settings=settings)
    notes = select_experiment("pd-lifecycle").draft_plan(options, load_profile(profile)).notes
    assert "preflight/nixl_both the longest" in notes[-1]


def shared_gpus() -> Iterator[tuple[str, Profile, int, EngineSettings]]:
    """Every preset whose engines share one GPU: its name, the profile, how many engines, and the settings of each."""
    for profile in map(load_profile, PROFILES):
        for experiment, alone in (("routing", 0), ("pd-lifecycle", 2)):
            for preset in profile.experiments[experiment]:
                grid = draft(profile.name, experiment, preset).grid
                if grid.gpus == 1:
                    yield preset, profile, alone or grid.instances, make_counting_profile(profile, grid.engine).engine


def test_engines_that_share_a_gpu_leave_some_of_its_memory() -> None:
    shares = {
        (profile.name, preset): engines * (settings.gpu_memory_utilization or 1.0)
        for preset, profile, engines, settings in shared_gpus()
    }
    assert len(shares) >= 8
    assert {preset: share for preset, share in shares.items() if share > 0.92} == {}


GIB = 1 << 30
H200_GIB = 139.8
"""Of an H200's memory, what CUDA reports."""


def test_an_engine_that_shares_a_gpu_has_room_for_its_weights_and_its_longest_request() -> None:
    for preset, profile, _, settings in shared_gpus():
        needed = estimate_engine_bytes(msgspec.structs.replace(profile, engine=settings))
        assert needed is not None
        assert needed / GIB <= (settings.gpu_memory_utilization or 0.0) * H200_GIB, (profile.name, preset)


MINUTES = re.compile(r"(?:(\d+(?:\.\d+)?) h)|(?:(\d+) min)")
ESTIMATE_ROUNDING = 0.15


def documented_rows(*columns: str) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Rows of the table of docs/gpu.md with these columns: profile, experiment, presets, and the cells behind them."""
    _, _, table = GPU_PAGE.read_text().partition(f"| {' | '.join(('profile', 'experiment', *columns))} |\n")
    profile = experiment = ""
    for line in table.partition("\n\n")[0].splitlines()[1:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        profile, experiment = cells[0].strip("`") or profile, cells[1] or experiment
        yield profile, experiment, re.findall(r"`([\w-]+)`", cells[2]), cells[3:]


def test_the_page_on_gpus_has_every_preset_with_the_plans_estimate() -> None:
    documented = {
        (profile, experiment, preset): float(hours) * 60 if hours else float(minutes)
        for profile, experiment, presets, cells in documented_rows("preset", "runs", "estimate")
        for preset, (hours, minutes) in zip(presets, MINUTES.findall(cells[-1]), strict=True)
    }
    assert set(documented) == set(PRESETS)
    for preset, minutes in documented.items():
        planned = sum(cell.estimated_s for cell in draft(*preset).cells) / 60
        assert minutes == pytest.approx(planned, rel=ESTIMATE_ROUNDING), preset


GPU_MIB = {"H200 141 GB": 143_771, "H20 96 GB": 97_871, "H100 80 GB": 81_559, "A100 40 GB": 40_960}
"""All of its memory, as nvidia-smi states it."""


def fits(profile: str, experiment: str, preset: str, gpu_bytes: int) -> bool:
    planned = draft(profile, experiment, preset).profile
    needed = estimate_engine_bytes(planned, gpu_bytes)
    assert needed is not None
    return needed <= (planned.engine.gpu_memory_utilization or 1.0) * gpu_bytes


def test_the_page_on_gpus_says_which_presets_fit_into_which_gpu() -> None:
    documented = {
        (profile, experiment, preset): answers
        for profile, experiment, presets, answers in documented_rows("presets", *GPU_MIB)
        for preset in presets
    }
    assert set(documented) == set(PRESETS)
    for preset, answers in documented.items():
        assert answers == ["yes" if fits(*preset, mib << 20) else "no" for mib in GPU_MIB.values()], preset


def test_the_demo_confirms_with_five_launches_of_every_config() -> None:
    confirmed = [cell.config for cell in draft(CODER, "connector-tax", "gpu-demo").cells if cell.stage == "confirm"]
    assert {confirmed.count(config) for config in set(confirmed)} == {5}
    assert {"plain", "plain_again", "mooncake_both", "nixl_both", "lmcache_only"} <= set(confirmed)


def busy_steps(load: tuple[float, int, int]) -> BusySteps:
    """A few steps of a cell: prompts alone, one and several decodes, both together."""
    _, prompt, answer = load
    prefill = [prompt, 0, 0, prompt]
    steps = {"prefill_tokens": prefill, "decode_tokens": [0, 1, 3, 2], "engine_step_us": [900.0] * 4}
    return list_busy_steps(pd.DataFrame({**steps, "period_us": [900.0] * 4}), prompt, answer)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_cells_of_calibrate_tell_the_tokens_of_a_step_from_the_kv_it_reads(profile: str) -> None:
    loads = sorted(
        (cell.params["rate_per_s"], cell.params["input_tokens"], cell.params["output_tokens"])
        for cell in draft(profile, "connector-tax", "calibrate").cells
        if cell.kind == "load"
    )
    every, of_one_shape = (
        list_told_apart(join_steps([busy_steps(load) for load in some]).rows)
        for some in (loads[::2], [load for load in loads if load[1] == 4096])
    )
    assert every == list(range(len(COEFFICIENTS)))
    assert len(of_one_shape) < len(COEFFICIENTS), "what the preset measured before"
    for half in (loads[::2], loads[1::2]):
        _, prompts, answers = map(set, zip(*half, strict=True))
        assert (len(prompts), len(answers)) == (3, 3)
