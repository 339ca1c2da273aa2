"""A run that an older Tracon began opens, reports and resumes, or is refused with the command that goes on with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from typer.testing import CliRunner

from launch.environment import Engine
from results.records.events import CellState, Noted, RunState
from results.records.layout import RunLayout
from results.records.plan import CellPlan
from results.records.router_spec import InstanceSpec
from results.registry import find_results_of_run
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome, CellRunner, Experiment
from runners.campaign.run_process import work
from runners.cli import app
from runners.errors import ExitCode, RunnerError
from runners.experiments.connector_tax.cell import load_spec
from runners.experiments.registry import select_experiment
from runners.experiments.routing.specs import make_replay_spec, make_router_spec
from runners.load.messages import read_load_spec
from runners.load.replay_messages import read_replay_spec
from runners.router.decision_log import read_logs
from runners.router.messages import read_router_spec
from state.model import RunView
from state.store import RunStore
from tests.e2e.cli import view_of
from tests.goldens.fixture import ARCHIVE, HERE, unpack
from tests.goldens.outputs import EXPERIMENTS, analyze_again, call

OLD = HERE.parent / "old_runs"
FINISHED = (
    "20261124-135912-connector-tax-cpu-tiny",
    "20261124-140043-routing-cpu-tiny",
    "20261124-140229-pd-lifecycle-cpu-tiny",
)
CHANGED: Mapping[str, str] = {
    "20261124-140329-connector-tax-cpu-tiny": "grid.drain_s: 30.0 -> 300.0",
    "20261124-141752-routing-cpu-tiny": "grid.policies.1.reserved_output: (absent) -> 0",
    "20261124-142743-pd-lifecycle-cpu-tiny": "grid.plain: (absent) -> plain",
}
"""The interrupted runs, and a change since then that a refusal names."""
RENAMED: Mapping[str, str] = {"ttft": "router_ttft"}
"""Metrics by the names that older versions wrote, and those of today."""
ROUTED_CELL = "20261124_EAR/trial_0"
SPEC_READERS: Mapping[str, Callable[[Path], object]] = {
    "router.spec.json": read_router_spec,
    "metrics.spec.json": read_replay_spec,
    "requests.spec.json": read_load_spec,
}


def use_engine(vllm: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Find an engine environment at another path than the one that runs were measured with."""
    engine = Engine("cpu", folder / "bin" / "python", folder, folder, {"vllm": vllm})
    monkeypatch.setattr("runners.campaign.start.find_engine", lambda kind, python: engine)


@pytest.fixture(params=[*FINISHED, *CHANGED])
def old_run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack(OLD / f"{request.param}.tar.xz", tmp_path / "runs")


