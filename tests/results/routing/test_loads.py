"""A run with several loads: policies are compared under one of them only, and figure 9b shows all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from results.report.page import Page
from results.report.policy_pens import POLICY_PENS
from results.routing.analyze import RoutingAnalysis, analyze
from results.routing.compare import build_comparable
from results.routing.experiment import RESULTS
from results.routing.load_figures import COUPLING, collect_coupling, draw_coupling
from results.routing.loads import AS_PRESET, strip_load
from results.routing.sensitivity_figures import LOADS, OVER_EAR, draw_loads
from tests.results.routing.synthetic import Truth, World, report_text, write_run

WORLD = World(sessions=20, turns=4)
EAR = {"hot_tokens": 100, "cooldown_s": 5.0}
FAST, SLOW = 0.1, 0.3
MIB = 1 << 20


@pytest.fixture(scope="module")
def by_rate(tmp_path_factory: pytest.TempPathFactory) -> RoutingAnalysis:
    """The policy that is better at one rate is worse at the other."""
    truths = [
        Truth(f"{name} time_scale={scale}", policy, ttft_s, parameters=parameters, time_scale=scale)
        for name, policy, parameters, times in (
            ("sticky", "sticky", {}, (FAST, SLOW)),
            ("EAR", "ear", EAR, (SLOW, FAST)),
        )
        for scale, ttft_s in zip((0.02, 0.01), times, strict=True)
    ]
    return analyze(write_run(tmp_path_factory.mktemp("rates"), WORLD, truths))


@pytest.fixture(scope="module")
def by_trace(tmp_path_factory: pytest.TempPathFactory) -> RoutingAnalysis:
    truths = [
        Truth("sticky", ttft_s=SLOW),
        Truth("EAR", "ear", FAST, parameters=EAR),
        Truth("sticky trace=more-skew", "sticky", SLOW, trace="more-skew"),
        Truth("EAR trace=more-skew", "ear", FAST, parameters=EAR, trace="more-skew"),
        Truth("sticky kv_cache_memory_bytes=16777216", "sticky", SLOW, kv_cache_memory_bytes=16 * MIB),
    ]
    return analyze(write_run(tmp_path_factory.mktemp("traces"), WORLD, truths))


def test_only_policies_under_one_load_are_compared(by_rate: RoutingAnalysis) -> None:
    assert [load.text for load in by_rate.loads] == ["time_scale 0.01", "time_scale 0.02"]
    compared = {frozenset((pair.first, pair.second)) for pair in by_rate.pairs}
    assert compared == {frozenset((f"sticky time_scale={scale}", f"EAR time_scale={scale}")) for scale in (0.02, 0.01)}
    best = {row.load: row.best for row in by_rate.standings if row.metric == "ttft_p50_s"}
    assert best == {"time_scale 0.01": "EAR time_scale=0.01", "time_scale 0.02": "sticky time_scale=0.02"}


def test_figure_8_has_a_curve_and_points_per_load(by_rate: RoutingAnalysis) -> None:
    assert [curve.label for curve in by_rate.curves] == ["EAR time_scale=0.01", "sticky time_scale=0.02"]
    figure = collect_coupling(by_rate)
    assert not isinstance(figure, str)
    kinds = figure.table.groupby("load")["kind"].agg(set)
    assert list(kinds.index) == ["time_scale 0.01", "time_scale 0.02"]
    assert all({"cell", "kinematic"} <= own for own in kinds)
    assert "a curve per load" in figure.caption


def test_figure_8_names_each_policy_once_under_all_its_loads(by_rate: RoutingAnalysis) -> None:
    figure = COUPLING.build(by_rate)
    left, right = draw_coupling(figure).axes
    assert [text.get_text() for text in right.texts] == ["sticky", "EAR"]
    cells = Counter[str]()
    for line in left.lines:
        cells[str(line.get_marker())] += np.size(line.get_xdata())
    trials = figure.table[figure.table["kind"] == "cell"].groupby("load").size()
    assert [cells[POLICY_PENS[policy].marker] for policy in ("sticky", "ear")] == [trials.sum() // 2] * 2


def test_the_page_names_the_best_of_each_load(by_rate: RoutingAnalysis) -> None:
    assert RESULTS.page is not None
    page: Page = RESULTS.page(by_rate)
    names = [one.name for one in page.sentences if one.name.startswith("Best policy")]
    assert sorted(names) == ["Best policy (time_scale 0.01)", "Best policy (time_scale 0.02)"]
    texts = {one.name: one.text for one in page.sentences}
    assert "TTFT p50: EAR time_scale=0.01" in texts["Best policy (time_scale 0.01)"]
    assert "TTFT p50: sticky time_scale=0.02" in texts["Best policy (time_scale 0.02)"]
    assert "tell two policies apart that differ by 10 %" in page.noise


def test_tables_set_each_policy_against_the_baseline_of_its_load(by_rate: RoutingAnalysis) -> None:
    text = report_text(by_rate)
    assert "Against sticky under the same load, as ratios" in text
    ours = [one for one in build_comparable(by_rate).measures if one.table == "Ratios to the baseline"]
    assert {(one.key["policy"], one.key["against"]) for one in ours} == {
        (f"EAR time_scale={scale}", f"sticky time_scale={scale}") for scale in (0.02, 0.01)
    }


def test_further_traces_and_kv_caches_are_loads_and_no_gap(by_trace: RoutingAnalysis) -> None:
    assert [load.text for load in by_trace.loads] == [AS_PRESET, "KV cache 16 MiB", "trace more-skew"]
    assert not [gap for gap in by_trace.gaps if "another trace" in gap.reason]
    assert by_trace.trace.get("name", "") == "", "the run's own trace is the run's"
    assert len(by_trace.trace_digests) == 2


def test_figure_9b_has_every_policy_under_every_load_and_its_distance_to_ear(by_trace: RoutingAnalysis) -> None:
    figure = LOADS.build(by_trace)
    assert not figure.missing
    table = figure.table
    own = table[table["metric"] == OVER_EAR].set_index("load")["value"]
    assert set(own.index) == {AS_PRESET, "trace more-skew"}, "under the small cache EAR was not run"
    assert own.tolist() == pytest.approx([SLOW / FAST] * 2, rel=0.2)
    assert "1 % of the sessions have 5 % (as the preset)" in figure.caption
    assert "Slower and faster: distinguishable after Holm's correction over these 2 ratios." in figure.caption
    assert table[table["metric"] == OVER_EAR]["verdict"].tolist() == ["slower", "slower"]
    assert set(table[table["metric"] != OVER_EAR]["verdict"]) == {""}
    panels = draw_loads(figure).axes
    assert sum("slower" in text.get_text() for axes in panels for text in axes.texts) == 2
    assert panels[0].get_yticklabels()[0].get_text() == "sticky"
    assert len(panels[0].get_xticklabels()) == 3


def test_one_load_has_no_figure_9b_and_says_what_has(tmp_path: Path) -> None:
    figure = LOADS.build(analyze(write_run(tmp_path, WORLD, [Truth("sticky"), Truth("unified")])))
    assert "skew-and-pool" in figure.missing


def test_a_label_without_its_load_is_the_policys() -> None:
    assert strip_load("EAR time_scale=0.02 cooldown_s=1") == "EAR cooldown_s=1"
    assert strip_load("static PD-disagg 1P+1D trace=more-skew") == "static PD-disagg 1P+1D"
