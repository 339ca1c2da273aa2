"""One instance: what it is, its TTFT and TPOT, its steps, its events."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from rich.table import Table as RichTable
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Static

from console import actions, keys
from console.feed import Picture
from console.panels.events import EventsPanel, list_event_facts
from console.panels.latency import LatencyPanel
from console.panels.steps import HEADING, StepsPanel
from console.rows.instances import format_instance_numbers, list_instance_facts
from console.screens.dialogs import Detail
from console.screens.looking import LookingScreen
from console.widgets.header import RunHeader
from console.widgets.table import Table


class InstanceScreen(LookingScreen):
    """Opened over the run's screen, which hands it every new picture."""

    NAME = actions.INSTANCE
    BINDINGS: ClassVar[list[BindingType]] = [*keys.make_fixed_bindings(actions.INSTANCE)]

    def __init__(self, instance: str, folder: Path, picture: Picture) -> None:
        super().__init__(folder, picture)
        self.instance = instance
        self._built = False

    def compose(self) -> ComposeResult:
        look = self.tracon.look
        steps = StepsPanel(look, self._folder, id="steps", only=self.instance)
        latency = LatencyPanel(look, self._folder, id="latency", only=self.instance)
        events = EventsPanel(look, self._folder, id="events", about=self._list_subjects())
        yield RunHeader(glyphs=look.glyphs)
        with Vertical(id="body"):
            with Horizontal(id="facts-row"):
                with Vertical(id="facts-panel", classes="panel"):
                    yield Static(id="facts")
                yield steps
            yield latency
            yield events
        yield from self.compose_foot()

    def _list_subjects(self) -> frozenset[str]:
        instance = self.picture.view.instances.get(self.instance)
        own = {sample.cell for _, sample in instance.history} if instance is not None else set()
        return frozenset({self.instance, *own})

    def on_mount(self) -> None:
        self._built = True
        self.query_one("#facts-panel").border_title = self.instance
        self.query_one("#steps", StepsPanel).border_title = HEADING
        self.query_one("#events", EventsPanel).border_title = "Its events"
        self.query_one("#events", EventsPanel).focus_content()
        self.call_after_refresh(self.redraw)

    def show(self, picture: Picture) -> None:
        """Draw the newest picture. One that comes while the screen is still being built is drawn when it is."""
        self.picture = picture
        if not self._built:
            return
        self.query_one(RunHeader).show(picture, self.make_frozen_badge())
        drawn = self.shown_picture
        instance = drawn.view.instances.get(self.instance)
        if instance is None:
            return
        self.query_one("#facts", Static).update(_make_facts_table(drawn, self.instance))
        events = self.query_one("#events", EventsPanel)
        events.about = events.about | ({instance.latest.cell} if instance.latest is not None else set())
        for panel in self.list_own_panels():
            panel.show(drawn)

    def redraw(self) -> None:
        self.show(self.picture)

    def on_resize(self) -> None:
        self.call_after_refresh(self.redraw)

    def apply_filter(self, text: str) -> None:
        self.query_one("#events", EventsPanel).filter(text)

    def filter_target_focus(self) -> None:
        self.query_one("#events", EventsPanel).focus_content()

    @on(Table.Chosen)
    def open_event(self, event: Table.Chosen) -> None:
        self.app.push_screen(Detail("Event", list_event_facts(self.picture.view, event.key)))

    def action_back(self) -> None:
        if not self.clear_filter():
            self.dismiss()


def _make_facts_table(picture: Picture, name: str) -> RichTable:
    instance = picture.view.instances[name]
    numbers = format_instance_numbers(instance)
    table = RichTable.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True, min_width=13)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for label, name in (("TTFT", "ttft"), ("TPOT", "tpot"), ("step", "step")):
        table.add_row(f"{label} p50, p90", f"{numbers[f'{name}_p50']}, {numbers[f'{name}_p90']} ms")
    table.add_row("requests", f"{numbers['running']} running, {numbers['waiting']} waiting")
    table.add_row("pend, KV", f"{numbers['pending']} tokens, {numbers['kv']} %")
    for label, text in list_instance_facts(picture, instance):
        table.add_row(label, Text(text))
    return table
