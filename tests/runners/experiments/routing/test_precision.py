"""What a plan says of its trials: sigma of the newest finished run of its profile, or that none is known."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from results.records.events import RunChanged, RunState
from results.records.layout import RunLayout
from results.records.percent import format_percent
from results.routing.launch_noise import TrialNoise
from results.statistics.pairwise import compute_detectable_pair
from runners.campaign.experiment import RunOptions
from runners.experiments.routing.grid import EXPERIMENT
from runners.experiments.routing.precision import describe_precision
from state.store import RunStore
from state.workspace import Workspace
from tests.runners.prepared import prepare

PLAN = prepare(RunOptions(EXPERIMENT, preset="baselines", trials=5)).plan
POLICIES = len({cell.label for cell in PLAN.cells if cell.kind == "replay"})


def finish_run(root: Path, name: str, sigma: float, **more: object) -> None:
    folder = root / name
    with RunStore.create(folder, name, PLAN, "test") as store:
        store.append(RunChanged(RunState.RUNNING), RunChanged(RunState.DONE))
    noise = msgspec.to_builtins(TrialNoise("ttft_p90_s", sigma, 44, 5))
    RunLayout(folder).verdicts_json.write_bytes(msgspec.json.encode({"format": 3, "launch_noise": noise, **more}))


def test_without_a_finished_run_of_the_profile_no_sigma_is_named(tmp_path: Path) -> None:
    finish_run(tmp_path, "20260101-000000-simulated", 0.1, simulated={"engine": "a model"})
    unknown, multiples = describe_precision(PLAN, Workspace(tmp_path))
    assert f"no finished run of this profile in {tmp_path} has 3 trials" in unknown
    for trials in (3, 5, 10):
        assert f"{compute_detectable_pair(1.0, trials, POLICIES):.2f} sigma with {trials}" in multiples


def test_the_newest_run_that_measured_sigma_gives_it(tmp_path: Path) -> None:
    finish_run(tmp_path, "20260101-000000-old", 0.5)
    finish_run(tmp_path, "20260102-000000-new", 0.1)
    finish_run(tmp_path, "20260103-000000-unread", 0.3)
    RunLayout(tmp_path / "20260103-000000-unread").verdicts_json.write_bytes(b"{")
    sigma, effects, needed = describe_precision(PLAN, Workspace(tmp_path))
    assert sigma.startswith("Sigma between launches: TTFT p90 10.5 % (20260102-000000-new, preset ")
    least = math.expm1(compute_detectable_pair(0.1, 5, POLICIES))
    assert f"{format_percent(least)} with 5" in effects
    assert needed.startswith("A difference of 10 % takes ")


def test_a_plan_that_compares_nothing_over_trials_says_nothing(tmp_path: Path) -> None:
    one = prepare(RunOptions(EXPERIMENT, preset="baselines", trials=1)).plan
    assert describe_precision(one, Workspace(tmp_path)) == ()
