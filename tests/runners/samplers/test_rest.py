"""A host that is not at rest is named before a run starts, with what it costs; a run does not refuse."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest
from typer.testing import CliRunner

from results.records.events import InstanceChanged, InstanceState, Noted
from results.records.host import HEADER
from results.records.layout import RunLayout
from runners.campaign.experiment import RunOptions
from runners.campaign.start import create_run
from runners.cli import app
from runners.samplers.rest import HostRest, explain_unrest, find_usual_work_us, read_rest
from state.store import RunStore
from state.workspace import Workspace
from tests.runners.prepared import prepare

AT_REST = HostRest(0.2, 2, 0.03, 0.0)


@pytest.mark.parametrize(
    ("rest", "sign"),
    [
        (HostRest(3.2, 2, 0.03, 0.0), "load average 3.2 on 2 cores"),
        (HostRest(0.2, 2, 0.45, 0.0), "45 % of its cores' time is taken"),
        (HostRest(None, 2, None, 0.08), "a hypervisor takes 8 % of a core"),
    ],
)
def test_each_sign_of_unrest_is_named_with_its_cost(rest: HostRest, sign: str) -> None:
    text = explain_unrest(rest, "cpu")
    assert sign in text
    assert "0.04 to 0.12 on a host at rest and 0.25 to 0.37 on a busy one" in text
    assert "about 15 times as many launches" in text


def test_what_unrest_costs_an_engine_on_a_gpu_is_not_made_up() -> None:
    text = explain_unrest(HostRest(3.2, 2, 0.03, 0.0), "cuda")
    assert text.startswith("This host is not at rest: load average 3.2 on 2 cores.")
    assert "by how much is not measured for engines on a GPU" in text
    assert "sigma" not in text
    assert "times as many" not in text


def test_a_plan_for_gpus_states_no_cost_of_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.samplers.rest.read_rest", lambda: HostRest(9.0, 2, 0.9, 0.0))
    command = ["plan", "connector-tax", "--profile", "h20-qwen3-coder-30b", "--json"]
    (note,) = [one for one in json.loads(CliRunner().invoke(app, command).stdout)["notes"] if "not at rest" in one]
    assert "0.25 to 0.37" not in note


def test_a_host_at_rest_and_one_that_says_nothing_are_not_accused() -> None:
    assert explain_unrest(AT_REST, "cpu") == ""
    assert explain_unrest(HostRest(None, 2, None, None), "cpu") == ""
    assert explain_unrest(HostRest(20.0, 64, 0.1, 0.0), "cpu") == ""


def test_this_host_is_read() -> None:
    rest = read_rest(0.05)
    assert rest.cores >= 1
    assert rest.busy is None or 0 <= rest.busy <= 1
    assert rest.work_us is not None
    assert rest.work_us > 0


@pytest.mark.parametrize("command", [["plan", "connector-tax"], ["run", "connector-tax", "--dry-run"]])
def test_a_plan_says_so(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setattr("runners.samplers.rest.read_rest", lambda: HostRest(9.0, 2, 0.9, 0.0))
    notes = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["notes"]
    assert any("This host is not at rest: load average 9.0" in note for note in notes)
    monkeypatch.setattr("runners.samplers.rest.read_rest", lambda: AT_REST)
    notes = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["notes"]
    assert not any("not at rest" in note for note in notes)


SLOW_CORES = HostRest(0.2, 2, 0.03, 0.0, work_us=310.0)


def test_slow_cores_are_named_where_a_run_has_shown_them_faster() -> None:
    text = explain_unrest(SLOW_CORES, "cpu", 140.0)
    assert "its cores are slow, which no counter shows: a fixed piece of work takes 310 us, in the newest" in text
    assert explain_unrest(SLOW_CORES, "cpu", 210.0) == "", "less than 1.5 times"
    assert explain_unrest(SLOW_CORES, "cpu") == "", "no run has timed the work"


def started_on(host: str) -> InstanceChanged:
    return InstanceChanged("plain-1", "plain", InstanceState.STARTING, pid=1, host=host)


def test_a_plan_holds_the_cores_against_the_newest_run_that_timed_them_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    workspace = Workspace(tmp_path)
    assert find_usual_work_us(workspace) is None
    folder = create_run(workspace, prepare(RunOptions("connector-tax", preset="smoke")), "")
    rows = [",".join(HEADER), *(f"cell,{second},0.0,0.1,0.0,0.0,{140 + second}" for second in range(20))]
    with RunStore.open(folder) as store:
        store.append(started_on(platform.node()))
    assert find_usual_work_us(workspace) is None
    RunLayout(folder).host_csv.write_text("\n".join(rows) + "\n")
    assert find_usual_work_us(workspace) == 142, "of the fastest tenth"
    monkeypatch.setattr("runners.samplers.rest.read_rest", lambda: SLOW_CORES)
    command = ["plan", "connector-tax", "--workspace", str(tmp_path), "--json"]
    notes = json.loads(CliRunner().invoke(app, command).stdout)["notes"]
    assert any("This host is not at rest: its cores are slow" in note for note in notes)


def test_only_the_newest_runs_are_searched_for_how_fast_the_cores_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened: list[Path] = []
    open_run = RunStore.open

    def note_opened(folder: Path, *, read_only: bool = False) -> RunStore:
        opened.append(folder)
        return open_run(folder, read_only=read_only)

    prepared, workspace = prepare(RunOptions("connector-tax", preset="smoke")), Workspace(tmp_path)
    for number in range(5):
        folder = create_run(workspace, prepared, "").rename(tmp_path / f"2026010{number + 1}-120000-connector-tax-x")
        RunLayout(folder).host_csv.write_text(f"{','.join(HEADER)}\ncell,1,0.0,0.1,0.0,0.0,{100 + number}\n")
        with RunStore.open(folder) as store:
            store.append(started_on(platform.node() if number in (0, 2, 3) else "another"))
    monkeypatch.setattr(RunStore, "open", note_opened)
    assert find_usual_work_us(workspace) == 103
    assert [folder.name[:8] for folder in opened] == ["20260105", "20260104"], "none behind the one that timed it"
    monkeypatch.setattr("runners.samplers.rest.SEARCHED_RUNS", 1)
    assert find_usual_work_us(workspace) is None


@pytest.mark.parametrize("host", ["", "another"])
def test_a_run_that_was_copied_from_another_host_says_nothing_of_this_ones_cores(host: str, tmp_path: Path) -> None:
    folder = create_run(Workspace(tmp_path), prepare(RunOptions("connector-tax", preset="smoke")), "")
    RunLayout(folder).host_csv.write_text(f"{','.join(HEADER)}\ncell,1,0.0,0.1,0.0,0.0,140\n")
    with RunStore.open(folder) as store:
        store.append(started_on(host))
    assert find_usual_work_us(Workspace(tmp_path)) is None


def test_a_simulated_plan_needs_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runners.samplers.rest.read_rest", lambda: HostRest(9.0, 2, 0.9, 0.0))
    command = ["plan", "routing", "--profile", "h20-qwen3-coder-30b", "--preset", "fleet", "--json"]
    assert not any("not at rest" in note for note in json.loads(CliRunner().invoke(app, command).stdout)["notes"])


def test_the_journal_of_the_run_says_so(tmp_path: Path) -> None:
    prepared = prepare(RunOptions("connector-tax", preset="smoke"))
    folder = create_run(Workspace(tmp_path), prepared, explain_unrest(HostRest(9.0, 2, 0.9, 0.0), "cpu"))
    with RunStore.open(folder, read_only=True) as store:
        (note,) = [recorded.event for recorded in store.events() if isinstance(recorded.event, Noted)]
    assert (note.level, "not at rest" in note.text) == ("warning", True)
