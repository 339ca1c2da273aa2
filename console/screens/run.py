"""One run, watched and steered: what is drawn when, what is under the cursor, and how the operator looks at it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import BindingType
from textual.message import Message

from console import actions, export
from console.feed import Picture, RunFeed
from console.findings import Report
from console.rows import events, lifecycle, migrations, routing, stages
from console.screens.dashboard import DashboardScreen
from console.screens.dialogs import Detail
from console.screens.instance import InstanceScreen
from console.series import WINDOWS_S, window_text
from console.widgets.lifecycle import LifecyclePanel
from console.widgets.migrations import MigrationsPanel
from console.widgets.results import ResultsPanel, SectionBar
from console.widgets.table import Span, Table

if TYPE_CHECKING:
    from results.findings import Analysis

PLOTS_EVERY_S = 0.95


class RunScreen(DashboardScreen):
    """Watches and steers one run."""

    NAME = actions.RUN
    BINDINGS: ClassVar[list[BindingType]] = [*actions.bindings(actions.RUN)]

    @dataclass
    class Pictured(Message):
        """The feed has something new."""

        picture: Picture

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, RunScreen.Pictured)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._frozen: Picture | None = None
        self._filtered = ""
        self._plots_at = 0.0
        self._feed: RunFeed | None = None

    def on_mount(self) -> None:
        self.lay_out()
        self._header.show(self.picture, name=self.folder.name)
        self.panel(self._current).focus_content()
        tick_s = self.tracon.options.tick_s
        self._feed = RunFeed(self.folder, lambda picture: self.post_message(self.Pictured(picture)), tick_s=tick_s)
        self._feed.start()
        self.set_interval(max(1.0, tick_s), self._tick)

    def on_unmount(self) -> None:
        if self._feed is not None:
            self._feed.stop()

    # -- drawing ------------------------------------------------------------------------------------------------

    @on(Pictured)
    def pictured(self, event: Pictured) -> None:
        if not self.is_mounted:
            return
        loaded = self.picture.loading and not event.picture.loading
        if event.picture.trouble and not self.picture.loading:
            self.notify(event.picture.trouble, severity="error")
            return
        before, self.picture = self.picture, event.picture
        if (before.loading, before.live, before.view.state) != (False, event.picture.live, event.picture.view.state):
            self.refresh_bindings()  # it draws the whole footer again
        self._draw()
        if loaded and not self.picture.live:
            self._look(window_s=None)  # nothing new will come: show all there is
        elif loaded:
            self.redraw()

    def _tick(self) -> None:
        """Once a second: what changes with time alone (elapsed, ages, the plots' window)."""
        if self.picture.live:
            self._draw()

    def _draw(self) -> None:
        self._draw_header()
        child = self.app.screen
        if isinstance(child, InstanceScreen):
            child.show(self.picture)
        if self.picture.loading or not self.is_current:
            return
        picture = self._frozen or self.picture
        self.lay_out_anew()
        self.size_instances()
        for name in actions.PANELS:
            panel = self.panel(name)
            if self.is_seen(name) and self._due(name):
                panel.show(picture)

    def _draw_header(self) -> None:
        self._header.show(self.picture, self._badges(), self.folder.name)

    def _due(self, name: str) -> bool:
        """Plots cost most: once a second is enough."""
        if name != "latency":
            return True
        now = time.monotonic()
        due = now - self._plots_at >= PLOTS_EVERY_S
        if due:
            self._plots_at = now
        return due

    def redraw(self) -> None:
        """After a change of what or how to draw."""
        self._plots_at = 0.0
        self.call_after_refresh(self._draw)

    def _badges(self) -> tuple[Span, ...]:
        badges: list[Span] = []
        if self._frozen is not None:
            badges.append((f"FROZEN  +{self.picture.view.last_seq - self._frozen.view.last_seq} events  ", "warn"))
        if not self.tracon.look.follow:
            badges.append(("not following  ", "dim"))
        if self.tracon.options.read_only:
            badges.append(("read-only  ", "dim"))
        return tuple(badges)

    def on_screen_resume(self) -> None:
        if self._panels:
            self.redraw()

    # -- results ------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Something is still being read before what is shown is all there is."""
        return self.picture.loading or self.results.busy

    @on(ResultsPanel.Found)
    def results_found(self, event: ResultsPanel.Found) -> None:
        self.results.load(event.findings)
        self.redraw()

    @on(SectionBar.Picked)
    def section_picked(self, event: SectionBar.Picked) -> None:
        self.results.open(event.section)
        self.redraw()

    def action_section_before(self) -> None:
        self._step_section(-1)

    def action_section_after(self) -> None:
        self._step_section(1)

    def _step_section(self, by: int) -> None:
        panel = self.panel(self._current)
        if isinstance(panel, ResultsPanel | MigrationsPanel | LifecyclePanel):
            panel.step(by)
        self.redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "export" and self._current != "results":
            return False
        stepped = isinstance(self._panels.get(self._current), ResultsPanel | MigrationsPanel | LifecyclePanel)
        if action in ("section_before", "section_after") and not stepped:
            return False
        return super().check_action(action, parameters)

    def action_export(self) -> None:
        analysis = self.results.analysis
        if analysis is None:
            self.notify("there is nothing to save yet", severity="warning")
            return
        places = export.places(self.folder, self.tracon.options.read_only)
        self.run_worker(lambda: self._export(analysis, self.results.section, places), thread=True, group="export")

    def _export(self, analysis: Analysis | Report, section: str, places: tuple[Path, ...]) -> None:
        """In a thread: what writes tables takes a moment to import."""
        try:
            path = export.save(analysis, section, places, time.strftime("%Y%m%d-%H%M%S"))
        except OSError as error:
            self.app.call_from_thread(self.notify, f"{error.filename}: {error.strerror}", severity="error")
        else:
            self.app.call_from_thread(self.notify, str(path), title="saved")

    # -- looking ------------------------------------------------------------------------------------------------

    def action_freeze(self) -> None:
        self._frozen = None if self._frozen is not None else replace(self.picture, frozen_unix_s=time.time())
        self.redraw()

    def _look(self, **changes: object) -> None:
        look = replace(self.tracon.look, **changes)  # type: ignore[arg-type]
        self.tracon.look = look
        for panel in self._panels.values():
            panel.look = look
        self.redraw()

    def action_shorter(self) -> None:
        self._step_window(-1)

    def action_longer(self) -> None:
        self._step_window(1)

    def _step_window(self, step: int) -> None:
        place = WINDOWS_S.index(self.tracon.look.window_s) + step
        self._look(window_s=WINDOWS_S[max(0, min(place, len(WINDOWS_S) - 1))])
        self.notify(window_text(self.tracon.look.window_s), timeout=1.5)

    def action_follow(self) -> None:
        self._look(follow=not self.tracon.look.follow)

    @on(Table.ScrolledByHand)
    def by_hand(self, event: Table.ScrolledByHand) -> None:
        """Whoever moves wants to look there: stop following, until the newest line is reached again or `f`."""
        growing = ("events", "routing", "migrations", "lifecycle")
        follow = event.table in [self.panel(name).table for name in growing] and event.at_end
        still = (
            self.panel("instances").table,
            self.panel("results").table,
            self.routing.loads,
            self.lifecycle.overheads,
        )
        if event.table not in still and follow is not self.tracon.look.follow:
            self._look(follow=follow)

    def apply_filter(self, text: str) -> None:
        self.panel(self._filter_panel()).filter(text)

    def action_filter(self) -> None:
        focused = self.focused_panel()
        self._filtered = focused if self.panel(focused).table is not None else "events"
        super().action_filter()

    def _filter_panel(self) -> str:
        return self._filtered or "events"

    def filter_target_focus(self) -> None:
        self.panel(self._filter_panel()).focus_content()

    @on(Table.Chosen)
    def open_row(self, event: Table.Chosen) -> None:
        if event.table is self.panel("instances").table:
            self._open_instance(event.key)
        elif event.table is self.routing.loads:
            self._open_load(event.key)
        elif event.table is self.routing.table:
            self._open_decision(event.key)
        elif event.table is self.migrations.table:
            self._open_migration(event.key)
        elif event.table is self.lifecycle.table:
            self._open_request(event.key)
        elif event.table is self.panel("events").table:
            self.app.push_screen(Detail("Event", events.event_detail(self.picture.view, event.key)))
        elif event.table is self.results.table:
            self._open_result(event.key)
        elif event.key.startswith("stage:"):
            stage = event.key.removeprefix("stage:")
            self._look(folded=self.tracon.look.folded ^ {stage})
        elif event.key.startswith("cell:"):
            cell = self.picture.view.cells[event.key.removeprefix("cell:")]
            self.app.push_screen(Detail(cell.cell, stages.cell_detail(cell)))

    def _open_instance(self, instance: str) -> None:
        self.app.push_screen(InstanceScreen(instance, self.folder, self._frozen or self.picture))

    def _open_load(self, instance: str) -> None:
        """The instance's own screen where the run launched it; what the router knows of it where it did not."""
        view = (self._frozen or self.picture).view
        if view.routing is None:
            return
        engines = {load.instance: routing.engine_of(load) for load in view.routing.latest.instances}
        engine = engines.get(instance, instance)
        if engine in view.instances:
            self._open_instance(engine)
        else:
            self.app.push_screen(Detail(instance, routing.load_detail(view.routing, instance)))

    def _open_decision(self, key: str) -> None:
        view = (self._frozen or self.picture).view
        line = None if view.routing is None else routing.decision_of(view.routing, key)
        if view.routing is None or line is None:
            return
        workspace, place = self.tracon.workspace_of(self.folder), routing.place_of(view, view.routing.cell)
        command = actions.command_line("routing", self.folder, workspace, request=line.request, place=place)
        self.tracon.last_command = command
        facts = routing.decision_detail(view.routing, line)
        self.app.push_screen(Detail("Decision", [*facts, ("all that was weighed", actions.shown(command))]))

    def _open_migration(self, key: str) -> None:
        """A migration with the life of its session."""
        picture, panel = self._frozen or self.picture, self.migrations
        found = panel.migration(key)
        if found is None:
            return
        workspace, place = self.tracon.workspace_of(self.folder), routing.place_of(picture.view, found.cell)
        command = actions.command_line("migrations", self.folder, workspace, session=found.session, place=place)
        self.tracon.last_command = command
        facts = [*migrations.migration_facts(found), ("where it lived", "")]
        facts += migrations.life_facts(picture, found.cell, found.session)
        self.app.push_screen(Detail("Migration", [*facts, ("turn by turn", actions.shown(command))]))

    def _open_request(self, key: str) -> None:
        found = self.lifecycle.request(key)
        if found is not None:
            self.app.push_screen(Detail("Request", lifecycle.detail(found)))

    def _open_result(self, key: str) -> None:
        analysis = self.results.analysis
        if analysis is None or isinstance(analysis, Report):
            return
        from console.rows.result_detail import detail

        found = detail(analysis, key)
        if found is not None:
            self.app.push_screen(Detail(*found))

    def action_back(self) -> None:
        if self.clear_filter():
            return
        if not self.close_zoom() and self.tracon.has_runs_screen:
            self.dismiss()

    # -- steering -----------------------------------------------------------------------------------------------

    def cursor_target(self) -> str:
        return self.panel("stages").table.cursor_key or ""  # type: ignore[union-attr]

    def look_now(self) -> None:
        if self._feed is not None:
            self._feed.wake()
