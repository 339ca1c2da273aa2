"""Every figure is there with its numbers, or says why not; the same run draws the same bytes, in gray too."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from results.connector_tax.analyze import Analysis, analyze
from results.connector_tax.configs import BASELINE, CONFIG_PENS, CONFIGS, REPEAT
from results.connector_tax.draw import DRAWERS
from results.connector_tax.figures import build_figures
from results.connector_tax.write import write_results
from results.records.layout import RunLayout
from results.report.figure import Figure
from results.report.ink import pens
from results.report.output import draw, write_figures
from results.report.terms import begin_sentence, term
from tests.results.connector_tax.synthetic import (
    DATE,
    Behavior,
    Cell,
    Load,
    Run,
    write_cell,
    write_measured_run,
    write_run,
)
from tests.results.overlaps import overlaps
from tests.results.undrawn import nothing_drawn

MOONCAKE = Behavior(0.29, 0.0125, 4.0, engine_step_us=1700, callbacks_us=(1.7, 152.0, 3.1))
RUN = Run(
    configs={
        "plain": Behavior(),
        "noop_connector": Behavior(0.21, 0.0102, engine_step_us=1520, callbacks_us=(1.0, 2.0, 1.0)),
        "mooncake_both": MOONCAKE,
        "lmcache_only": Behavior(0.25, 0.0112, engine_step_us=1600, callbacks_us=(5.0, 30.0, 12.0)),
        "multi_mooncake_lmcache": Behavior(0.36, 0.0140, 4.0, engine_step_us=1850, callbacks_us=(8.0, 190.0, 15.0)),
    },
    rates_per_s=(1, 2, 4),
    shapes=((512, 64), (4096, 64)),
    ref_safe_per_s=2.0,
    skipped={"nixl_both": "verify_nixl_both: no such module"},
    requests=120,
    steps=300,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "20260131-120000-connector-tax-cpu-tiny"
    return write_measured_run(root, RUN).root


@pytest.fixture(scope="module")
def analysis(original: Path) -> Analysis:
    return analyze(original)


@pytest.fixture(scope="module")
def drawn(original: Path, analysis: Analysis) -> dict[int, Figure]:
    return {figure.number: figure for figure in build_figures(analysis, original)}


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / original.name))


def _figure(root: Path, number: int) -> Figure:
    return _find_figure(analyze(root), root, number)


def _find_figure(analysis: Analysis, root: Path, number: int) -> Figure:
    return {figure.number: figure for figure in build_figures(analysis, root)}[number]


def test_no_image_names_a_day_or_a_version(drawn: dict[int, Figure]) -> None:
    for image in draw(drawn[4], DRAWERS).values():
        assert b"dc:date" not in image
        assert b"atplotlib version" not in image


def test_a_saturated_point_names_its_criteria(drawn: dict[int, Figure]) -> None:
    table = drawn[1].table.set_index(["config", "rate_per_s"])
    assert table.loc[("mooncake_both", 4.0), "criteria_fired"] == "1,2,3"
    assert table.loc[("plain", 4.0), "criteria_fired"] == ""
    knees = drawn[3].table.drop_duplicates("config").set_index("config")["saturation_rate_per_s"]
    assert knees["mooncake_both"] == 4.0
    assert np.isnan(knees["plain"])


def test_the_distribution_of_steps_is_one(drawn: dict[int, Figure]) -> None:
    for _, rows in drawn[6].table.groupby(["config", "series"]):
        assert rows["share"].is_monotonic_increasing
        assert rows["time_us"].is_monotonic_increasing
        assert (rows["share"].iloc[0], rows["share"].iloc[-1]) == (0.0, 1.0)
    middle = drawn[6].table.query("series == 'engine_step_us' and share == 0.5").set_index("config")["time_us"]
    assert middle["plain"] == pytest.approx(1500, rel=0.02)
    assert middle["mooncake_both"] == pytest.approx(1700, rel=0.02)


def test_captions_say_what_is_drawn(drawn: dict[int, Figure], root: Path) -> None:
    """The lower panel of figure 3 is not what criterion 1 judges; figure 6 is one launch, of the steps of this run."""
    assert "criterion 1 judges the cohort ratio instead" in drawn[3].caption
    assert drawn[3].caption.startswith(f"{begin_sentence('effective throughput')}, against the requested rate, ")
    assert all(term(f"{part} cost").meaning in drawn[7].caption for part in ("framework", "implementation"))
    assert "so that two lines differ also by what two launches do" in drawn[6].caption
    assert "Left: schedule entry to the end of update_from_output" in drawn[6].caption
    plain = Cell("plain", Behavior(), Load(2.0, requests=120), steps=300, step_timing={"batch_queue": True})
    write_cell(RunLayout(root).config(DATE, "plain"), plain)
    write_cell(RunLayout(root).config(DATE, "plain"), replace(plain, load=Load(2.0, requests=120, trial=1)))
    overlapping = _figure(root, 6)
    assert "Left: from the end of a step to the end of the next one, because steps overlap" in overlapping.caption
    assert "launches per config together" in overlapping.caption
    assert "period_us" in set(overlapping.table["series"])


def test_the_parts_of_a_tax_make_the_whole(drawn: dict[int, Figure]) -> None:
    parts = drawn[7].table
    assert set(parts["metric"]) == {"tax_ttft_p90", "tax_tpot_p90", "tax_engine_step_p50_us"}
    assert (parts["framework"] + parts["connector"]).tolist() == pytest.approx(parts["tax"].tolist())
    stack = drawn[8].table.set_index(["metric", "config"])["tax"]
    for metric in ("tax_ttft_p90", "tax_tpot_p90"):
        two = stack[metric, "mooncake_both"] + stack[metric, "lmcache_only"]
        assert stack[metric, "mooncake_both + lmcache_only"] == pytest.approx(two)


def test_a_config_that_did_not_run_is_named_in_the_captions(drawn: dict[int, Figure]) -> None:
    for number in (1, 2, 3, 4, 5, 6, 7):
        assert "nixl_both (SKIP: verify_nixl_both: no such module)" in drawn[number].caption


def test_captions_state_the_launches_the_unit_and_what_the_bars_are(drawn: dict[int, Figure]) -> None:
    for number in (1, 2, 3, 4, 5, 6, 7):
        assert "1 launch per config" in drawn[number].caption, number
    assert "TTFT p90 in ms" in drawn[1].caption
    assert "Bars span the 95 % spread within the launch (1 launch per config)" in drawn[4].caption


def test_without_step_timing_only_the_figure_of_steps_is_missing(tmp_path: Path) -> None:
    write_run(tmp_path, replace(RUN, steps=0))
    found = build_figures(analyze(tmp_path), tmp_path)
    missing = {figure.number: figure.missing for figure in found if figure.missing}
    assert missing == {6: "no step timing at 2 req/s: no probe"}
    assert "no step timing" in found[6].caption
    assert set(found[6].table["metric"]) == {"tax_ttft_p90", "tax_tpot_p90"}


@pytest.mark.parametrize(("config", "number"), [("noop_connector", 7), ("lmcache_only", 8)])
@nothing_drawn()
def test_a_figure_that_lacks_its_config_says_so(tmp_path: Path, config: str, number: int) -> None:
    configs = {name: truth for name, truth in RUN.configs.items() if name != config}
    write_run(tmp_path, replace(RUN, configs=configs, skipped={config: "it did not load"}))
    figure = _find_figure(write_results(tmp_path), tmp_path, number)
    assert config in figure.missing
    for report in ("report.md", "report.html"):
        assert f"Figure {number}." in (tmp_path / report).read_text()
    with pytest.raises(ValueError, match="cannot be drawn"):
        draw(figure, DRAWERS)


def test_what_can_no_longer_be_drawn_does_not_stay(tmp_path: Path, drawn: dict[int, Figure]) -> None:
    write_figures([drawn[4]], tmp_path, DRAWERS)
    assert (tmp_path / "figure_4.svg").exists()
    assert write_figures([Figure(4, "gone", missing="for a reason")], tmp_path, DRAWERS) == {}
    assert list(tmp_path.iterdir()) == []


def test_several_trials_give_one_point_with_their_range(tmp_path: Path) -> None:
    configs = {name: RUN.configs[name] for name in ("plain", "mooncake_both")}
    write_run(tmp_path, replace(RUN, configs=configs, shapes=(), skipped={}, trials=3))
    several = {figure.number: figure for figure in build_figures(analyze(tmp_path), tmp_path)}
    table = several[1].table
    assert len(table) == 6
    assert set(table["trials"]) == {3}
    assert (table["ttft_p90_s_low"] < table["ttft_p90_s_high"]).all()
    assert "range of the trials, line through their mean; 3 launches per config." in several[1].caption
    assert "Bars span the 95 % interval between launches (3 launches per config)" in several[4].caption
    draw(several[1], DRAWERS)


def test_a_degraded_cell_is_drawn_and_marked(root: Path) -> None:
    layout = RunLayout(root).config(DATE, "plain")
    write_cell(layout, Cell("plain", Behavior(), Load(4.0, requests=120), degraded="client used 0.97 of a core"))
    figure = _figure(root, 1)
    marked = figure.table[figure.table["degraded"] != ""]
    assert marked[["config", "rate_per_s"]].to_numpy().tolist() == [["plain", 4.0]]
    assert marked["saturated"].tolist() == [None]
    draw(figure, DRAWERS)


def test_a_config_whose_highest_rate_is_degraded_is_not_drawn_as_saturating_above_the_grid(root: Path) -> None:
    layout = RunLayout(root).config(DATE, "plain")
    write_cell(layout, Cell("plain", Behavior(), Load(4.0, requests=120), degraded="client used 0.97 of a core"))
    (note,) = (
        text.get_text()
        for axes in DRAWERS[3](_figure(root, 3)).axes
        for text in axes.texts
        if "knee" in text.get_text()
    )
    assert " not known\n    plain" in note
    assert " above the grid\n    noop_connector" in note


@pytest.mark.parametrize("number", [3, 6])
def test_lines_are_named_where_they_are_and_not_in_a_legend(drawn: dict[int, Figure], number: int) -> None:
    drawing = DRAWERS[number](drawn[number])
    assert [axes.get_legend() for axes in drawing.axes] == [None] * len(drawing.axes)
    assert overlaps(drawing) == []
    configs = set(drawn[number].table["config"])
    named = [{text.get_text() for text in axes.texts} for axes in drawing.axes]
    assert named[0] == configs | ({"y = x"} if number == 3 else set())
    assert number == 3 or named[1] == configs


def test_configs_are_told_apart_without_color() -> None:
    made = pens([*CONFIGS, "mine"], CONFIG_PENS)
    known = [made[config] for config in CONFIGS]
    assert len({pen.marker for pen in known}) == len(CONFIGS)
    assert "mine" in made
    assert pens(["nixl_both"], CONFIG_PENS)["nixl_both"] == made["nixl_both"]
    again = pens([*CONFIGS, REPEAT], CONFIG_PENS)
    assert again[REPEAT].color == again[BASELINE].color
    assert again[REPEAT].marker not in {again[config].marker for config in CONFIGS}


def test_a_negative_tax_and_one_that_dwarfs_the_rest_can_be_drawn(tmp_path: Path) -> None:
    configs = {
        "plain": Behavior(),
        "noop_connector": Behavior(0.15, 0.008),
        "mooncake_both": Behavior(20.0, 0.5),
        "lmcache_only": Behavior(0.21),
        "multi_mooncake_lmcache": Behavior(0.18),
    }
    write_run(tmp_path, replace(RUN, configs=configs))
    for figure in build_figures(analyze(tmp_path), tmp_path):
        if not figure.missing:
            assert draw(figure, DRAWERS)["png"]


def test_images_are_large_enough_to_print(drawn: dict[int, Figure]) -> None:
    from PIL import Image

    image = Image.open(io.BytesIO(draw(drawn[2], DRAWERS)["png"]))
    assert min(image.size) > 500
