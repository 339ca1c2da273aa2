"""The plan is what the profile says, takes as long as the specification says, and is the same when it is made again."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launch.profile import (
    CONFIGS_FOLDER,
    PROFILES_FOLDER,
    Capacity,
    list_config_names,
    list_profile_names,
    load_config,
    load_profile,
)
from results.records.plan import RunPlan
from runners.campaign.experiment import RunOptions
from runners.campaign.plan import diff_inputs, find_changes, format_duration
from runners.campaign.start import rebuild_options
from runners.errors import RunnerError
from runners.experiments.connector_tax.grid import EXPERIMENT, read_grid
from runners.experiments.connector_tax.plan import draft_plan
from runners.experiments.connector_tax.sustainable import load_cell_s
from tests.runners.prepared import prepare

OWN = {"input_tokens": [64], "output_tokens": [8]}


def plan_of(profile: str, preset: str = "full", seed: int = 1, **more: Any) -> RunPlan:  # RunOptions' fields
    return prepare(RunOptions(EXPERIMENT, profile, preset, seed=seed, **more)).plan


@pytest.mark.parametrize(
    ("rate_per_s", "expected_s"), [(0.5, 410), (1, 210), (2, 110), (4, 70), (8, 70), (16, 70), (32, 70)]
)
def test_cell_durations_are_those_of_the_specification(rate_per_s: float, expected_s: float) -> None:
    assert load_cell_s(rate_per_s=rate_per_s, min_duration_s=60, min_completed=200, warmup_s=10) == expected_s


def test_the_h20_plan_takes_as_long_as_the_specification_says_where_every_load_is_sustained() -> None:
    profile = load_profile("h20-qwen3-coder-30b")
    unlimited = msgspec.structs.replace(profile, capacity=Capacity())
    seconds: dict[str, float] = defaultdict(float)
    specified = ("confirm=false", "trials=1", "phase_b.shape_rates={}")
    grid = read_grid(profile.experiments[EXPERIMENT], profile.name, "full")
    configs = tuple(name for name in grid.configs if name != "plain_again")
    for cell in draft_plan(RunOptions(EXPERIMENT, profile.name, configs=configs, settings=specified), unlimited).cells:
        seconds[cell.stage] += cell.estimated_s
    compiled_again_s = 210  # nixl_both, whose pre-flight on one GPU has other settings: unknown to the specification
    assert seconds["phase-a"] == 8 * (90 + 1010 + 60) + compiled_again_s  # 155 min
    prime_s = 4 * 3 * 70  # 14 min
    assert seconds["phase-b"] == 8 * (90 + 630 + 60) + prime_s  # 104 min, the specification's best case, and B'
    assert 4.5 * 3600 < sum(seconds.values()) - compiled_again_s < 5.5 * 3600


def test_the_shapes_are_measured_in_the_confirm_stage_alone_at_their_own_rate_where_they_have_one() -> None:
    profile = load_profile("h20-qwen3-coder-30b")
    unlimited = msgspec.structs.replace(profile, capacity=Capacity())
    cells = draft_plan(RunOptions(EXPERIMENT, profile.name), unlimited).cells
    assert {cell.stage for cell in cells} == {"preflight", "phase-a", "reference", "confirm", "analysis"}
    engine_s = 90 + 60
    every = engine_s + 7 * 70 + 3 * 410  # six shapes, Phase A's at ref_load; three shapes with 40 requests at 0.1 req/s
    stage_s = sum(cell.estimated_s for cell in cells if cell.stage == "confirm")
    assert stage_s == 5 * (9 * every + 5 * 70)  # B' for its four configs and plain_again
    long = [cell for cell in cells if cell.params.get("input_tokens") == 32768]
    assert {cell.params["rate_per_s"] for cell in long} == {0.1}
    assert {cell.params["min_completed"] for cell in long} == {40}
    assert {cell.label for cell in long} == {f"32768 x {tokens} at 0.1 req/s" for tokens in (64, 256, 1024)}
    assert len({cell.cell for cell in long}) == 5 * 9 * 3
    queues = draft_plan(RunOptions(EXPERIMENT, profile.name), profile).cells
    assert sum(cell.estimated_s for cell in queues) > sum(cell.estimated_s for cell in cells) + 900  # of Phase A


def test_a_plan_states_the_hours_for_three_five_and_eight_launches() -> None:
    profile = msgspec.structs.replace(load_profile("h20-qwen3-coder-30b"), capacity=Capacity())
    draft = draft_plan(RunOptions(EXPERIMENT, profile.name), profile)
    assert "14 h 19 min with 3, 23 h 51 min with 5, 38 h 10 min with 8 launches" in draft.notes[1]


def test_a_plan_of_a_version_that_swept_the_shapes_before_it_confirmed_them_is_the_same() -> None:
    plan = plan_of("cpu-tiny", "full")
    swept = plan_of("cpu-tiny", "full", settings=("confirm=false", "trials=1"))
    shapes = [cell for cell in swept.cells if cell.stage == "phase-b"]
    stages = [*plan.stages[:3], *(stage for stage in swept.stages if stage.stage == "phase-b"), *plan.stages[3:]]
    older = replace(plan, stages=tuple(stages), cells=(*plan.cells[:60], *shapes, *plan.cells[60:]))
    assert shapes
    assert find_changes(older, plan) == ""
    fewer = replace(plan, cells=plan.cells[:60] + plan.cells[61:])
    assert find_changes(fewer, plan) == "stages or cells are laid out differently"


def test_the_full_grid_has_every_config_rate_and_shape_once() -> None:
    plan = plan_of("h20-qwen3-coder-30b")
    load = [cell for cell in plan.cells if cell.kind == "load"]
    phases = Counter(cell.params["phase"] for cell in load)
    assert phases == {"A": 8 * 7, "C": 5 * (9 * 10 + 5 * 1)}
    assert len({cell.cell for cell in plan.cells}) == len(plan.cells)


def test_every_config_sees_the_same_prompts_and_arrivals_and_no_two_cells_do() -> None:
    load = [cell for cell in plan_of("cpu-tiny").cells if cell.kind == "load"]
    by_place: dict[tuple[str, str], set[int]] = {}
    for cell in load:
        by_place.setdefault((cell.params["phase"], cell.params["stem"]), set()).add(cell.params["cell_index"])
    assert all(len(indices) == 1 for indices in by_place.values())
    assert len({next(iter(indices)) for indices in by_place.values()}) == len(by_place)


def test_the_order_of_configs_comes_from_the_seed_alone() -> None:
    assert plan_of("cpu-tiny", seed=3) == plan_of("cpu-tiny", seed=3)
    assert len({plan_of("cpu-tiny", seed=seed).configs for seed in range(8)}) > 1


def test_the_demo_measures_plain_twice_three_times_at_one_rate_within_five_minutes() -> None:
    plan = plan_of("cpu-tiny", "demo")
    load = [cell for cell in plan.cells if cell.kind == "load"]
    configs = {"plain", "plain_again", "noop_connector", "mooncake_both", "nixl_both"}
    confirmed = [cell for cell in load if cell.params["phase"] == "C"]
    assert Counter(cell.config for cell in confirmed) == dict.fromkeys(configs, 3)
    assert {cell.params["rate"] for cell in confirmed} == {"ref_safe"}
    assert {cell.params["rate_per_s"] for cell in load if cell not in confirmed} == {10}
    assert [stage.stage for stage in plan.stages] == ["preflight", "phase-a", "reference", "confirm", "analysis"]
    assert plan.estimated_s < 5 * 60


def test_plain_again_is_plain_under_another_name_in_every_preset_that_confirms() -> None:
    grid = read_grid(load_profile("cpu-tiny").experiments[EXPERIMENT], "cpu-tiny", "demo")
    options = RunOptions(EXPERIMENT, "cpu-tiny", "demo")
    configs = draft_plan(options, load_profile("cpu-tiny")).configs
    again = next(config for config in configs if config.name == "plain_again")
    plain = load_config("plain")
    assert msgspec.structs.replace(again, name=plain.name, title=plain.title, why=plain.why) == plain
    assert "plain_again" in grid.configs
    assert "plain_again" not in list_config_names()
    for name in list_profile_names():
        tables = load_profile(name).experiments.get(EXPERIMENT, {})
        for preset in tables:
            other = read_grid(tables, name, preset)
            assert other.confirm == ("plain_again" in other.configs)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"phase_a": {"input_tokens": 8, "output_tokens": 8, "rates": [1]}}, "rates"),
        ({"warmup": 3}, "warmup"),
        ({"min_completed": 0}, "min_completed"),
        ({"phase_b": {"input_tokens": [8]}}, "phase_b"),
        ({"phase_b": {}, "phase_b_prime": {"configs": ["plain"], "shapes": [[8, 8]]}}, "phase_b_prime needs phase_b"),
        ({"expected_ref_safe_per_s": 0}, "expected_ref_safe_per_s"),
        ({"phase_b": OWN | {"shape_rates": {"64x9": {"rate_per_s": 1}}}}, "64x9 is no shape of phase_b"),
        ({"phase_b": OWN | {"shape_rates": {"64x8": {"rate_per_s": 0}}}}, "64x8.rate_per_s must be positive"),
        ({"phase_b": OWN | {"shape_rates": {"64x8": {"rate_per_s": 1, "min_completed": -1}}}}, "64x8.min_completed"),
        ({"phase_b": OWN | {"shape_rates": {"64x8": {"rate": 1}}}}, "rate"),
        (
            {"phase_b": {"input_tokens": [128], "output_tokens": [8], "shape_rates": {"128x8": {"rate_per_s": 1}}}},
            "128x8 is the shape of phase_a",
        ),
        ({"phase_a": {"input_tokens": 8, "output_tokens": 8, "rates_per_s": [2, 1]}}, "rates_per_s"),
    ],
)
def test_a_wrong_grid_is_refused_by_name(change: dict[str, object], named: str) -> None:
    table = load_profile("cpu-tiny").experiments[EXPERIMENT]["smoke"] | change
    with pytest.raises(RunnerError, match=named):
        read_grid({"smoke": table}, "cpu-tiny", "smoke")


@pytest.mark.parametrize("key", ["warmup_s", "min_duration_s", "inflight_cap"])
def test_whatever_shapes_numbers_shapes_the_fingerprint(key: str) -> None:
    plan = plan_of("cpu-tiny", "smoke")
    changed = plan_of("cpu-tiny", "smoke", settings=(f"{key}={plan.inputs['grid'][key] + 1}",))
    assert plan.fingerprint != changed.fingerprint


def test_differences_name_the_dotted_key() -> None:
    old = {"engine": {"vllm": "0.32.0", "nixl": "1.5"}, "grid": {"rates": [1, 2]}}
    new = {"engine": {"vllm": "0.33.0", "nixl": "1.5"}, "grid": {"rates": [1, 2]}, "extra": 1}
    assert list(diff_inputs(old, new)) == ["engine.vllm: 0.32.0 -> 0.33.0", "extra: (absent) -> 1"]


def test_a_stored_list_is_the_tuple_it_was_made_from() -> None:
    assert list(diff_inputs({"ports": ["A"], "proofs": []}, {"ports": ("A",), "proofs": ()})) == []
    assert list(diff_inputs({"ports": []}, {"ports": ("A",)})) == ['ports: [] -> ["A"]']


def test_the_row_of_a_list_that_differs_is_named() -> None:
    old = {"policies": [{"name": "ear", "parameters": {"hot_tokens": 100}}, {"name": "unified"}]}
    new = {"policies": ({"name": "ear", "parameters": {"hot_tokens": 200}}, {"name": "unified", "time_scale": None})}
    assert list(diff_inputs(old, new)) == ["policies.0.parameters.hot_tokens: 100 -> 200"]
    fewer = {"policies": [{"name": "ear"}]}
    assert list(diff_inputs({"policies": []}, fewer)) == ['policies: [] -> [{"name":"ear"}]']


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (570, "9 min 30 s"), (17520, "4 h 52 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_trials_repeat_every_load_cell_in_blocks_with_prompts_of_their_own() -> None:
    grid = read_grid(load_profile("cpu-tiny").experiments[EXPERIMENT], "cpu-tiny", "smoke")
    plan = plan_of("cpu-tiny", "smoke", seed=5, trials=3)
    load = [cell for cell in plan.cells if cell.kind == "load"]
    once = len(grid.configs) * (len(grid.phase_a.rates_per_s) + 1)
    assert len(load) == 3 * once
    assert len({cell.cell for cell in plan.cells}) == len(plan.cells)
    assert len({(cell.config, cell.params["phase"], cell.params["stem"]) for cell in load}) == len(load)
    assert len({cell.params["cell_index"] for cell in load}) == 3 * once / len(grid.configs)
    for stage in ("phase-a", "phase-b"):
        trials = [cell.trial for cell in load if cell.stage == stage]
        assert trials == sorted(trials), "a trial is a block: every config has its turn before the next trial begins"


def test_a_plan_can_be_made_again_from_what_it_holds_also_with_files_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "my_noop.toml"
    own.write_text((CONFIGS_FOLDER / "noop_connector.toml").read_text().replace('"noop_connector"', '"my_noop"'))
    options = RunOptions(EXPERIMENT, "cpu-tiny", "smoke", ("plain", str(own)), seed=9, trials=2, port=19999)
    plan = prepare(options).plan
    assert set(plan.configs) == {"plain", "my_noop"}
    assert prepare(rebuild_options(plan)).plan.fingerprint == plan.fingerprint


def test_a_config_named_twice_is_refused() -> None:
    with pytest.raises(RunnerError, match="twice"):
        prepare(RunOptions(EXPERIMENT, "cpu-tiny", "smoke", ("plain", "plain")))


def test_a_setting_changes_the_grid_of_connector_tax_and_is_kept_for_the_resume() -> None:
    options = RunOptions("connector-tax", "cpu-tiny", "smoke", settings=("min_completed=7", "phase_a.output_tokens=9"))
    plan = prepare(options).plan
    assert plan.inputs["grid"]["min_completed"] == 7
    assert {cell.params["output_tokens"] for cell in plan.cells if cell.stage == "phase-a"} == {9}
    assert prepare(rebuild_options(plan)).plan.fingerprint == plan.fingerprint


def test_a_plan_without_settings_has_the_inputs_it_always_had() -> None:
    """A run that was begun before connector-tax had settings resumes: its fingerprint is the same."""
    assert "settings" not in prepare(RunOptions("connector-tax", "cpu-tiny", "smoke")).plan.inputs


@pytest.mark.parametrize(
    ("setting", "named"),
    [("configs.first=1", "configs is no table"), ("min_completed=few", "min_completed"), ("rates=1", "rates")],
)
def test_a_wrong_setting_is_named(setting: str, named: str) -> None:
    with pytest.raises(RunnerError, match=named):
        prepare(RunOptions("connector-tax", "cpu-tiny", "smoke", settings=(setting,)))


def test_a_plan_holds_no_secret_and_notices_when_one_changes(tmp_path: Path) -> None:
    text = (CONFIGS_FOLDER.parent / "profiles" / "cpu-tiny.toml").read_text()
    plans = []
    for secret in ("swordfish", "trout"):
        path = tmp_path / f"{secret}.toml"
        profile = text.replace("extra_args = [", f'extra_args = ["--api-key", "{secret}", ', 1)
        path.write_text(profile.replace("[engine.env]", f'[engine.env]\nMY_TOKEN = "{secret}"', 1))
        plans.append(plan_of(str(path)))
    for plan, secret in zip(plans, ("swordfish", "trout"), strict=True):
        assert secret not in str(plan.inputs["profile"])
        assert plan.inputs["profile"]["engine"]["extra_args"][:2] == ["--api-key", "<redacted>"]
    changes = diff_inputs(plans[0].inputs, plans[1].inputs)
    assert any(line.startswith("profile.engine.env.MY_TOKEN:") for line in changes)


@pytest.mark.parametrize("experiment", ["routing", "pd-lifecycle"])
@pytest.mark.parametrize(
    "setting",
    [
        "engine.env.MY_TOKEN='swordfish'",
        "engine.env.MY_TOKEN=swordfish",
        'engine.env={MY_TOKEN="swordfish"}',
        'engine={env={MY_TOKEN="swordfish"}}',
        "engine.env.PROXY=http://me:swordfish@host.example",
        "engine.env.OTHER=Bearer swordfish",
        "engine.kv_transfer.extra.env.api_key=swordfish",
    ],
)
def test_a_setting_that_looks_like_a_secret_is_refused_with_another_way(experiment: str, setting: str) -> None:
    with pytest.raises(RunnerError, match="looks like a secret") as refused:
        prepare(RunOptions(experiment, "cpu-tiny", "smoke", settings=(setting,)))
    assert "TRACON_PASS_ENV" in refused.value.remedy
    assert "swordfish" not in f"{refused.value} {refused.value.remedy}"


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"])
def test_an_engine_variable_that_is_no_secret_may_be_set(name: str) -> None:
    options = RunOptions("routing", "cpu-tiny", "smoke", settings=(f"engine.env.{name}='1'",))
    plan = prepare(options).plan
    assert plan.inputs["profile"]["engine"]["env"][name] == "1"
    assert prepare(rebuild_options(plan)).plan.fingerprint == plan.fingerprint


def test_a_secret_of_a_wrong_type_is_named_by_its_key() -> None:
    with pytest.raises(RunnerError, match="Expected `str`, got `int`"):
        prepare(RunOptions("routing", "cpu-tiny", "smoke", settings=("engine.env.MY_TOKEN=12345678",)))


def test_how_long_a_first_start_takes_changes_the_estimate_and_nothing_else(tmp_path: Path) -> None:
    """A run that was planned before its profile stated that resumes."""
    text = (PROFILES_FOLDER / "h20-qwen3-coder-30b.toml").read_text()
    plans = []
    for number, line in enumerate(("cold_start_s = 300.0", "cold_start_s = 400.0", "")):
        path = tmp_path / f"{number}.toml"
        path.write_text(re.sub("^cold_start_s = 300.0", line, text, count=1, flags=re.MULTILINE))
        plans.append(plan_of(str(path)))
    stated, slower, unstated = plans
    assert stated.estimated_s < slower.estimated_s
    assert unstated.estimated_s < stated.estimated_s
    assert len({plan.fingerprint for plan in plans}) == 1


def test_a_run_whose_plan_holds_the_cold_start_of_its_profile_resumes() -> None:
    """Older versions stored it with the inputs."""
    plan = plan_of("h200-qwen3-coder-30b-dummy")
    profile = plan.inputs["profile"]
    older_launch = {**profile["launch"], "cold_start_s": 240.0}
    inputs = {**plan.inputs, "profile": {**profile, "launch": older_launch}}
    assert find_changes(replace(plan, inputs=inputs), plan) == ""
    moved = {**inputs, "profile": {**profile, "launch": {**older_launch, "port_base": 1}}}
    assert find_changes(replace(plan, inputs=moved), plan).startswith("profile.launch.port_base: 1 -> ")
