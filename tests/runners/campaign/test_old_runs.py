"""A run that an older Tracon began opens, reports and resumes, or is refused with the command that goes on with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from launch.environment import Engine
from results.records.events import Noted, RunState
from results.registry import results_of
from runners.campaign.run_process import work
from runners.cli import app
from runners.errors import ExitCode, RunnerError
from runners.experiments.registry import experiment_named
from state.store import RunStore
from tests.goldens.fixture import ARCHIVE, HERE, unpack
from tests.goldens.outputs import EXPERIMENTS


@pytest.fixture(params=EXPERIMENTS)
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of each experiment, and an engine environment at another path than the one it was measured with."""
    engine = Engine("cpu", tmp_path / "bin" / "python", tmp_path, tmp_path, {"vllm": "0.33.0"})
    monkeypatch.setattr("runners.campaign.start.find_engine", lambda kind, python: engine)
    return unpack(HERE / request.param / ARCHIVE, tmp_path / "runs")


def test_what_has_changed_is_named_with_the_command_that_goes_on(run: Path) -> None:
    assert CliRunner().invoke(app, ["status", str(run)]).exit_code == 0
    refused = CliRunner().invoke(app, ["resume", str(run)]).exception
    assert isinstance(refused, RunnerError)
    assert "engine.versions.vllm: 0.32.0 -> 0.33.0" in str(refused)
    assert "`tracon resume --accept-changes`" in refused.remedy


def test_it_resumes_where_its_changes_are_accepted_and_says_so(run: Path) -> None:
    assert work(run, experiment_named, accept_changes=True) == ExitCode.DONE
    with RunStore.open(run, read_only=True) as store:
        assert store.run_row().state is RunState.DONE
        notes = [recorded.event.text for recorded in store.events() if isinstance(recorded.event, Noted)]
    assert any("resumed although these changed" in note for note in notes)
    report = results_of(run)
    (limit,) = [one for one in report.report(report.analyse(run)).limits if "--accept-changes" in one]
    assert "engine.versions.vllm: 0.32.0 -> 0.33.0" in limit


def test_an_engine_environment_that_is_gone_is_not_looked_for_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one found in its place is a change like any other, to be accepted or not."""
    looked_for: list[Path | None] = []
    engine = Engine("cpu", run / "bin" / "python", run, run, {"vllm": "0.32.0"})

    def find(kind: str, python: Path | None) -> Engine:
        looked_for.append(python)
        return engine

    monkeypatch.setattr("runners.campaign.start.find_engine", find)
    refused = CliRunner().invoke(app, ["resume", str(run)]).exception
    assert "engine.python" in str(refused)
    assert looked_for == [None]
