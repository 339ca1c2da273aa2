"""What all full screens share: keys from the action table, filter, copy, screenshot, help."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widgets import Footer, Input

from console import actions, export
from console.app_protocol import Host
from console.screens.help import Help


class ConsoleScreen(Screen[None]):
    NAME: ClassVar[str] = ""
    """Which screen of the action table this is."""

    @property
    def tracon(self) -> Host:
        return cast(Host, self.app)

    def compose_foot(self) -> ComposeResult:
        """The filter line and the footer."""
        yield Input(placeholder="text, or !text for the others", id="filter", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def apply_filter(self, text: str) -> None:
        """Keep the rows of the focused table that contain the text; empty = all."""

    @property
    def filter_text(self) -> str:
        """The filter in force; empty = none."""
        return self.query_one("#filter", Input).value.strip()

    def filter_target_focus(self) -> None:
        """Give the focus back to what was filtered."""

    @property
    def folder(self) -> Path | None:
        """The run this screen is about."""
        return None

    def find_folder_below(self, name: str) -> Path | None:
        """Where files about the run go; None where there is no run, or nothing may be written into its folder."""
        return None if self.folder is None or self.tracon.options.read_only else self.folder / name

    # -- actions every screen has -------------------------------------------------------------------------------

    def action_filter(self) -> None:
        line = self.query_one("#filter", Input)
        line.add_class("open")
        line.focus()

    @on(Input.Changed, "#filter")
    def filter_typed(self, event: Input.Changed) -> None:
        self.apply_filter(event.value)

    @on(Input.Submitted, "#filter")
    def filter_done(self) -> None:
        self.query_one("#filter", Input).remove_class("open")
        self.filter_target_focus()

    def clear_filter(self) -> bool:
        """Close the filter line and forget the filter; False where there was none."""
        line = self.query_one("#filter", Input)
        if not line.has_class("open") and not line.value:
            return False
        line.value = ""
        line.remove_class("open")
        self.apply_filter("")
        self.filter_target_focus()
        return True

    def action_quit(self) -> None:
        self.app.exit()

    def action_command_palette(self) -> None:
        self.app.action_command_palette()

    def action_help(self) -> None:
        self.app.push_screen(Help(self.NAME, read_only=self.tracon.options.read_only))

    def action_copy(self) -> None:
        command = self.tracon.last_command or self.make_default_command()
        if command:
            self.app.copy_to_clipboard(shlex.join(command))
            self.notify(shlex.join(command), title="copied")

    def make_default_command(self) -> tuple[str, ...]:
        """What `y` copies before anything was done here."""
        if self.folder is None:
            return ("tracon", "list", *self.tracon.workspace_words)
        return actions.make_command_line("copy", self.folder, self.tracon.workspace_of(self.folder))

    def action_screenshot(self) -> None:
        name = f"console-{time.strftime('%Y%m%d-%H%M%S')}.svg"
        try:
            path = export.save_file(self.app.export_screenshot().encode(), name, self.find_folder_below("screenshots"))
        except OSError as error:
            self.notify(f"{error.filename}: {error.strerror}", severity="error")
        else:
            self.notify(str(path), title="screenshot saved")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if self.tracon.options.read_only and actions.is_steering(action):
            return False
        return super().check_action(action, parameters)
