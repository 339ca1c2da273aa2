"""The Routing panel: instances as the router sees them, what it decided and why, and what is wrong."""

from __future__ import annotations

from textual.containers import Horizontal

from console.feed import Picture
from console.rows import routing as rows
from console.widgets.lines import Lines
from console.widgets.panels import Look, Panel
from console.widgets.table import Table
from state.routing import RoutingView

BESIDE = 110
"""Columns from which reasons stand beside the decisions, else on a line above them."""
REASONS = 40
"""Columns of the reasons beside the decisions."""
LOADS_LEAST = 7
"""Lines the instances get before decisions get any."""
DECISIONS_LEAST = 4
"""Lines under which decisions are not shown."""
DECISIONS_KEPT = 7
"""Lines that stay for decisions where there are many instances."""


class RoutingPanel(Panel):
    """The router of the cell that runs, or ran last."""

    TITLE = "7 Routing"

    def __init__(self, look: Look, *, id: str) -> None:
        self._head = Lines(id="routing-head")
        self._warnings = Lines(id="routing-warnings")
        self.loads = Table()
        self._reason_line = Lines(id="routing-reason-line")
        self._decisions = Table(empty="no decision yet")
        self._reasons = Table(empty="no decision yet", id="routing-reasons")
        self._reasons.can_focus = False
        self._lower = Horizontal(self._decisions, self._reasons, id="routing-lower")
        super().__init__(look, self._head, self._warnings, self.loads, self._reason_line, self._lower, id=id)

    @property
    def table(self) -> Table:
        return self._decisions

    def focus_content(self) -> None:
        self.screen.set_focus(self._decisions if self._lower.display else self.loads)

    def show(self, picture: Picture) -> None:
        routing = picture.view.routing
        width, height = self.content_region.size
        self.loads.display = routing is not None
        if routing is None or not width:
            self._head.say(((rows.nothing(picture), "dim"),))
            self._warnings.display = self._reason_line.display = self._lower.display = False
            return
        warnings = rows.warnings(picture, routing, self.look.glyphs)
        self._head.say(rows.head(picture, routing))
        self._warnings.say(*warnings)
        self._warnings.display = bool(warnings)
        self._divide(height - 1 - len(warnings), len(routing.latest.instances) + 2, width >= BESIDE)
        columns = rows.load_columns(width - 1, rows.timed(picture, routing))
        self.loads.show(columns, rows.load_rows(picture, routing, self.look.glyphs, columns))
        self._reason_line.say(rows.reason_line(routing))
        if self._lower.display:
            self._show_decisions(picture, routing, width)

    def _divide(self, room: int, wanted: int, beside: bool) -> None:
        """Give the instances their lines, and what is left to reasons and decisions."""
        lines = min(wanted, max(room - DECISIONS_KEPT, min(room, LOADS_LEAST)))
        left = room - lines
        decisions = left - (0 if beside else 1) >= DECISIONS_LEAST
        ours = self.has_focus_within
        self._lower.display = decisions
        self._reasons.display = beside
        self._reason_line.display = left > 0 and not (beside and decisions)
        self.loads.styles.height = lines if decisions else "1fr"
        if ours and not self._lower.display:
            self.focus_content()

    def _show_decisions(self, picture: Picture, routing: RoutingView, width: int) -> None:
        columns = rows.decision_columns(width - 1 - (REASONS if self._reasons.display else 0))
        self._decisions.show(columns, rows.decision_rows(picture, routing, columns))
        self._reasons.show(rows.REASON_COLUMNS, rows.reason_rows(routing, self.look.glyphs))
        if self.look.follow:
            self._decisions.go_to_end()
