"""Every policy again with one coefficient changed: what changes, what is refused, what the report says of claims."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from results.records.layout import RunLayout, list_trial_layouts
from results.routing.analyze import analyze
from runners.campaign.experiment import RunOptions
from runners.campaign.start import Prepared, rebuild_options
from runners.errors import RunnerError
from runners.experiments.routing.variations import vary_engine
from runners.simulator.engine_file import read_engine
from tests.runners.experiments.simulated_runs import run_whole
from tests.runners.prepared import prepare

MODEL = "h20-qwen3-coder-30b-a3b"
"""It has no cost of attention."""
ROOFLINE = f"{MODEL}-roofline"
"""The preset's own."""
POLICIES = ("unified", "EAR", "EAR, KV not moved", "EAR (migration only)")
OTHER_MODEL = f'sensitivity.engines=["{ROOFLINE}", "{MODEL}"]'
"""The one of both that a run does not have itself."""


def plan_run(
    *settings: str, preset: str = "fleet-sensitivity", trials: int = 3, policies: tuple[str, ...] = POLICIES
) -> Prepared:
    small = ("trace.sessions=10", "trace.output_tokens=0.1", "trace.turns=3")
    asked = RunOptions(
        experiment="routing",
        profile="h20-qwen3-coder-30b",
        preset=preset,
        policies=policies,
        settings=(*small, *settings),
        trials=trials,
    )
    return prepare(asked)


def test_each_variation_changes_one_coefficient_and_leaves_the_others() -> None:
    engine = read_engine(MODEL)
    step, link = engine.model.step, engine.link
    assert link is not None
    varied = vary_engine(engine, "decode_context_s*1.3")
    assert varied.model.step.decode_context_s == pytest.approx(1.3 * step.decode_context_s)
    assert varied.model.step.base_s == step.base_s
    assert vary_engine(engine, "kv_capacity_tokens*0.7").model.kv_capacity_tokens == round(
        0.7 * engine.model.kv_capacity_tokens
    )
    slower = vary_engine(engine, "bytes_per_s*0.7").link
    assert slower is not None
    assert slower.bytes_per_s == pytest.approx(0.7 * link.bytes_per_s)
    for name in ("", "arrival_rate*1.3", "hot_tokens*0.7", "trace=more-skew", "engine=h200-qwen3-coder-30b-a3b"):
        assert vary_engine(engine, name) == engine


@pytest.mark.parametrize(
    ("coefficient", "message"),
    [
        ("prefill_speed", "no coefficient"),
        ("async_scheduling", "no coefficient"),
        ("prefill_context_s", "is 0"),
        ("kv_capacity_tokens", "changes nothing"),
    ],
)
def test_a_coefficient_that_cannot_be_varied_is_refused_before_anything_runs(coefficient: str, message: str) -> None:
    setting = "engine.kv_cache_memory_bytes=20615843020"
    with pytest.raises(RunnerError, match=message):
        plan_run(f"simulation.engine={MODEL}", f'sensitivity.coefficients=["{coefficient}"]', setting)


@pytest.mark.parametrize("threshold", ["hot_tokens", "cooldown_s"])
@pytest.mark.parametrize(
    ("policies", "settings"),
    [(("unified", "sticky"), ()), (("sticky", "EAR"), ("EAR.hot_tokens=0", "EAR.cooldown_s=0.0"))],
)
def test_a_threshold_that_no_policy_has_is_refused_before_anything_runs(
    threshold: str, policies: tuple[str, ...], settings: tuple[str, ...]
) -> None:
    """Its variations were left out without a word."""
    message = f"no policy of this plan has {threshold} above 0, .*: {', '.join(policies)}$"
    with pytest.raises(RunnerError, match=message) as refused:
        plan_run(f'sensitivity.coefficients=["base_s", "{threshold}"]', *settings, policies=policies)
    assert f"leave {threshold} out" in refused.value.remedy


def test_a_coefficient_that_is_named_twice_is_varied_once() -> None:
    """Two cells of one name were planned."""
    plan = plan_run('sensitivity.coefficients=["base_s", "base_s"]').plan
    assert len({cell.cell for cell in plan.cells}) == len(plan.cells)


