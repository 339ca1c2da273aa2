"""What a plan says of its launches: sigma of the newest finished run of its profile, or that none is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from results.pd_lifecycle.overheads import COMBINED_ENGINE, HANDOVER_ARM, PLAIN_ENGINE, GridOverhead
from results.records.estimate import Estimate
from results.records.events import RunChanged, RunState
from results.records.layout import RunLayout
from results.records.percent import format_percent
from results.statistics.launch_fit import LaunchSpread
from runners.campaign.experiment import RunOptions
from runners.experiments.pd_lifecycle.grid import EXPERIMENT
from runners.experiments.pd_lifecycle.precision import describe_precision
from state.store import RunStore
from state.workspace import Workspace
from tests.runners.prepared import prepare

PLAN = prepare(RunOptions(EXPERIMENT, preset="demo")).plan
SIZES = 9
"""(C, N) of the demo."""
SPREAD = LaunchSpread(0.1, 0.07, 0.16, degrees=12.0, launches=3, sizes=SIZES)


def finish_run(root: Path, name: str, spread: LaunchSpread | None, *, state: RunState = RunState.DONE) -> None:
    """A run whose launches differ by this in TTFT over the plain engine, by half of it over the other one."""
    folder = root / name
    with RunStore.create(folder, name, PLAN, "test") as store:
        store.append(RunChanged(RunState.RUNNING), RunChanged(state))
    half = None if spread is None else replace(spread, sigma=spread.sigma / 2)
    rows = [
        GridOverhead(COMBINED_ENGINE, PLAIN_ENGINE, Estimate(0.5), SIZES, SPREAD),
        GridOverhead(HANDOVER_ARM, PLAIN_ENGINE, Estimate(0.5), SIZES, spread),
        GridOverhead(HANDOVER_ARM, COMBINED_ENGINE, Estimate(0.5), SIZES, half),
    ]
    RunLayout(folder).aggregate_json.write_bytes(msgspec.json.encode({"format": 3, "grid_overheads": rows}))


def _scaled(degrees: float) -> LaunchSpread:
    """Of two launches and a sigma of 1."""
    return LaunchSpread(1.0, 1.0, 1.0, degrees, launches=2, sizes=SIZES)


def test_without_a_finished_run_of_the_profile_no_sigma_is_named(tmp_path: Path) -> None:
    finish_run(tmp_path, "20260101-000000-cut", SPREAD, state=RunState.INTERRUPTED)
    finish_run(tmp_path, "20260102-000000-single", None)
    unknown, multiples = describe_precision(PLAN, Workspace(tmp_path))
    assert f"no finished run of this profile in {tmp_path} has 3 launches of each engine" in unknown
    assert f"at one (C, N), all {SIZES} judged together" in multiples
    for launches in (3, 5, 10):
        least, most = (_scaled(degrees).detectable_effect(launches) for degrees in (SIZES, 1))
        assert f"{least:.2f} to {most:.2f} sigma with {launches}" in multiples


def test_the_newest_run_that_measured_sigma_gives_it(tmp_path: Path) -> None:
    finish_run(tmp_path, "20260101-000000-old", replace(SPREAD, sigma=0.5))
    finish_run(tmp_path, "20260102-000000-new", SPREAD)
    finish_run(tmp_path, "20260103-000000-unread", replace(SPREAD, sigma=0.3))
    RunLayout(tmp_path / "20260103-000000-unread").aggregate_json.write_bytes(b"{")
    sigma, effects, needed = describe_precision(PLAN, Workspace(tmp_path))
    assert sigma == (
        f"Sigma between launches: TTFT of the handover over the {PLAIN_ENGINE} 11 % [7.3, 17] (20260102-000000-new, "
        "preset demo, 3 launches, 12 degrees of freedom)."
    )
    for launches in (3, 5, 10):
        least = math.expm1(SPREAD.detectable_effect(launches))
        assert f"{format_percent(least)} with {launches}" in effects
    assert needed == f"A difference of 10 % takes {SPREAD.plan_launches(math.log1p(0.1))} launches."


def test_a_plan_takes_the_sigma_of_an_arm_it_has_for_its_own_number_of_sizes(tmp_path: Path) -> None:
    finish_run(tmp_path, "20260101-000000-run", SPREAD)
    settings = ("plain=''", "prior_context=[0]", "new_tokens=[512]")
    one = prepare(RunOptions(EXPERIMENT, preset="demo", settings=settings)).plan
    sigma, effects, _ = describe_precision(one, Workspace(tmp_path))
    assert f"over the {COMBINED_ENGINE} 5.1 % [" in sigma
    assert "at one (C, N), all 1 judged together" in effects
    alone = replace(SPREAD, sigma=0.05, degrees=2.0, sizes=1)
    assert f"{format_percent(math.expm1(alone.detectable_effect(3)))} with 3" in effects


@pytest.mark.parametrize(("trials", "settings"), [(1, ()), (3, ("plain=''", "baseline=false"))])
def test_a_plan_that_compares_nothing_over_launches_says_nothing(
    tmp_path: Path, trials: int, settings: tuple[str, ...]
) -> None:
    plan = prepare(RunOptions(EXPERIMENT, preset="demo", trials=trials, settings=settings)).plan
    assert describe_precision(plan, Workspace(tmp_path)) == ()


def test_the_detectable_effect_falls_with_the_launches_and_is_what_is_planned_for() -> None:
    effects = [SPREAD.detectable_effect(launches) for launches in range(3, 30)]
    assert effects == sorted(effects, reverse=True)
    assert SPREAD.plan_launches(effects[7]) == 10
    assert SPREAD.detectable_effect(5) < replace(SPREAD, sizes=2 * SIZES).detectable_effect(5)
