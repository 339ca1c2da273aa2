"""The presets that simulate eight instances: what they compare, on which traces, and that a recorded one runs."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from msgspec.structs import replace

from launch.profile import load_profile
from results.records.layout import list_trial_layouts
from results.routing.scale import MIN_HOT_PER_INSTANCE, MIN_TURNS
from runners.campaign.experiment import RunOptions
from runners.campaign.start import rebuild_options
from runners.experiments.routing.engine_model import describe_model, shape_model
from runners.experiments.routing.grid import EXPERIMENT, Grid, is_drawn, read_grid
from runners.experiments.routing.plan import TRIALS
from runners.experiments.routing.variations import expand_variations
from runners.simulator.engine_file import read_engine
from runners.simulator.step_time import StepWork, predict_step_s, prefill_context
from runners.simulator.transfers import predict_transfer_s
from runners.trace.synth import synthesize_trace
from tests.runners.experiments.simulated_runs import run_whole
from tests.runners.prepared import prepare

H20, H200 = "h20-qwen3-coder-30b", "h200-qwen3-coder-30b-dummy"
RECORDED = ("fleet-agentic", "fleet-mooncake")
SPLITS = {"fleet-load-floor": 4, "fleet-load-floor-1p": 1}


def read_preset(preset: str, profile: str = H20) -> Grid:
    return read_grid(load_profile(profile).experiments[EXPERIMENT], profile, preset)


@pytest.mark.parametrize("preset", [*RECORDED, *SPLITS, "fleet-inflight-64", "fleet-inflight-128"])
def test_each_simulates_eight_instances_with_traces_of_their_own_in_each_trial(preset: str) -> None:
    of = read_preset(preset)
    assert (of.instances, of.config) == (8, "mooncake_both")
    assert of.simulation is not None
    assert of.simulation.engine == "h20-qwen3-coder-30b-a3b-roofline"
    assert of.trials >= 5
    assert is_drawn(of.trace)
    assert not of.further_traces, "else --trace would be refused"
    prepared = prepare(RunOptions(EXPERIMENT, H20, preset))
    assert not prepared.draft.needs_engine
    assert prepared.plan.inputs["simulated"]
    assert prepare(rebuild_options(prepared.plan)).plan.fingerprint == prepared.plan.fingerprint


@pytest.mark.parametrize("preset", RECORDED)
def test_recorded_traces_are_replayed_under_the_policies_of_fleet(preset: str, tmp_path: Path) -> None:
    of, fleet = read_preset(preset), read_preset("fleet")
    assert of.policies == fleet.policies
    trace = tmp_path / "recorded.jsonl"
    trace.touch()
    grid = prepare(RunOptions(EXPERIMENT, H20, preset, trace=str(trace))).plan.inputs["grid"]
    assert (grid["trace"]["source"], grid["trace"]["sessions"]) == (str(trace), of.trace.sessions)


@pytest.mark.parametrize("limit", [64, 128])
def test_the_routing_logs_policies_are_compared_with_a_limit_on_sessions_in_flight(limit: int) -> None:
    of, fleet = read_preset(f"fleet-inflight-{limit}"), read_preset("fleet")
    assert {"unified", "sticky", "lmetric", "load_only"} <= {policy.name for policy in of.policies}
    assert all(policy in fleet.policies for policy in of.policies)
    assert (of.trace, of.replay.max_inflight_sessions) == (fleet.trace, limit)


@pytest.mark.parametrize("preset", SPLITS)
def test_the_options_of_load_floor_have_one_split(preset: str) -> None:
    of = read_preset(preset)
    assert {of.roles(policy).count("prefill") for policy in of.policies} == {SPLITS[preset]}
    parameters = [dict(policy.parameters) for policy in of.policies]
    assert {0, 50, 200} <= {one.get("load_floor_bonus", 0) for one in parameters}
    names = {name for one in parameters for name in one}
    assert {"cold_bonus", "order", "overlap_discount", "min_overlap_share", "floor_form", "backpressure_above"} <= names
    assert "prewarm_tokens" in names
    assert {30.0, 120.0} == {of.transfer_rules(policy).timeout_s for policy in of.policies}


@pytest.mark.parametrize("preset", SPLITS)
def test_a_pair_of_the_hair_trigger_is_left_alone_after_one_failure_for_the_rest_of_the_replay(preset: str) -> None:
    of = read_preset(preset)
    (rules,) = (of.transfer_rules(one) for one in of.policies if one.label.endswith("hair-trigger"))
    assert rules.failures_to_quarantine == 1
    assert rules.quarantine_s > of.replay.max_duration_s


def count_arrivals_per_s(grid: Grid) -> float:
    """Synthetic sessions arrive within 600 s, times the scale."""
    return grid.trace.sessions / (600 * grid.replay.time_scale)


def test_the_light_load_is_the_fleet_at_a_third_of_its_rate() -> None:
    of, fleet = read_preset("fleet-light"), read_preset("fleet")
    assert (of.policies, of.trace, of.simulation and of.simulation.step_noise) == (fleet.policies, fleet.trace, 0.05)
    assert (count_arrivals_per_s(of), count_arrivals_per_s(fleet)) == (0.25, 0.75)
    assert of.trials == 5
    assert of.replay.max_duration_s > of.trace.sessions / count_arrivals_per_s(of), "else the hard stop cuts it"
    cells = prepare(RunOptions(EXPERIMENT, H20, "fleet-light")).plan.cells
    assert sum(cell.stage == TRIALS for cell in cells) == 65


def test_the_light_sensitivity_has_the_sessions_and_policies_of_the_claims_about_hot_ones() -> None:
    """C3, 3.3 and "affinity only interferes": four hot sessions for each instance, with ten turns each."""
    of = read_preset("fleet-light-sensitivity")
    assert count_arrivals_per_s(of) == 0.25
    names = {policy.name for policy in of.policies}
    assert {"sticky", "static_pd", "unified", "ear"} == names
    sessions = synthesize_trace(of.trace.sessions, of.trace.seed, of.trace.statistics).sessions
    turns = [(sum(turn.input_tokens for turn in one.turns), len(one.turns)) for one in sessions]
    turns.sort(reverse=True)
    half, hot = sum(tokens for tokens, _ in turns) / 2, 0
    while sum(tokens for tokens, _ in turns[:hot]) < half:
        hot += 1
    assert hot >= MIN_HOT_PER_INSTANCE * of.instances
    assert statistics.median(count for _, count in turns[:hot]) >= MIN_TURNS
    varied = expand_variations(of)
    assert varied.sensitivity
    assert {one.variation for one in varied.policies if one.variation} == {
        f"{name}*{factor:g}" for name in varied.sensitivity.coefficients for factor in (0.7, 1.3)
    }


SENSITIVITIES = {
    "fleet": "fleet-sensitivity",
    "fleet-light": "fleet-light-sensitivity",
    "fleet-load-floor": "fleet-load-floor-sensitivity",
    "fleet-load-floor-1p": "fleet-load-floor-1p-sensitivity",
}


@pytest.mark.parametrize(("plain", "varied"), SENSITIVITIES.items())
def test_every_coefficient_of_the_engine_model_is_varied_over_as_many_traces(plain: str, varied: str) -> None:
    of, model = read_preset(varied), read_engine("h20-qwen3-coder-30b-a3b-roofline")
    assert of.simulation
    assert of.simulation.engine == "h20-qwen3-coder-30b-a3b-roofline"
    assert of.sensitivity
    assert (of.sensitivity.by, of.trials) == (0.3, 5)
    assert {*of.sensitivity.coefficients} == {*model.model.step.__struct_fields__} | {
        "kv_capacity_tokens", "latency_s", "bytes_per_s"
    }  # fmt: skip
    assert [policy for policy in of.policies if policy not in read_preset(plain).policies] == []


def test_the_policies_of_every_claim_are_varied_in_one_of_the_sensitivities() -> None:
    """So each claim of `fleet` and of the load floor is judged under every variation."""
    varied = {policy.label for name in ("fleet", "fleet-light") for policy in read_preset(SENSITIVITIES[name]).policies}
    assert {policy.label for policy in read_preset("fleet").policies} - varied == {"least work"}, "in no claim"
    of_floor = {one.label for name in SPLITS for one in read_preset(SENSITIVITIES[name]).policies}
    assert of_floor == {policy.label for policy in read_preset("fleet-load-floor-1p").policies}


@pytest.mark.parametrize("preset", [*RECORDED, "fleet-inflight-64", "fleet-inflight-128"])
def test_a_preset_without_a_sensitivity_gets_one_by_a_setting(preset: str) -> None:
    setting = 'sensitivity.coefficients=["base_s", "kv_capacity_tokens"]'
    labels = {cell.label for cell in prepare(RunOptions(EXPERIMENT, H20, preset, settings=(setting,))).plan.cells}
    assert {"EAR", "EAR vary=base_s*0.7", "unified vary=kv_capacity_tokens*1.3"} <= labels


def test_h200s_are_simulated_as_h20s_are() -> None:
    of, fleet = read_preset("fleet", H200), read_preset("fleet")
    assert of.policies == fleet.policies
    assert (of.instances, of.gpus, of.trials, of.trace) == (fleet.instances, fleet.gpus, fleet.trials, fleet.trace)
    assert of.replay.max_inflight_sessions == fleet.replay.max_inflight_sessions == 0
    assert "H200" in describe_model(of)
    assert describe_model(of).endswith("(UNCALIBRATED)")
    engine = read_engine("h200-qwen3-coder-30b-a3b")
    assert shape_model(of, engine, "both", None).max_batched_tokens == engine.model.max_batched_tokens
    calibrated = replace(engine, model=replace(engine.model, max_sequences=1024))
    assert shape_model(of, calibrated, "both", None).max_sequences == of.engine.max_num_seqs == 256
    longest = load_profile(H20).engine.max_model_len
    assert prepare(RunOptions(EXPERIMENT, H200, "fleet")).draft.profile.engine.max_model_len == longest


def test_an_h200_is_faster_than_an_h20_up_to_contexts_of_30000_tokens() -> None:
    """Beyond some 76,000 it is not: the H20's figures show no growth with the context, and none is modelled there."""
    slow, fast = (read_engine(f"{gpu}-qwen3-coder-30b-a3b") for gpu in ("h20", "h200"))
    for tokens, context in ((1, 0), (8192, 0), (2048, 30_000)):
        work = StepWork(tokens, prefill_context(context, tokens), 0, 0)
        assert predict_step_s(fast.model.step, work) < predict_step_s(slow.model.step, work)
    for sequences in (1, 10, 64):
        work = StepWork(0, 0.0, sequences, sequences * 30_000)
        assert predict_step_s(fast.model.step, work) < predict_step_s(slow.model.step, work)
    assert fast.model.kv_capacity_tokens > slow.model.kv_capacity_tokens
    assert slow.link is not None
    assert fast.link is not None
    assert predict_transfer_s(fast.link, 30_000) < predict_transfer_s(slow.link, 30_000)


def test_a_trace_of_mooncakes_format_runs_in_its_own_blocks(tmp_path: Path) -> None:
    trace = tmp_path / "mooncake.jsonl"
    rows = [
        {"timestamp": 200 * row, "input_length": 1500, "output_length": 5, "hash_ids": [0, 1, 2 + row]}
        for row in range(12)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = RunOptions(
        EXPERIMENT, H20, "fleet-mooncake", trace=str(trace), trials=3, settings=("trace.sessions=8",),
        policies=("unified", "static PD-disagg 6P+2D"),
    )  # fmt: skip
    folder = run_whole(tmp_path / "runs", tmp_path / "home", lambda: prepare(asked))
    cells = [json.loads(layout.cell.read_bytes()) for layout in list_trial_layouts(folder)]
    assert len(cells) == 6
    assert {engine["block_tokens"] for cell in cells for engine in cell["engines"]} == {512}
    assert {cell["trace"]["requests"] for cell in cells} == {8}
    traces = {(cell["trial"], cell["trace"]["sha256"]) for cell in cells}
    assert len(traces) == len({sha256 for _, sha256 in traces}) == 3, "each trial draws requests of its own"