def test_every_policy_is_planned_again_under_each_variation_that_changes_it() -> None:
    varied = 'sensitivity.coefficients=["base_s", "latency_s", "arrival_rate", "hot_tokens"]'
    plan = plan_run(varied, OTHER_MODEL, "traces.more-skew.sessions=12").plan
    params = [cell.params for cell in plan.cells if cell.kind == "replay" and cell.trial == 0]
    by_variation: dict[str, list[Mapping[str, Any]]] = {}
    for one in params:
        by_variation.setdefault(one.get("variation", ""), []).append(one)
    moving = ("latency_s*0.7", "latency_s*1.3")
    assert {name: len(own) for name, own in by_variation.items()} == {
        "": 4, "base_s*0.7": 4, "base_s*1.3": 4, "arrival_rate*0.7": 4, "arrival_rate*1.3": 4, "trace=more-skew": 4,
        f"engine={MODEL}": 4, "hot_tokens*0.7": 3, "hot_tokens*1.3": 3, **dict.fromkeys(moving, 2),
    }  # fmt: skip
    assert all(one["policy"] == "ear" and one["moves_kv"] for name in moving for one in by_variation[name])
    scales = {one.get("variation", ""): one["time_scale"] for one in params}
    assert scales["arrival_rate*1.3"] == pytest.approx(scales[""] / 1.3)
    assert {one["parameters"]["hot_tokens"] for one in by_variation["hot_tokens*1.3"]} == {5200}
    again = prepare(rebuild_options(plan)).plan
    assert again.fingerprint == plan.fingerprint


def read_turns(folder: Path) -> dict[str, bytes]:
    """The turns of each policy's trial."""
    layouts = list_trial_layouts(folder)
    return {json.loads(one.cell.read_bytes())["label"]: one.metrics.read_bytes() for one in layouts}


def test_a_policy_that_moves_no_kv_has_the_same_turns_whatever_the_link(tmp_path: Path) -> None:
    """That is why a variation of the link leaves it out."""
    unchanged = ("unified", "sticky", "EAR, KV not moved", "EAR (affinity only)")
    turns = []
    for variation in ("", "latency_s*1.3"):
        engine = tmp_path / "engine.json"
        engine.write_bytes(msgspec.json.encode(vary_engine(read_engine(ROOFLINE), variation)))
        setting = f"simulation.engine={engine}"
        planned = partial(plan_run, setting, preset="fleet", trials=1, policies=(*unchanged, "static PD-disagg 4P+4D"))
        turns.append(read_turns(run_whole(tmp_path / f"runs{variation}", tmp_path / "home", planned)))
    assert {label for label, own in turns[0].items() if own == turns[1][label]} == set(unchanged)


def test_a_policy_that_a_variation_does_not_change_is_judged_by_its_cells_without_it(tmp_path: Path) -> None:
    setting = 'sensitivity.coefficients=["bytes_per_s"]'
    planned = partial(plan_run, setting, policies=("unified", "sticky", "EAR"))
    folder = run_whole(tmp_path / "runs", tmp_path / "home", planned)
    assert len(list_trial_layouts(folder)) == (3 + 2 * 1) * 3
    verdicts = json.loads(RunLayout(folder).verdicts_json.read_bytes())
    rows = {row["name"]: row for row in verdicts["conditional_claims"]}
    alike = rows["log: unified keeps more than sticky"]
    assert alike["varied"] == dict.fromkeys(("bytes_per_s*0.7", "bytes_per_s*1.3"), alike["measured"])
    assert "open" not in alike["outcomes"].values()


@pytest.mark.parametrize(("own", "other"), [(MODEL, ROOFLINE), (ROOFLINE, MODEL)])
def test_the_model_that_the_run_has_not_is_a_variation_whose_content_is_in_the_plan(own: str, other: str) -> None:
    plan = plan_run(f"simulation.engine={own}", 'sensitivity.coefficients=["base_s"]', OTHER_MODEL).plan
    variations = {cell.params.get("variation", "") for cell in plan.cells if cell.kind == "replay"}
    assert variations == {"", "base_s*0.7", "base_s*1.3", f"engine={other}"}
    assert list(plan.inputs["further_engine_models"]) == [other]
    assert plan.inputs["further_engine_models"][other]["title"] == read_engine(other).title


def test_a_plan_without_another_engine_model_states_none() -> None:
    assert "further_engine_models" not in plan_run().plan.inputs


def test_an_engine_model_that_does_not_come_with_tracon_is_refused_before_anything_runs() -> None:
    with pytest.raises(RunnerError, match=r"mine\.json does not come with Tracon"):
        plan_run('sensitivity.engines=["mine.json"]')


def test_the_claims_of_both_specifications_have_their_policies_under_every_variation() -> None:
    """load_only is in two claims of specs/routing_log, static pools of 6P+2D in specs/ear 3.2."""
    plan = plan_run(policies=()).plan
    params = [cell.params for cell in plan.cells if cell.kind == "replay" and cell.trial == 0]
    splits = {one["roles"].count("prefill") for one in params if one["policy"] == "static_pd"}
    assert splits == {4, 6}
    of_link = [name for name in {one.get("variation", "") for one in params} if name.startswith(("latency", "bytes"))]
    assert len(of_link) == 4
    assert sum(one["policy"] == "load_only" for one in params) == 1 + 2 * 6, "the link changes nothing of it"


