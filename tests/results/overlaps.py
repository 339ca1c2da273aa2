"""Names on a drawing that cover each other."""

from __future__ import annotations

from itertools import combinations

from matplotlib.figure import Figure as Drawing

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
