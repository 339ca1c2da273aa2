"""The gates of a simulation on numbers whose answer is known, and the command that judges runs by them."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from results.capacity.analyze import analyze as analyze_search
from results.records.layout import RunLayout, write_indented_json
from results.records.points import PointRecord
from results.report.engine_gates import describe_gates
from results.routing.analyze import analyze
from results.statistics.estimates import ALL_AGREE
from results.statistics.judgement import Outcome
from runners.cli import app
from runners.errors import RunnerError
from runners.simulator import check
from runners.simulator.calibrate import calibrate
from runners.simulator.check import check_runs, judge_parity, read_values, record_gates
from runners.simulator.engine_file import EngineFile, read_engine
from runners.simulator.gates import LoadValues, judge_apc, judge_rank, measure_contention
from runners.simulator.logged_run import CellParity
from runners.simulator.parity import Parity
from tests.goldens.fixture import ARCHIVE, HERE, unpack

POLICIES = tuple("abcdef")


def a_load(name: str, real: dict[str, float], simulated: dict[str, float], *, trials: int = 4) -> LoadValues:
    """Values around a level per policy; what varies between trials is far less than 1, and the same for all."""
    draw = random.Random(name)
    shared = [draw.uniform(-1, 1) for _ in range(trials)]

    def spread(levels: dict[str, float]) -> dict[str, dict[int, float]]:
        return {
            policy: {trial: level + shared[trial] + draw.uniform(-0.05, 0.05) for trial in range(trials)}
            for policy, level in levels.items()
        }

    return LoadValues(name, spread(real), spread(simulated))


LEVELS = {policy: float(place) for place, policy in enumerate(POLICIES)}
EQUAL = dict.fromkeys(POLICIES, 1.0)
LOADS = ("low", "middle", "high")


def test_the_same_order_everywhere_passes_with_a_tau_of_one() -> None:
    rank = judge_rank("ttft_p90_s", [a_load(name, LEVELS, LEVELS) for name in LOADS])
    assert (rank.loads, rank.policies, rank.pairs, rank.told_apart, rank.flips) == (3, 6, 45, 45, ())
    assert (rank.tau, rank.tau_low, rank.tau_high) == (1.0, 1.0, 1.0)
    assert rank.judgement.outcome is Outcome.HOLDS


def test_a_pair_that_real_runs_tell_apart_and_the_simulation_turns_round_fails_and_is_named() -> None:
    turned = LEVELS | {"a": 1.0, "b": 0.0}
    loads = [a_load("low", LEVELS, turned), *(a_load(name, LEVELS, LEVELS) for name in LOADS[1:])]
    rank = judge_rank("ttft_p90_s", loads)
    assert rank.judgement.outcome is Outcome.FAILS
    assert [(flip.load, flip.lower, flip.higher) for flip in rank.flips] == [("low", "a", "b")]
    assert rank.flips[0].p_value < 0.05
    assert rank.tau == pytest.approx(43 / 45)


def test_a_pair_that_real_runs_do_not_tell_apart_may_turn_round() -> None:
    close, turned = LEVELS | {"a": 1.0 - 1e-4}, LEVELS | {"a": 1.5}
    rank = judge_rank("ttft_p90_s", [a_load(name, close, turned) for name in LOADS])
    assert rank.judgement.outcome is Outcome.HOLDS
    assert rank.told_apart == 42
    assert rank.tau is not None
    assert rank.tau < 1.0


def test_of_policies_that_do_not_differ_pairs_are_told_apart_as_rarely_as_stated() -> None:
    runs = 100
    wrong = sum(
        judge_rank("ttft_p90_s", [a_load(f"{name} {run}", EQUAL, LEVELS) for name in LOADS]).told_apart > 0
        for run in range(runs)
    )
    assert wrong / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_three_trials_of_seven_policies_tell_apart_what_a_pair_by_itself_cannot() -> None:
    """A pair's own differences have two degrees of freedom, too few to distinguish any of 63 pairs."""
    levels = {policy: 0.15 * place for place, policy in enumerate("abcdefg")}
    rank = judge_rank("ttft_p90_s", [a_load(name, levels, levels, trials=3) for name in LOADS])
    assert rank.told_apart > 40
    assert rank.judgement.outcome is Outcome.HOLDS


