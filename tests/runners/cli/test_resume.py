"""`tracon resume` of a run that is live asks its process to go on, and answers as the other requests do."""

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
