"""The Migrations panel: pending prefill of the instances over time, arrows where sessions moved, every migration."""

from __future__ import annotations

from console.feed import Picture
from console.rows import migrations as rows
from console.rows import routing
from console.widgets.lines import Lines
from console.widgets.panels import Look, Panel
from console.widgets.table import Table
from console.widgets.timeline import Timeline, lines_for
from state.migrations import Migration

TABLE_LEAST = 7
"""Lines that the table keeps where there is room for a band per instance at all."""
SHARE = 0.55
"""Of the height, for the timeline, where there is more."""


class MigrationsPanel(Panel):
    """One routed cell: the one that runs, or the one chosen."""

    TITLE = "8 Migrations"

    def __init__(self, look: Look, *, id: str) -> None:
        self._head = Lines(id="migrations-head")
        self._ends = Lines(id="migrations-ends")
        self.timeline = Timeline(empty="no second of it was sampled", glyphs=look.glyphs)
        self._table = Table(empty="no session has been asked to move")
        super().__init__(look, self._head, self._ends, self.timeline, self._table, id=id)
        self._chosen = ""
        self._picture = Picture()

    @property
    def table(self) -> Table:
        return self._table

    @property
    def cell(self) -> str:
        """The cell that is shown; empty where none was routed."""
        cells = rows.cells_of(self._picture)
        return self._chosen if self._chosen in cells else rows.cell_shown(self._picture)

    def step(self, by: int) -> None:
        """Show the cell so many further; past the newest, whichever is the newest."""
        cells = rows.cells_of(self._picture)
        if len(cells) > 1 and self.cell in cells:
            self._chosen = cells[(cells.index(self.cell) + by) % len(cells)]

    def migration(self, key: str) -> Migration | None:
        """The migration of a row."""
        return rows.migration_of(self._picture, self.cell, key)

    def show(self, picture: Picture) -> None:
        self._picture = picture
        width, height = self.content_region.size
        cell = self.cell
        self._ends.display = self.timeline.display = self._table.display = bool(cell)
        if not cell or not width:
            self._head.say(((routing.nothing(picture), "dim"),))
            return
        self._head.say(rows.head(picture, cell))
        self._ends.say(rows.ends(rows.counts_of(picture, cell)))
        scene = rows.scene(picture, cell, self.look.window_s)
        room, bands = height - 2, max(1, len(scene.bands))
        wanted = max(lines_for(bands, 1), int(SHARE * room))
        self.timeline.styles.height = max(3, min(wanted, lines_for(bands), room - TABLE_LEAST))
        self.timeline.glyphs = self.look.glyphs
        self.timeline.show(scene)
        columns = rows.columns(width - 1)
        self._table.show(columns, rows.rows(picture, cell, columns, self.look.glyphs))
        if self.look.follow:
            self._table.go_to_end()
