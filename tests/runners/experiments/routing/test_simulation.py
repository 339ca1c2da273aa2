"""A simulated run: no engine, the records of a real one, marked everywhere; killed, it goes on and repeats nothing."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from launch.profile import PROFILES_FOLDER
from results.records.events import (
    CellProgressed,
    CellState,
    Event,
    InstanceChanged,
    InstanceSampled,
    InstanceState,
    PaceChosen,
    RouterSampled,
)
from results.records.layout import RunLayout, TrialLayout, list_trial_layouts, sha256
from results.records.turns import TraceRecord
from results.routing.analyze import analyze
from results.routing.compare import build_comparable
from results.routing.figures import SCHEMATICS
from runners.campaign.experiment import RunOptions
from runners.campaign.start import Prepared, create_run, prepare_run, require_pace, spawn_run_process
from runners.cli.asking import ask_run
from runners.errors import ExitCode, RunnerError
from runners.experiments.engine_choice import EngineChoice
from runners.experiments.registry import select_experiment
from runners.experiments.routing.engine_model import read_models, shape_model
from runners.experiments.routing.grid import Grid
from runners.experiments.routing.simulation import make_simulation_spec
from runners.experiments.routing.trace import require_trace
from runners.simulator.engine_file import FOLDER, read_engine
from state.store import RunStore
from state.workspace import Workspace
from tests.e2e.cli import view_of
from tests.runners.command import Tracon
from tests.runners.experiments.simulated_runs import KILL_WITHIN_S, kill_midway, list_children, run_whole, work_off
from tests.runners.prepared import prepare

MODEL = "H20, Qwen3-Coder-30B-A3B, bfloat16, attention by its FLOP (UNCALIBRATED)"
SETTINGS = (
    "trace.sessions=12",
    "trace.tokens=1.0",
    "trace.output_tokens=0.1",
    "trace.turns=3",
    "replay.time_scale=1.0",
    "simulation.step_noise=0.05",
)
SAME = ("metrics.jsonl", "decisions.jsonl", "engines.jsonl")


def plan_run(*settings: str, profile: str = "h20-qwen3-coder-30b", **options: object) -> Prepared:
    chosen: dict[str, Any] = {"policies": ("EAR", "static PD-disagg 4P+4D"), "trials": 3, "simulated": True} | options
    asked = RunOptions(
        experiment="routing",
        profile=profile,
        preset="baselines",
        settings=(*SETTINGS, *settings),
        **chosen,
    )
    return prepare_run(select_experiment("routing"), asked, need_engine=True)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No engine environment is in there."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    return run_whole(tmp_path_factory.mktemp("runs"), home, plan_run)


def cells_of(folder: Path) -> dict[str, TrialLayout]:
    """By policy and trial: runs of two days have other names."""
    return {f"{layout.root.parent.name[9:]}/{layout.root.name}": layout for layout in list_trial_layouts(folder)}


def test_it_has_the_stages_of_a_replay_alone_and_starts_no_engine(folder: Path) -> None:
    view = view_of(folder)
    assert [stage.stage for stage in view.stages] == ["prepare", "trials", "analysis"]
    assert {cell.plan.kind for cell in view.cells.values()} == {"trace", "replay", "analysis"}
    assert {cell.state for cell in view.cells.values()} == {CellState.DONE}
    assert not view.instances
    assert view.plan.inputs["engine"] is None


def test_every_file_says_that_it_is_simulated(folder: Path) -> None:
    layout = RunLayout(folder)
    for path in (layout.aggregate_json, layout.pairs_json, layout.verdicts_json):
        assert json.loads(path.read_bytes())["simulated"] == MODEL
    for path in (layout.manifest, layout.aggregate_csv, layout.pairs_csv, layout.report_md, layout.report_html):
        assert MODEL in path.read_text()
    assert layout.report_md.read_text().startswith("# SIMULATED: routing ")
    titles = [line for line in layout.report_md.read_text().splitlines() if line.startswith("![Figure ")]
    assert titles
    schematics = tuple(f"![Figure {kind.name}. " for kind in SCHEMATICS)
    assert all(". SIMULATED: " in line for line in titles if not line.startswith(schematics))
    cells = cells_of(folder)
    assert len(cells) == 6
    for cell in cells.values():
        for path in (cell.cell, cell.config, cell.summary, cell.breakdown):
            assert json.loads(path.read_bytes())["simulated"] == MODEL
        record = json.loads(cell.cell.read_bytes())
        assert (record["gpu_utilisation"], record["gpu_reason"]) == (None, "simulated: no GPU is used")
        assert {engine["started_by"] for engine in record["engines"]} == {"simulated"}


def test_no_file_of_a_run_holds_a_secret_of_its_profile(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACON_HOME", str(home))
    text = (PROFILES_FOLDER / "h20-qwen3-coder-30b.toml").read_text()
    text = text.replace("[engine]", '[engine]\nextra_args = ["--api-key", "swordfish"]', 1)
    (tmp_path / "own.toml").write_text(text.replace("[engine.env]", '[engine.env]\nMY_TOKEN = "swordfish"', 1))
    own = plan_run(profile=str(tmp_path / "own.toml"), trials=1)  # the files of all trials are alike
    folder = create_run(Workspace(tmp_path / "runs"), own)
    work_off(folder)
    stored = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert any(b"<redacted>" in content for content in stored)
    assert not any(b"swordfish" in content for content in stored)


def test_each_trial_has_a_trace_of_its_own_which_all_policies_replay(folder: Path) -> None:
    by_trial: dict[str, set[str]] = {}
    for name, cell in cells_of(folder).items():
        record = json.loads(cell.cell.read_bytes())
        by_trial.setdefault(name.partition("/")[2], set()).add(record["trace"]["sha256"])
    assert [len(sums) for sums in by_trial.values()] == [1, 1, 1]
    assert len(set.union(*by_trial.values())) == 3
    report = RunLayout(folder).report_md.read_text()
    assert "each trial replays a trace and step times of its own" in report
    assert "every trial replays the same sessions" not in report


def test_trials_that_share_a_trace_differ_by_step_noise_alone(tmp_path: Path, home: Path) -> None:
    folder = run_whole(tmp_path, home, lambda: plan_run("trace.per_trial=false", policies=("EAR",)))
    cells = cells_of(folder).values()
    assert len({json.loads(cell.cell.read_bytes())["trace"]["sha256"] for cell in cells}) == 1
    assert len({sha256(cell.root / "metrics.jsonl") for cell in cells}) == 3
    report = RunLayout(folder).report_md.read_text()
    assert "each trial replays a trace and step times of its own" not in report


def test_its_page_names_no_launch_and_no_noise_of_a_host(folder: Path) -> None:
    report = RunLayout(folder).report_md.read_text()
    assert "Noise floor: a simulated trial differs" in report
    assert "a host with less noise" not in report


def test_the_analysis_finds_nothing_missing(folder: Path) -> None:
    aggregate = json.loads(RunLayout(folder).aggregate_json.read_bytes())
    assert aggregate["gaps"] == []
    assert {row["label"] for row in aggregate["policies"]} == {"EAR", "static PD-disagg 4P+4D"}
    for row in aggregate["policies"]:
        assert row["values"]["ttft_p90_s"]["low"] is not None
        assert 0 < row["values"]["apc"]["value"] < 1


def test_the_numbers_beside_figures_say_that_they_are_simulated(folder: Path) -> None:
    tables = sorted(RunLayout(folder).figures.glob("*.csv"))
    assert tables
    for path in (*tables, RunLayout(folder).migrations_csv):
        assert path.read_text().splitlines()[0].endswith("simulated"), path.name
    assert MODEL in tables[0].read_text()


def test_a_comparison_requires_the_traces_of_all_trials(folder: Path) -> None:
    """The first trial's trace alone would let two runs with other sessions in the later trials pass."""
    agreed = build_comparable(analyze(folder)).must_agree["trace"].split(", ")
    records = [json.loads(layout.cell.read_bytes()) for layout in cells_of(folder).values()]
    by_trial = {record["trial"]: record["trace"]["sha256"] for record in records}
    assert agreed == [by_trial[trial] for trial in sorted(by_trial)]


