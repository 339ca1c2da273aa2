"""Names beside what they name: readable, in the order of what they name, none over another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure as Drawing

from results.report.direct_labels import LABEL_SIZE, Named, label_lines, label_marks, move_apart, settle_labels
from results.report.ink import PENS, READABLE, compute_contrast_with_white, darken, sheet
from tests.results.overlaps import overlaps


def panel(width: float = 5, height: float = 3) -> tuple[Drawing, Axes]:
    drawing = sheet(width, height)
    axes = drawing.subplots()
    axes.set_ylim(0, 1)
    return drawing, axes


def line_ends(count: int) -> list[Named]:
    return [Named(1.0, 0.5 + 0.001 * number, f"line {number}", "#000000") for number in range(count)]


@pytest.mark.property
@given(st.lists(st.tuples(st.floats(-0.5, 1.5), st.floats(0.01, 0.2)), min_size=1, max_size=12))
def test_what_is_moved_apart_keeps_its_order_and_stays_inside_where_there_is_room(
    drawn: list[tuple[float, float]],
) -> None:
    wanted, sizes = np.array(drawn).T
    middles = move_apart(wanted, sizes)
    order = np.argsort(wanted, kind="stable")
    low, high = (middles - sizes / 2)[order], (middles + sizes / 2)[order]
    assert (low[1:] >= high[:-1] - 1e-9).all()
    if sizes.sum() <= 1:
        assert low[0] >= -1e-9
        assert high[-1] <= 1 + 1e-9


def test_only_what_overlaps_is_moved_and_to_both_sides() -> None:
    moved = move_apart(np.array([0.5, 0.9, 0.5, 0.1]), np.full(4, 0.1))
    assert moved == pytest.approx([0.45, 0.9, 0.55, 0.1])


@pytest.mark.parametrize("count", [2, 6, 14, 30])
def test_names_at_the_ends_of_lines_do_not_overlap(count: int) -> None:
    drawing, axes = panel()
    label_lines(axes, line_ends(count))
    drawing.draw_without_rendering()
    assert len({text.get_position() for text in axes.texts}) == 1, "they are moved by the sheet's final size only"
    assert overlaps(drawing) == []
    ups = [text.get_position()[1] for text in axes.texts]
    assert ups == sorted(ups)
    assert 0 <= ups[0] < ups[-1] <= 1
    (size,) = {float(text.get_fontsize()) for text in axes.texts}
    assert size == LABEL_SIZE if count <= 14 else size < LABEL_SIZE


def test_a_smaller_sheet_has_its_names_apart_too() -> None:
    drawing, axes = panel(8, 5)
    label_lines(axes, line_ends(10))
    settle_labels(drawing)
    drawing.set_size_inches(5, 2.8)
    assert overlaps(drawing) == []


def test_names_over_marks_do_not_overlap() -> None:
    drawing, axes = panel()
    axes.set_xlim(0, 1)
    label_marks(axes, [Named(0.8, 0.9, "bound, any session", "#000000"), Named(0.79, 0.9, "bound, own", "#56b4e9")])
    assert overlaps(drawing) == []
    first, second = axes.texts
    assert first.get_position()[0] > second.get_position()[0]


def test_a_mark_is_beside_its_name() -> None:
    drawing, axes = panel()
    label_lines(axes, [Named(1.0, 0.4, "a", "#000000", "o"), Named(1.0, 0.41, "b", "#0072b2", r"$\mathrm{12}$")])
    settle_labels(drawing)
    marks = {line.get_color(): line for line in axes.lines}
    for text, color in zip(axes.texts, ("#000000", "#0072b2"), strict=True):
        mark = marks[color]
        across, up = text.get_position()
        assert float(np.asarray(mark.get_ydata())[0]) == up
        assert 1.0 < float(np.asarray(mark.get_xdata())[0]) < across


def test_every_pen_has_letters_that_can_be_read() -> None:
    for pen in PENS:
        red, green, blue = to_rgb(darken(pen.color))
        assert compute_contrast_with_white((red, green, blue)) >= READABLE
    assert darken("#0072b2") == "#0072b2"
    assert darken("#56b4e9") != "#56b4e9"
