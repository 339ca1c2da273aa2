"""`tracon resume` of a live run asks its process to go on, and answers as other requests do; `status` names files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from results.records.events import CellChanged, CellState, Noted, RunChanged, RunState
from runners.campaign.experiment import RunOptions
from runners.campaign.start import create_run
from runners.cli import app
from runners.samplers.rest import HostRest
from state.lease import acquire
from state.store import RunStore
from state.workspace import Workspace
from tests.runners.prepared import prepare


def test_the_answer_about_a_live_run_is_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.cli.asking.ask_run", lambda folder, action, target, reason: {"asked": action})
    folder = create_run(Workspace(tmp_path), prepare(RunOptions("connector-tax", preset="smoke")))
    with RunStore.open(folder) as store:
        acquire(store)
    answered = CliRunner().invoke(app, ["resume", folder.name, "--workspace", str(tmp_path), "--json"])
    assert json.loads(answered.stdout) == {"asked": "resume"}


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Runs whose process `resume` would have started; the host is not at rest."""
    folders: list[Path] = []

    def note_spawned(folder: Path) -> SimpleNamespace:
        folders.append(folder)
        return SimpleNamespace(pid=1)

    monkeypatch.setattr("runners.samplers.rest.read_rest", lambda: HostRest(9.0, 2, 0.9, 0.0))
    monkeypatch.setattr("runners.cli.asking.ask_run", lambda *_: {"accepted": True, "detail": "it goes on"})
    monkeypatch.setattr("runners.campaign.start.spawn_run_process", lambda folder, **_: note_spawned(folder))
    monkeypatch.setattr("runners.cli.runs.accompany_run", lambda *_, **__: None)
    return folders


def warnings_of(folder: Path) -> list[str]:
    with RunStore.open(folder, read_only=True) as store:
        return [one.event.text for one in store.events() if isinstance(one.event, Noted)]


def resume(folder: Path, workspace: Path) -> str:
    """What the command prints on stderr."""
    command = ["resume", folder.name, "--workspace", str(workspace), "--accept-changes"]
    resumed = CliRunner().invoke(app, command)
    assert resumed.exit_code == 0, resumed.output
    return " ".join(resumed.stderr.split())


def test_a_host_that_is_not_at_rest_is_named_before_a_run_goes_on(tmp_path: Path, spawned: list[Path]) -> None:
    folder = create_run(Workspace(tmp_path), prepare(RunOptions("connector-tax", preset="smoke")))
    assert "This host is not at rest: load average 9.0 on 2 cores" in resume(folder, tmp_path)
    assert spawned == [folder], "it goes on anyway"
    (note,) = warnings_of(folder)
    assert note.startswith("This host is not at rest")


def test_nothing_is_said_of_the_host_where_no_engine_is_measured_on_it(tmp_path: Path, spawned: list[Path]) -> None:
    simulated = create_run(
        Workspace(tmp_path), prepare(RunOptions("routing", profile="h20-qwen3-coder-30b", preset="fleet"))
    )
    assert "not at rest" not in resume(simulated, tmp_path)
    done = create_run(Workspace(tmp_path), prepare(RunOptions("connector-tax", preset="smoke")))
    with RunStore.open(done) as store:
        for cell in store.plan.cells:
            store.append(CellChanged(cell.cell, CellState.SKIPPED, 0, "not wanted"))
    assert "not at rest" not in resume(done, tmp_path)
    assert [*warnings_of(simulated), *warnings_of(done)] == []
    assert spawned == [simulated, done]


@pytest.mark.parametrize("paused", [True, False])
def test_of_a_live_run_only_a_paused_one_is_looked_at(paused: bool, tmp_path: Path, spawned: list[Path]) -> None:
    """The engines of a run that is not paused keep the host busy themselves."""
    folder = create_run(Workspace(tmp_path), prepare(RunOptions("connector-tax", preset="smoke")))
    with RunStore.open(folder) as store:
        acquire(store)
        store.append(RunChanged(RunState.RUNNING))
        if paused:
            store.append(RunChanged(RunState.PAUSED))
    assert ("not at rest" in resume(folder, tmp_path)) == paused
    assert spawned == []


def test_status_names_the_run_s_folder_and_its_log(tmp_path: Path) -> None:
    workspace = tmp_path / ("a-folder-with-a-long-name-" * 8)
    workspace.mkdir()
    folder = create_run(Workspace(workspace), prepare(RunOptions("connector-tax", preset="smoke")))
    asked = ["status", folder.name, "--workspace", str(workspace)]
    lines = CliRunner().invoke(app, asked).stdout.splitlines()
    assert lines[-2:] == [f"folder {folder}", f"log    {folder / 'run.log'}"], "whole, for copying"
    status = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert (status["folder"], status["log"]) == (str(folder), str(folder / "run.log"))
