"""Names beside the lines, points and marks that they name, moved apart where they would overlap."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from results.report.ink import darken
from results.statistics.estimates import Samples

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

LABEL_SIZE = 8
"""Points."""
LEAST_SIZE = 4
"""Points of names of which there are too many for the panel's height."""
_LINE_HEIGHT = 1.35
"""Line height as a multiple of the letters' size."""
_WORD_GAP = 8
"""Points between two names side by side."""
_MARK_WIDTH = 16
"""Points, with the room around it."""
_BESIDE, _ABOVE = "named beside the panel", "named above the panel"
"""Begin the labels of matplotlib's artists that `settle_labels` moves; a name and its mark have the same one."""
_BESIDE_AT, _ABOVE_AT = 1.02, 1.01
"""Across and up, in fractions of the panel."""
_LEADER: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}


class Named(NamedTuple):
    """A position in a panel, in its data's units, and what is there."""

    x: float
    y: float
    name: str
    color: str
    marker: str = ""
    """Drawn before the name too; empty = none."""


def label_lines(axes: Axes, ends: Iterable[Named]) -> None:
    """Names to the right of the panel at the ends of their lines, or beside points in it.

    `settle_labels` moves them apart. A zero, which a logarithmic axis cannot show, has no leader: its leader would be
    endless and take all room from the panel.
    """
    from matplotlib.lines import Line2D

    for number, (x, y, name, color, marker) in enumerate(ends):
        look: dict[str, Any] = {"va": "center", "fontsize": LABEL_SIZE, "color": darken(color)}
        if axes.get_yscale() == "log" and y <= 0:
            text = axes.text(_BESIDE_AT, 0, name, transform=axes.transAxes, **look)
        else:
            arrow = _LEADER | {"color": color, "relpos": (0, 0.5), "shrinkA": _MARK_WIDTH if marker else 0}
            text = axes.annotate(name, (x, y), xytext=(_BESIDE_AT, 0.5), textcoords="axes fraction",
                                 annotation_clip=False, arrowprops=arrow, **look)  # fmt: skip
        text.set_label(f"{_BESIDE} {number}")
        if marker:
            mark = Line2D([], [], marker=marker, clip_on=False, transform=axes.transAxes, **choose_marker_look(marker))
            mark.set(label=text.get_label(), color=color, in_layout=False)  # it is to the left of its name
            axes.add_artist(mark)


def choose_marker_look(marker: str) -> dict[str, Any]:
    """Hollow; but letters and numbers, which cannot be read then, are filled."""
    if marker.startswith("$"):
        return {"markersize": 5 + 3 * len(marker.strip("$}").rpartition("{")[2]), "markeredgewidth": 0.3}
    return {"markersize": 6, "markerfacecolor": "white", "markeredgewidth": 1.4}


def label_marks(axes: Axes, marks: Iterable[Named]) -> None:
    """Names above the panel, each over a mark in one of its rows; `settle_labels` moves them apart."""
    for x, y, name, color, _ in marks:
        arrow = _LEADER | {"color": color, "relpos": (0.5, 0)}
        text = axes.annotate(name, (x, y), xytext=(0.5, _ABOVE_AT), textcoords="axes fraction", ha="center",
                             va="bottom", fontsize=LABEL_SIZE, color=darken(color), arrowprops=arrow,
                             annotation_clip=False)  # fmt: skip
        text.set_label(_ABOVE)


def settle_labels(drawing: Drawing) -> None:
    """Move the names apart on the sheet as it is now. Call it before the drawing is saved, after any change of its
    size: only then are the panels' sizes known."""
    if not any(str(text.get_label()).startswith((_BESIDE, _ABOVE)) for axes in drawing.axes for text in axes.texts):
        return
    drawing.draw_without_rendering()
    for axes in drawing.axes:
        _settle_beside(axes, drawing.dpi)
        _settle_above(axes, drawing.dpi)


def _settle_beside(axes: Axes, dots_per_inch: float) -> None:
    texts = [text for text in axes.texts if str(text.get_label()).startswith(_BESIDE)]
    if not texts:
        return
    panel = axes.get_window_extent()
    width, height = (length / dots_per_inch * 72 for length in (panel.width, panel.height))
    size = min(LABEL_SIZE, max(height / _LINE_HEIGHT / len(texts), LEAST_SIZE))
    wanted = np.clip([_find_anchor(axes, text)[1] for text in texts], 0, 1)
    ups = move_apart(wanted, np.full(len(texts), _LINE_HEIGHT * size / height))
    marks = {mark.get_label(): mark for mark in axes.lines}
    for text, up in zip(texts, ups.tolist(), strict=True):
        mark = marks.get(text.get_label())
        text.set_fontsize(size)
        text.set_position((_BESIDE_AT + (_MARK_WIDTH / width if mark else 0), up))
        if mark:
            mark.set(xdata=[_BESIDE_AT + 0.45 * _MARK_WIDTH / width], ydata=[up])


def _settle_above(axes: Axes, dots_per_inch: float) -> None:
    texts = [text for text in axes.texts if text.get_label() == _ABOVE]
    if not texts:
        return
    width = axes.get_window_extent().width
    gap = _WORD_GAP / 72 * dots_per_inch
    widths = np.array([(measure(text).width + gap) / width for text in texts])
    wanted = np.array([_find_anchor(axes, text)[0] for text in texts])
    for text, across in zip(texts, move_apart(wanted, widths).tolist(), strict=True):
        text.set_position((across, _ABOVE_AT))


def measure(text: Text) -> Bbox:
    """The letters' extent on the sheet, in dots, without a leader."""
    from matplotlib.text import Text

    return Text.get_window_extent(text)


def _find_anchor(axes: Axes, text: Text) -> Samples:
    """What the text names, in fractions of the panel."""
    at = getattr(text, "xy", None)
    if at is None:  # a zero on a logarithmic axis
        return np.zeros(2)
    return np.asarray(axes.transAxes.inverted().transform(axes.transData.transform(at)), dtype=np.float64)


def move_apart(wanted: Samples, sizes: Samples) -> Samples:
    """Middles of intervals of these sizes that do not overlap, as near the wanted ones as possible (least squares), in
    their order.

    They are inside 0 to 1 where that has room for all, else centered on it.
    """
    order = np.argsort(wanted, kind="stable")
    ordered = sizes[order]
    offsets = np.cumsum(ordered) - ordered / 2  # of the middles, if all were side by side from 0
    low, high = 0.0, 1.0 - float(ordered.sum())
    starts = np.clip(_fit_rising(wanted[order] - offsets), low, high) if low <= high else np.full(len(order), high / 2)
    middles = np.empty(len(order))
    middles[order] = starts + offsets
    return middles


def _fit_rising(values: Samples) -> Samples:
    """The nearest values that never fall, by pooling neighbors."""
    pools: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, count = float(value), 1
        while pools and pools[-1][0] > mean:
            before, more = pools.pop()
            mean, count = (before * more + mean * count) / (more + count), more + count
        pools.append((mean, count))
    return np.concatenate([np.full(count, mean) for mean, count in pools])
