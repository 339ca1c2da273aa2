"""All runs of the workspace: how each stands; attach to one, or start another."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Static

from console import actions, keys, steer
from console.rows.runs import run_columns, run_rows
from console.screens.base import ConsoleScreen
from console.screens.start import Start
from console.widgets.table import Table
from state.workspace import RunEntry, Workspace

REFRESH_S = 2.0


class RunsScreen(ConsoleScreen):
    NAME = actions.RUNS
    BINDINGS: ClassVar[list[BindingType]] = [*keys.make_fixed_bindings(actions.RUNS)]

    def __init__(self, workspace: Workspace) -> None:
        super().__init__()
        self._workspace = workspace
        self.entries: tuple[RunEntry, ...] | None = None
        """None until the workspace was read."""

    def compose(self) -> ComposeResult:
        yield Static(Text.assemble(("Tracon", "bold"), f"   runs in {self._workspace.root}"), id="runs-title")
        with Vertical(id="runs-panel", classes="panel"):
            yield Table(empty="no runs yet: n starts one")
        yield from self.compose_foot()

    def on_mount(self) -> None:
        self.query_one(Table).focus()
        self._read_again()
        self.set_interval(max(REFRESH_S, self.tracon.options.tick_s), self._read_again)

    def on_screen_resume(self) -> None:
        self._read_again()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw_runs)

    def _read_again(self) -> None:
        """Read the workspace in a thread: a hundred runs on a slow disk must not delay a key."""
        if self.is_current:
            self.run_worker(self._read_runs, thread=True, exclusive=True, exit_on_error=False, group="runs")

    def _read_runs(self) -> None:
        entries = self._workspace.runs()
        self.app.call_from_thread(self._show_entries, entries)

    def _show_entries(self, entries: tuple[RunEntry, ...]) -> None:
        self.entries = entries
        self._draw_runs()

    def _draw_runs(self) -> None:
        if self.entries is None or not self.is_mounted:
            return
        table = self.query_one(Table)
        columns = run_columns(table.room)
        table.show(columns, run_rows(self.entries, self.tracon.look.glyphs, columns))

    def apply_filter(self, text: str) -> None:
        self.query_one(Table).filter(text)
        self.query_one("#runs-panel").border_subtitle = f"filter: {text}  (esc clears)" if text else ""

    def filter_target_focus(self) -> None:
        self.query_one(Table).focus()

    @property
    def folder(self) -> Path | None:
        entry = self._find_under_cursor()
        return None if entry is None else entry.folder

    def _find_under_cursor(self) -> RunEntry | None:
        key = self.query_one(Table).cursor_key
        return next((entry for entry in self.entries or () if str(entry.folder) == key), None)

    @on(Table.Chosen)
    def attach(self) -> None:
        entry = self._find_under_cursor()
        if entry is None:
            return
        if entry.problem:
            self.notify(entry.problem, title=f"{entry.run} cannot be read", severity="error", timeout=15)
            return
        self.tracon.open_run(entry.folder)

    def action_back(self) -> None:
        self.clear_filter()

    def action_start(self) -> None:
        self.app.push_screen(Start(self.tracon.workspace_words), self._start_chosen)

    def _start_chosen(self, command: tuple[str, ...] | None) -> None:
        if command is None:
            return
        self.tracon.last_command = command
        self.notify(shlex.join(command), title="starting")
        self.run_worker(partial(self._start_run, command), thread=True, exit_on_error=False)

    def _start_run(self, command: tuple[str, ...]) -> None:
        result = steer.run_tracon(command[1:])
        self.app.call_from_thread(self._note_started, result)

    def _note_started(self, result: steer.Result) -> None:
        if not result.done:
            self.notify(result.text, title="the run was not started", severity="error", timeout=20)
            return
        self._read_again()
        folder = self._workspace.root / result.text
        if folder.is_dir() and self.is_current:
            self.tracon.open_run(folder)
