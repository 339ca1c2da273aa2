"""The questions the console asks, and the small windows it opens."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Grid, Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, OptionList, Static
from textual.widgets.option_list import Option

from console.actions import Action

Answer = TypeVar("Answer")


class Dialog(ModalScreen[Answer]):
    """A window over the screen; escape closes it without an answer."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel", show=False)]

    def action_cancel(self) -> None:
        self.dismiss(None)


class Confirm(Dialog[bool]):
    """Yes or no, with Cancel focused."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,up", "app.focus_previous", show=False),
        Binding("right,down", "app.focus_next", show=False),
    ]

    def __init__(self, question: str, verb: str, command: tuple[str, ...]) -> None:
        super().__init__()
        self._question = question
        self._verb = verb
        self._command = command

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(self._question), classes="question")
            yield Static(Text(shlex.join(self._command)), classes="command")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel")
                yield Button(self._verb, id="confirm", variant="error")

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()

    @on(Button.Pressed)
    def answer(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "confirm")


@dataclass(frozen=True, slots=True)
class Offer:
    """One line of the actions menu."""

    action: Action
    command: tuple[str, ...]
    why_not: str


class Menu(Dialog[str]):
    """Every action on the run, with the equal command line of the highlighted one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("x", "cancel", show=False),
        Binding("y", "copy", "Copy command", show=False),
    ]

    def __init__(self, run: str, offers: Sequence[Offer]) -> None:
        super().__init__()
        self._run = run
        self._offers = offers

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static(Text(f"Actions on {self._run}"), classes="question")
            yield OptionList(*(self._make_option(offer) for offer in self._offers))
            yield Static("", id="help", classes="help")
            yield Static("", id="command", classes="command")
            yield Static(Text("enter does it   y copies the command line   esc closes"), classes="hint")

    def _make_option(self, offer: Offer) -> Option:
        text = f"{offer.action.key:>3}  {offer.action.label:<18}{offer.why_not}"
        return Option(Text(text), id=offer.action.id, disabled=bool(offer.why_not))

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()
        if all(offer.why_not for offer in self._offers):
            self.query_one("#help", Static).update("none of them is possible now")

    @property
    def highlighted(self) -> Offer | None:
        """None where no action is possible."""
        index = self.query_one(OptionList).highlighted
        return None if index is None else self._offers[index]

    @on(OptionList.OptionHighlighted)
    def describe(self) -> None:
        offer = self.highlighted
        if offer is not None:
            self.query_one("#help", Static).update(Text(offer.action.help))
            self.query_one("#command", Static).update(Text(shlex.join(offer.command)))

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def action_copy(self) -> None:
        if self.highlighted is not None:
            command = shlex.join(self.highlighted.command)
            self.app.copy_to_clipboard(command)
            self.notify(command, title="copied")


class Skip(Dialog[tuple[str, str]]):
    """Which cell, config or stage to leave out, and why."""

    def __init__(self, run: str, targets: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._run = run
        self._targets = targets
        """(target, what it means)."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static(Text(f"Skip what of {self._run}?"), classes="question")
            width = max(len(target) for target, _ in self._targets)
            yield OptionList(
                *(Option(Text(f"{target:<{width}}  {means}"), id=target) for target, means in self._targets)
            )
            yield Input(placeholder="why (goes into the manifest)", id="reason")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel")
                yield Button("Skip", id="confirm", variant="error")
            yield Static(Text("enter continues, tab reaches Skip   esc closes"), classes="hint")

    def on_mount(self) -> None:
        targets = self.query_one(OptionList)
        targets.highlighted = 0
        targets.focus()

    @on(OptionList.OptionSelected)
    def focus_reason(self) -> None:
        self.query_one(Input).focus()

    @on(Input.Submitted)
    def focus_buttons(self) -> None:
        self.query_one("#cancel").focus()

    @on(Button.Pressed)
    def answer(self, event: Button.Pressed) -> None:
        index = self.query_one(OptionList).highlighted
        if event.button.id != "confirm" or index is None:
            self.dismiss(None)
            return
        self.dismiss((self._targets[index][0], self.query_one(Input).value.strip()))


class Detail(Dialog[None]):
    """Facts, one per line."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,q", "cancel", show=False),
        Binding("y", "copy", "Copy command", show=False),
    ]

    def __init__(self, title: str, facts: Sequence[tuple[str, str]], command: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._title = title
        self._facts = facts
        self._command = command
        """Among the facts; empty = none."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static(Text(self._title), classes="question")
            with VerticalScroll(), Grid(classes="facts"):
                for label, text in self._facts:
                    yield Static(Text(label), classes="label")
                    yield Static(Text(text))
            copies = "y copies the command line   " if self._command else ""
            yield Static(Text(f"up, down scroll   {copies}esc closes"), classes="hint")

    def action_copy(self) -> None:
        if self._command:
            self.app.copy_to_clipboard(shlex.join(self._command))
            self.notify(shlex.join(self._command), title="copied")