def test_why_session_and_whatif_read_a_simulated_run_and_say_that_it_is_one(folder: Path, tracon: Tracon) -> None:
    def call(*words: str) -> str:
        done = tracon(*words)
        assert done.returncode == 0
        assert f"SIMULATED, nothing was measured: engines are the model {MODEL}" in done.stderr
        return done.stdout

    first = json.loads(cells_of(folder)["EAR/trial_0"].metrics.read_bytes().splitlines()[0])
    request, session, instance = first["request"], first["session"], first["instance"]
    asked = ("why", str(folder), request, "--cell", "EAR/trial_0")
    assert f"went to {instance}" in call(*asked)
    (explained,) = json.loads(call(*asked, "--json"))
    assert [pick["decision"]["instance"] for pick in explained["picks"]] == [instance]
    assert len(explained["picks"][0]["decision"]["candidates"]) == 8
    handed_over = call("why", str(folder), request, "--cell", "static_PD-disagg_4P+4D/trial_0")
    assert "its prompt computed by " in handed_over

    asked = ("session", str(folder), session, "--cell", "EAR/trial_0")
    assert f"session {session}" in call(*asked)
    (life,) = json.loads(call(*asked, "--json"))
    assert life["turns"][0]["instance"] == instance
    assert life["turns"][0]["first_byte_s"] > 0

    own = ("--policy", "ear", "--set", "hot_tokens=4000", "--set", "cooldown_s=30.0", "--cell", "EAR/")
    shown = call("whatif", str(folder), *own)
    assert [line.split()[3] for line in shown.splitlines() if "EAR/trial_" in line] == ["100.0"] * 3, shown
    rows = json.loads(call("whatif", str(folder), *own, "--json"))
    assert [row["agreement"] for row in rows] == [1.0, 1.0, 1.0]


