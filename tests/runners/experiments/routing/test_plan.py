"""The plan of a routing run: paired, interleaved, the same schedule for every policy, and what the user may change."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET
from rich.console import Console, RenderableType

from launch.profile import load_profile
from results.records.events import RunPlanned
from results.records.load_specs import ReplaySpec
from results.records.plan import CellPlan
from results.records.router_spec import TransferRules
from runners.campaign.experiment import RunOptions
from runners.campaign.plan import find_changes
from runners.campaign.start import rebuild_options
from runners.cli.tables import make_plan_tables
from runners.errors import RunnerError
from runners.experiments.engine_choice import EngineChoice, make_counting_profile
from runners.experiments.routing.grid import EXPERIMENT, Grid, PolicyChoice, ReplayChoice, make_slug, read_grid
from runners.experiments.routing.plan import list_cells, note_transfer_rules
from runners.trace.synth import open_synthetic, synthesize_trace
from state.events import decode, encode
from tests.runners.prepared import prepare

CPU = load_profile("cpu-tiny")
POLICY_OF_ONES_OWN = """
from dataclasses import dataclass
from typing import Any, ClassVar

from results.records.decisions import ClusterView, Decision, RoutedRequest


@dataclass(frozen=True)
class First:
    name: ClassVar[str] = "first"
    source: ClassVar[str] = "a test"
    bias: float = 0.0

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        return Decision("first", next(i.instance for i in cluster.instances if i.available), "first")
"""


def grid(preset: str = "full", policies: Sequence[str] = (), settings: Sequence[str] = ()) -> Grid:
    return read_grid(CPU.experiments[EXPERIMENT], CPU.name, preset, policies=policies, settings=settings)


def test_a_preset_has_the_defaults_of_the_replay_that_it_describes() -> None:
    defaults = {one.name: one.default for one in fields(ReplaySpec)}
    choice = ReplayChoice()
    stated = {name: getattr(choice, name) for name in choice.__struct_fields__}
    assert stated == {name: defaults[name] for name in stated}


def cells_of(of: Grid, seed: int = 1, *, moves_kv: bool = False) -> list[CellPlan]:
    return list_cells(of, of.config, seed, 0.5, moves_kv=moves_kv)


def estimate_s(of: Grid) -> float:
    return sum(cell.estimated_s for cell in cells_of(of))


def replays(cells: Iterable[CellPlan]) -> list[CellPlan]:
    return [cell for cell in cells if cell.kind == "replay"]


def test_every_policy_has_its_turn_once_before_the_next_trial_begins() -> None:
    of = grid()
    cells = replays(cells_of(of))
    labels = {of.label(policy) for policy in of.policies}
    assert [cell.trial for cell in cells] == sorted(cell.trial for cell in cells)
    for trial in range(of.trials):
        assert {cell.label for cell in cells if cell.trial == trial} == labels
    assert [cell.params["position"] for cell in cells] == list(range(len(cells)))
    assert len({cell.cell for cell in cells_of(of)}) == len(cells_of(of))


def test_the_order_is_drawn_anew_for_every_trial_and_comes_from_the_seed_alone() -> None:
    of = grid()

    def orders(seed: int) -> list[tuple[str, ...]]:
        by_trial = defaultdict(list)
        for cell in replays(cells_of(of, seed)):
            by_trial[cell.trial].append(cell.label)
        return [tuple(order) for order in by_trial.values()]

    assert orders(3) == orders(3)
    assert len(set(orders(3))) > 1
    assert orders(3) != orders(4)


def test_all_policies_of_a_trial_get_the_same_prompts_and_no_two_trials_do() -> None:
    seeds = defaultdict(set)
    for cell in replays(cells_of(grid(), seed=7)):
        seeds[cell.trial].add(cell.params["replay_seed"])
    assert all(len(of_trial) == 1 for of_trial in seeds.values())
    assert len(set.union(*seeds.values())) == len(seeds)


PRESETS = sorted(CPU.experiments[EXPERIMENT])


def test_the_presets_of_this_machine_take_as_long_as_they_promise() -> None:
    assert estimate_s(grid("full")) < 30 * 60
    assert estimate_s(grid("recorded")) < 30 * 60
    assert estimate_s(grid("demo")) < 6 * 60
    assert estimate_s(grid("baselines")) < 17 * 60
    assert estimate_s(grid("steady")) < 45 * 60
    assert estimate_s(grid("sensitivity")) < 13 * 60
    assert estimate_s(msgspec.structs.replace(grid("load-floor"), trials=1)) < 9 * 60
    assert estimate_s(msgspec.structs.replace(grid("load-floor-100"), trials=1)) < 3 * 60
    assert estimate_s(grid("load-floor-gate")) < 7 * 60
    assert estimate_s(grid("smoke")) < 90


@pytest.mark.parametrize("preset", sorted(set(PRESETS) - {"smoke"}))
def test_every_preset_whose_numbers_are_read_has_trials_to_pair(preset: str) -> None:
    assert grid(preset).trials >= 3


@pytest.mark.parametrize("name", ["cpu-tiny", "h20-qwen3-coder-30b", "h200-qwen3-coder-30b-dummy"])
def test_the_specifications_comparisons_are_presets_of_every_profile(name: str) -> None:
    plans = {
        preset: prepare(RunOptions(EXPERIMENT, name, preset)).plan
        for preset in ("baselines", "sensitivity", "load-floor")
    }
    baselines = {cell.params["policy"] for cell in replays(plans["baselines"].cells)}
    assert baselines == {
        "round_robin", "lmetric", "kv_linear", "sticky", "unified", "leastwork", "static_pd", "ear",
    }  # fmt: skip
    ear = {cell.label: cell.params for cell in replays(plans["baselines"].cells) if cell.params["policy"] == "ear"}
    assert set(ear) == {"EAR", "EAR, output known", "EAR, KV not moved", "EAR (affinity only)", "EAR (migration only)"}
    moved, kept = ear["EAR"], ear["EAR, KV not moved"]
    assert (moved["moves_kv"], kept["moves_kv"]) == (True, False)
    assert all(moved[name] == kept[name] for name in ("parameters", "roles", "transfer"))
    thresholds = {
        (cell.params["parameters"]["hot_tokens"], cell.params["parameters"]["cooldown_s"])
        for cell in replays(plans["sensitivity"].cells)
    }
    assert len(thresholds) == 9
    floors = [cell.params["parameters"] for cell in replays(plans["load-floor"].cells)]
    assert {0, 50, 100, 200, 400} == {parameters.get("load_floor_bonus", 0) for parameters in floors}
    for plan in plans.values():
        assert len(plan.configs) == 1
        assert plan.configs[0] in ("mooncake_both", "nixl_both")


def test_a_config_that_needs_the_patches_has_them_applied_before_and_removed_after() -> None:
    def order(config: str) -> list[str]:
        plan = prepare(RunOptions(EXPERIMENT, "cpu-tiny", "smoke", (config,))).plan
        return [cell.kind for cell in plan.cells]

    patched = order("mooncake_both")
    assert patched.index("patches") < patched.index("preflight")
    assert patched.index("revert") > max(
        place for place, kind in enumerate(patched) if kind in ("replay", "interference")
    )
    assert patched[-1] == "analysis"
    assert "patches" in order("nixl_both"), "its engines log what they move"
    assert not {"patches", "revert"} & set(order("plain"))


def test_a_sweep_is_a_policy_for_every_combination() -> None:
    sweep = {"hot_tokens": [1, 2], "cooldown_s": [3, 4, 5]}
    policies = of_arms(["lmetric", {"name": "ear", "parameters": {"tie": "first"}, "sweep": sweep}]).policies
    assert policies[0] == PolicyChoice("lmetric")
    swept = [(one.parameters["hot_tokens"], one.parameters["cooldown_s"]) for one in policies[1:]]
    assert swept == [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]
    assert all(one.parameters["tie"] == "first" for one in policies[1:])


def test_a_preset_may_be_like_another_but_for_what_it_says_itself() -> None:
    base = CPU.experiments[EXPERIMENT]["smoke"]
    tables = {
        "base": base,
        "next": {"like": "base", "policies": ["lmetric"], "replay": {"time_scale": 0.5}},
        "last": {"like": "next", "trials": 4},
    }
    one, other = read_grid(tables, "p", "last"), read_grid(tables, "p", "base")
    assert one.trials == 4
    assert one.policies == (PolicyChoice("lmetric"),), "a list replaces the other's"
    assert one.replay == msgspec.structs.replace(other.replay, time_scale=0.5)
    assert (one.trace, one.engine, one.config) == (other.trace, other.engine, other.config)
    assert tables["base"] == CPU.experiments[EXPERIMENT]["smoke"]


def test_a_policy_may_be_the_one_of_a_label_or_like_it() -> None:
    ear = {"name": "ear", "label": "EAR", "parameters": {"hot_tokens": 100, "cooldown_s": 0.5}}
    faster = {"like": "EAR", "sweep": {"time_scale": [0.5, 0.25]}}
    slower = {"like": "EAR", "label": "slower", "parameters": {"cooldown_s": 9.0}}
    tables: dict[str, dict[str, Any]] = {
        "base": CPU.experiments[EXPERIMENT]["smoke"] | {"policies": [ear, {"like": "EAR", "label": "b", "trace": "x"}]},
        "next": {"like": "base", "policies": ["EAR", "lmetric", faster, slower]},
        "swept": {"like": "base", "policies": [faster]},
        "last": {"like": "swept", "policies": ["EAR"]},
    }
    tables["base"]["traces"] = {"x": {}}
    first, second = read_grid(tables, "p", "base").policies
    assert second == msgspec.structs.replace(first, label="b", trace="x")
    one, other, *swept, last = read_grid(tables, "p", "next").policies
    assert (one, other) == (first, PolicyChoice("lmetric"))
    assert [each.time_scale for each in swept] == [0.5, 0.25]
    assert last == msgspec.structs.replace(first, label="slower", parameters={"hot_tokens": 100, "cooldown_s": 9.0})
    assert read_grid(tables, "p", "last").policies == tuple(swept), "nothing else has that label there"


@pytest.mark.parametrize("label", ["later", ["EAR"], 3])
def test_a_policy_like_one_that_is_not_before_it_is_refused(label: object) -> None:
    with pytest.raises(RunnerError, match="like") as refused:
        of_arms([{"name": "lmetric", "label": "LMetric"}, {"like": label}, {"name": "ear", "label": "later"}])
    assert refused.value.remedy == "name one of: LMetric"


@pytest.mark.parametrize("sweep", [{}, [1], {"hot_tokens": 3}, {"hot_tokens": []}])
def test_a_sweep_that_names_no_values_is_refused(sweep: object) -> None:
    with pytest.raises(RunnerError, match="sweep"):
        of_arms([{"name": "ear", "sweep": sweep}])


ARMS = [
    {"name": "ear", "label": "EAR"},
    {"name": "ear", "label": "EAR, KV not moved", "moves_kv": False},
    {"name": "ear", "label": "EAR, soon", "transfer": {"timeout_s": 2.0}},
]


def of_arms(policies: Sequence[object], settings: Sequence[str] = ()) -> Grid:
    return read_grid(
        {"arms": CPU.experiments[EXPERIMENT]["smoke"] | {"policies": policies}}, "p", "arms", settings=settings
    )


def test_a_policy_may_have_rules_of_its_own_or_leave_kv_where_it_is() -> None:
    of = of_arms(ARMS, ["EAR.transfer.attempts=1", "EAR, soon.moves_kv=true"])
    params = {cell.label: cell.params for cell in replays(cells_of(of, moves_kv=True))}
    assert {label: cell_params["moves_kv"] for label, cell_params in params.items()} == {
        "EAR": True,
        "EAR, KV not moved": False,
        "EAR, soon": True,
    }
    rules = {label: msgspec.convert(cell_params["transfer"], TransferRules) for label, cell_params in params.items()}
    shared = rules["EAR, KV not moved"]
    assert (shared.timeout_s, shared.priority, shared.attempts) == (10.0, -1, 2)
    assert rules["EAR"] == replace(shared, attempts=1)
    assert rules["EAR, soon"] == replace(shared, timeout_s=2.0)
    fixed = ("policy", "parameters", "roles", "replay_seed")
    assert all(cell_params[name] == params["EAR"][name] for cell_params in params.values() for name in fixed)


def test_a_time_limit_is_compared_on_the_policy_that_needs_it() -> None:
    cells = replays(prepare(RunOptions(EXPERIMENT, "cpu-tiny", "load-floor")).plan.cells)
    limits = {cell.label: cell.params["transfer"]["timeout_s"] for cell in cells if "overlap f" in cell.label}
    assert limits == {"overlap first": 4.0, "overlap first, timeout 15 s": 15.0, "overlap first, hair-trigger": 4.0}


def test_the_specifications_gate_of_the_bonus_is_compared_with_ours_at_one_k() -> None:
    parameters = {cell.label: dict(cell.params["parameters"]) for cell in replays(cells_of(grid("load-floor-gate")))}
    ours, theirs = (parameters[label] for label in ("B: floor 200", "B: floor 200, per worker"))
    assert theirs.pop("floor_gate") == "per_worker"
    assert ours == theirs == {"load_floor_bonus": 200}


def test_the_rules_of_quarantine_are_compared_on_real_engines_too() -> None:
    """Q1.D needs two arms that differ in them alone."""
    plan = prepare(RunOptions(EXPERIMENT, "cpu-tiny", "load-floor")).plan
    params = {cell.label: cell.params for cell in replays(plan.cells)}
    one, other = (dict(params[label]["transfer"]) for label in ("overlap first", "overlap first, hair-trigger"))
    rules = ("failures_to_quarantine", "quarantine_s", "quarantine_max_s")
    assert [(one.pop(rule), other.pop(rule)) for rule in rules] == [(3, 1), (10.0, 1e5), (120.0, 1e5)]
    assert one == other
    assert params["overlap first"]["parameters"] == params["overlap first, hair-trigger"]["parameters"]


def test_where_no_engine_can_move_kv_no_arm_says_that_it_is_moved() -> None:
    assert {cell.params["moves_kv"] for cell in replays(cells_of(of_arms(ARMS), moves_kv=False))} == {False}


def test_arms_without_a_label_are_told_apart() -> None:
    of = of_arms(["ear", {"name": "ear", "moves_kv": False}, {"name": "ear", "transfer": {"timeout_s": 2.0}}])
    assert [of.label(policy) for policy in of.policies] == ["ear", "ear KV not moved", "ear transfer.timeout_s=2"]


def test_a_plan_says_in_words_what_an_arm_does_with_kv() -> None:
    assert list(note_transfer_rules(of_arms(ARMS))) == [
        "EAR, KV not moved: no KV is moved, the target of a migration or handover recomputes",
        "EAR, soon: transfer.timeout_s = 2.0, elsewhere 10.0",
    ]
    prepared = prepare(RunOptions(EXPERIMENT, "cpu-tiny", "smoke", settings=("EAR.moves_kv=false",)))
    assert "EAR: no KV is moved" in rendered(make_plan_tables(prepared.plan, prepared.draft.sums, prepared.draft.notes))


def rendered(shown: RenderableType) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("arm", "named"),
    [
        ({"transfer": {"timeout": 3}}, "policy ear.*no timeout;"),
        ({"transfer": {"timeout_s": 0}}, "policy ear.*timeout_s"),
        ({"transfer": {"attempts": "many"}}, "policy ear.*attempts"),
        ({"transfer": {"timeout_s": 1.0}, "moves_kv": False}, "policy ear.*moves_kv is false"),
        ({"transfer": 4}, "transfer"),
        ({"moves_kv": "no"}, "moves_kv"),
    ],
)
def test_wrong_rules_of_one_policy_are_refused_with_its_name(arm: dict[str, object], named: str) -> None:
    with pytest.raises(RunnerError, match=named):
        of_arms([{"name": "ear", **arm}])


def test_how_engines_order_their_queue_and_what_they_inherit_is_the_presets() -> None:
    settings = [
        "engine.scheduling=priority",
        "engine.max_num_seqs=64",
        "router.transfer.priority=-1",
        'engine.env.SOME_LIMIT="7"',
    ]
    of = grid("smoke", settings=settings)
    engine = make_counting_profile(CPU, of.engine).engine
    assert engine.extra_args[-4:] == ("--scheduling-policy", "priority", "--max-num-seqs", "64")
    assert engine.env == CPU.engine.env | of.engine.env
    assert engine.env["SOME_LIMIT"] == "7"
    assert of.transfer_rules(of.policies[0]).priority == -1
    unchanged = make_counting_profile(CPU, EngineChoice()).engine.extra_args
    assert not {"--scheduling-policy", "--max-num-seqs"} & {*unchanged}


def test_policies_are_chosen_by_name_or_label_and_others_may_join() -> None:
    chosen = grid("smoke", policies=["lmetric", "leastwork"])
    assert [chosen.label(policy) for policy in chosen.policies] == ["lmetric", "leastwork"]
    labeled = PolicyChoice("unified", label="ours")
    assert Grid((labeled,), 2, 1.0, 1.0).label(labeled) == "ours"


def test_a_setting_changes_the_grid_or_a_policys_parameter() -> None:
    changed = grid(
        "smoke",
        policies=["unified"],
        settings=["trace.sessions=3", "replay.time_scale=0.25", "instances=3", "unified.overload_factor=1.3"],
    )
    assert changed.trace.sessions == 3
    assert changed.replay.time_scale == 0.25
    assert changed.instances == 3
    assert changed.policies[0].parameters["overload_factor"] == 1.3
    assert changed.label(changed.policies[0]) == "unified overload_factor=1.3"
    assert grid("smoke", policies=["unified"], settings=["overload_factor=1.3"]).policies == changed.policies


@pytest.mark.parametrize(
    ("policies", "settings", "named"),
    [
        ((), ["trace.sesions=3"], "sesions"),
        ((), ["trace.sessions=many"], "sessions"),
        ((), ["overload"], "overload"),
        (("unified", "lmetric"), ["factor=2"], "factor"),
        (("unified",), ["instances=0"], "instances"),
        (("unified",), ["decode_kv_cache_memory_bytes=0"], "decode_kv_cache_memory_bytes"),
        (("unified",), ["replay.time_scale=0"], "time_scale"),
        (("unified",), ["replay.think=slowly"], "think"),
        (("unified", "unified"), [], "same label"),
        (("static_pd",), ["static_pd.prefill_instances=most"], "prefill_instances"),
        (("unified",), ["engine.scheduling=random"], "scheduling"),
        (("unified",), ["router.index=events", "simulation.step_noise=0.0"], "simulated engines send no KV events"),
        # rules for moving KV
        (("unified",), ["router.transfer.timeout=3"], "timeout"),
        (("unified",), ["router.transfer.leg_priority=-1"], "leg_priority is now called priority"),
        (("unified",), ["router.transfer.timeout_s=0"], "timeout_s"),
        (("unified",), ["router.transfer.attempts=0"], "attempts"),
        (("unified",), ["router.transfer.attempts=many"], "attempts"),
        (("unified",), ["router.transfer.quarantine_s=9", "router.transfer.quarantine_max_s=5"], "quarantine_max_s"),
        (("unified",), ["router.transfer.priority=-1", "engine.scheduling=fcfs"], "priority"),
        (("unified",), ["router.kv_bytes_per_token=0"], "kv_bytes_per_token"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(policies: tuple[str, ...], settings: list[str], named: str) -> None:
    with pytest.raises(RunnerError, match=named):
        grid("smoke", policies=policies, settings=settings)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", policies=("unifed",)), "unifed"),
        (
            RunOptions(EXPERIMENT, "cpu-tiny", "smoke", policies=("unified",), settings=("unified.overlod_factor=2",)),
            "overlod",
        ),
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", trace="no-such-file.jsonl"), "no-such-file"),
        (RunOptions(EXPERIMENT, "cpu-tiny", "smoke", ("plain", "nixl_both")), "one config"),
        (RunOptions("connector-tax", "cpu-tiny", "smoke", policies=("unified",)), "routes nothing"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(options: RunOptions, named: str) -> None:
    with pytest.raises(RunnerError, match=named):
        prepare(options)


def test_pools_are_in_the_label_and_in_the_roles() -> None:
    pools = PolicyChoice("static_pd", prefill_instances=4)
    of = Grid((pools,), 8, 1.0, 1.0)
    assert of.label(pools) == "static_pd 4P+4D"
    assert of.roles(pools) == ("prefill",) * 4 + ("decode",) * 4
    assert of.roles(PolicyChoice("lmetric")) == ("both",) * 8


def test_a_policy_that_needs_pools_gets_them() -> None:
    chosen = grid("smoke", policies=["static_pd"], settings=["instances=4"])
    assert chosen.label(chosen.policies[0]) == "static_pd 2P+2D"
    pooled = grid("smoke", policies=["static_pd"], settings=["instances=8", "static_pd.prefill_instances=6"])
    assert pooled.label(pooled.policies[0]) == "static_pd 6P+2D"
    with pytest.raises(RunnerError, match="needs 2 instances"):
        grid("smoke", policies=["static_pd"], settings=["instances=1"])


@given(st.text(min_size=1, max_size=40))
def test_a_label_is_safe_in_a_file_name(label: str) -> None:
    assert not set(make_slug(label)) & set("/\\ :*?\"'<>|\0")


def test_a_plan_can_be_made_again_from_what_it_holds(tmp_path: Path) -> None:
    own = tmp_path / "mine.py"
    own.write_text(POLICY_OF_ONES_OWN)
    options = RunOptions(
        EXPERIMENT,
        "cpu-tiny",
        "smoke",
        seed=9,
        trials=2,
        port=19999,
        policies=("lmetric", str(own)),
        settings=("trace.sessions=3", f"{own}.bias=0.5"),
    )
    plan = prepare(options).plan
    assert {cell.label for cell in replays(plan.cells)} == {"lmetric", "mine bias=0.5"}
    assert prepare(rebuild_options(plan)).plan.fingerprint == plan.fingerprint
    own.write_text(POLICY_OF_ONES_OWN + "\n# changed\n")
    assert prepare(rebuild_options(plan)).plan.fingerprint != plan.fingerprint


def test_the_presets_engines_are_the_runs_engines() -> None:
    of = grid("smoke")
    settings = make_counting_profile(CPU, of.engine).engine
    assert settings.block_size == of.engine.block_size == 32
    assert settings.kv_cache_memory_bytes == of.engine.kv_cache_memory_bytes
    plan = prepare(RunOptions(EXPERIMENT, "cpu-tiny", "smoke")).plan
    assert plan.inputs["profile"]["engine"]["block_size"] == 32


def test_arrival_rates_are_swept_as_arms_of_one_run() -> None:
    arm = {"name": "ear", "label": "EAR", "sweep": {"time_scale": [0.02, 0.01], "cooldown_s": [1.0]}}
    of = of_arms([arm | {"parameters": {"hot_tokens": 100}}, "unified"])
    cells = {cell.label: cell for cell in replays(cells_of(of))}
    assert {label: cell.params["time_scale"] for label, cell in cells.items()} == {
        "EAR time_scale=0.02 cooldown_s=1": 0.02,
        "EAR time_scale=0.01 cooldown_s=1": 0.01,
        "unified": 0.01,
    }
    assert cells["EAR time_scale=0.02 cooldown_s=1"].params["parameters"] == {"hot_tokens": 100, "cooldown_s": 1.0}
    slow, fast = (cells[f"EAR time_scale={scale} cooldown_s=1"].estimated_s for scale in ("0.02", "0.01"))
    assert slow - fast == pytest.approx(of.expected_replay_s)
    with pytest.raises(RunnerError, match="a policy's own"):
        of_arms(["unified"], ["unified.time_scale=0"])


def test_traces_and_kv_caches_are_swept_as_arms_of_one_run() -> None:
    arm = {"name": "sticky", "sweep": {"trace": ["flat"], "kv_cache_memory_bytes": [1024]}}
    tables = {
        "one": {
            "policies": [arm, "sticky"], "instances": 2, "expected_replay_s": 1.0, "engine_start_s": 1.0,
            "trace": {"sessions": 4, "seed": 7, "statistics": {"span_s": 9.0}},
            "traces": {"flat": {"statistics": {"top_shares": [[0.5, 0.6]]}}},
        }
    }  # fmt: skip
    of = read_grid(tables, "p", "one", settings=["trace.sessions=5"])
    flat = of.further_traces["flat"]
    assert (flat.sessions, flat.seed) == (5, 7), "what it does not state is the run's"
    assert flat.statistics == {"span_s": 9.0, "top_shares": [[0.5, 0.6]]}
    cells = {cell.label: cell.params for cell in replays(cells_of(of))}
    own = cells["sticky kv_cache_memory_bytes=1024 trace=flat"]
    assert (own["trace"], own["kv_cache_memory_bytes"]) == ("flat", 1024)
    assert {"trace", "kv_cache_memory_bytes"}.isdisjoint(cells["sticky"]), "plans of older runs have neither"
    assert "traces" not in msgspec.to_builtins(grid())
    tables["one"]["policies"] = [arm | {"sweep": {"trace": ["steep"]}}]
    with pytest.raises(RunnerError, match="replays steep"):
        read_grid(tables, "p", "one")


@pytest.mark.parametrize("profile", ["cpu-tiny", "h20-qwen3-coder-30b", "h200-qwen3-coder-30b-dummy"])
def test_the_traces_of_every_preset_can_be_generated(profile: str) -> None:
    presets = load_profile(profile).experiments[EXPERIMENT]
    for name in presets:
        of = read_grid(presets, profile, name)
        for choice in (of.trace, *of.further_traces.values()):
            open_synthetic(choice.sessions, choice.seed, choice.statistics)


def test_traces_of_another_skew_have_as_many_tokens() -> None:
    of = grid("skew-and-pool")
    tokens = []
    for choice in (of.trace, *of.further_traces.values()):
        trace = synthesize_trace(choice.sessions, choice.seed, choice.statistics)
        tokens.append(sum(turn.input_tokens for session in trace.sessions for turn in session.turns))
    assert max(tokens) < 1.15 * min(tokens), "else skew and load could not be told apart"


def test_what_knowing_the_output_is_worth_is_an_arm() -> None:
    of = of_arms(["static_pd", {"name": "static_pd", "reserved_output": "max_tokens"}])
    reserved = {cell.label: cell.params["reserved_output"] for cell in replays(cells_of(of))}
    assert reserved == {"static_pd 1P+1D": 0, "static_pd 1P+1D reserved_output=max_tokens": "max_tokens"}
    assert any("which no router knows" in line for line in note_transfer_rules(of))
    assert of_arms(["static_pd"], ["static_pd.reserved_output=20"]).policies[0].reserved_output == 20
    with pytest.raises(RunnerError, match="reserved_output"):
        of_arms(["static_pd"], ["static_pd.reserved_output=-1"])


@pytest.mark.parametrize("name", ["cpu-tiny", "h20-qwen3-coder-30b"])
def test_the_baselines_stand_beside_unified_and_least_work_and_loads_are_swept_without_a_limit(name: str) -> None:
    presets = load_profile(name).experiments[EXPERIMENT]
    baselines = read_grid(presets, name, "baselines")
    assert {"unified", "leastwork", "round_robin", "lmetric", "kv_linear", "sticky", "static_pd", "ear"} <= {
        policy.name for policy in baselines.policies
    }
    steady = read_grid(presets, name, "steady")
    assert steady.replay.max_inflight_sessions == 0
    assert len({steady.time_scale(policy) for policy in steady.policies}) == 3
    for limit in (64, 128):
        assert read_grid(presets, name, f"inflight-{limit}").replay.max_inflight_sessions == limit
    loads = read_grid(presets, name, "skew-and-pool")
    for policy in ("sticky", "static_pd", "ear"):
        own = [one for one in loads.policies if one.name == policy]
        assert {one.trace for one in own} == {UNSET, "less-skew", "more-skew"}
        assert len({one.kv_cache_memory_bytes for one in own}) == 3


def test_presets_for_eight_gpus_have_the_specifications_sessions_and_hold_none_back() -> None:
    name = "h20-qwen3-coder-30b"
    presets = load_profile(name).experiments[EXPERIMENT]
    grids = {preset: read_grid(presets, name, preset) for preset in presets}
    real, fleet = grids["baselines"], grids["fleet"]
    assert (real.trace.sessions, real.replay.time_scale, real.replay.max_inflight_sessions) == (2700, 3.0, 0)
    assert fleet.trace == real.trace
    assert (fleet.replay.time_scale, fleet.replay.max_inflight_sessions) == (6.0, 0)
    for preset in ("full", "sensitivity", "steady", "skew-and-pool"):
        assert (grids[preset].trace, grids[preset].replay) == (real.trace, real.replay), preset
    traces = grids["skew-and-pool"].further_traces
    assert {trace: choice.sessions for trace, choice in traces.items()} == {"less-skew": 1350, "more-skew": 3510}
    floor = grids["load-floor"]
    assert (floor.trace.sessions, floor.replay.time_scale, floor.replay.max_inflight_sessions) == (50, 1.0, 0)
    for limit in (64, 128):
        limited = grids[f"inflight-{limit}"]
        assert (limited.trace, limited.replay.max_inflight_sessions) == (real.trace, limit)


def test_a_run_planned_with_older_names_resumes_as_it_was() -> None:
    options = RunOptions(EXPERIMENT, "cpu-tiny", "smoke", settings=("router.transfer.priority=-2",))
    plan = prepare(options).plan
    text = encode(RunPlanned("r", plan, "0")).decode()
    old = text.replace('"priority":-2', '"leg_priority":-2').replace("transfer.priority=", "transfer.leg_priority=")
    assert old.count("leg_priority") == 2 + len(replays(plan.cells)), "grid, setting, and each cell"
    stored = decode("run_planned", old)
    assert isinstance(stored, RunPlanned)
    assert find_changes(stored.plan, prepare(rebuild_options(stored.plan)).plan) == ""
    assert {cell.params["transfer"]["priority"] for cell in replays(stored.plan.cells)} == {-2}
