"""Names on a drawing: which cover each other, and in which color each is led to what it names."""

from __future__ import annotations

from itertools import combinations

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Drawing
from matplotlib.text import Annotation

from results.report.direct_labels import measure, settle_labels


def overlaps(drawing: Drawing) -> list[tuple[str, str]]:
    """Of the sheet as it is saved: every two texts in or beside its panels whose letters overlap."""
    settle_labels(drawing)
    drawing.draw_without_rendering()
    texts = [text for axes in drawing.axes for text in axes.texts if text.get_text() and text.get_visible()]
    return [
        (one.get_text(), other.get_text())
        for one, other in combinations(texts, 2)
        if measure(one).overlaps(measure(other))
    ]


def leader_colors(axes: Axes) -> dict[str, str]:
    """The color of the leader to each name."""
    named = [text for text in axes.texts if isinstance(text, Annotation)]
    return {text.get_text(): to_hex(text.arrow_patch.get_edgecolor()) for text in named if text.arrow_patch}
