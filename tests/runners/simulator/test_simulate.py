"""A simulated fleet: the router's own decisions and records, every turn to its end, and the same bytes twice."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from results.measures.latency import TPOT
from results.records.decisions import DecisionRecord, KvTransfer, Role
from results.records.errors import SpecError
from results.records.layout import TrialLayout
from results.records.load_specs import ReplaySpec
from results.records.router_spec import InstanceSpec, KvEndpoint, RouterSpec, TransferRules
from results.records.schemas import RequestStatus
from results.records.simulation_spec import EngineModel, Link, SimulationSpec, StepTime
from results.records.turns import EngineSample, TurnRecord
from runners.errors import RunnerError
from runners.router.policies import POLICIES, make_policy
from runners.simulator.engine_file import list_engine_names, read_engine
from runners.simulator.messages import SimulationError, SimulationOutcome, SimulationTick, read_simulation_spec
from runners.simulator.simulate import simulate
from runners.trace.formats.tracon import write_trace
from runners.trace.synth import synthesize_trace
from tests.runners.load.traces import chain, trace_of

MODEL = EngineModel(StepTime(0.005, 2e-5, 1e-4, 0.0, 1e-9), kv_capacity_tokens=400_000, max_batched_tokens=4096)
LINK = Link(1e-3, 10e9, 1000)
PARAMETERS: dict[str, dict[str, Any]] = {"ear": {"hot_tokens": 8000, "cooldown_s": 1.0}}
POOLED = ("static_pd",)


TRACE = synthesize_trace(60, 3, {"span_s": 20})
BLOCK = TRACE.facts.block_tokens


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions that come faster than four engines can serve them at once, so that queues form."""
    path = tmp_path_factory.mktemp("trace") / "sessions.jsonl"
    write_trace(path, TRACE.facts, TRACE.sessions)
    return path


def make_spec(
    trace: Path, policy: str, folder: Path, *, prefill: int = 0, model: EngineModel = MODEL, **replay: Any
) -> SimulationSpec:
    rest: Role = "decode" if prefill else "both"
    roles: list[Role] = ["prefill" if place < prefill else rest for place in range(4)]
    endpoint = KvEndpoint("nixl", kv_bytes_per_token=LINK.kv_bytes_per_token)
    instances = tuple(
        InstanceSpec(f"e{place}", f"http://e{place}", role, model.kv_capacity_tokens, BLOCK, transfer=endpoint)
        for place, role in enumerate(roles)
    )
    layout = TrialLayout(folder)
    folder.mkdir(parents=True, exist_ok=True)
    asked: dict[str, Any] = {"time_scale": 0.2, "max_duration_s": 3600.0, "block_tokens": BLOCK} | replay
    return SimulationSpec(
        router=RouterSpec(instances, policy, PARAMETERS.get(policy, {}), decisions_path=str(layout.decisions)),
        replay=ReplaySpec(
            url="http://simulated", model="m", trace_path=str(trace), requests_path=str(layout.metrics), **asked
        ),
        models={one.instance: model for one in instances},
        link=LINK,
        samples_path=str(layout.engines),
    )


def run(
    trace: Path, policy: str, folder: Path, prefill: int = 0, **replay: Any
) -> tuple[SimulationOutcome, list[DecisionRecord]]:
    return simulate_changed(make_spec(trace, policy, folder, prefill=prefill, **replay))


def simulate_changed(
    spec: SimulationSpec, rules: TransferRules | None = None, **changes: Any
) -> tuple[SimulationOutcome, list[DecisionRecord]]:
    router = spec.router if rules is None else replace(spec.router, transfer=rules)
    outcome = simulate(replace(spec, router=router, **changes), lambda _: None)
    return outcome, msgspec.json.Decoder(DecisionRecord).decode_lines(Path(router.decisions_path).read_bytes())


