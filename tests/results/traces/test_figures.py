"""f2a to f2c come with their numbers, are distinguishable in gray, or give the reason why they are missing."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from results.report.output import draw
from results.traces.figures import DRAWERS, build_figures, write_trace_figures
from tests.results.overlaps import overlaps
from tests.results.traces.made import count, described

STEMS = ["figure_2a", "figure_2b", "figure_2c"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    figures_folder = tmp_path_factory.mktemp("figures")
    write_trace_figures(described(), figures_folder)
    return figures_folder


def test_each_figure_has_its_images_and_its_numbers(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        f"{stem}.{form}" for stem in STEMS for form in ("png", "svg", "csv")
    }
    for stem in STEMS:
        assert (folder / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert ElementTree.parse(folder / f"{stem}.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_numbers_beside_are_those_of_the_specification(folder: Path) -> None:
    reuse = pd.read_csv(folder / "figure_2a.csv").set_index("what")["share"]
    assert reuse.to_dict() == pytest.approx(
        {
            "any session": 0.803,
            "same session": 0.796,
            "intra-session": 0.932,
            "cross-session": 0.057,
            "shared prefix": 0.011,
        }
    )
    capacity = pd.read_csv(folder / "figure_2c.csv").pivot_table("concurrent_decodes", "percentile", "deployment")
    assert capacity.loc[99].to_dict() == {"Combined 8C": 24, "4P+4D": 12, "6P+2D": 6}
    assert capacity.loc[50].to_dict() == {"Combined 8C": 160, "4P+4D": 80, "6P+2D": 40}
    skew = pd.read_csv(folder / "figure_2b.csv")
    assert skew[skew["mark"] == "top"]["top_share"].tolist() == [0.01, 0.05, 0.1, 0.25, 0.5]
    assert skew[skew["mark"] == "curve"]["input_share"].is_monotonic_increasing


def test_the_same_numbers_give_the_same_bytes(folder: Path) -> None:
    for form, image in draw(build_figures(described())[2], DRAWERS).items():
        assert (folder / f"figure_2c.{form}").read_bytes() == image


def test_bars_are_distinguishable_in_gray(folder: Path) -> None:
    from PIL import Image

    for stem in ("figure_2a", "figure_2c"):
        image = Image.open(io.BytesIO((folder / f"{stem}.png").read_bytes()))
        assert min(image.size) > 400
        colored = np.asarray(image.convert("RGB"), dtype=np.int64)
        assert (colored.max(axis=2) - colored.min(axis=2)).max() == 0  # fill and hatch say it all: there is no color


def test_without_sessions_skew_is_missing_and_reuse_shows_what_there_is(tmp_path: Path) -> None:
    (tmp_path / "figure_2b.png").write_bytes(b"of another trace")
    drawn = write_trace_figures(described(counted=count(has_sessions=False)), tmp_path)
    assert {figure.label: figure.missing for figure in drawn if figure.missing} == {"2b": "the source has no sessions"}
    assert not list(tmp_path.glob("figure_2b.*"))
    assert "the source has no sessions" in drawn[0].caption
    assert pd.read_csv(tmp_path / "figure_2a.csv")["share"].notna().tolist() == [True, False, False, False, False]


def test_an_estimate_is_drawn_with_its_error() -> None:
    figure = build_figures(described(counted=count(error=1000.0)))[0]
    assert figure.table["standard_error"].notna().sum() == 4
    assert draw(figure, DRAWERS)["svg"]


@pytest.mark.parametrize("number", range(3))
def test_the_name_of_a_file_is_no_formula(number: int) -> None:
    figure = replace(build_figures(described())[number], title=r"Reuse of prefixes: $\frac$.jsonl")
    assert draw(figure, DRAWERS)["svg"]


def test_without_hashes_reuse_is_missing() -> None:
    figure = build_figures(described(counted=count(has_hashes=False)))[0]
    assert figure.missing == "the source has no block hashes"
    with pytest.raises(ValueError, match="cannot be drawn"):
        draw(figure, DRAWERS)


def test_what_is_drawn_is_named_beside_it() -> None:
    drawn = [DRAWERS[figure.number](figure) for figure in build_figures(described())]
    assert [axes.get_legend() for drawing in drawn for axes in drawing.axes] == [None] * 4
    _, skew, capacity = drawn
    assert overlaps(capacity) == []
    assert skew.axes[0].texts[-1].get_text() == "all sessions alike"
    assert [text.get_text() for text in capacity.axes[0].texts[-3:]] == ["Combined 8C", "4P+4D", "6P+2D"]


def test_one_thing_has_one_look_wherever_it_is_drawn() -> None:
    reuse, _, capacity = build_figures(described())
    bounds, split = DRAWERS[reuse.number](reuse).axes
    (_, same_session), (intra_session, *_) = bounds.patches, split.patches
    assert same_session.get_facecolor() == intra_session.get_facecolor()
    assert same_session.get_hatch() == intra_session.get_hatch()
    looks = []
    for table in (capacity.table, capacity.table.iloc[::-1]):
        (axes,) = DRAWERS[capacity.number](replace(capacity, table=table)).axes
        bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
        looks.append({bar.get_width(): (bar.get_facecolor(), bar.get_hatch()) for bar in bars})
    assert looks[0] == looks[1], "a deployment is known by its name, not by its place"