@pytest.fixture(scope="module")
def unlogged(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """The run of `folder` with a third policy, and without decision logs."""
    policies = ("EAR", "static PD-disagg 4P+4D", "unified")
    planned = partial(plan_run, "simulation.decision_log=false", policies=policies)
    return run_whole(tmp_path_factory.mktemp("unlogged"), home, planned)


def test_without_decision_logs_the_other_records_are_the_same(folder: Path, unlogged: Path) -> None:
    ours = cells_of(unlogged)
    for name, logged in cells_of(folder).items():
        assert logged.decisions.is_file()
        assert not ours[name].decisions.exists()
        for file in ("metrics.jsonl", "engines.jsonl"):
            assert (ours[name].root / file).read_bytes() == (logged.root / file).read_bytes(), (name, file)
    assert {cell.state for cell in view_of(unlogged).cells.values()} == {CellState.DONE}


def test_a_run_without_decision_logs_says_once_what_has_no_number(folder: Path, unlogged: Path) -> None:
    logged, ours = analyze(folder), analyze(unlogged)
    (gap,) = ours.gaps
    assert (gap.artifact, gap.reason.partition(":")[0]) == ("decision logs", "of 9 cells were not written")
    assert gap.reason in RunLayout(unlogged).report_md.read_text()
    assert {cell.counts["picks"] for cell in ours.cells} == {None}
    assert not ours.moves.cells
    for label in ("EAR", "static PD-disagg 4P+4D"):
        for metric in ("ttft_p90_s", "tpot_p90_s", "amplification"):
            assert ours.value(label, metric).value == logged.value(label, metric).value, (label, metric)
    handed_over = ours.value("static PD-disagg 4P+4D", "apc")
    assert handed_over.value is None, "the engines count the requests of handovers as prompts"
    assert 0 < (ours.value("unified", "apc").value or 0.0) < 1, "nothing was moved"


@pytest.mark.parametrize("words", [("why", "#0"), ("whatif", "--policy", "unified"), ("session", "s0")])
def test_why_whatif_and_session_refuse_a_run_without_decision_logs(
    unlogged: Path, words: tuple[str, ...], tracon: Tracon
) -> None:
    command, *rest = words
    refused = tracon(command, str(unlogged), *rest)
    assert refused.returncode == ExitCode.BAD_INPUT
    assert "was simulated without decision logs" in " ".join(refused.stderr.split())


def test_a_plan_with_decision_logs_has_no_key_for_them() -> None:
    assert "decision_log" not in plan_run().plan.inputs["grid"]["simulation"], "earlier plans have none"
    assert plan_run("simulation.decision_log=false").plan.fingerprint != plan_run().plan.fingerprint


def test_killed_in_the_middle_it_repeats_no_finished_cell_and_ends_with_the_same_bytes(
    folder: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACON_HOME", str(home))
    again = create_run(Workspace(tmp_path), plan_run())
    finished = kill_midway(again, "results/*/trial_*/cell.json", 1)
    work_off(again)
    assert {path: path.stat().st_ino for path in finished} == finished
    assert {cell.state for cell in view_of(again).cells.values()} == {CellState.DONE}
    cells, others = cells_of(folder), cells_of(again)
    assert cells.keys() == others.keys()
    for name, cell in cells.items():
        for file in SAME:
            assert (cell.root / file).read_bytes() == (others[name].root / file).read_bytes(), (name, file)


def test_the_options_of_a_simulation_survive_in_the_plan() -> None:
    plan = plan_run(instances=6).plan
    assert plan.inputs["grid"]["instances"] == 6
    assert plan.inputs["grid"]["simulation"]["engine"] == "h20-qwen3-coder-30b-a3b-roofline"
    assert plan.inputs["engine_model"]["calibrated"] is False
    assert {"simulation.engine=h20-qwen3-coder-30b-a3b-roofline", "instances=6"} <= set(plan.inputs["settings"])


def test_what_is_simulated_anyway_keeps_the_engine_model_of_its_preset() -> None:
    def name_engine(**options: Any) -> str:
        return str(
            prepare(RunOptions("routing", preset="fleet", simulated=True, **options)).draft.grid.simulation.engine
        )

    assert name_engine(profile="h200-qwen3-coder-30b-dummy").startswith("h200-")
    own = "h20-qwen3-coder-30b-a3b"
    assert name_engine(profile="h20-qwen3-coder-30b", engine=own) == own
    chosen = plan_run(f"simulation.engine={own}").plan.inputs["grid"]["simulation"]["engine"]
    assert chosen == own, "its preset has none"


def test_an_engine_model_that_is_edited_during_a_run_changes_none_of_its_cells(tmp_path: Path) -> None:
    """Two models in one run would be compared as if they were one."""
    path = tmp_path / "mine.toml"
    path.write_bytes((FOLDER / "h20-qwen3-coder-30b-a3b.toml").read_bytes())
    prepared = plan_run(engine=str(path))
    grid, models = prepared.draft.grid, read_models(prepared.draft.grid)
    path.write_text(path.read_text().replace("base_s = 3.53e-3", "base_s = 9e-3"))
    assert read_engine(str(path)).model.step.base_s == 9e-3
    cell = next(cell for cell in prepared.plan.cells if cell.kind == "replay")
    context: Any = SimpleNamespace(profile=prepared.draft.profile)
    spec = make_simulation_spec(cell, grid, models, tmp_path / "trace", 16, tmp_path, context)
    assert {model.step.base_s for model in spec.models.values()} == {3.53e-3}


def test_a_run_ends_with_the_engine_model_that_it_began_with(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells name the model that was simulated, whatever the file has become."""
    path = tmp_path / "mine.toml"
    path.write_bytes((FOLDER / "h20-qwen3-coder-30b-a3b.toml").read_bytes())
    title = read_engine(str(path)).title

    def damage_model(trace: Path) -> TraceRecord:
        path.write_text("no model")
        return require_trace(trace)

    monkeypatch.setenv("TRACON_HOME", str(home))
    folder = create_run(Workspace(tmp_path / "runs"), plan_run(engine=str(path), policies=("EAR",), trials=1))
    monkeypatch.setattr("runners.experiments.routing.simulation.require_trace", damage_model)
    work_off(folder)
    (cell,) = list_trial_layouts(folder)
    for file in (cell.cell, cell.config):
        assert json.loads(file.read_bytes())["simulated"].startswith(title)


def test_engines_of_a_grid_that_schedules_by_priority_are_simulated_so() -> None:
    engine = read_engine("h20-qwen3-coder-30b-a3b-roofline")
    for scheduling in ("fcfs", "priority"):
        grid = Grid((), 1, 1.0, 1.0, engine=EngineChoice(scheduling=scheduling))
        assert shape_model(grid, engine, "both", None).scheduling == scheduling


def test_the_latency_of_the_router_is_in_the_plan_where_it_is_set() -> None:
    assert "router_latency_s" not in plan_run().plan.inputs["grid"]["simulation"], "earlier plans have no such key"
    slow = plan_run("simulation.router_latency_s=0.0005").plan
    assert slow.inputs["grid"]["simulation"]["router_latency_s"] == 0.0005
    assert slow.fingerprint != plan_run().plan.fingerprint
    with pytest.raises(RunnerError, match=r"\.router_latency_s must not be below 0"):
        plan_run("simulation.router_latency_s=-0.1")


def test_a_plan_of_real_engines_says_nothing_of_simulations() -> None:
    asked = RunOptions(experiment="routing", profile="h20-qwen3-coder-30b", preset="baselines")
    inputs = prepare(asked).plan.inputs
    assert not {"simulated", "engine_model"} & inputs.keys()
    assert "simulation" not in inputs["grid"]


def test_an_unknown_engine_model_is_refused_before_anything_runs() -> None:
    with pytest.raises(RunnerError, match="no engine model 'h2000'"):
        plan_run(engine="h2000")


@pytest.mark.parametrize("experiment", ["connector-tax", "pd-lifecycle"])
def test_only_routing_can_be_simulated(experiment: str) -> None:
    with pytest.raises(RunnerError) as refused:
        prepare(RunOptions(experiment=experiment, simulated=True))
    assert "--simulated" in refused.value.remedy


# -- a pace ---------------------------------------------------------------------------------------------------------

PACE = 150.0
"""The cell takes 491 simulated seconds, and so at least three of the host's: it has ticks before its last one."""


def plan_one_cell() -> Prepared:
    return plan_run(policies=("EAR",), trials=1)


def read_events(folder: Path) -> list[Event]:
    with RunStore.open(folder, read_only=True) as store:
        return [recorded.event for recorded in store.events()]


@pytest.fixture(scope="module")
def paced(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    return run_whole(tmp_path_factory.mktemp("paced"), home, plan_one_cell, PACE)


def test_a_pace_changes_neither_the_plan_nor_a_byte_of_the_records(folder: Path, paced: Path) -> None:
    assert view_of(paced).plan.fingerprint == plan_one_cell().plan.fingerprint
    ours, others = cells_of(paced)["EAR/trial_0"], cells_of(folder)["EAR/trial_0"]
    for file in SAME:
        assert (ours.root / file).read_bytes() == (others.root / file).read_bytes(), file


def test_instances_of_a_paced_cell_are_in_the_journal_as_those_of_a_live_one(paced: Path) -> None:
    view, events = view_of(paced), read_events(paced)
    names = [f"e{place}-{place + 1}" for place in range(8)]
    assert list(view.instances) == names
    assert {one.state for one in view.instances.values()} == {InstanceState.GONE}
    states = [event.state for event in events if isinstance(event, InstanceChanged) and event.instance == "e0-1"]
    assert states == [InstanceState.STARTING, InstanceState.READY, InstanceState.GONE]
    ticks = [event for event in events if isinstance(event, RouterSampled)]
    assert len(ticks) >= 3
    for tick in ticks:
        assert [load.engine for load in tick.instances] == names
    sampled = [event for event in events if isinstance(event, InstanceSampled)]
    assert Counter(event.instance for event in sampled) == dict.fromkeys(names, len(ticks))
    assert any(event.ttft_p90_s is not None for event in sampled)
    assert any(event.tpot_p90_s is not None for event in sampled)
    fractions = [event.fraction for event in events if isinstance(event, CellProgressed)]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_a_pick_of_a_paced_cell_is_one_decision_however_many_ticks_list_it(paced: Path) -> None:
    routing = view_of(paced).routing
    assert routing is not None
    assert len({line.request for line in routing.lines}) == len(routing.lines) > 0


def test_a_paced_run_stopped_now_goes_on_at_another_pace_to_the_same_bytes(
    paced: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the pace of real time the cell would take 491 s: it is cut in the middle of a wait."""
    monkeypatch.setenv("TRACON_HOME", str(home))
    again = create_run(Workspace(tmp_path), plan_one_cell(), pace=1.0)
    process = spawn_run_process(again)
    deadline = time.monotonic() + KILL_WITHIN_S
    while not any(isinstance(event, InstanceSampled) for event in read_events(again)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = list_children(process.pid)
    assert ask_run(again, "stop_now", "", "")["accepted"]
    assert process.wait(timeout=KILL_WITHIN_S) == ExitCode.INTERRUPTED
    assert not any(psutil.pid_exists(child) for child in children)
    view = view_of(again)
    assert view.cells["trials/EAR/t0"].state is CellState.PENDING
    assert not view.live_instances
    with RunStore.open(again) as store:
        store.append(PaceChosen(0.0))
    work_off(again)
    assert len(view_of(again).instances) == 8  # none since the pace is gone
    ours, others = cells_of(again)["EAR/trial_0"], cells_of(paced)["EAR/trial_0"]
    for file in SAME:
        assert (ours.root / file).read_bytes() == (others.root / file).read_bytes(), file


@pytest.mark.parametrize("pace", [0.5, -1.0, math.inf, math.nan])
def test_a_pace_below_real_time_or_without_a_limit_is_refused(pace: float) -> None:
    with pytest.raises(RunnerError, match="--pace is"):
        require_pace(pace, plan_one_cell().draft)


def test_a_pace_is_of_simulated_cells_of_routing_alone() -> None:
    require_pace(10.0, plan_one_cell().draft)
    require_pace(0.0, plan_one_cell().draft)
    for asked in (RunOptions("routing", preset="demo"), RunOptions("capacity", "h20-qwen3-coder-30b", "fleet-size")):
        draft = prepare(asked).draft
        require_pace(None, draft)
        with pytest.raises(RunnerError, match="this run has none"):
            require_pace(10.0, draft)
