"""One run: stages, instances, latency, steps, events. A dashboard where there is room, else one panel at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from console import actions, export
from console.feed import Picture, RunFeed
from console.rows import events, stages
from console.screens.dialogs import Detail
from console.screens.instance import InstanceScreen
from console.screens.steering import SteeringScreen
from console.series import WINDOWS_S, window_text
from console.widgets.header import RunHeader
from console.widgets.panels import (
    EventsPanel,
    InstancesPanel,
    LatencyPanel,
    Panel,
    StagesPanel,
    StepsPanel,
)
from console.widgets.results import ResultsPanel, SectionBar
from console.widgets.table import Span, Table

if TYPE_CHECKING:
    from results.findings import Analysis

DASHBOARD_SIZE = (108, 32)
"""Columns and rows from which all panels fit beside each other."""
PLOTS_EVERY_S = 0.95


class RunScreen(SteeringScreen):
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
        self._zoomed = False
        self._current = "stages"
        self._filtered = ""
        self._plots_at = 0.0
        self._feed: RunFeed | None = None
        self._panels: dict[str, Panel] = {}
        self._groups: dict[Widget, set[str]] = {}
        """What stands around panels, and is hidden when all of them are."""
        self._header = RunHeader()
        self._tabs = Static(id="tabs")

    def compose(self) -> ComposeResult:
        look = self.tracon.look
        made = (
            StagesPanel(look, id="stages"),
            InstancesPanel(look, id="instances"),
            LatencyPanel(look, id="latency"),
            StepsPanel(look, id="steps"),
            EventsPanel(look, id="events"),
            ResultsPanel(look, self.folder, id="results"),
        )
        self._panels = dict(zip(actions.PANELS, made, strict=True))
        stages, instances, latency, steps, events, results = made
        self._header = RunHeader(glyphs=look.glyphs)
        right = Vertical(instances, latency, id="right")
        upper, lower = Horizontal(stages, right, id="upper"), Horizontal(steps, events, id="lower")
        self._groups = {
            right: {"instances", "latency"},
            upper: {"stages", "instances", "latency"},
            lower: {"steps", "events"},
        }
        yield self._header
        yield self._tabs
        yield Vertical(upper, lower, results, id="body")
        yield from self.compose_foot()

    def on_mount(self) -> None:
        self._arrange()
        self._header.show(self.picture, name=self.folder.name)
        self.panel(self._current).focus_content()
        tick_s = self.tracon.options.tick_s
        self._feed = RunFeed(self.folder, lambda picture: self.post_message(self.Pictured(picture)), tick_s=tick_s)
        self._feed.start()
        self.set_interval(max(1.0, tick_s), self._tick)

    def on_unmount(self) -> None:
        if self._feed is not None:
            self._feed.stop()

    def panel(self, name: str) -> Panel:
        return self._panels[name]

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
            self._redraw()

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
        self._size_instances()
        for name in actions.PANELS:
            panel = self.panel(name)
            if self._visible(name) and self._due(name):
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

    def _redraw(self) -> None:
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

    # -- layout -------------------------------------------------------------------------------------------------

    @property
    def dashboard(self) -> bool:
        """All panels at once."""
        width, height = self.size
        return not self._zoomed and width >= DASHBOARD_SIZE[0] and height >= DASHBOARD_SIZE[1]

    def _visible(self, name: str) -> bool:
        return name != "results" if self.dashboard else name == self._current

    def on_screen_resume(self) -> None:
        if self._panels:
            self._redraw()

    def on_resize(self) -> None:
        self._arrange()
        self._redraw()

    def _arrange(self) -> None:
        """Show the panels of the present mode."""
        dashboard = self.dashboard
        self.set_class(dashboard, "dashboard")
        self.set_class(not dashboard, "tabbed")
        for name in actions.PANELS:
            self.panel(name).display = self._visible(name)
        shown = {name for name in actions.PANELS if self._visible(name)}
        for group, names in self._groups.items():
            group.display = bool(shown & names)
        self._tabs.update(self._tab_line())
        self._size_instances()

    def _size_instances(self) -> None:
        """On the dashboard the instance table takes the lines it needs, within bounds."""
        lines = min(11, max(6, len(self.picture.view.instances) + 4))
        self.panel("instances").styles.height = lines if self.dashboard else "1fr"

    def _tab_line(self) -> Text:
        text = Text(no_wrap=True)
        for number, name in enumerate(actions.PANELS, 1):
            style = "bold reverse" if name == self._current else "dim"
            text.append(f" {number} {actions.BY_ID[name].label} ", style=style)
            text.append(" ")
        return text

    def _open_panel(self, name: str) -> None:
        if name == "results" and self.dashboard:
            self._zoomed = True
        self._current = name
        self._arrange()
        self.refresh_bindings()
        self.panel(name).focus_content()
        self._redraw()

    def action_stages(self) -> None:
        self._open_panel("stages")

    def action_instances(self) -> None:
        self._open_panel("instances")

    def action_latency(self) -> None:
        self._open_panel("latency")

    def action_steps(self) -> None:
        self._open_panel("steps")

    def action_events(self) -> None:
        self._open_panel("events")

    def action_results(self) -> None:
        self._open_panel("results")

    def action_zoom(self) -> None:
        focused = next((name for name in actions.PANELS if self.panel(name).has_focus_within), self._current)
        self._current = focused
        self._zoomed = not self._zoomed
        self._open_panel(self._current if self._zoomed or self._current != "results" else "stages")

    @property
    def results(self) -> ResultsPanel:
        """The panel of that name."""
        return self.query_one(ResultsPanel)

    @property
    def busy(self) -> bool:
        """Something is still being read before what is shown is all there is."""
        return self.picture.loading or self.results.busy

    @on(ResultsPanel.Found)
    def results_found(self, event: ResultsPanel.Found) -> None:
        self.results.load(event.findings)
        self._redraw()

    @on(SectionBar.Picked)
    def section_picked(self, event: SectionBar.Picked) -> None:
        self.results.open(event.section)
        self._redraw()

    def action_section_before(self) -> None:
        self.results.step(-1)
        self._redraw()

    def action_section_after(self) -> None:
        self.results.step(1)
        self._redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in ("section_before", "section_after", "export") and self._current != "results":
            return False
        return super().check_action(action, parameters)

    def action_export(self) -> None:
        analysis = self.results.analysis
        if analysis is None:
            self.notify("there is nothing to save yet", severity="warning")
            return
        places = export.places(self.folder, self.tracon.options.read_only)
        self.run_worker(lambda: self._export(analysis, self.results.section, places), thread=True, group="export")

    def _export(self, analysis: Analysis, section: str, places: tuple[Path, ...]) -> None:
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
        self._redraw()

    def _look(self, **changes: object) -> None:
        look = replace(self.tracon.look, **changes)  # type: ignore[arg-type]
        self.tracon.look = look
        for panel in self._panels.values():
            panel.look = look
        self._redraw()

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
        """Whoever moves wants to look there: stop following, until the end of the feed is reached again or `f`."""
        follow = event.table is self.panel("events").table and event.at_end
        still = (self.panel("instances").table, self.panel("results").table)
        if event.table not in still and follow is not self.tracon.look.follow:
            self._look(follow=follow)

    def apply_filter(self, text: str) -> None:
        self.panel(self._filter_panel()).filter(text)

    def action_filter(self) -> None:
        focused = next((name for name in actions.PANELS if self.panel(name).has_focus_within), self._current)
        self._filtered = focused if self.panel(focused).table is not None else "events"
        super().action_filter()

    def _filter_panel(self) -> str:
        return self._filtered or "events"

    def filter_target_focus(self) -> None:
        self.panel(self._filter_panel()).focus_content()

    @on(Table.Chosen)
    def open_row(self, event: Table.Chosen) -> None:
        if event.table is self.panel("instances").table:
            self.app.push_screen(InstanceScreen(event.key, self.folder, self._frozen or self.picture))
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

    def _open_result(self, key: str) -> None:
        analysis = self.results.analysis
        if analysis is None:
            return
        from console.rows.result_detail import detail

        found = detail(analysis, key)
        if found is not None:
            self.app.push_screen(Detail(*found))

    def action_back(self) -> None:
        if self.clear_filter():
            return
        if self._zoomed:
            self._zoomed = False
            self._open_panel("stages" if self._current == "results" else self._current)
        elif self.tracon.has_runs_screen:
            self.dismiss()

    # -- steering -----------------------------------------------------------------------------------------------

    def cursor_target(self) -> str:
        return self.panel("stages").table.cursor_key or ""  # type: ignore[union-attr]

    def look_now(self) -> None:
        if self._feed is not None:
            self._feed.wake()