def test_taus_interval_widens_with_the_spread_of_the_trials() -> None:
    draw = random.Random(1)
    noisy = {policy: {trial: draw.gauss(place, 3.0) for trial in range(5)} for place, policy in enumerate(POLICIES)}
    rank = judge_rank("ttft_p90_s", [LoadValues(name, noisy, noisy) for name in LOADS])
    assert rank.tau == 1.0
    assert rank.tau_low is not None
    assert rank.tau_low < 0.9


@pytest.mark.parametrize(
    ("loads", "why"),
    [
        ([], "0 policies under 0 loads"),
        ([a_load(name, LEVELS, LEVELS) for name in LOADS[:2]], "6 policies under 2 loads"),
        ([a_load(name, dict(list(LEVELS.items())[:5]), LEVELS) for name in LOADS], "5 policies under 3 loads"),
        ([a_load(name, LEVELS, LEVELS, trials=2) for name in LOADS], "no pair of policies has 3 trials in common"),
        ([a_load(name, EQUAL, LEVELS) for name in ("morning", "noon", "night")], "tell none of the 45 pairs apart"),
    ],
)
def test_too_few_policies_loads_or_trials_are_not_judged(loads: list[LoadValues], why: str) -> None:
    gate = judge_rank("ttft_p90_s", loads).judgement
    assert gate.outcome is Outcome.OPEN
    assert why in gate.reason


def around(level: float, *, by: float = 0.001, trials: int = 4) -> dict[int, float]:
    """An APC per trial, above and below the level in turn."""
    return {trial: level + (by if trial % 2 else -by) for trial in range(trials)}


@pytest.mark.parametrize(
    ("off", "outcome", "point"),
    [
        (0.005, Outcome.HOLDS, "holds"),
        (-0.005, Outcome.HOLDS, "holds"),
        (0.019, Outcome.UNDECIDED, "holds"),
        (-0.021, Outcome.UNDECIDED, "fails"),
        (0.03, Outcome.FAILS, "fails"),
        (-0.03, Outcome.FAILS, "fails"),
    ],
)
def test_the_interval_of_apc_is_within_two_points_of_every_policy(off: float, outcome: Outcome, point: str) -> None:
    real = {"a": around(0.5), "b": around(0.7)}
    simulated = {"a": around(0.5), "b": around(0.7 + off)}
    gate = judge_apc([LoadValues("one", real, simulated)])
    assert (gate.outcome, gate.point) == (outcome, point)
    assert "b (one)" in gate.reason
    assert gate.measured == gate.numbers["b (one)"]
    assert gate.measured.value == pytest.approx(off)


@pytest.mark.parametrize(("real", "simulated"), [(1, 1), (2, 2), (4, 1), (2, 4)])
def test_apc_of_fewer_than_three_trials_is_undecided(real: int, simulated: int) -> None:
    load = LoadValues("one", {"a": around(0.5, trials=real)}, {"a": around(0.5, trials=simulated)})
    gate = judge_apc([load])
    assert (gate.outcome, gate.point) == (Outcome.UNDECIDED, "holds")
    assert "; 1 with fewer than 3 real or simulated trials" in gate.reason


def test_a_policy_of_one_trial_does_not_hide_one_that_is_beyond() -> None:
    real = {"a": around(0.5, trials=1), "b": around(0.7)}
    simulated = {"a": around(0.5, trials=1), "b": around(0.75)}
    assert judge_apc([LoadValues("one", real, simulated)]).outcome is Outcome.FAILS


