"""The presets for GPU hosts: every piece of them fits into eight minutes, and engines share a GPU's memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from launch.profile import load_profile
from runners.campaign.experiment import RunOptions
from runners.experiments.registry import experiment_named

PIECE_S = 480.0
PRESETS = [
    ("h200-qwen3-coder-30b-dummy", "connector-tax", "gpu-demo"),
    ("h200-qwen3-coder-30b-dummy", "routing", "gpu-demo"),
    ("h200-qwen3-coder-30b-dummy", "pd-lifecycle", "gpu-demo"),
    ("h200-qwen3-0.6b-dummy", "connector-tax", "gpu-demo"),
    ("h200-qwen3-0.6b-dummy", "routing", "two"),
    ("h200-qwen3-0.6b-dummy", "routing", "four"),
    ("h200-qwen3-0.6b-dummy", "routing", "eight"),
    ("h200-qwen3-0.6b-dummy", "pd-lifecycle", "gpu-demo"),
]


def pieces(profile_name: str, experiment: str, preset: str) -> Iterator[tuple[str, float]]:
    """Each cell with its seconds, the start and release of its engines included whether or not they run already."""
    profile = load_profile(profile_name)
    options = RunOptions(experiment=experiment, profile=profile_name, preset=preset)
    draft = experiment_named(experiment).draft_plan(options, profile)
    around_s = draft.grid.engine_start_s + profile.launch.release_wait_s
    for cell in draft.cells:
        with_engine = cell.estimated_s if cell.estimated_s >= around_s else cell.estimated_s + around_s
        yield cell.cell, cell.estimated_s if cell.config is None else with_engine


@pytest.mark.parametrize(("profile", "experiment", "preset"), PRESETS)
def test_every_piece_ends_within_eight_minutes(profile: str, experiment: str, preset: str) -> None:
    assert {cell: seconds for cell, seconds in pieces(profile, experiment, preset) if seconds > PIECE_S} == {}


@pytest.mark.parametrize("profile", ["h200-qwen3-coder-30b-dummy", "h200-qwen3-0.6b-dummy"])
def test_engines_that_share_a_gpu_leave_some_of_its_memory(profile: str) -> None:
    shared = 0
    for name, preset in load_profile(profile).experiments["routing"].items():
        options = RunOptions(experiment="routing", profile=profile, preset=name)
        grid = experiment_named("routing").draft_plan(options, load_profile(profile)).grid
        if grid.gpus == 1:
            assert grid.instances * grid.engine.gpu_memory_utilization <= 0.92, preset
            shared += 1
    assert shared >= 3


def test_the_demo_confirms_with_five_launches_of_every_config() -> None:
    options = RunOptions(experiment="connector-tax", profile="h200-qwen3-coder-30b-dummy", preset="gpu-demo")
    draft = experiment_named("connector-tax").draft_plan(options, load_profile("h200-qwen3-coder-30b-dummy"))
    confirmed = [cell.config for cell in draft.cells if cell.stage == "confirm"]
    assert {confirmed.count(config) for config in set(confirmed)} == {5}
    assert {"plain", "plain_again", "mooncake_both", "nixl_both", "lmcache_only"} <= set(confirmed)
