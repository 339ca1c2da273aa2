"""One run, watched and steered: what is drawn when, what is under the cursor, and how the operator looks at it."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.binding import BindingType
from textual.message import Message
from textual.widgets import Input

from console import actions, export, keys
from console.feed import Picture, RunFeed
from console.findings import PAGE, count_measured, has_page
from console.panels.panel import Export, Opening, Panel
from console.panels.results import ResultsPanel
from console.screens.dashboard import DashboardScreen
from console.screens.dialogs import Detail
from console.screens.instance import InstanceScreen
from console.widgets.table import Span, Table
from results.records.events import CellState, RunState

ENDED = frozenset({RunState.DONE, RunState.FAILED})


class RunScreen(DashboardScreen):
    NAME = actions.RUN
    BINDINGS: ClassVar[list[BindingType]] = [*keys.make_fixed_bindings(actions.RUN)]

    @dataclass
    class Pictured(Message):
        """The feed has something new."""

        picture: Picture

        def can_replace(self, message: Message) -> bool:
            return isinstance(message, RunScreen.Pictured)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._filtered = "events"
        """The panel that the filter is about."""
        self._drawn_at: dict[str, float] = {}
        """When each panel was last drawn (monotonic seconds)."""
        self._redraw_queued = False
        """All panels will be drawn after the next refresh."""
        self._feed: RunFeed | None = None

    def on_mount(self) -> None:
        self.lay_out()
        self._header.show(self.picture, name=self.folder.name)
        self.panel(self._current).focus_content()
        tick_s = self.tracon.options.tick_s
        self._feed = RunFeed(self.folder, lambda picture: self.post_message(self.Pictured(picture)), tick_s=tick_s)
        self._feed.start()
        self.set_interval(max(1.0, tick_s), self._on_second)

    def on_unmount(self) -> None:
        if self._feed is not None:
            self._feed.stop()

    # -- drawing ------------------------------------------------------------------------------------------------

    @on(Pictured)
    def take_picture(self, event: Pictured) -> None:
        if not self.is_mounted:
            return
        loaded = self.picture.loading and not event.picture.loading
        if event.picture.trouble and not self.picture.loading:
            self.notify(event.picture.trouble, severity="error")
            return
        before, self.picture = self.picture, event.picture
        if before.loading or _collect_key_conditions(before) != _collect_key_conditions(event.picture):
            self.refresh_bindings()  # it draws the whole footer again
        self._draw_picture()
        if not before.loading and before.view.state not in ENDED and event.picture.view.state in ENDED:
            self._show_page()
        if loaded and not self.picture.live:
            self.change_look(window_s=None)  # nothing new will come: show all there is
        elif loaded:
            self.redraw()

    def _show_page(self) -> None:
        """A run that ends while it is watched ends on its page, unless the operator looks at something else."""
        if not has_page(self.picture.view.plan.experiment) or not count_measured(self.picture.view):
            return
        if self.is_current and self._frozen is None:
            panel = self.panel("results")
            if isinstance(panel, ResultsPanel):
                panel.open(PAGE)
            self.open_panel("results")
        else:
            self.notify("the run has ended: its results on one page are in Results (6)")

    def _on_second(self) -> None:
        """Once a second: what changes with time alone (elapsed, ages, the plots' window)."""
        if self.picture.live:
            self._draw_picture()

    def _show_header(self) -> None:
        self._header.show(self.picture, self._list_badges(), self.folder.name)

    def _draw_picture(self) -> None:
        self._show_header()
        child = self.app.screen
        if isinstance(child, InstanceScreen):
            child.show(self.picture)
        if self.picture.loading or not self.is_current:
            return
        self.lay_out_again()
        self.size_panels()
        for name, panel in self._panels.items():
            if self.is_seen(name) and self._is_due(name):
                panel.show(self.shown_picture)

    def _is_due(self, name: str) -> bool:
        """Some panels cost too much to be drawn at every tick."""
        every_s, now = self.panel(name).DRAW_EVERY_S, time.monotonic()
        last = self._drawn_at.get(name)
        due = last is None or now - last >= every_s
        if due:
            self._drawn_at[name] = now
        return due

    def redraw(self) -> None:
        """Draw every panel that is seen, whenever it was last drawn; once for all that ask before the next refresh."""
        self._drawn_at.clear()
        if not self._redraw_queued:
            self._redraw_queued = True
            self.call_after_refresh(self._redraw_now)

    def _redraw_now(self) -> None:
        self._redraw_queued = False
        self._draw_picture()

    def _list_badges(self) -> tuple[Span, ...]:
        badges = list(self.make_frozen_badge())
        if (text := self.filter_text) and self.is_seen(self._filtered) and self.panel(self._filtered).can_filter:
            badges.append((f"filter: {text} (esc clears)  ", "warn"))
        if not self.tracon.look.follow:
            badges.append(("not following  ", "dim"))
        if self.tracon.options.read_only:
            badges.append(("read-only  ", "dim"))
        return tuple(badges)

    def on_screen_resume(self) -> None:
        if self._panels:
            self.redraw()

    # -- what a panel offers ------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """The journal or a panel's own source is still being read."""
        return self.picture.loading or any(panel.busy for panel in self._panels.values())

    @on(Panel.Redraw)
    def redraw_panel(self) -> None:
        self.redraw()

    @on(Panel.LookChanged)
    def look_changed(self, event: Panel.LookChanged) -> None:
        self.change_look(**event.changes)

    def action_step_section(self, by: int) -> None:
        self.panel(self._current).step(by)
        self.redraw()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        kind = self._kinds[self._current]
        if action == "export" and not kind.exports:
            return False
        if action == "step_section" and not kind.steps_through:
            return False
        return super().check_action(action, parameters)

    def action_export(self) -> None:
        numbers = self.panel(self._current).export()
        if numbers is None:
            self.notify("there is nothing to save yet", severity="warning")
            return
        folder = self.find_folder_below("exports")
        self.run_worker(lambda: self._export_numbers(numbers, folder), thread=True, group="export")

    def _export_numbers(self, numbers: Export, folder: Path | None) -> None:
        """In a thread: what writes tables takes a moment to import."""
        ending, data = numbers.write()
        name = f"{numbers.name}-{time.strftime('%Y%m%d-%H%M%S')}.{ending}"
        try:
            path = export.save_file(data, name, folder)
        except OSError as error:
            self.app.call_from_thread(self.notify, f"{error.filename}: {error.strerror}", severity="error")
        else:
            self.app.call_from_thread(self.notify, str(path), title="saved")

    # -- looking ------------------------------------------------------------------------------------------------

    @on(Table.Scrolled)
    def note_manual_scroll(self, event: Table.Scrolled) -> None:
        """Stop following while the operator reads older lines, until the newest is reached again or `f`."""
        follow = self.find_panel_around(event.table).follows_after(event.table, at_end=event.at_end)
        if follow is not None and follow is not self.tracon.look.follow:
            self.change_look(follow=follow)

    def apply_filter(self, text: str) -> None:
        self.panel(self._filtered).filter(text)
        self._show_header()

    def action_filter(self) -> None:
        """Filter the focused panel, or the events where it has no rows."""
        focused = self.find_focused_panel()
        target = focused if self.panel(focused).can_filter else "events"
        if not self.is_seen(target):
            self.notify("nothing here has rows to filter", severity="warning")
            return
        if target != self._filtered:
            self.panel(self._filtered).filter("")  # one filter at a time: the line shows no other
            self.query_one("#filter", Input).value = ""
        self._filtered = target
        super().action_filter()

    def filter_target_focus(self) -> None:
        self.panel(self._filtered).focus_content()

    @on(Table.Chosen)
    def open_row(self, event: Table.Chosen) -> None:
        panel = self.find_panel_around(event.table)
        opening = panel.open_row(event.table, event.key, self.shown_picture)
        if opening is None:
            return
        if opening.instance:
            self.app.push_screen(InstanceScreen(opening.instance, self.folder, self.shown_picture))
        else:
            command = self._fill_panel_command(str(panel.id), opening)
            fact = [(opening.command_label, shlex.join(command))] if command else []
            self.app.push_screen(Detail(opening.title, [*opening.facts, *fact], command))

    def _fill_panel_command(self, name: str, opening: Opening) -> tuple[str, ...]:
        """The panel's own command line for what was opened, which `y` copies; empty = none."""
        if not opening.command_label:
            return ()
        workspace = self.tracon.workspace_of(self.folder)
        command = actions.fill_command(self._kinds[name].command, self.folder, workspace, opening.command_values)
        self.tracon.last_command = command
        return command

    def action_back(self) -> None:
        if self.clear_filter():
            return
        if not self.close_zoom() and self.tracon.has_runs_screen:
            self.dismiss()

    # -- steering -----------------------------------------------------------------------------------------------

    def find_cursor_target(self) -> str:
        table = self.panel("stages").table
        return table.cursor_key or "" if table is not None else ""

    def look_now(self) -> None:
        if self._feed is not None:
            self._feed.wake()


def _collect_key_conditions(picture: Picture) -> tuple[object, ...]:
    """What decides which keys can do something."""
    view = picture.view
    return picture.live, view.state, view.pause, any(cell.state is CellState.FAILED for cell in view.cells.values())
