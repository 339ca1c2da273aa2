"""Choose what to run, and see the plan before it starts."""

from __future__ import annotations

import shlex
from functools import partial

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Grid, Horizontal, Vertical
from textual.widgets import Button, Select, Static

from console import actions, steer
from console import format as say
from console.screens.dialogs import Dialog


class Start(Dialog[tuple[str, ...]]):
    """Experiment, profile and preset, with the plan's size and time; returns the command that starts it."""

    def __init__(self, workspace_words: tuple[str, ...]) -> None:
        super().__init__()
        self._workspace_words = workspace_words
        self._profiles: tuple[steer.ProfileOffer, ...] = ()
        self._previewed: tuple[str, str, str] | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog wide"):
            yield Static(Text("Start a run"), classes="question")
            with Grid(classes="choices"):
                for name in ("profile", "experiment", "preset"):
                    yield Static(name, classes="label")
                    yield Select[str]([], id=name, compact=True, allow_blank=True, prompt="reading the profiles ...")
            yield Static("", id="plan", classes="help")
            yield Static("", id="command", classes="command")
            with Horizontal(classes="buttons"):
                yield Button("Cancel", id="cancel")
                yield Button("Start", id="confirm", variant="primary", disabled=True)

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()
        self.run_worker(self._read_profiles, thread=True, exit_on_error=False)

    def _read_profiles(self) -> None:
        profiles = steer.list_profiles()
        self.app.call_from_thread(self._list_profiles, profiles)

    def _list_profiles(self, profiles: tuple[steer.ProfileOffer, ...] | str) -> None:
        if isinstance(profiles, str):
            self.query_one("#plan", Static).update(Text(profiles, style="red"))
            return
        self._profiles = profiles
        profile = self.query_one("#profile", Select)
        profile.set_options((f"{each.name}", each.name) for each in profiles)
        names = [each.name for each in profiles]
        if names:
            profile.value = "cpu-tiny" if "cpu-tiny" in names else names[0]
            profile.focus()

    def _list_presets(self) -> dict[str, list[str]]:
        name = self.query_one("#profile", Select).value
        return next((each.presets for each in self._profiles if each.name == name), {})

    @on(Select.Changed, "#profile")
    def offer_experiments(self) -> None:
        _offer_names(self.query_one("#experiment", Select), list(self._list_presets()))
        self.offer_presets()

    @on(Select.Changed, "#experiment")
    def offer_presets(self) -> None:
        experiment = self.query_one("#experiment", Select).value
        presets = self._list_presets().get(str(experiment), [])
        _offer_names(self.query_one("#preset", Select), presets, prefer="demo")
        self.show_plan()

    @on(Select.Changed, "#preset")
    def show_plan(self) -> None:
        chosen = self._read_choice()
        if chosen is None or chosen == self._previewed:
            return
        self._previewed = chosen
        self.query_one("#confirm", Button).disabled = True
        self.query_one("#plan", Static).update(Text("making the plan ...", style="dim"))
        self.query_one("#command", Static).update(Text(shlex.join(self._build_command(chosen))))
        self.run_worker(
            partial(self._preview_plan, chosen), thread=True, exclusive=True, group="plan", exit_on_error=False
        )

    def _read_choice(self) -> tuple[str, str, str] | None:
        values = [self.query_one(f"#{name}", Select).value for name in ("experiment", "profile", "preset")]
        if not all(isinstance(value, str) for value in values):
            return None
        return (str(values[0]), str(values[1]), str(values[2]))

    def _preview_plan(self, chosen: tuple[str, str, str]) -> None:
        plan = steer.preview_plan(*chosen)
        self.app.call_from_thread(self._show_plan, chosen, plan)

    def _show_plan(self, chosen: tuple[str, str, str], plan: steer.PlanPreview | str) -> None:
        if chosen != self._read_choice():
            return
        if isinstance(plan, str):
            self.query_one("#plan", Static).update(Text(plan, style="red"))
            return
        configs = ", ".join(plan.configs)
        size = f"{len(plan.cells)} cells in {len(plan.stages)} stages, about {say.duration(plan.estimated_s)}"
        text = f"{size}\nconfigs: {configs}"
        self.query_one("#plan", Static).update(Text(text))
        self.query_one("#confirm", Button).disabled = False

    def _build_command(self, chosen: tuple[str, str, str]) -> tuple[str, ...]:
        experiment, profile, preset = chosen
        values = {"experiment": experiment, "profile": profile, "preset": preset}
        words = tuple(word.format(**values) for word in actions.BY_ID["start"].command)
        return (*words, *self._workspace_words)

    @on(Button.Pressed)
    def answer(self, event: Button.Pressed) -> None:
        chosen = self._read_choice()
        self.dismiss(self._build_command(chosen) if event.button.id == "confirm" and chosen is not None else None)


def _offer_names(select: Select[str], names: list[str], prefer: str = "") -> None:
    """New options; keeps the value where it is still one of them."""
    before = select.value
    select.set_options((name, name) for name in names)
    if names:
        select.value = before if before in names else prefer if prefer in names else names[0]
