"""The files of a run: every figure with its numbers or a reason, a page that stands alone, words that promise no more
than the intervals."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from results.records.estimate import Estimate
from results.report.output import draw
from results.report.terms import begin_sentence
from results.routing.analyze import RoutingAnalysis, analyze
from results.routing.cautions import find_stalls, list_cautions
from results.routing.figures import DRAWERS, build_figures
from results.routing.report import describe_opening, describe_verdict, list_limits
from results.routing.shown import name_units
from results.routing.summary import summarize_loaded_cell
from results.routing.write import build_pair_rows, write_results
from tests.results.routing.synthetic import Truth, World, loaded, report_text, write_cell, write_interference, write_run
from tests.results.undrawn import nothing_drawn

WORLD = World(sessions=24, turns=5, gap_s=0.5)
POLICIES = (
    Truth("round_robin", ttft_s=0.30, slope_s=0.01, hit_share=0.6),
    Truth("sticky", ttft_s=0.25, slope_s=0.01, hot=3.0, failed=frozenset({7})),
    Truth("unified", ttft_s=0.15, slope_s=0.01, hit_share=0.97),
)
EAR = {"hot_tokens": 1000, "cooldown_s": 10.0}
MOVING = (
    Truth("EAR", "ear", parameters=EAR, moves=2),
    Truth("EAR (affinity only)", "ear", hot=3.0, parameters={**EAR, "migration": False}),
    Truth("EAR hot_tokens=50", "ear", parameters={**EAR, "hot_tokens": 50}, moves=3),
    Truth("plain", "kv_aware"),
    Truth("floor", "kv_aware", parameters={"load_floor_bonus": 200}),
)


@pytest.fixture(scope="module")
@nothing_drawn()
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "20260131-120000-routing-cpu-tiny"
    write_run(root, WORLD, POLICIES, planned=("lmetric <b>&",))
    write_interference(root, {256: 1.4, 1024: 3.0, 4096: 9.0})
    write_results(root)
    return root


@pytest.fixture(scope="module")
def analysis(root: Path) -> RoutingAnalysis:
    return analyze(root)


def test_the_numbers_beside_are_those_of_the_analysis(root: Path, analysis: RoutingAnalysis) -> None:
    grid = pd.read_csv(root / "figures" / "figure_6_full.csv").set_index(["label", "series", "statistic"])
    for label in analysis.labels:
        found = analysis.value(label, "ttft_p90_s")
        assert grid.loc[(label, "ttft_s", "p90"), "value"] == pytest.approx(found.value)
        assert grid.loc[(label, "ttft_s", "p90"), "low"] == pytest.approx(found.low)
    apc = pd.read_csv(root / "figures" / "figure_4a.csv").set_index("label")
    assert (apc["value"] <= apc["bound_any"]).all()
    amplification = pd.read_csv(root / "figures" / "figure_1.csv").set_index("label")["value"]
    assert amplification["unified"] == pytest.approx(analysis.value("unified", "amplification").value)


def test_a_policy_that_never_ran_is_in_the_manifest_and_a_gap(root: Path, analysis: RoutingAnalysis) -> None:
    rows = pd.read_csv(root / "MANIFEST.tsv", sep="\t", dtype=str, keep_default_na=False).set_index("label")
    assert rows.loc["lmetric <b>&", "status"] == "not run"
    ran = [rows.loc["unified", name] for name in ("status", "trials_done", "trials_planned", "git_commit")]
    assert ran == ["ran", "3", "3", "abc1234"]
    assert "not measured" in {gap.reason for gap in analysis.gaps}


def test_the_pairs_hold_every_metric_of_every_two(root: Path, analysis: RoutingAnalysis) -> None:
    found = json.loads((root / "pairs.json").read_text())
    flat = pd.read_csv(root / "pairs.csv")
    assert len(found["pairs"]) == len(flat) == 3 * len(analysis.values["unified"])
    ours = flat[(flat["first"] == "unified") & (flat["second"] == "round_robin") & (flat["metric"] == "ttft_p50_s")]
    assert ours["verdict"].tolist() == ["lower"]
    assert ours["ratio_high"].item() < 1
    assert ours[["trials_higher", "trials_lower"]].values.tolist() == [[0, 3]]
    assert flat[flat["metric"] == "apc"]["ratio"].isna().all()  # a share is judged by its difference
    assert ours["basis"].tolist() == ["over 3 trials"]


def test_the_verdict_names_a_winner_that_is_distinguishable_from_all_others(analysis: RoutingAnalysis) -> None:
    text = describe_verdict(analysis)
    assert text.startswith("Distinguishably better than every other policy: unified on")
    assert "TTFT p50" in text.split("Undecided")[0]
    assert "TPOT p90" in text.split("Undecided")[1]
    assert re.search(r"Distinguishable: \d+ of \d+ comparisons with the best", text)


def test_no_winner_is_named_where_there_is_none(analysis: RoutingAnalysis) -> None:
    level = [replace(row, behind=(), level=(*row.behind, *row.level)) for row in analysis.standings]
    text = describe_verdict(replace(analysis, standings=tuple(level)))
    assert text.startswith("No policy is distinguishably better than all others on any headline metric")
    assert "not distinguishable from 2 of 2 others" in text


@pytest.mark.parametrize(("trials", "said"), [(1, "One launch per policy: two"), (2, "2 launches per policy: two")])
def test_too_few_trials_are_reported_first_and_no_policy_wins(tmp_path: Path, trials: int, said: str) -> None:
    analysis = analyze(write_run(tmp_path, replace(WORLD, trials=trials), POLICIES))
    text = report_text(analysis)
    assert said in text.split(". ")[0]
    assert said in describe_verdict(analysis)
    for word in ("istinguishably", "Holm", "winner", "Who wins"):
        assert word not in text, word
    assert text.index("## Read this first") < text.index("## Best values") < text.index("## End to end")
    assert any("not what varies between launches" in line for line in list_limits(analysis))
    assert build_pair_rows(analysis)["verdict"].isna().all()


def test_a_policy_with_fewer_trials_than_the_others_is_named_and_not_judged(tmp_path: Path) -> None:
    late = replace(POLICIES[2], degraded={0: "the client was late"})
    analysis = analyze(write_run(tmp_path, WORLD, (*POLICIES[:2], late)))
    assert not any("unified" in (*row.behind, *row.level) for row in analysis.standings)
    assert re.search(r"\| unified \| fewer than 3 trials that count", report_text(analysis))
    selected = list_cautions(replace(analysis, selected={"unified": "a replay ended early; let it end"}))
    few = "fewer than 3 trials that count: it is compared with no other policy"
    assert dict(selected)["unified"] == f"{few}; a replay ended early; let it end", "with the remedy"


def test_a_policy_whose_slow_trials_do_not_count_is_named_and_not_judged(tmp_path: Path) -> None:
    """Otherwise it would be judged by its faster trials."""
    slow = replace(POLICIES[2], early=frozenset({0}))
    analysis = analyze(write_run(tmp_path, replace(WORLD, trials=4), (*POLICIES[:2], slow)))
    assert not any("unified" in (row.best, *row.behind, *row.level) for row in analysis.standings)
    text = report_text(analysis)
    why = "in 1 of 4 trials of unified the replay ended early"
    assert f"| unified | it is compared with no other policy: {why}" in text
    assert "A policy with one whose replay ended early, or with several" in text


def test_a_cell_that_stalled_is_named_first() -> None:
    world = replace(WORLD, sessions=8, trials=3)
    cells = [summarize_loaded_cell(loaded(world, truth, trial)) for truth in POLICIES for trial in range(3)]
    assert find_stalls(cells) == ()
    slow = replace(POLICIES[1], ttft_s=20 * POLICIES[1].ttft_s)
    cells[5] = summarize_loaded_cell(loaded(world, slow, 2))
    (one,) = find_stalls(cells)
    assert (one.label, one.trial, one.cell) == ("sticky", 2, "trials/sticky/t2")
    assert one.others_s == tuple(cells[place].estimate("ttft_p90_s").value for place in (3, 4))
    assert find_stalls([cells[0], replace(cells[5], degraded="late"), cells[3]]) == ()


def test_the_report_names_the_stalled_cell_before_any_number(tmp_path: Path) -> None:
    write_run(tmp_path, WORLD, POLICIES[:2])
    shutil.rmtree(tmp_path / "results" / "20260131_sticky" / "trial_1")
    write_cell(tmp_path, WORLD, replace(POLICIES[1], ttft_s=10 * POLICIES[1].ttft_s), 1)
    text = report_text(analyze(tmp_path))
    assert "Stalled, see `Read this first`: sticky in trial 1." in text.split("\n## ")[0]
    assert re.search(r"## Read this first\n.*\| sticky, trial 1 \| stalled: TTFT p90 \d+ ms", text, re.S)


def test_an_interval_that_was_cut_at_zero_says_so(analysis: RoutingAnalysis) -> None:
    wide = Estimate(0.5, 0.0, 2.0, 3, basis="over 3 trials")
    values = {**analysis.values, "unified": {**analysis.values["unified"], "ttft_p90_s": wide}}
    assert "A lower bound of 0 is cut there" in report_text(replace(analysis, values=values))
    assert "is cut there" not in report_text(analysis)


def test_the_load_floors_variants_are_set_against_the_one_without_a_fix(tmp_path: Path) -> None:
    policies = (
        Truth("A: cold", "kv_aware", parameters={"cold_bonus": 200}),
        Truth("overlap first", "kv_aware"),
        Truth("B: floor", "kv_aware", parameters={"load_floor_bonus": 200}),
    )
    analysis = analyze(write_run(tmp_path, WORLD, policies))
    assert analysis.labels == ("overlap first", "A: cold", "B: floor")
    assert analysis.baseline == "overlap first"
    assert "## Against overlap first, as ratios" in report_text(analysis)


def test_a_cpu_build_and_failures_are_stated(analysis: RoutingAnalysis) -> None:
    said = " ".join(list_limits(analysis))
    assert "say nothing about a GPU" in said
    assert "Some turns failed" in said
    assert "1 failed" in report_text(analysis)
    assert "3 policies, 3 trials" in describe_opening(analysis)


def test_captions_state_the_trials_the_unit_and_what_the_bars_are(analysis: RoutingAnalysis, tmp_path: Path) -> None:
    captions = {figure.name: figure.caption for figure in build_figures(analysis)}
    for name in ("1", "4a", "4c", "6", "6_full", "8"):
        assert "Trials per policy: 3, a launch each." in captions[name], name
    for part in ("TTFT in ms", "E2E in s", "Bars: 95 % intervals between trials (over 3 trials)"):
        assert part in captions["6"]
    assert captions["1"].startswith(f"{begin_sentence('replay amplification')}: at 1 ")
    assert "ITL in ms" in captions["4d"]
    assert "95 % spread within the launch (over " in captions["4d"]
    one_trial = analyze(write_run(tmp_path, replace(WORLD, trials=1), POLICIES))
    once = {figure.name: figure.caption for figure in build_figures(one_trial)}["6"]
    assert "Bars: 95 % spread within the launch (sessions resampled, 1 trial). " in once
    assert "Trials per policy: 1, a launch each." in once
    assert name_units(("apc", "ttft_p50_s", "ttft_p90_s")) == "In %: APC; in ms: TTFT p50, TTFT p90. "


def test_one_policy_in_one_trial_can_be_drawn(tmp_path: Path) -> None:
    write_run(tmp_path, replace(WORLD, trials=1, sessions=3, turns=2), POLICIES[:1])
    found = {figure.name: figure for figure in build_figures(analyze(tmp_path))}
    for name in ("4c", "8"):
        assert draw(found[name], DRAWERS)["png"]


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_run(tmp_path_factory.mktemp("moving") / "20260131-120000-routing-cpu-tiny", WORLD, MOVING)
    write_results(root)
    return root


def test_figures_of_migration_hold_the_numbers_of_the_analysis(moving: Path) -> None:
    analysis = analyze(moving)
    ablation = pd.read_csv(moving / "figures" / "figure_7.csv").set_index(["variant", "metric"])
    assert ablation.loc[("EAR (affinity only)", "apc"), "value"] == pytest.approx(
        analysis.value("EAR (affinity only)", "apc").value
    )
    grid = pd.read_csv(moving / "figures" / "figure_9.csv")
    assert sorted(grid[grid["metric"] == "trigger_rate"]["value"]) == pytest.approx([1 / 5, 1 / 5])
    assert set(grid["metric"]) == {"ttft_p90_s", "trigger_rate", "accuracy", "thrash_rate"}
    assert set(zip(grid["hot_tokens"], grid["cooldown_s"], strict=True)) == {(50, 10), (1000, 10)}
    time = pd.read_csv(moving / "figures" / "figure_10.csv")
    arrows = time[time["kind"] == "arrow"]
    assert arrows.groupby("label").size().to_dict() == {"EAR": 24, "EAR hot_tokens=50": 24}
    assert set(arrows["outcome"]) == {"transferred"}
    heat = time[(time["kind"] == "heat") & time["pending_tokens"].notna()]
    assert heat["pending_tokens"].max() == 3000
    assert (heat["hot"] == (heat["pending_tokens"] > heat["hot_tokens"])).all()
    assert heat.groupby("label")["hot_tokens"].unique().map(list).to_dict() == {
        "EAR": [1000],
        "EAR hot_tokens=50": [50],
    }


def test_the_report_has_the_specifications_rows_and_says_what_was_not_run(root: Path, moving: Path) -> None:
    text = (root / "report.md").read_text()
    assert "## Schedulers of specs/ear, 5.2" in text
    assert re.search(r"\| static PD-disagg \|( - \|)+ not in this run \|", text)
    assert "## Ablation of EAR" not in text  # not one of its rows was run
    text = (moving / "report.md").read_text()
    assert "## Schedulers of specs/ear, 5.2" not in text  # only EAR was
    assert re.search(r"\| EAR \|.*\| EAR \(also run: EAR hot_tokens=50\) \|", text)
    assert re.search(r"\| EAR \(migration only\) \|( - \|)+ not in this run \|", text)
    assert re.search(r"\| plain \|.*\| the policy does not migrate \|", text)
    assert re.search(r"\| EAR \(affinity only\) \|.*\| migration is switched off \|", text)
    for title in (
        "Migrations",
        "KV transfers",
        "A transfer against recomputing, as fitted",
        "Load floor: the decision points",
    ):
        assert f"## {title}" in text


def test_the_arm_that_computes_again_is_set_against_its_policy_and_is_no_setting_of_it(tmp_path: Path) -> None:
    arms = [
        Truth(label, "ear", parameters=EAR, moves=2, router={"moves_kv": moves})
        for label, moves in (("EAR", True), ("EAR, KV not moved", False))
    ]
    analysis = analyze(write_run(tmp_path, WORLD, arms))
    assert (analysis.paper[-1].label, analysis.paper[-1].others) == ("EAR", ())
    assert analysis.settings == ()
    found = {row.label: row.arm for row in analysis.moves.recomputing}
    assert found["EAR, KV not moved"] is None
    arm = found["EAR"]
    assert arm is not None
    assert (arm.other, arm.migrated, arm.other_migrated) == ("EAR, KV not moved", 3 * 24, 3 * 24)
    text = report_text(analysis)
    assert "## Moving KV against computing it again" in text
    assert "against EAR, KV not moved" in text


def test_the_effect_of_knowing_the_output_length_is_a_row(tmp_path: Path) -> None:
    arms = [
        Truth(label, "ear", parameters=EAR, moves=2, router={"moves_kv": True, "reserved_output": reserved})
        for label, reserved in (("EAR", 0), ("EAR, output known", "max_tokens"), ("EAR, 500", 500))
    ]
    analysis = analyze(write_run(tmp_path, WORLD, arms))
    assert analysis.knowing == {"EAR, output known": "EAR"}
    text = report_text(analysis)
    assert "## Effect of knowing the output length" in text
    assert re.search(r"\| EAR, output known \| EAR \| [0-9.]+ \[", text)


def test_verdicts_hold_the_claims_and_the_decision_points(moving: Path) -> None:
    found = json.loads((moving / "verdicts.json").read_text())
    judged = {row["name"]: row["outcome"] for row in found["claims"]}
    assert judged["no thrashing"] == "holds"
    (thrashing,) = (row for row in found["claims"] if "thrashing" in row["name"])
    assert set(thrashing["numbers"]) == {"EAR", "EAR hot_tokens=50"}, "one claim over both arms that migrate"
    assert judged["ablation: migration only loses locality"] == "open"
    points = ["D1", "D2", "D3", "D4", "D5", "D6", "D7", "Q1", "Q1.D", "Q1.E"]
    assert [row["name"] for row in found["load_floor"]] == points
    locality = next(row for row in found["claims"] if row["name"] == "ablation: affinity only keeps locality")
    assert "(specified: 77.2 % (sticky) and 79.4 %)" in locality["point"]
    assert "| by the point |" in (moving / "report.md").read_text()
    said = json.loads((moving / "aggregate.json").read_text())
    by_cell = {(row["label"], row["trial"]): row for row in said["migrations_by_cell"]}
    assert by_cell["EAR", 0]["trigger_rate"]["value"] == pytest.approx(1 / 5)
    assert by_cell["EAR (affinity only)", 2]["asked"] == 0


def test_the_logs_order_of_policies_is_judged_for_the_labels_that_were_run(tmp_path: Path) -> None:
    truths = [Truth("mine", "lmetric", hit_share=0.8), Truth("by load", "load_only", hit_share=0.2)]
    claims = {one.name: one for one in analyze(write_run(tmp_path, WORLD, truths)).claims}
    assert claims["log: LMetric has soft affinity"].point.startswith("holds: +")
    assert claims["log: LMetric before load_only"].label == "not testable at this scale"
    assert not [name for name in claims if "unified" in name or "sticky" in name]


def test_a_split_of_static_pools_is_judged_under_its_own_name(tmp_path: Path) -> None:
    """Of 1P+3D and 2P+2D the even one is the specification's; alone, 1P+3D does not stand for it."""
    world = World(sessions=4, turns=2, instances=4, trials=1)
    balanced, even = Truth("load-balance", "round_robin"), Truth("two", "static_pd", prefill=2)
    uneven = Truth("one", "static_pd", prefill=1)
    walls = {}
    for name, truths in (("both", [balanced, even, uneven]), ("alone", [balanced, uneven])):
        analysis = analyze(write_run(tmp_path / name, world, truths))
        walls[name] = [one.name for one in analysis.claims if one.name.startswith("3.2")]
    wall = "3.2: static pools meet the KV wall"
    assert walls == {"both": [wall, f"{wall}, 1P+3D"], "alone": [f"{wall}, 1P+3D"]}


def test_a_decision_log_that_is_damaged_is_a_gap_and_no_crash(moving: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(moving, tmp_path / moving.name))
    (root / "results" / "20260131_EAR" / "trial_1" / "decisions.jsonl").write_bytes(b"{")
    analysis = analyze(root)
    assert [gap.artifact for gap in analysis.gaps] == ["results/20260131_EAR/trial_1/decisions.jsonl"]
    assert next(row for row in analysis.moves.migrations if row.label == "EAR").trials == 2
