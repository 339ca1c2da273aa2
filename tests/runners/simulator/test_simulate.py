"""A simulated fleet: the router's own decisions and records, every turn to its end, and the same bytes twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

from results.records.decisions import DecisionRecord
from results.records.schemas import RequestStatus
from results.records.turns import TurnRecord
from runners.cli import app
from runners.errors import RunnerError
from runners.load.replay_plan import Pace
from runners.router.policies import POLICIES, make_policy
from runners.simulator.engine import EngineModel
from runners.simulator.engine_file import EngineFile, Link, engine_names, read_engine
from runners.simulator.replay import list_keys
from runners.simulator.simulate import Choice, SimulationReport, Workload, name_instances, read_workload, simulate
from runners.simulator.step_time import StepTime
from runners.trace.formats.tracon import write_trace
from runners.trace.synth import synthesise_trace
from tests.runners.load.traces import chain, trace_of

ENGINE = EngineFile(
    "made up",
    EngineModel(StepTime(0.005, 2e-5, 1e-4, 0.0, 1e-9), kv_capacity_tokens=400_000, max_batched_tokens=4096),
    link=Link(1e-3, 10e9, 1000),
)
PARAMETERS: dict[str, dict[str, Any]] = {"ear": {"hot_tokens": 8000, "cooldown_s": 1.0}}
POOLED = ("static_pd",)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    """Sessions that come faster than four engines can serve them at once, so that queues form."""
    path = tmp_path_factory.mktemp("trace") / "sessions.jsonl"
    trace = synthesise_trace(60, 3, {"span_s": 20})
    write_trace(path, trace.facts, trace.sessions)
    return read_workload(path, Pace(time_scale=0.2))


def run(work: Workload, policy: str, folder: Path, prefill: int = 0) -> tuple[SimulationReport, list[DecisionRecord]]:
    choice = Choice(policy, PARAMETERS.get(policy, {}), name_instances(4, prefill), ENGINE)
    report = simulate(work, choice, folder)
    decode = msgspec.json.Decoder(DecisionRecord).decode_lines
    return report, decode((folder / "decisions.jsonl").read_bytes())


def read_turns(folder: Path) -> list[TurnRecord]:
    return msgspec.json.Decoder(TurnRecord).decode_lines((folder / "metrics.jsonl").read_bytes())


@pytest.mark.parametrize("policy", POLICIES)
def test_every_turn_ends_once_under_every_policy_and_nothing_is_left(
    policy: str, work: Workload, tmp_path: Path
) -> None:
    report, records = run(work, policy, tmp_path, prefill=1 if policy in POOLED else 0)
    turns = read_turns(tmp_path)
    assert [turn.index for turn in turns] == list(range(len(work.plan.turns)))
    assert Counter(turn.status for turn in turns) == {RequestStatus.OK: report.turns}
    assert (report.completed, report.failed) == (report.turns, 0)
    assert len({record.seq for record in records}) == len(records)
    final = [record for record in records if record.outcome is not None and record.outcome.status == "ok"]
    assert {record.request.request for record in final} == {turn.request for turn in turns}
    for turn in turns:
        assert turn.t_due_ns is not None
        assert turn.t_send_ns is not None
        assert turn.t_first_token_ns is not None
        assert turn.t_end_ns is not None
        assert turn.t_due_ns <= turn.t_send_ns < turn.t_first_token_ns <= turn.t_end_ns
        assert 0 <= (turn.cached_tokens or 0) < turn.input_tokens


@pytest.mark.parametrize("policy", ["unified", "ear", "lmetric", "sticky"])
def test_a_recorded_decision_is_the_policys_own_on_the_recorded_view(
    policy: str, work: Workload, tmp_path: Path
) -> None:
    _, records = run(work, policy, tmp_path)
    decider = make_policy(policy, PARAMETERS.get(policy, {}))
    for record in records:
        assert decider.decide(record.request, record.cluster) == record.decision
    assert len({record.decision.instance for record in records}) == 4


def test_the_same_trace_and_policy_give_the_same_bytes(work: Workload, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(work, "ear", tmp_path / name)
    for name in ("metrics.jsonl", "decisions.jsonl", "simulation.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_hot_session_migrates_with_its_kv_and_is_not_computed_again(work: Workload, tmp_path: Path) -> None:
    report, records = run(work, "ear", tmp_path)
    moved = [
        record.outcome.transfer
        for record in records
        if record.outcome is not None and record.outcome.migration == "transferred" and record.outcome.transfer
    ]
    assert report.migrations["transferred"] == len(moved) > 0
    turns = {turn.request: turn for turn in read_turns(tmp_path)}
    for record in records:
        if record.outcome is None or record.outcome.migration != "transferred" or record.outcome.transfer is None:
            continue
        transfer, turn = record.outcome.transfer, turns[record.request.request]
        assert transfer.external_tokens is not None
        assert (turn.cached_tokens or 0) >= transfer.external_tokens > 0
        assert transfer.bytes == transfer.external_tokens * 1000
        assert transfer.t_done_ns > transfer.t_begin_ns


def test_a_prefill_instance_computes_the_prompt_and_the_decode_instance_only_its_end(
    work: Workload, tmp_path: Path
) -> None:
    report, records = run(work, "static_pd", tmp_path, prefill=2)
    prefilling, decoding = report.engines["i000"], report.engines["i002"]
    assert prefilling["computed_tokens"] > 20 * decoding["computed_tokens"]
    transfers = [record.outcome.transfer for record in records if record.outcome is not None]
    assert {transfer.status for transfer in transfers if transfer is not None} == {"transferred"}


def test_keys_are_equal_exactly_where_prefixes_are() -> None:
    one = trace_of(chain("a", 3), chain("b", 2))
    local, shared = list_keys(one), list_keys(trace_of(chain("a", 3), chain("b", 2), hash_scope="global"))
    assert [len(keys) for keys in local] == [1, 2, 3, 1, 2]
    assert local[2][:2] == local[1]
    assert set(local[2]).isdisjoint(local[4]), "hashes are of one session"
    assert shared[4] == shared[1], "hashes are of the whole trace"


def test_a_turn_that_fits_no_engine_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    made = trace_of(chain("a", 4), chain("b", 2))
    write_trace(path, made.facts, made.sessions)
    small = msgspec.structs.replace(
        ENGINE, model=msgspec.structs.replace(ENGINE.model, kv_capacity_tokens=4 * made.facts.block_tokens)
    )
    report = simulate(
        read_workload(path, Pace()), Choice("unified", {}, name_instances(2), small), tmp_path / "out"
    )  # fmt: skip
    assert (report.completed, report.failed) == (5, 1)
    (failed,) = (turn for turn in read_turns(tmp_path / "out") if turn.status is RequestStatus.ERROR)
    assert (failed.session, failed.turn, failed.http_status) == ("a", 3, 400)
    assert "do not fit" in (failed.error or "")


# the command
def tracon(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["simulate", "run", *arguments])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "sessions.jsonl"
    made = trace_of(chain("a", 3), chain("b", 2))
    write_trace(path, made.facts, made.sessions)
    return path


def test_the_command_compares_policies_and_says_that_nothing_was_measured(trace: Path, tmp_path: Path) -> None:
    done = tracon(str(trace), "-p", "unified", "-p", "ear,hot_tokens=100,cooldown_s=1", "--out", str(tmp_path / "o"))
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("SIMULATED, nothing here was measured.")
    assert "UNCALIBRATED" in done.stdout
    assert json.loads((tmp_path / "o" / "1_ear" / "simulation.json").read_text())["simulated"] is True


def test_as_json_it_holds_the_model_and_a_report_for_each_policy(trace: Path, tmp_path: Path) -> None:
    done = tracon(str(trace), "--instances", "3", "--json", "--out", str(tmp_path / "o"))
    document = json.loads(done.stdout)
    assert document["simulated"] is True
    (report,) = document["policies"]
    assert (report["policy"], report["completed"], len(report["engines"])) == ("unified", 5, 3)
    assert report["numbers"]["ttft_p50_s"]["n"] == 5


@pytest.mark.parametrize(
    ("arguments", "said", "remedy"),
    [
        (("--engine", "h2000"), "no engine model 'h2000'", "h20-qwen3-coder-30b-a3b"),
        (("--instances", "2", "--prefill", "2"), "2 of 2 instances cannot prefill", "fewer prefill instances"),
        (("-p", "ear,hot"), "'hot' is not NAME,KEY=VALUE", "NAME,KEY=VALUE"),
    ],
)
def test_what_is_wrong_is_refused_with_the_remedy(
    arguments: tuple[str, ...], said: str, remedy: str, trace: Path
) -> None:
    done = tracon(str(trace), *arguments)
    assert isinstance(done.exception, RunnerError)
    assert said in str(done.exception)
    assert remedy in done.exception.remedy


def test_a_wrong_key_of_an_engine_model_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    good = (Path(__file__).parents[3] / "runners/simulator/engines/h20-qwen3-coder-30b-a3b.toml").read_text()
    path.write_text(good.replace("base_s =", "bas_s ="))
    with pytest.raises(RunnerError, match=r"mine\.toml.*bas_s"):
        read_engine(str(path))


@pytest.mark.parametrize("name", engine_names())
def test_every_number_of_an_engine_model_has_a_source(name: str) -> None:
    engine = read_engine(name)
    sources = " ".join(engine.sources)
    numbers = ("kv_capacity_tokens", "base_s", "prefill_token_s", "decode_sequence_s", "decode_context_s")
    assert [number for number in (*numbers, "bytes_per_s", "latency_s") if number not in sources] == []