@pytest.fixture(params=FINISHED)
def finished(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack(OLD / f"{request.param}.tar.xz", tmp_path / "runs")


@pytest.fixture(params=CHANGED)
def interrupted(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_engine("0.33.0", monkeypatch, tmp_path)
    return unpack(OLD / f"{request.param}.tar.xz", tmp_path / "runs")


def notes_of(run: Path) -> list[str]:
    with RunStore.open(run, read_only=True) as store:
        return [recorded.event.text for recorded in store.events() if isinstance(recorded.event, Noted)]


def test_it_opens_and_reports(old_run: Path) -> None:
    is_finished = old_run.name in FINISHED
    status = msgspec.json.decode(call(old_run, "status", "RUN", "--json"))
    assert status["state"] == ("done" if is_finished else "running")
    assert status["lease"]["live"] is False
    assert all(cell["state"] == "done" for cell in status["cells"]) is is_finished
    assert call(old_run, "report", "RUN")
    analyzed = analyze_again(old_run)
    assert (analyzed["aggregate.json"]["gaps"] == []) is is_finished


def test_the_specs_of_its_processes_are_read(old_run: Path) -> None:
    paths = sorted(old_run.rglob("*.spec.json"))
    assert paths
    for path in paths:
        SPEC_READERS[path.name](path)


def collect_config_values(aggregate: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    """Every number of every cell, or of every configuration of `pd-lifecycle`."""
    for number, row in enumerate(aggregate["configs"] if "configs" in aggregate else aggregate["cells"]):
        for metric, value in row["values"].items():
            yield f"{number} {RENAMED.get(metric, metric)}", value["value"]


def test_its_numbers_are_those_that_its_own_version_computed(finished: Path) -> None:
    path = RunLayout(finished).aggregate_json
    before = dict(collect_config_values(msgspec.json.decode(path.read_bytes())))
    analyze_again(finished)
    after = dict(collect_config_values(msgspec.json.decode(path.read_bytes())))
    assert len(before) > 50
    assert {name: value for name, value in before.items() if not is_same(value, after[name])} == {}


def is_same(before: float | None, after: float | None) -> bool:
    if before is None or after is None:
        return before is after
    return math.isclose(before, after, rel_tol=1e-12)


def test_it_compares_with_itself_as_its_own_version_analyzed_it(finished: Path, tmp_path: Path) -> None:
    again = unpack(OLD / f"{finished.name}.tar.xz", tmp_path / "again")
    analyze_again(again)
    compared = msgspec.json.decode(call(finished, "compare", "RUN", str(again), "--json"))
    assert compared["changes"]
    assert [change for change in compared["changes"] if change["first"]["value"] != change["second"]["value"]] == []
    assert (compared["only_first"], compared["only_second"]) == ([], [])


def test_its_picks_are_explained_and_made_again(tmp_path: Path) -> None:
    run = unpack(OLD / f"{FINISHED[1]}.tar.xz", tmp_path)
    assert [log.gaps for log in read_logs(run) if log.gaps] == []
    assert "reason `bound`" in call(run, "why", "RUN", "#5", "--cell", ROUTED_CELL)
    assert "bound" in call(run, "session", "RUN", "s0", "--cell", ROUTED_CELL)
    again = msgspec.json.decode(call(run, "whatif", "RUN", "--policy", "lmetric", "--cell", ROUTED_CELL, "--json"))
    assert again


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_a_finished_run_resumes_with_nothing_to_measure_whatever_has_changed(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report must not state that its cells were measured with what has changed."""
    use_engine("0.33.0", monkeypatch, tmp_path)
    resume_finished(unpack(HERE / experiment / ARCHIVE, tmp_path / "runs"))


def test_an_old_finished_run_resumes_with_nothing_to_measure(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_engine("0.33.0", monkeypatch, tmp_path)
    resume_finished(finished)


def resume_finished(run: Path) -> None:
    for accepts in (False, True):
        assert work(run, select_experiment, accept_changes=accepts) == ExitCode.DONE
    assert not RunLayout(run).accepted_changes.exists()
    assert not any("resumed although" in note for note in notes_of(run))


def test_what_has_changed_is_named_with_the_command_that_goes_on(interrupted: Path) -> None:
    refused = CliRunner().invoke(app, ["resume", str(interrupted)]).exception
    assert isinstance(refused, RunnerError)
    assert "engine.versions.vllm: 0.32.0 -> 0.33.0" in str(refused)
    assert CHANGED[interrupted.name] in str(refused)
    assert "`tracon resume --accept-changes`" in refused.remedy
    with pytest.raises(RunnerError, match="has changed"):
        work(interrupted, select_experiment, accept_changes=False)
    assert view_of(interrupted).state is RunState.INTERRUPTED


class Unmeasured:
    """The experiment's own cell runner, except that a cell is only asked of its processes and not measured."""

    ahead = None

    def __init__(self, experiment: Experiment, grid: Any, context: RunContext) -> None:  # noqa: ANN401  # of any experiment
        self._own: CellRunner = experiment.cell_runner(grid, context)
        self._grid, self._context = grid, context
        self.ran: list[str] = []

    def explain_skip(self, cell: CellPlan, view: RunView) -> str:
        return self._own.explain_skip(cell, view)

    def adopt(self, cell: CellPlan) -> CellOutcome | None:
        return self._own.adopt(cell)

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        folder, model = Path("/attempt"), self._context.profile.model
        if cell.kind == "load":
            instance = cast(Any, SimpleNamespace(spec=SimpleNamespace(url="http://127.0.0.1:1")))
            assert load_spec(cell, 4.0, instance, self._context, folder).drain_s == 30.0, "as its version had it"
        elif cell.kind == "replay":
            spec = make_router_spec(cell, self._grid, (InstanceSpec("e0", "http://127.0.0.1:1"),), folder)
            assert (spec.reserved_output, spec.transfer.priority) == ("max_tokens", -1), "as its version had it"
            assert make_replay_spec(cell, self._grid, model, "http://127.0.0.1:1", folder, 32, folder)
        self.ran.append(cell.cell)
        return CellOutcome()

    async def finish(self) -> None:
        """Nothing was measured."""

    async def release(self, reason: str) -> None:
        await self._own.release(reason)


def test_it_resumes_where_its_changes_are_accepted_and_says_so(interrupted: Path) -> None:
    runners: list[Unmeasured] = []

    def find(name: str) -> Experiment:
        experiment = select_experiment(name)

        def make(grid: Any, context: RunContext) -> CellRunner:  # noqa: ANN401  # of any experiment
            runners.append(Unmeasured(experiment, grid, context))
            return runners[-1]

        return replace(experiment, cell_runner=make)

    before = view_of(interrupted)
    done = {name for name, cell in before.cells.items() if cell.state is CellState.DONE}
    code = work(interrupted, find, accept_changes=True)
    after = view_of(interrupted)
    assert code == ExitCode.DONE, [cell.reason for cell in after.cells.values() if cell.reason]
    assert done
    assert {cell.state for cell in after.cells.values()} <= {CellState.DONE, CellState.SKIPPED}
    assert not done & set(runners[0].ran)
    assert {"load", "replay", "lifecycle"} & {cell.kind for cell in after.plan.cells if cell.cell in runners[0].ran}
    assert any("resumed although these changed" in note for note in notes_of(interrupted))
    report = find_results_of_run(interrupted)
    (limit,) = [one for one in report.report(report.analyze(interrupted)).limits if "--accept-changes" in one]
    assert "engine.versions.vllm: 0.32.0 -> 0.33.0" in limit


def test_an_engine_environment_that_is_gone_is_not_looked_for_again(
    interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one found in its place is a change like any other, to be accepted or not."""
    looked_for: list[Path | None] = []
    engine = Engine("cpu", interrupted / "bin" / "python", interrupted, interrupted, {"vllm": "0.32.0"})

    def find(kind: str, python: Path | None) -> Engine:
        looked_for.append(python)
        return engine

    monkeypatch.setattr("runners.campaign.start.find_engine", find)
    refused = CliRunner().invoke(app, ["resume", str(interrupted)]).exception
    assert "engine.python" in str(refused)
    assert looked_for == [None]
