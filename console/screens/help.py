"""The help: every key, and what every number means."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table as RichTable
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from console import keys
from console.actions import GROUPS
from console.panels.registry import help_entries
from console.screens.dialogs import Dialog


class Help(Dialog[None]):
    """Built from the key table and the numbers that the panels declare."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,question_mark", "cancel", show=False),
        Binding("down,j", "down", show=False),
        Binding("up", "up", show=False),
    ]

    def __init__(self, screen: str, *, read_only: bool) -> None:
        super().__init__()
        self._screen = screen
        self._read_only = read_only

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog help-dialog"):
            yield Static(Text("Help", style="bold"), classes="question")
            with VerticalScroll(id="help-text"):
                yield Static(self._make_keys_table(), id="help-keys")
                yield Static(self._make_numbers_table(), id="help-numbers")
            yield Static(Text("esc closes   up, down, page up, page down scroll"), classes="hint")

    def on_mount(self) -> None:
        self.query_one("#help-text").focus()

    def _make_keys_table(self) -> RichTable:
        table = RichTable.grid(padding=(0, 2, 0, 0))
        table.add_column(justify="right", no_wrap=True, style="bold")
        table.add_column(no_wrap=True)
        table.add_column(style="dim")
        for group in GROUPS:
            mine = [
                a
                for a in keys.list_screen_actions(self._screen)
                if a.group == group and not (a.steers and self._read_only)
            ]
            if mine:
                table.add_row("", Text(group, style="underline"), "")
            for action in mine:
                table.add_row(action.key, action.label, action.help)
        return table

    def _make_numbers_table(self) -> RichTable:
        table = RichTable.grid(padding=(0, 2, 1, 0))
        table.add_column(justify="right", style="bold", no_wrap=True)
        table.add_column()
        for entry in help_entries():
            text = Text(f"{entry.meaning}. ")
            unit = f"Unit: {entry.term.unit}. " if entry.term.unit else ""
            text.append(f"{unit}Source: {entry.source}.", style="dim")
            if entry.watch:
                text.append(f" Watch: {entry.watch}.", style="italic")
            table.add_row(entry.label, text)
        return table

    def action_down(self) -> None:
        self.query_one("#help-text").scroll_down(animate=False)

    def action_up(self) -> None:
        self.query_one("#help-text").scroll_up(animate=False)
