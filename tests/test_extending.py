"""What docs/extending.md adds works as written there, from outside the packages; its metric and panel have tests beside
those of results and console.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from console.findings import Report, analyse_folder
from launch.profile import PROFILES_FOLDER
from results import registry as results_registry
from results.records.layout import RunLayout
from runners.campaign.cell_loop import CellLoop
from runners.campaign.experiment import RunOptions
from runners.campaign.start import create_run
from runners.cli import app
from runners.errors import ExitCode
from runners.experiments import registry
from runners.router.policies import make_policy
from state import lease as leases
from state.store import RunStore
from state.workspace import Workspace
from tests.doc_code import code_blocks, load_module
from tests.runners.prepared import prepare
from tests.runners.router import views

NAME = "start-time"


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[str]:
    """The experiment is registered; the path of a profile that has a preset of it."""
    code = code_blocks()
    entry = load_module(tmp_path / "entry.py", code["runners/experiments/start_time/entry.py"])
    results = load_module(tmp_path / "experiment.py", code["results/start_time/experiment.py"])
    profile = tmp_path / "mine.toml"
    profile.write_text((PROFILES_FOLDER / "cpu-tiny.toml").read_text(encoding="utf-8") + code["profile"])
    registry.register(entry.ENTRY)
    results_registry.register(results.RESULTS)
    yield str(profile)
    registry.unregister(NAME)
    results_registry.unregister(NAME)


def tracon(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})


class Slot:
    """Engines that start at once."""

    async def get(self, config: str, purpose: str) -> None:
        await asyncio.sleep(0.01)

    async def release(self, reason: str) -> None: ...


def measured(profile: str, workspace: Path) -> Path:
    """A finished run of the toy experiment, its engines replaced."""
    prepared = prepare(RunOptions(NAME, profile))
    folder = create_run(Workspace(workspace), prepared)
    context: Any = SimpleNamespace(layout=RunLayout(folder), slot=Slot())
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        runner = registry.experiment_named(NAME).cell_runner(prepared.draft.grid, context)
        assert asyncio.run(CellLoop(store, lease, folder, runner).run()) == ExitCode.DONE
    return folder


def test_the_experiment_is_on_the_command_line(toy: str) -> None:
    plan = json.loads(tracon("plan", NAME, "-p", toy, "--set", "repetitions=2", "--json").stdout)
    assert [cell["cell"] for cell in plan["cells"]][:3] == [
        "start/plain/0",
        "start/noop_connector/0",
        "start/plain/1",
    ]
    assert len(plan["cells"]) == 5
    shown = " ".join(tracon("plan", "--help").stdout.replace("│", " ").split())
    assert "connector-tax, routing, pd-lifecycle, capacity, start-time" in shown
    assert "start-time: e.g. repetitions=5" in shown
    refused = tracon("plan", NAME, "-p", toy, "--set", "repetition=2")
    assert "repetition" in str(refused.exception)


def test_a_run_of_it_is_listed_reported_and_shown_in_the_console(toy: str, tmp_path: Path) -> None:
    workspace = tmp_path / "runs"
    folder = measured(toy, workspace)
    (row,) = json.loads(tracon("list", "-w", str(workspace), "--json").stdout)
    assert (row["experiment"], row["state"], row["fraction"]) == (NAME, "done", 1.0)
    status = json.loads(tracon("status", str(folder), "--json").stdout)
    assert status["experiment"] == NAME
    assert "Engine starts" in tracon("report", str(folder)).stdout
    reported = json.loads(tracon("report", str(folder), "--json").stdout)
    assert {config: len(values) for config, values in reported["aggregate"]["ready_s"].items()} == {
        "noop_connector": 3,
        "plain": 3,
    }
    compared = tracon("compare", str(folder), str(folder))
    assert "its configs are compared within it" in str(compared.exception)
    shown = analyse_folder(folder, NAME).report
    assert isinstance(shown, Report)
    assert [table.title for table in shown.sections.values()] == ["Engine starts"]


def test_a_name_is_registered_once(toy: str) -> None:
    for known in (NAME, "routing"):
        entry = next(one for one in registry.experiments() if one.name == known)
        with pytest.raises(ValueError, match=known):
            registry.register(entry)
        with pytest.raises(ValueError, match=known):
            results_registry.register(results_registry.results_named(known))


def test_without_its_line_the_experiment_is_unknown(tmp_path: Path) -> None:
    assert "unknown experiment 'start-time'" in str(tracon("plan", NAME).exception)
    (tmp_path / "plan.json").write_text('{"experiment": "start-time"}')
    assert "unknown experiment 'start-time'" in str(tracon("report", str(tmp_path)).exception)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "nixl_tcp.toml"
    path.write_text(code_blocks()["nixl_tcp.toml"])
    return str(path)


@pytest.mark.parametrize(
    ("experiment", "others"), [("connector-tax", ["-c", "plain"]), ("routing", []), ("pd-lifecycle", [])]
)
def test_a_config_by_its_path_is_planned_under_its_own_name(config: str, experiment: str, others: list[str]) -> None:
    arguments = ("plan", experiment, "--preset", "smoke", *others, "-c", config, "--json")
    done = tracon(*arguments)
    assert done.exit_code == 0, done.exception
    plan = json.loads(done.stdout)
    assert "nixl_tcp" in plan["configs"]
    assert "preflight/nixl_tcp" in [cell["cell"] for cell in plan["cells"]]
    assert not any(cell["config"] and "/" in cell["config"] for cell in plan["cells"])


def test_a_config_in_the_folder_is_known_everywhere(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plain` and the new one are all there is: `profiles` and `doctor` list the folder."""
    (tmp_path / "plain.toml").write_text('name = "plain"\ntitle = "plain"\nwhy = "no connector"\n')
    monkeypatch.setattr("launch.profile.CONFIGS_FOLDER", tmp_path)
    listed = json.loads(tracon("profiles", "--json").stdout)
    assert [one["name"] for one in listed["configs"]] == ["nixl_tcp", "plain"]
    plan = json.loads(
        tracon("plan", "connector-tax", "--preset", "smoke", "-c", "plain", "-c", "nixl_tcp", "--json").stdout
    )
    assert sorted(plan["configs"]) == ["nixl_tcp", "plain"]


def test_the_policy_is_used_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "fewest_requests.py"
    path.write_text(code_blocks()["fewest_requests.py"], encoding="utf-8")
    cluster = views.view(views.load("a", 3), views.load("b", 1))
    assert make_policy(str(path), {}).decide(views.ask(), cluster).instance == "b"
    assert make_policy(str(path), {"spare": 1}).decide(views.ask(tried=("b",)), cluster).reason == "no_instance"
