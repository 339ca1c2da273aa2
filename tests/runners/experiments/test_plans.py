"""What holds of the plan and the presets of every experiment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from launch.profile import PROFILES_FOLDER, list_profile_names, load_profile
from results.records.plan import RunPlan
from runners.campaign.experiment import RunOptions
from runners.campaign.start import rebuild_options
from runners.errors import RunnerError
from runners.experiments.connector_tax.grid import read_grid as read_connector_tax
from runners.experiments.pd_lifecycle.grid import read_grid as read_pd_lifecycle
from runners.experiments.routing.grid import read_grid as read_routing
from tests.runners.prepared import prepare

CPU = load_profile("cpu-tiny")
READERS: Mapping[str, Callable[..., Any]] = {
    "connector-tax": read_connector_tax,
    "pd-lifecycle": read_pd_lifecycle,
    "routing": read_routing,
}
PRESETS = [
    (profile, experiment, preset)
    for profile in list_profile_names()
    for experiment in READERS
    for preset in load_profile(profile).experiments.get(experiment, {})
]


def plan_of(experiment: str, profile: str = "cpu-tiny", preset: str = "smoke", **more: Any) -> RunPlan:
    return prepare(RunOptions(experiment, profile, preset, **more)).plan


@pytest.mark.parametrize("experiment", READERS)
def test_stages_are_barriers(experiment: str) -> None:
    for seed in range(20):
        plan = plan_of(experiment, preset="demo", seed=seed)
        order = [stage.stage for stage in plan.stages]
        places = [order.index(cell.stage) for cell in plan.cells]
        assert places == sorted(places)
        assert len({cell.cell for cell in plan.cells}) == len(plan.cells)


@pytest.mark.parametrize(("profile", "experiment", "preset"), PRESETS)
def test_the_arithmetic_shown_adds_up_to_the_plan(profile: str, experiment: str, preset: str) -> None:
    prepared = prepare(RunOptions(experiment, profile, preset))
    engines_s = sum(cell.estimated_s for cell in prepared.plan.cells if cell.config is not None)
    assert sum(line.seconds for line in prepared.draft.sums) == pytest.approx(engines_s)


@pytest.mark.parametrize("experiment", READERS)
def test_a_plan_can_be_made_again_from_what_it_holds(experiment: str, tmp_path: Path) -> None:
    """The run process does so. It loads a profile of the user's own by the path that the plan names."""
    profile = tmp_path / "mine.toml"
    profile.write_text((PROFILES_FOLDER / "cpu-tiny.toml").read_text().replace('name = "cpu-tiny"', 'name = "mine"'))
    plan = plan_of(experiment, str(profile), seed=9, port=19999, settings=("preflight_s=4",))
    again = prepare(rebuild_options(plan)).plan
    assert again.profile == str(profile)
    assert again.fingerprint == plan.fingerprint
    assert plan_of(experiment, str(profile), seed=8).fingerprint != plan.fingerprint


@pytest.mark.parametrize("experiment", READERS)
def test_a_preset_may_be_like_another_but_for_its_own_keys(experiment: str) -> None:
    smoke = CPU.experiments[experiment]["smoke"]
    tables = {"base": smoke, "next": {"like": "base", "preflight_s": 9.0}, "last": {"like": "next", "seed": 7}}
    one, other = (READERS[experiment](tables, "p", preset) for preset in ("last", "base"))
    assert (one.preflight_s, one.seed) == (9.0, 7)
    same = set(one.__struct_fields__) - {"preflight_s", "seed"}
    assert all(getattr(one, name) == getattr(other, name) for name in same)


def test_the_page_shows_a_preset_that_can_be_added_to_a_profile(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "profiles.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"```toml\n(\[experiment\..*?)```", page, flags=re.DOTALL)
    profile = tmp_path / "my-profile.toml"
    profile.write_text(f"{(PROFILES_FOLDER / 'cpu-tiny.toml').read_text()}\n{table}")
    grid = plan_of("connector-tax", str(profile), "mine").inputs["grid"]
    assert (grid["trials"], grid["confirm"], list(grid["phase_a"]["rates_per_s"])) == (5, True, [1.0, 2.0, 4.0])


@pytest.mark.parametrize("like", ["unknown", "one", "two"])
@pytest.mark.parametrize("experiment", READERS)
def test_a_preset_that_is_like_none_or_like_itself_is_refused(experiment: str, like: str) -> None:
    with pytest.raises(RunnerError, match="like"):
        READERS[experiment]({"one": {"like": like}, "two": {"like": "one"}}, "p", "one")


@pytest.mark.parametrize("experiment", READERS)
def test_an_unknown_preset_is_refused_with_the_names_of_all(experiment: str) -> None:
    with pytest.raises(RunnerError, match="huge") as refused:
        plan_of(experiment, preset="huge")
    assert "demo" in refused.value.remedy
