"""The marks of figures: nothing clipped, nothing flattened, no color for two things."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from results.report.ink import PENS, pens, sheet
from results.report.marks import SATURATED, Bars, draw_bars, draw_dots, draw_grid, scale_time_axis, set_apart


def bars(*rows: tuple[float | None, float | None, float | None, bool]) -> Bars:
    table = pd.DataFrame(rows, columns=["value", "low", "high", "saturated"], dtype=object)
    return Bars(table, ["#0072b2"] * len(rows), "ref_load")


def test_the_first_stays_where_it_was_measured_and_the_others_on_both_sides() -> None:
    apart = set_apart(["plain", "noop_connector", "mooncake_both", "nixl_both"])
    assert apart["plain"] == 1.0
    assert len(set(apart.values())) == 4
    assert apart["noop_connector"] > 1 > apart["mooncake_both"]


def test_a_saturated_bar_is_hatched_and_cut_with_its_numbers_so_that_the_others_are_seen() -> None:
    axes = sheet(5, 3).subplots()
    draw_bars(axes, [bars((0.2, 0.1, 0.3, False), (0.3, 0.25, 0.4, False), (9.0, 7.0, 11.0, True))])
    assert axes.get_xlim()[1] < 1
    hatched = [patch for patch in axes.patches if patch.get_hatch() == SATURATED]
    assert len(hatched) == 1
    assert "+900 % [+700, +1100] ▸" in [text.get_text() for text in axes.texts]


def test_one_sound_bar_that_dwarfs_the_others_is_cut_too_and_a_missing_one_says_so() -> None:
    axes = sheet(5, 3).subplots()
    sound = (0.1, 0.0, 0.2, False), (0.2, 0.1, 0.3, False)
    draw_bars(axes, [bars(*sound, (40.0, 39.0, 41.0, False), (None, None, None, False))])
    assert axes.get_xlim()[1] < 3
    words = [text.get_text() for text in axes.texts]
    assert "+4000 % [+3900, +4100] ▸" in words
    assert "not measured" in words


def test_bars_around_zero_are_seen_whole_with_their_intervals() -> None:
    axes = sheet(5, 3).subplots()
    draw_bars(axes, [bars((-0.3, -0.6, 0.1, False), (0.5, 0.4, 0.7, False))])
    left, right = axes.get_xlim()
    assert left < -0.6
    assert right > 0.7


@pytest.mark.parametrize("values", [(69.0, 75.0, 80.0), (0.0, 0.0, 5.0)])
def test_no_dot_is_clipped_at_the_edge(values: tuple[float, ...]) -> None:
    rows = pd.DataFrame({"value": values, "low": values, "high": values})
    axes = sheet(5, 2).subplots()
    draw_dots(axes, rows, 1.0)
    scale_time_axis(axes, rows, 1.0)
    assert axes.get_xlim()[1] > max(values)
    (dots,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert not dots.get_clip_on()


def test_no_color_stands_for_two_things() -> None:
    twelve = pens(f"policy {number}" for number in range(12))
    assert {pen.marker for pen in twelve.values()} == {rf"$\mathrm{{{letter}}}$" for letter in "ABCDEFGHIJKL"}
    few = pens(["mine", "theirs", "own"], {"own": PENS[0]})
    assert few["own"] == PENS[0]
    assert len({pen.color for pen in few.values()}) == 3


def test_a_diverging_grid_is_white_at_zero_and_marks_what_is_saturated() -> None:
    axes = sheet(4, 3).subplots()
    values = np.array([[0.0, 0.5], [-0.5, 6.9]])
    saturated = np.array([[0.0, 0.0], [0.0, 1.0]])
    image = draw_grid(axes, values, {(0, 0): "0"}, (["1", "2"], ["3", "4"]), reach=0.5, hatched=saturated)
    assert image.get_clim() == (-0.5, 0.5)
    assert [patch.get_hatch() for patch in axes.patches] == [SATURATED]
    middle = image.cmap(0.5)
    assert min(middle[:3]) > 0.9
