"""The Lifecycle panel: the latest requests as a waterfall of phases, bandwidth, and what taking them apart costs."""

from __future__ import annotations

from collections.abc import Mapping

from textual import on
from textual.containers import Horizontal, Vertical

from console.feed import Picture
from console.rows import lifecycle as rows
from console.widgets.lines import Lines
from console.widgets.panels import Look, Panel
from console.widgets.rate_plot import RatePlot
from console.widgets.results import SectionBar
from console.widgets.table import Table
from state.lifecycle import LifecycleView, MeasuredRequest

SECTIONS: Mapping[str, str] = {"requests": "Requests", "bandwidth": "Bandwidth", "overhead": "Overhead"}
TOGETHER = (100, 26)
"""Columns and lines from which all three are seen at once."""
LEGEND_LEAST = 12
"""Lines under which the legend is left out."""
LOWER = 12
"""Lines of bandwidth and overhead beneath the waterfall."""


class LifecyclePanel(Panel):
    """The requests of a lifecycle run."""

    TITLE = "9 Lifecycle"

    def __init__(self, look: Look, *, id: str) -> None:
        self._bar = SectionBar()
        self._head = Lines(id="lifecycle-head")
        self._legend = Lines(id="lifecycle-legend")
        self._requests = Table(empty="no request has been taken apart yet")
        self._plot = RatePlot(empty="no write is measured yet")
        self._note = Lines(id="lifecycle-note")
        self.overheads = Table(empty="")
        self._cost = Vertical(self._note, self.overheads)
        self._lower = Horizontal(self._plot, self._cost, id="lifecycle-lower")
        super().__init__(look, self._bar, self._head, self._legend, self._requests, self._lower, id=id)
        self.section = "requests"
        self._view: LifecycleView | None = None

    @property
    def table(self) -> Table:
        return self.overheads if self.section == "overhead" and not self._together else self._requests

    @property
    def _together(self) -> bool:
        width, height = self.content_region.size
        return width >= TOGETHER[0] and height >= TOGETHER[1]

    def focus_content(self) -> None:
        self.screen.set_focus(None if self.section == "bandwidth" and not self._together else self.table)

    def step(self, by: int) -> None:
        """Open the section so many further."""
        names = list(SECTIONS)
        self.section = names[(names.index(self.section) + by) % len(names)]

    @on(SectionBar.Picked)
    def picked(self, event: SectionBar.Picked) -> None:
        event.stop()
        self.section = event.section
        self._draw()
        self.focus_content()

    def request(self, key: str) -> MeasuredRequest | None:
        """The request of a row; None where it is no longer kept."""
        return None if self._view is None else dict(rows.keyed(self._view.requests)).get(key)

    def show(self, picture: Picture) -> None:
        self._view = picture.view.lifecycle
        if self._view is None:
            self._head.say(((rows.nothing(picture), "dim"),))
        else:
            self._head.say(rows.head(picture, self._view))
        self._draw()

    def _draw(self) -> None:
        width, height = self.content_region.size
        view, together = self._view, self._together
        waterfall = together or self.section == "requests"
        self._bar.display = view is not None and not together and height >= LEGEND_LEAST
        self._legend.display = view is not None and waterfall and height >= LEGEND_LEAST
        self._requests.display = view is not None and waterfall
        self._lower.display = view is not None and (together or self.section != "requests")
        self._plot.display = together or self.section == "bandwidth"
        self._cost.display = together or self.section == "overhead"
        self._lower.styles.height = LOWER if together else "1fr"
        if view is None or not width:
            return
        self._bar.show(self.section, SECTIONS)
        if waterfall:
            self._show_requests(view, width)
        if self._plot.display:
            self._plot.marker = self.look.marker
            self._plot.show_curves(rows.bandwidth_curve(view), "Gbit/s over MB moved")
        if self._cost.display:
            room = width // 2 if together else width
            columns = rows.overhead_columns(view, room - 1)
            self._note.say(((rows.overhead_note(view), "dim"),))
            self.overheads.show(columns, rows.overhead_rows(view, columns))

    def _show_requests(self, view: LifecycleView, width: int) -> None:
        requests = rows.latest(view)
        self._legend.say(*rows.legend(requests, self.look.marker, width))
        columns = rows.columns(width - 1)
        made = rows.rows(requests, columns, width - 1, self.look.glyphs, self.look.marker)
        self._requests.show(columns, made)
        if self.look.follow:
            self._requests.go_to_end()