def judge_load_floor(tmp_path: Path, preset: str, setting: str, trials: int) -> dict[str, Any]:
    """The verdicts of a run of two of the preset's policies on turns that share little but their own session's."""
    planned = partial(
        plan_run,
        setting, "trace.sessions=20", "trace.statistics.cross_share=0.0", "trace.statistics.intra_share=0.98",
        "trace.statistics.shared_prefix_share=0.02",
        preset=preset, policies=("overlap first", "B: floor 200"), trials=trials,
    )  # fmt: skip
    folder = run_whole(tmp_path / "runs", tmp_path / "home", planned)
    verdicts: dict[str, Any] = json.loads(RunLayout(folder).verdicts_json.read_bytes())
    return verdicts


def test_decision_points_are_judged_again_under_each_variation(tmp_path: Path) -> None:
    setting = 'sensitivity.coefficients=["prefill_token_s"]'
    verdicts = judge_load_floor(tmp_path, "fleet-load-floor-sensitivity", setting, trials=1)
    assert [row["name"] for row in verdicts["load_floor"]][:3] == ["D1", "D2", "D3"]
    rows = {row["name"]: row["outcomes"] for row in verdicts["conditional_claims"]}
    assert set(rows) == {row["name"] for row in (*verdicts["claims"], *verdicts["load_floor"])}
    assert rows["D6"] == dict.fromkeys(("prefill_token_s*0.7", "prefill_token_s*1.3"), "open"), "one K"
    assert set(rows["D3"].values()) == {"undecided"}, "one trial: judged, not left out"


def test_no_decision_point_is_decided_without_decision_logs(tmp_path: Path) -> None:
    points = judge_load_floor(tmp_path, "fleet-load-floor", "simulation.decision_log=false", trials=3)["load_floor"]
    assert {point["outcome"] for point in points} == {"open"}, "three trials would decide D1 by the turns alone"


@pytest.mark.parametrize("preset", ["fleet-loads", "fleet-thresholds"])
def test_the_presets_of_figures_8_and_9_can_be_planned(preset: str) -> None:
    asked = RunOptions(experiment="routing", profile="h20-qwen3-coder-30b", preset=preset)
    plan = prepare(asked).plan
    assert plan.inputs["simulated"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    planned = partial(plan_run, 'sensitivity.coefficients=["prefill_token_s"]', OTHER_MODEL)
    return run_whole(tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("home"), planned)


def test_the_report_is_of_the_models_own_values_and_says_what_each_claim_hangs_on(folder: Path) -> None:
    layout = RunLayout(folder)
    verdicts = json.loads(layout.verdicts_json.read_bytes())
    rows = verdicts["conditional_claims"]
    assert [row["name"] for row in rows] == [claim["name"] for claim in verdicts["claims"]]
    variations = (f"engine={MODEL}", "prefill_token_s*0.7", "prefill_token_s*1.3")
    assert {tuple(row["outcomes"]) for row in rows} == {variations}
    claims = {claim["name"]: claim["measured"] for claim in verdicts["claims"]}
    bounds = ("value", "low", "high")
    assert all(row["measured"][name] == claims[row["name"]][name] for row in rows for name in bounds)
    locality = next(row for row in rows if row["name"] == "ablation: migration only loses locality")
    for own in locality["varied"].values():
        assert own["low"] < own["value"] < own["high"], "its interval under the variation"
    aggregate = json.loads(layout.aggregate_json.read_bytes())
    assert aggregate["gaps"] == []
    assert {row["label"] for row in aggregate["policies"]} == {
        "unified", "EAR", "EAR, KV not moved", "EAR (migration only)"
    }  # fmt: skip
    assert len(list_trial_layouts(folder)) == 4 * 4 * 3
    assert "Claims over the coefficients of the engine model" in layout.report_md.read_text()
    assert (layout.figures / "figure_9c.svg").is_file()


def test_slower_prefills_are_slower(folder: Path) -> None:
    """The variation reaches the engines: the trace is the same."""
    values: dict[str, float] = {}
    models: dict[str, str] = {}
    for layout in list_trial_layouts(folder):
        record = json.loads(layout.cell.read_bytes())
        if record["policy"] == "unified" and record["trial"] == 0:
            summary = json.loads(layout.summary.read_bytes())
            values[record["variation"]] = summary["values"]["ttft_p50_s"]["value"]
            models[record["variation"]] = record["simulated"].removesuffix(" (UNCALIBRATED)")
    assert values["prefill_token_s*0.7"] < values[""] < values["prefill_token_s*1.3"]
    assert values[f"engine={MODEL}"] not in (values[""], values["prefill_token_s*0.7"], values["prefill_token_s*1.3"])
    own = dict.fromkeys(("", "prefill_token_s*0.7", "prefill_token_s*1.3"), read_engine(ROOFLINE).title)
    assert models == own | {f"engine={MODEL}": read_engine(MODEL).title}


def test_claims_of_variations_are_judged_once(folder: Path) -> None:
    before = analyze(folder).conditional
    stored = sorted((folder / "results" / "variations").iterdir())
    stamps = [path.stat().st_mtime_ns for path in stored]
    assert analyze(folder).conditional == before
    assert [path.stat().st_mtime_ns for path in stored] == stamps
