"""`tracon resume` of a live run asks its process to go on, and answers as other requests do; `status` names files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from runners.campaign.experiment import RunOptions
from runners.campaign.start import create_run
from runners.cli import app
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


def test_status_names_the_run_s_folder_and_its_log(tmp_path: Path) -> None:
    workspace = tmp_path / ("a-folder-with-a-long-name-" * 8)
    workspace.mkdir()
    folder = create_run(Workspace(workspace), prepare(RunOptions("connector-tax", preset="smoke")))
    asked = ["status", folder.name, "--workspace", str(workspace)]
    lines = CliRunner().invoke(app, asked).stdout.splitlines()
    assert lines[-2:] == [f"folder {folder}", f"log    {folder / 'run.log'}"], "whole, for copying"
    status = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert (status["folder"], status["log"]) == (str(folder), str(folder / "run.log"))