def test_equal_trials_decide_apc_only_where_both_sides_are_equal() -> None:
    real, close = {"a": around(0.7, by=0.0)}, {"a": around(0.715, by=0.0)}
    apart = judge_apc([LoadValues("one", real, close)])
    assert apart.outcome is Outcome.UNDECIDED
    assert ALL_AGREE in apart.reason
    assert judge_apc([LoadValues("one", real, real)]).outcome is Outcome.HOLDS


def test_the_intervals_of_many_policies_hold_together() -> None:
    def judge(policies: int) -> Outcome:
        names = [f"policy {number}" for number in range(policies)]
        real = {name: around(0.5, by=0.00245) for name in names}
        simulated = {name: around(0.513, by=0.00245) for name in names}
        return judge_apc([LoadValues("one", real, simulated)]).outcome

    assert (judge(1), judge(20)) == (Outcome.HOLDS, Outcome.UNDECIDED)


def test_contention_is_what_a_token_takes_longer_on_real_engines_than_the_model_says() -> None:
    real = {"a": {0: 0.008, 1: 0.008}, "b": {0: 0.018}, "only real": {0: 0.1}}
    simulated = {"a": {0: 0.003, 1: 0.005}, "b": {0: 0.004}}
    (one,) = measure_contention([LoadValues("two instances", real, simulated)])
    assert (one.load, one.policies) == ("two instances", 2)
    assert [one.factor, one.lowest, one.highest] == pytest.approx([3.0, 2.0, 4.5])


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small live run, whose EAR counts blocks less than this router does."""
    return unpack(HERE / "routing" / ARCHIVE, tmp_path_factory.mktemp("live"))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(HERE / "connector-tax" / ARCHIVE, tmp_path_factory.mktemp("fitted"))


def test_the_command_prints_every_gate_and_exits_with_4_where_one_fails(live: Path, fitted: Path) -> None:
    done = CliRunner().invoke(app, ["simulate", "check", str(live), str(fitted)], env={"COLUMNS": "200"})
    assert done.exit_code == 4, done.output
    for name in ("parity", "calibration of TTFT p90", "calibration of E2E p90", "APC", "rank of TPOT p90"):
        assert name in done.stdout
    assert "retained_tokens" in done.stdout
    shown = json.loads(CliRunner().invoke(app, ["simulate", "check", str(live), str(fitted), "--json"]).stdout)
    assert shown["passed"] is False
    assert {gate["name"]: gate["outcome"] for gate in shown["gates"]}["parity"] == "fails"
    assert len(shown["parity"]) == 18
    hosts = [note for note in shown["hosts"] if note.startswith(f"{fitted.name}: The host was ")]
    assert len(hosts) == 1, "whether the run of the calibration was at rest"


def copy_as_simulated(live: Path, folder: Path, engine: EngineFile) -> Path:
    """The live run as a simulated one would have come out that agrees in everything."""
    copy = shutil.copytree(live, folder)
    for path in copy.glob("results/*/trial_*/cell.json"):
        cell = msgspec.json.decode(path.read_bytes())
        path.write_bytes(msgspec.json.encode(cell | {"simulated": engine.title}))
    plan = msgspec.json.decode(RunLayout(copy).plan.read_bytes())
    plan["inputs"] |= {"simulated": engine.title, "engine_model": msgspec.to_builtins(engine)}
    RunLayout(copy).plan.write_bytes(msgspec.json.encode(plan))
    return copy


def test_a_live_and_a_simulated_run_are_matched_by_policy_and_load(live: Path, tmp_path: Path) -> None:
    copy = copy_as_simulated(live, tmp_path / "simulated", read_engine("h20-qwen3-coder-30b-a3b"))
    checked = check_runs([live, copy])
    gates = {gate.name: gate for gate in checked.gates}
    apc = gates["APC"]
    assert (apc.outcome, apc.point) == (Outcome.UNDECIDED, "holds"), "three trials of one policy differ by 9 points"
    assert len(apc.numbers) == 6
    assert {number.value for number in apc.numbers.values()} == {0.0}
    assert "6 policies under 1 load were" in gates["rank of TTFT p90"].reason
    assert len(checked.parity) == 18, "a simulated cell has no live log"
    assert checked.ranks[0].tau == 1.0


@pytest.mark.parametrize(
    ("setting", "value"), [("sessions", 99), ("statistics", {"apc_bound_any": 0.1}), ("tokens", 1.0)]
)
def test_runs_of_unlike_loads_are_not_matched(live: Path, tmp_path: Path, setting: str, value: object) -> None:
    copy = copy_as_simulated(live, tmp_path / "simulated", read_engine("h20-qwen3-coder-30b-a3b"))
    plan = msgspec.json.decode(RunLayout(copy).plan.read_bytes())
    plan["inputs"]["grid"]["trace"][setting] = value
    RunLayout(copy).plan.write_bytes(msgspec.json.encode(plan))
    assert read_values([live, copy], ("apc",)) == {"apc": []}


def test_another_seed_is_the_same_load_and_another_limit_on_sessions_is_not(live: Path, tmp_path: Path) -> None:
    copy = copy_as_simulated(live, tmp_path / "simulated", read_engine("h20-qwen3-coder-30b-a3b"))
    plan = msgspec.json.decode(RunLayout(copy).plan.read_bytes())
    plan["inputs"]["grid"]["trace"]["seed"] = 99
    RunLayout(copy).plan.write_bytes(msgspec.json.encode(plan))
    assert len(read_values([live, copy], ("apc",))["apc"]) == 1
    for path in copy.glob("results/*/trial_*/cell.json"):
        cell = msgspec.json.decode(path.read_bytes())
        cell["replay"]["max_inflight_sessions"] = 0
        path.write_bytes(msgspec.json.encode(cell))
    assert read_values([live, copy], ("apc",)) == {"apc": []}


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    RunLayout(tmp_path).plan.write_bytes(b'{"inputs": 3}')
    with pytest.raises(RunnerError, match="is damaged") as refused:
        check._read_inputs(tmp_path)
    assert str(RunLayout(tmp_path).plan) in str(refused.value)


def test_parity_needs_decisions_and_counts_the_cells_without() -> None:
    def cell(equal: int, different: int = 0) -> CellParity:
        return CellParity("a", "ear", Parity(equal + different, equal, {}, 0, "", different, None))

    lost = CellParity("b", "ear", None, "its log holds no decision")
    judged = judge_parity([cell(1), lost])
    assert judged.outcome is Outcome.UNDECIDED
    assert "1 cell cannot be compared (b: its log holds no decision)" in judged.reason
    assert judge_parity([cell(100), lost]).outcome is Outcome.HOLDS
    assert judge_parity([cell(1, 1)]).outcome is Outcome.FAILS


def test_the_gates_of_a_simulated_run_become_part_of_its_report(live: Path, fitted: Path, tmp_path: Path) -> None:
    own = copy_as_simulated(live, tmp_path / "own", calibrate(fitted).engine)
    done = CliRunner().invoke(app, ["simulate", "check", str(live), str(own), str(fitted)])
    assert done.exit_code == 4, done.output
    shown = analyze(own).engine_gates
    assert shown is not None
    gates = {gate.name: gate for gate in shown.judgements}
    assert gates["parity"].outcome is Outcome.FAILS
    assert "retained_tokens" in gates["parity"].reason
    assert len(gates["APC"].numbers) == 6
    assert "cells" in gates["calibration of TTFT p90"].reason
    assert live.name in shown.note
    assert "TPOT p50 of real engines is 1.00 times" in shown.note
    assert describe_gates(shown) in RunLayout(own).report_md.read_text()
    assert not RunLayout(live).engine_gates.exists()
    assert not RunLayout(fitted).engine_gates.exists()


def make_search(folder: Path, engine: EngineFile) -> Path:
    """The folder of a run of capacity that simulated one point with this engine model."""
    folder.mkdir()
    inputs = {
        "simulated": engine.title,
        "engine_model": msgspec.to_builtins(engine),
        "search": {"slo": "ttft_p90=2s", "searches": {"unified": {"start": 1, "most": 1, "pooled": False}}},
        "grid": {"trials": 1, "trace": {}, "policies": [{"name": "unified"}]},
    }
    RunLayout(folder).plan.write_bytes(msgspec.json.encode({"experiment": "capacity", "inputs": inputs}))
    point = PointRecord("unified", 1, 0, 0, "", 1, 1, {"ttft_p90": 1.0}, engine.title, 0.1)
    write_indented_json(RunLayout(folder).point("unified", "1", 0), point)
    return folder


def test_a_search_gets_the_gates_of_its_engine_model(live: Path, fitted: Path, tmp_path: Path) -> None:
    search = make_search(tmp_path / "search", calibrate(fitted).engine)
    layout, runs = RunLayout(search), [live, search, fitted]
    assert "no gate was checked for this engine model" in describe_gates(analyze_search(search).engine_gates)
    assert record_gates(check_runs(runs), runs) == (search,)
    shown = analyze_search(search).engine_gates
    outcomes = {gate.name: gate.outcome for gate in shown.judgements}
    assert (outcomes["parity"], outcomes["APC"]) == (Outcome.FAILS, Outcome.OPEN)
    assert outcomes["calibration of TTFT p90"] is not Outcome.OPEN
    page, _, appendix = layout.report_md.read_text().partition("## Appendix")
    assert describe_gates(shown) in page
    assert "### Gates of the engine model" in appendix
    stored = json.loads(layout.verdicts_json.read_bytes())["engine_gates"]
    assert [gate["name"] for gate in stored["judgements"]] == list(outcomes)
    point = layout.point("unified", "1", 0)
    point.write_bytes(point.read_bytes() + b"\n")
    assert "cells of this run changed after it was checked" in describe_gates(analyze_search(search).engine_gates)


def test_a_search_of_another_engine_model_is_not_judged_beside_a_simulated_run(live: Path, tmp_path: Path) -> None:
    own = copy_as_simulated(live, tmp_path / "own", read_engine("h20-qwen3-coder-30b-a3b"))
    search = make_search(tmp_path / "search", read_engine("h200-qwen3-coder-30b-a3b"))
    with pytest.raises(RunnerError, match="two engine models"):
        check_runs([live, own, search])


def test_a_fit_of_another_engine_model_does_not_judge_a_simulated_run(live: Path, fitted: Path, tmp_path: Path) -> None:
    other = copy_as_simulated(live, tmp_path / "other", read_engine("h20-qwen3-coder-30b-a3b"))
    gates = {gate.name: gate for gate in check_runs([live, other, fitted]).gates}
    for metric in ("TTFT", "TPOT", "E2E"):
        gate = gates[f"calibration of {metric} p90"]
        assert gate.outcome is Outcome.OPEN
        assert f"is not the one that this Tracon fits to {fitted.name}: calibrate again" in gate.reason


def test_simulated_runs_of_two_engine_models_are_not_judged_together(live: Path, tmp_path: Path) -> None:
    models = ("h20-qwen3-coder-30b-a3b", "h200-qwen3-coder-30b-a3b")
    runs = [copy_as_simulated(live, tmp_path / model, read_engine(model)) for model in models]
    with pytest.raises(RunnerError, match="two engine models"):
        check_runs([live, *runs])


def test_a_run_of_another_experiment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunnerError, match="pd-lifecycle"):
        check_runs([unpack(HERE / "pd-lifecycle" / ARCHIVE, tmp_path)])
