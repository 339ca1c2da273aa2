"""The exit code of the run process is the one that the journal's state stands for."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.local import LocalBackend
from launch.profile import load_profile
from results.records.events import RunState
from runners.campaign import run_process
from runners.campaign.experiment import Experiment, RunOptions
from runners.campaign.start import Prepared
from runners.errors import ExitCode
from runners.experiments.registry import select_experiment
from state.store import RunStore
from tests.e2e.cli import view_of
from tests.runners.campaign.scripted import OBSTACLES, Scripted, scripted_plan


@pytest.fixture
def own_hangup() -> Iterator[None]:
    """The run process ignores SIGHUP; the process of the tests does so no longer than the test."""
    handler = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, handler)


@pytest.mark.usefixtures("own_hangup")
def test_an_engine_that_is_left_when_all_is_over_leaves_the_exit_code_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Unseen(LocalBackend):
        async def close(self) -> None:
            raise OBSTACLES["unseen"]()

    plan, folder = scripted_plan(outcomes={"s0-c1": "unseen"}), tmp_path / "run"
    RunStore.create(folder, folder.name, plan, "test").close()
    tax = select_experiment("connector-tax")
    draft = tax.draft_plan(RunOptions("connector-tax", preset="demo"), load_profile("cpu-tiny"))
    scripted = Experiment("scripted", tax.draft_plan, lambda grid, context: Scripted(folder), {})
    monkeypatch.setattr(run_process, "LocalBackend", Unseen)
    monkeypatch.setattr(run_process, "rebuild_options", lambda plan: None)
    monkeypatch.setattr(run_process, "prepare_run", lambda *_, **__: Prepared(draft, None, plan))
    code = run_process.work(folder, lambda name: scripted, accept_changes=False)
    assert (code, view_of(folder).state) == (ExitCode.INTERRUPTED, RunState.INTERRUPTED)
    assert "an engine may be left: what is left of an engine cannot be seen. raise the limit" in caplog.text
