"""A search for the fewest instances as a run: killed, it goes on, repeats no point and ends with the same answer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from results.records.events import CellState
from results.records.layout import RunLayout
from results.registry import find_results
from runners.campaign.exit_code import list_shortfalls
from runners.campaign.experiment import NOT_NEEDED, RunOptions
from runners.campaign.run_process import work
from runners.campaign.start import Prepared, create_run, prepare_run, rebuild_options
from runners.errors import RunnerError
from runners.experiments.registry import select_experiment
from state.workspace import Workspace
from tests.e2e.cli import view_of
from tests.runners.experiments.simulated_runs import kill_midway, run_whole, work_off
from tests.runners.prepared import prepare

MODEL = "H20, Qwen3-Coder-30B-A3B, bfloat16, attention by its FLOP (UNCALIBRATED)"
SLO = "ttft_p90=1.1s,tpot_p90=20ms"


def plan_search(*settings: str, **options: object) -> Prepared:
    asked = RunOptions(
        experiment="capacity",
        profile="h20-qwen3-coder-30b",
        preset="fleet-size",
        policies=("unified", "static PD-disagg"),
        settings=(
            "trace.sessions=12",
            "trace.turns=2",
            "trace.output_tokens=0.1",
            "replay.time_scale=0.5",
            f"search.slo={SLO}",
            "search.max_instances=6",
            *settings,
        ),
        trials=3,
        instances=2,
        **options,  # type: ignore[arg-type]
    )
    return prepare_run(select_experiment("capacity"), asked, need_engine=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No engine environment is in there."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    return run_whole(tmp_path_factory.mktemp("runs"), home, plan_search)


def read_aggregate(folder: Path) -> dict[str, object]:
    """Without the run's own name."""
    aggregate: dict[str, object] = json.loads(RunLayout(folder).aggregate_json.read_bytes())
    del aggregate["run"]
    return aggregate


def test_every_policy_has_an_answer_and_every_file_says_that_it_is_simulated(folder: Path) -> None:
    layout = RunLayout(folder)
    aggregate = read_aggregate(folder)
    assert aggregate["simulated"] == MODEL
    assert [row["label"] for row in aggregate["policies"]] == ["unified", "static PD-disagg"]  # type: ignore[attr-defined]
    for row in aggregate["policies"]:  # type: ignore[attr-defined]
        assert row["unfinished"] is None
        assert row["points"]
    figure = layout.figures / "figure_1.csv"
    for path in (layout.manifest, layout.aggregate_csv, layout.report_md, layout.report_html, figure):
        assert MODEL in path.read_text()
    assert layout.report_md.read_text().startswith("# SIMULATED: capacity ")
    assert (layout.figures / "figure_1.svg").is_file()


def test_points_that_the_search_did_not_need_are_no_shortfall(folder: Path) -> None:
    view = view_of(folder)
    assert list_shortfalls(view) == ()
    skipped = [cell for cell in view.cells.values() if cell.state is CellState.SKIPPED]
    assert skipped
    assert all(cell.reason.startswith(NOT_NEEDED) for cell in skipped)


def test_the_report_is_made_again_from_the_folder(folder: Path) -> None:
    before = RunLayout(folder).report_md.read_bytes()
    find_results("capacity").write(folder)
    assert RunLayout(folder).report_md.read_bytes() == before


def test_killed_in_the_middle_it_repeats_no_point_and_ends_with_the_same_answer(
    folder: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACON_HOME", str(home))
    again = create_run(Workspace(tmp_path), plan_search())
    finished = kill_midway(again, "results/points/*/*.json", 4)
    work_off(again)
    assert {path: path.stat().st_ino for path in finished} == finished
    assert read_aggregate(again) == read_aggregate(folder)


def test_a_point_writes_no_decision_log(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search would write gigabytes only to delete them."""
    monkeypatch.setenv("TRACON_HOME", str(home))
    written: list[set[str]] = []

    def note_files(folder: Path) -> None:
        written.append({path.name for path in folder.iterdir()})
        shutil.rmtree(folder)

    module = "runners.experiments.capacity.experiment.shutil"
    monkeypatch.setattr(module, SimpleNamespace(rmtree=note_files))
    work(
        create_run(Workspace(tmp_path), plan_search("search.max_instances=2")), select_experiment, accept_changes=False
    )
    assert len(written) >= 3
    for names in written:
        assert "metrics.jsonl" in names
        assert "decisions.jsonl" not in names


def test_a_trace_file_is_replayed_whole_at_its_own_pace(folder: Path) -> None:
    trace = str(RunLayout(folder).trace)
    asked = RunOptions("capacity", "h20-qwen3-coder-30b", "fleet-size", trace=trace)
    plan = prepare(asked).plan
    assert plan.inputs["grid"]["trace"]["sessions"] == 0
    assert plan.inputs["grid"]["replay"]["time_scale"] == 1.0
    again = prepare(rebuild_options(plan)).plan
    assert again.fingerprint == plan.fingerprint


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("search.slo=ttft_p90=2", "is no limit"),
        ("search.max_instances=0", "must be at least 1"),
        ("search.most=3", "most"),
        ("sensitivity.by=0.2", "a search has no variations"),
    ],
)
def test_a_wrong_search_is_refused_before_anything_runs(setting: str, message: str) -> None:
    with pytest.raises(RunnerError, match=message):
        plan_search(setting)


def test_every_policy_with_pools_is_searched_over_its_splits() -> None:
    """Only `static_pd` was: the pools of another policy were left out, and its search was of another fleet."""
    inputs = plan_search("unified.prefill_instances=1").plan.inputs
    assert [one["pooled"] for one in inputs["search"]["searches"].values()] == [True, True]
    inputs = plan_search().plan.inputs
    assert {label: one["pooled"] for label, one in inputs["search"]["searches"].items()} == {
        "unified": False, "static PD-disagg": True,
    }  # fmt: skip


def test_the_label_of_a_policy_with_pools_states_no_split() -> None:
    asked = RunOptions(
        "capacity",
        "h20-qwen3-coder-30b",
        "fleet-size",
        policies=("kv_aware",),
        settings=("kv_aware.prefill_instances=1",),
    )
    plan = prepare(asked).plan
    assert list(plan.inputs["search"]["searches"]) == ["kv_aware"]
    assert prepare(rebuild_options(plan)).plan.fingerprint == plan.fingerprint


@pytest.mark.parametrize("other", ['name = "kv_aware"', 'name = "unified", label = "kv aware"'])
def test_two_policies_whose_points_would_have_one_folder_are_refused(other: str) -> None:
    """Labels that differ as text gave two cells of one name."""
    policies = f'policies=[{{name = "kv_aware", prefill_instances = 1}}, {{{other}}}]'
    with pytest.raises(RunnerError, match="the same label without their prefill_instances"):
        prepare(RunOptions("capacity", "h20-qwen3-coder-30b", "fleet-size", settings=(policies,)))


def test_turns_that_were_not_completed_count_as_never_served() -> None:
    from runners.experiments.capacity.experiment import find_percentile

    class Turns:
        completed = np.array([True] * 9 + [False])

        @staticmethod
        def series(name: str) -> np.ndarray:
            return np.array([1.0] * 9 + [np.nan])

    assert find_percentile(Turns(), "ttft", 50, 10) == 1.0  # type: ignore[arg-type]
    assert find_percentile(Turns(), "ttft", 95, 10) is None  # type: ignore[arg-type]
    assert find_percentile(Turns(), "ttft", 50, 30) is None  # type: ignore[arg-type]