def read_turns(folder: Path) -> list[TurnRecord]:
    turns = msgspec.json.Decoder(TurnRecord).decode_lines((folder / "metrics.jsonl").read_bytes())
    return sorted(turns, key=lambda turn: turn.index)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_turn_ends_once_under_every_policy_and_nothing_is_left(policy: str, trace: Path, tmp_path: Path) -> None:
    outcome, records = run(trace, policy, tmp_path, prefill=1 if policy in POOLED else 0)
    turns, replay = read_turns(tmp_path), outcome.replay
    assert [turn.index for turn in turns] == list(range(TRACE.requests))
    assert Counter(turn.status for turn in turns) == {RequestStatus.OK: replay.turns}
    assert (replay.completed, replay.failed, replay.stop_reason) == (replay.turns, 0, "complete")
    assert not replay.fidelity.degraded
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
def test_a_recorded_decision_is_the_policys_own_on_the_recorded_view(policy: str, trace: Path, tmp_path: Path) -> None:
    _, records = run(trace, policy, tmp_path)
    decider = make_policy(policy, PARAMETERS.get(policy, {}))
    for record in records:
        assert decider.decide(record.request, record.cluster) == record.decision
    assert len({record.decision.instance for record in records}) == 4


def test_the_same_trace_and_policy_give_the_same_bytes(trace: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        run(trace, "ear", tmp_path / name)
    for name in ("metrics.jsonl", "decisions.jsonl", "engines.jsonl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


class HostTime:
    """The host's clock as the simulation sees it: it passes only while the simulation sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.longest_s = 0.0
        monkeypatch.setattr("runners.simulator.simulate.perf_counter", lambda: self.now_s)
        monkeypatch.setattr("runners.simulator.simulate.sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.longest_s = max(self.longest_s, seconds)


def test_a_pace_takes_its_share_of_the_hosts_time_and_changes_no_byte(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(trace, "ear", tmp_path / "unpaced")
    host, ticks = HostTime(monkeypatch), list[SimulationTick]()
    outcome = simulate(make_spec(trace, "ear", tmp_path / "paced"), ticks.append, pace=10.0)
    for name in ("metrics.jsonl", "decisions.jsonl", "engines.jsonl"):
        assert (tmp_path / "paced" / name).read_bytes() == (tmp_path / "unpaced" / name).read_bytes()
    simulated_s = (outcome.router.t_end_ns - outcome.router.t_start_ns) / 1e9
    assert host.now_s == pytest.approx(simulated_s / 10)
    assert host.longest_s == pytest.approx(0.1)
    assert len(ticks) == int(host.now_s) + 1  # one per second of the host, and the last


def test_ticks_of_a_pace_report_each_instance_over_the_hosts_last_seconds(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HostTime(monkeypatch)
    ticks = list[SimulationTick]()
    simulate(make_spec(trace, "ear", tmp_path), ticks.append, pace=10.0)
    turns = read_turns(tmp_path)
    for tick in ticks:
        now_ns = tick.replay.t_ns
        assert [one.instance for one in tick.engines] == [f"e{place}" for place in range(4)]
        seen = {one.instance for one in tick.replay.instances if one.ttft_p50_s is not None}
        ages = [(turn.instance, now_ns - turn.t_first_token_ns) for turn in turns if turn.t_first_token_ns]
        assert seen == {instance for instance, age_ns in ages if 0 <= age_ns <= 50 * 10**9}
    assert any(one.running for tick in ticks for one in tick.engines)
    assert any(tick.router.migrations for tick in ticks)


def test_a_tick_has_the_tpot_of_completed_turns_alone(trace: Path, tmp_path: Path) -> None:
    """A turn that was cut has not all its tokens: by those that it asked for, its TPOT would be too short."""
    ticks = list[SimulationTick]()
    simulate(make_spec(trace, "unified", tmp_path, max_duration_s=5.0, drain_s=0.0), ticks.append)
    turns = [turn for turn in read_turns(tmp_path) if turn.t_first_token_ns is not None]
    assert {turn.status for turn in turns} == {RequestStatus.OK, RequestStatus.CUT}
    measured = [
        TPOT.value(turn.t_first_token_ns, turn.t_last_token_ns, turn.completion_tokens)
        for turn in turns
        if turn.status is RequestStatus.OK
    ]
    ordered = sorted(value for value in measured if value is not None)
    last = ticks[-1].replay
    assert (last.tpot_p50_s, last.tpot_p90_s) == tuple(ordered[int(level * len(ordered))] for level in (0.5, 0.9))


@pytest.mark.parametrize(("policy", "prefill"), [("unified", 0), ("ear", 0), ("static_pd", 2)])
def test_without_a_decision_log_the_turns_are_the_same(policy: str, prefill: int, trace: Path, tmp_path: Path) -> None:
    run(trace, policy, tmp_path / "logged", prefill)
    spec = make_spec(trace, policy, tmp_path / "bare", prefill=prefill)
    simulate(replace(spec, router=replace(spec.router, decisions_path="")), lambda _: None)
    for name in ("metrics.jsonl", "engines.jsonl"):
        assert (tmp_path / "logged" / name).read_bytes() == (tmp_path / "bare" / name).read_bytes()
    assert not (tmp_path / "bare" / "decisions.jsonl").exists()


def test_a_hot_session_migrates_with_its_kv_and_is_not_computed_again(trace: Path, tmp_path: Path) -> None:
    outcome, records = run(trace, "ear", tmp_path)
    turns = {turn.request: turn for turn in read_turns(tmp_path)}
    moved = [
        (record.outcome.transfer, turns[record.request.request])
        for record in records
        if record.outcome is not None and record.outcome.migration == "transferred" and record.outcome.transfer
    ]
    assert moved
    external = sum(tally.by_source["external_kv_transfer"] for tally in outcome.counters.values())
    assert external == sum(transfer.external_tokens or 0 for transfer, _ in moved)
    for transfer, turn in moved:
        assert transfer.external_tokens is not None
        assert transfer.local_tokens is not None
        assert transfer.local_tokens + transfer.external_tokens == transfer.prefix_tokens
        assert (turn.cached_tokens or 0) >= transfer.external_tokens > 0
        assert transfer.bytes == transfer.external_tokens * 1000
        assert transfer.t_done_ns > transfer.t_begin_ns


def test_a_prefill_instance_computes_the_prompt_and_the_decode_instance_only_its_end(
    trace: Path, tmp_path: Path
) -> None:
    outcome, records = run(trace, "static_pd", tmp_path, prefill=2)
    computed = {name: tally.by_source["local_compute"] for name, tally in outcome.counters.items()}
    assert computed["e0"] > 20 * computed["e2"]
    assert {transfer.status for transfer in list_transfers(records)} == {"transferred"}


def list_transfers(records: list[DecisionRecord]) -> list[KvTransfer]:
    return [
        record.outcome.transfer
        for record in records
        if record.outcome is not None and record.outcome.transfer is not None
    ]


def test_a_prefill_engine_is_full_of_blocks_while_a_slow_link_moves_them(trace: Path, tmp_path: Path) -> None:
    usages = []
    for name, latency_s in (("quick", 0.001), ("slow", 0.2)):
        spec = make_spec(trace, "static_pd", tmp_path / name, prefill=2)
        link = msgspec.structs.replace(LINK, latency_s=latency_s)
        outcome, _ = simulate_changed(spec, link=link)
        assert (outcome.replay.completed, outcome.replay.failed) == (TRACE.requests, 0)
        rows = msgspec.json.Decoder(EngineSample).decode_lines((tmp_path / name / "engines.jsonl").read_bytes())
        usages.append(sum(row.kv_usage or 0.0 for row in rows if row.instance in ("e0", "e1")))
    assert usages[1] > 1.5 * usages[0]


@pytest.mark.parametrize(("policy", "prefill"), [("ear", 0), ("static_pd", 2)])
def test_a_transfer_that_fails_is_tried_again_then_computed_and_its_pair_left_alone(
    policy: str, prefill: int, trace: Path, tmp_path: Path
) -> None:
    spec = make_spec(trace, policy, tmp_path, prefill=prefill)
    rules = TransferRules(quarantine_s=1.0)
    link = msgspec.structs.replace(LINK, failure_share=1.0)
    outcome, records = simulate_changed(spec, rules, link=link)
    assert (outcome.replay.completed, outcome.replay.failed) == (TRACE.requests, 0)
    assert sum(tally.by_source["external_kv_transfer"] for tally in outcome.counters.values()) == 0
    transfers = list_transfers(records)
    failed = [one for one in transfers if one.status == "failed"]
    assert len(failed) >= rules.failures_to_quarantine
    assert {one.attempts for one in failed} == {1 if prefill else rules.attempts}
    assert {"no KV came", "HTTP 500"} >= {one.reason for one in failed} != {""}
    if policy == "static_pd":
        assert any(one.status == "refused" and "quarantined" in one.reason for one in transfers)


@pytest.mark.parametrize(("policy", "prefill"), [("ear", 0), ("static_pd", 2)])
def test_a_transfer_that_takes_too_long_is_given_up(policy: str, prefill: int, trace: Path, tmp_path: Path) -> None:
    spec = make_spec(trace, policy, tmp_path, prefill=prefill)
    link = msgspec.structs.replace(LINK, latency_s=30.0)
    outcome, records = simulate_changed(spec, TransferRules(timeout_s=2.0), link=link)
    assert (outcome.replay.completed, outcome.replay.failed) == (TRACE.requests, 0)
    assert sum(tally.by_source["external_kv_transfer"] for tally in outcome.counters.values()) == 0
    reasons = {one.reason for one in list_transfers(records) if one.status == "failed"}
    late = "not done within 2 s" if policy == "ear" else "no byte of the response to the decode request within 2 s"
    assert late in reasons


def test_blocks_that_nobody_pulls_in_time_are_freed_and_the_target_computes(trace: Path, tmp_path: Path) -> None:
    spec = make_spec(trace, "static_pd", tmp_path, prefill=2)
    link = msgspec.structs.replace(LINK, latency_s=0.5, abort_s=0.25)
    outcome, records = simulate_changed(spec, link=link)
    assert (outcome.replay.completed, outcome.replay.failed) == (TRACE.requests, 0)
    assert {one.status for one in list_transfers(records)} <= {"failed", "refused"}


def test_counters_hold_every_prompt_once_and_agree_with_what_the_turns_say(trace: Path, tmp_path: Path) -> None:
    outcome, _ = run(trace, "lmetric", tmp_path)
    turns = read_turns(tmp_path)
    assert sum(tally.prompt_tokens or 0 for tally in outcome.counters.values()) == sum(t.input_tokens for t in turns)
    cached = sum(tally.cached_tokens or 0 for tally in outcome.counters.values())
    assert cached == sum(turn.cached_tokens or 0 for turn in turns)


def test_engines_are_sampled_in_every_simulated_second(trace: Path, tmp_path: Path) -> None:
    outcome, _ = run(trace, "unified", tmp_path)
    rows = msgspec.json.Decoder(EngineSample).decode_lines((tmp_path / "engines.jsonl").read_bytes())
    seconds = (outcome.replay.t_stop_ns - outcome.replay.t_start_ns) // 1_000_000_000
    assert len(rows) == 4 * (seconds + 1)
    assert max(row.kv_usage or 0.0 for row in rows) > 0
    assert all(row.num_requests == 0 for row in rows[-4:])


def test_every_row_of_every_log_is_marked_as_simulated(trace: Path, tmp_path: Path) -> None:
    """Those of turns that were cut or never sent too: a log that is copied out of its folder does not look real."""
    outcome, _ = run(trace, "unified", tmp_path, max_duration_s=2.0, drain_s=0.0)
    assert outcome.replay.cut > 0
    for name in ("decisions.jsonl", "metrics.jsonl", "engines.jsonl"):
        rows = [msgspec.json.decode(line) for line in (tmp_path / name).read_bytes().splitlines()]
        assert rows, name
        assert all(row["simulated"] is True for row in rows), name


def test_a_hard_stop_cuts_what_is_in_flight_and_counts_what_was_never_sent(trace: Path, tmp_path: Path) -> None:
    outcome, _ = run(trace, "unified", tmp_path, max_duration_s=2.0, drain_s=0.0)
    replay, turns = outcome.replay, read_turns(tmp_path)
    assert replay.stop_reason == "hard_stop"
    assert [turn.index for turn in turns] == list(range(TRACE.requests))
    cut = [turn for turn in turns if turn.status is RequestStatus.CUT]
    assert len(cut) == replay.cut == TRACE.requests - replay.completed
    assert sum(turn.t_send_ns is not None for turn in cut) == replay.sent - replay.completed > 0
    assert replay.amplification is None


def test_every_turn_states_how_long_its_session_was_held_back(tmp_path: Path) -> None:
    """One that was never sent too; a session that never began was not held back."""
    path = tmp_path / "trace.jsonl"
    made = trace_of(chain("a", 2, think_s=0.0), chain("b", 2, think_s=100.0), chain("c", 1))
    write_trace(path, made.facts, made.sessions)
    limits: dict[str, Any] = {"max_duration_s": 10.0, "max_inflight_sessions": 1}
    simulate(
        make_spec(path, "unified", tmp_path / "out", block_tokens=made.facts.block_tokens, **limits), lambda _: None
    )
    a0, a1, b0, b1, c0 = read_turns(tmp_path / "out")
    assert (b1.status, b1.t_send_ns, c0.t_send_ns) == (RequestStatus.CUT, None, None)
    assert b1.session_delay_s == b0.session_delay_s > 0
    assert a0.session_delay_s == a1.session_delay_s == c0.session_delay_s == 0


def test_a_turn_that_takes_too_long_is_given_up_and_its_session_goes_on(trace: Path, tmp_path: Path) -> None:
    outcome, records = run(trace, "sticky", tmp_path, request_timeout_s=0.5)
    failed = [turn for turn in read_turns(tmp_path) if turn.status is RequestStatus.ERROR]
    assert 0 < len(failed) == outcome.replay.failed
    assert {turn.error for turn in failed} == {"timed out: not finished 0.5 s after the send"}
    assert outcome.replay.stop_reason == "complete"
    assert {record.outcome.status for record in records if record.outcome is not None} == {"ok", "aborted"}


def test_noise_of_steps_depends_on_the_replays_seed_alone(trace: Path, tmp_path: Path) -> None:
    def served(seed: int, noise: float, name: str) -> bytes:
        spec = make_spec(trace, "unified", tmp_path / name, seed=seed)
        simulate(replace(spec, step_noise=noise), lambda _: None)
        return (tmp_path / name / "engines.jsonl").read_bytes()

    one = served(1, 0.2, "one")
    assert served(1, 0.2, "again") == one
    assert served(2, 0.2, "other seed") != one
    assert served(1, 0.0, "no noise") == served(2, 0.0, "no noise, other seed") != one


def test_each_request_takes_the_routers_latency_to_its_engine(tmp_path: Path) -> None:
    path, latency_s = tmp_path / "trace.jsonl", 0.02
    made = trace_of(chain("a", 4))
    write_trace(path, made.facts, made.sessions)
    ttfts_s = []
    for name, seconds in (("none", 0.0), ("some", latency_s)):
        spec = make_spec(path, "unified", tmp_path / name, block_tokens=made.facts.block_tokens)
        simulate(replace(spec, router_latency_s=seconds), lambda _: None)
        turns = read_turns(tmp_path / name)
        ttfts_s.append([((turn.t_first_token_ns or 0) - (turn.t_send_ns or 0)) / 1e9 for turn in turns])
    assert len(ttfts_s[0]) == 4
    assert ttfts_s[1] == pytest.approx([ttft_s + latency_s for ttft_s in ttfts_s[0]], abs=1e-6)


@pytest.mark.parametrize(("policy", "prefill"), [("ear", 0), ("static_pd", 2), ("lmetric", 0)])
def test_a_slow_router_loses_no_turn_and_no_transfer(policy: str, prefill: int, trace: Path, tmp_path: Path) -> None:
    spec = make_spec(trace, policy, tmp_path, prefill=prefill)
    outcome, records = simulate_changed(spec, router_latency_s=0.05)
    assert (outcome.replay.completed, outcome.replay.failed) == (TRACE.requests, 0)
    turns = read_turns(tmp_path)
    assert min((turn.t_first_token_ns or 0) - (turn.t_send_ns or 0) for turn in turns) >= 50_000_000
    if policy != "lmetric":
        assert "transferred" in {one.status for one in list_transfers(records)}


def test_a_prewarmed_prefix_is_in_every_engine_and_index_before_the_first_session(tmp_path: Path) -> None:
    """Round robin places each of four sessions on an engine of its own: none computes what another left there."""
    path = tmp_path / "trace.jsonl"
    made = trace_of(*(chain(name, 1, start_s=place) for place, name in enumerate("abcd")), hash_scope="global")
    block = made.facts.block_tokens
    write_trace(path, made.facts, made.sessions)
    cached, indexed, prompts = {}, {}, {}
    for tokens in (0, block):
        folder = tmp_path / str(tokens)
        spec = make_spec(path, "round_robin", folder, block_tokens=block)
        outcome, records = simulate_changed(spec, prewarm_tokens=tokens)
        cached[tokens] = [turn.cached_tokens for turn in read_turns(folder)]
        indexed[tokens] = records[0].request.cached_tokens
        prompts[tokens] = sum(tally.prompt_tokens or 0 for tally in outcome.counters.values())
    assert (cached[0], cached[block]) == ([0] * 4, [block] * 4)
    assert set(indexed[0].values()) == {0}
    assert indexed[block] == dict.fromkeys(("e0", "e1", "e2", "e3"), block)
    assert prompts[block] - prompts[0] == 4 * block, "the engines count it, no turn does"


def test_a_trace_whose_sessions_share_nothing_cannot_be_prewarmed(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    made = trace_of(chain("a", 2), chain("b", 2))
    write_trace(path, made.facts, made.sessions)
    spec = make_spec(path, "round_robin", tmp_path / "out", block_tokens=made.facts.block_tokens)
    with pytest.raises(SimulationError, match="prewarm_tokens=64, and no two sessions"):
        simulate_changed(spec, prewarm_tokens=64)


def test_a_turn_that_fits_no_engine_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    made = trace_of(chain("a", 4), chain("b", 2))
    block = made.facts.block_tokens
    write_trace(path, made.facts, made.sessions)
    small = msgspec.structs.replace(MODEL, kv_capacity_tokens=4 * block)
    spec = make_spec(path, "unified", tmp_path / "out", model=small, block_tokens=block)
    outcome = simulate(spec, lambda _: None)
    assert (outcome.replay.completed, outcome.replay.failed) == (5, 1)
    (failed,) = (turn for turn in read_turns(tmp_path / "out") if turn.status is RequestStatus.ERROR)
    assert (failed.session, failed.turn, failed.http_status) == ("a", 3, 400)
    assert "do not fit" in (failed.error or "")


def test_blocks_of_another_size_than_the_traces_are_refused(trace: Path, tmp_path: Path) -> None:
    with pytest.raises(SimulationError, match=f"blocks of {BLOCK} tokens, the spec of 16"):
        run(trace, "unified", tmp_path, block_tokens=16)


@pytest.mark.parametrize("is_router_older", [False, True])
def test_a_spec_of_the_first_version_is_read(is_router_older: bool, trace: Path, tmp_path: Path) -> None:
    """Its router may be of the first version too, in which a rule of transfers had another name."""
    spec = make_spec(trace, "sticky", tmp_path)
    spec = replace(spec, router=replace(spec.router, transfer=TransferRules(priority=-1)))
    row = msgspec.json.decode(msgspec.json.encode(spec))
    del row["version"]
    if is_router_older:
        del row["router"]["version"]
        row["router"]["transfer"] = {"leg_priority": -1}
    path = tmp_path / "simulation.spec.json"
    path.write_bytes(msgspec.json.encode(row))
    assert read_simulation_spec(path) == spec


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": {"e0": MODEL}}, "models has none of e1, e2, e3"),
        ({"step_noise": -0.1}, "step_noise is -0.1"),
        ({"contention": float("nan")}, "contention is nan"),
        ({"router_latency_s": -1.0}, "router_latency_s is -1.0"),
        ({"prewarm_tokens": -1}, "prewarm_tokens is -1"),
        ({"residuals": ((1.0,), ())}, "residuals has an empty list"),
        ({"residuals": ((1.0, 0.0),)}, "a factor that is not above 0"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(changes: dict[str, Any], message: str, trace: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=message) as refused:
        replace(make_spec(trace, "sticky", tmp_path), **changes)
    assert refused.value.remedy


def test_an_unknown_engine_model_is_refused_with_those_there_are() -> None:
    with pytest.raises(RunnerError, match="no engine model 'h2000'") as refused:
        read_engine("h2000")
    assert "h20-qwen3-coder-30b-a3b" in refused.value.remedy


def test_a_wrong_key_of_an_engine_model_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    good = (Path(__file__).parents[3] / "runners/simulator/engines/h20-qwen3-coder-30b-a3b.toml").read_text()
    path.write_text(good.replace("base_s =", "bas_s ="))
    with pytest.raises(RunnerError, match=r"mine\.toml.*bas_s"):
        read_engine(str(path))


@pytest.mark.parametrize("name", list_engine_names())
def test_every_number_of_an_engine_model_has_a_source(name: str) -> None:
    engine = read_engine(name)
    parts = (engine.model, engine.model.step, engine.link)
    fields = [item for part in parts if part is not None for item in msgspec.structs.asdict(part).items()]
    numbers = {name for name, value in fields if isinstance(value, int | float) and not isinstance(value, bool)}
    assert {"max_batched_tokens", "prefill_context_s", "frontend_s", "kv_bytes_per_token", "failure_share"} <= numbers
    assert numbers - set(re.findall(r"\w+", " ".join(engine.sources))) == set()
