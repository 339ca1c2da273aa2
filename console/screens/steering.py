"""What a screen needs to steer its run: questions, requests, commands, and what came of them."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path

from textual.events import Key

from console import actions, steer
from console.feed import Picture
from console.screens.dialogs import Confirm, Menu, Offer, Skip
from console.screens.looking import LookingScreen
from results.records.count import format_count
from results.records.events import CellState, RunState


class SteeringScreen(LookingScreen):
    """A screen about one run that can be steered from it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Picture())

    def find_cursor_target(self) -> str:
        """What the cursor is on, as `stage:ID` or `cell:ID`; empty = nothing."""
        return ""

    def look_now(self) -> None:
        """Read the journal immediately: a request was submitted."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        allowed = super().check_action(action, parameters)
        return None if allowed and action == "steer" and self._explain_refusal(str(parameters[0])) else allowed

    def _explain_refusal(self, action: str) -> str:
        failed = sum(stage.counts.get(CellState.FAILED, 0) for stage in self.picture.view.stages)
        return actions.why_not(action, self.run_state, self.picture.live, failed, pausing=self._pausing)

    @property
    def _pausing(self) -> bool:
        return self.picture.view.pause == "pausing"

    @property
    def run_state(self) -> RunState | None:
        return None if self.picture.loading else self.picture.view.state

    def on_key(self, event: Key) -> None:
        """State why a key does nothing, and what would do something: the app ignores keys of disabled actions."""
        action = actions.STEERED_BY.get(event.key)
        if action is None or self.tracon.options.read_only:
            return
        if why := self._explain_refusal(action.id):
            instead = actions.suggest_instead(
                action.id, self.run_state, self.picture.live,
                pausing=self._pausing, has_list=self.tracon.has_runs_screen,
            )  # fmt: skip
            text = f"{why}: {instead}" if instead else why
            self.notify(text, title=f"{action.label}: not now", severity="warning")

    def _build_command(self, action: str, **values: str) -> tuple[str, ...]:
        return actions.make_command_line(action, self._folder, self.tracon.workspace_of(self._folder), **values)

    def action_menu(self) -> None:
        offers = [
            Offer(
                action,
                self._build_command(action.id, sort="cell", target="CELL", reason="WHY"),
                self._explain_refusal(action.id),
            )
            for action in actions.ACTIONS
            if self.NAME in action.screens and action.steers and action.id != "menu"
        ]
        self.app.push_screen(Menu(self._folder.name, offers), self._take_menu_choice)

    def _take_menu_choice(self, action: str | None) -> None:
        if action is not None:
            self.action_steer(action)

    def action_steer(self, action: str) -> None:
        """Carry out the action, after its question where it has one."""
        if action == "skip":
            self.app.push_screen(Skip(self._folder.name, self._skip_targets()), self._skip_chosen)
            return
        known = actions.BY_ID[action]
        if not known.question:
            self._send_action(action)
            return
        question = known.question.format(run=self._folder.name)
        answered = partial(self._act_if_confirmed, action)
        self.app.push_screen(Confirm(question, known.label, self._build_command(action)), answered)

    def _act_if_confirmed(self, action: str, yes: bool | None) -> None:
        if yes:
            self._send_action(action)

    def _skip_targets(self) -> list[tuple[str, str]]:
        """What can be skipped from where the cursor is: the cell, its config, its stage."""
        view = self.picture.view
        sort, _, name = self.find_cursor_target().partition(":")
        left = [cell for cell in view.cells.values() if cell.state in (CellState.PENDING, CellState.RUNNING)]
        cell = view.cells.get(name) or next(iter((*view.current_cells, *left, *view.cells.values())))
        config, stage = cell.plan.config or "", name if sort == "stage" else cell.plan.stage
        if sort == "config":
            config, stage, _ = name.split(":")
        targets = []
        if sort in ("cell", ""):
            targets.append((f"cell:{cell.cell}", f"this cell, {cell.state}"))
        if config and sort != "stage":
            targets.append((f"config:{config}", _count_unmeasured(sum(each.plan.config == config for each in left))))
        return [*targets, (f"stage:{stage}", _count_unmeasured(sum(each.plan.stage == stage for each in left)))]

    def _skip_chosen(self, chosen: tuple[str, str] | None) -> None:
        if chosen is not None:
            self._send_action("skip", *chosen)

    def _send_action(self, action: str, target: str = "", reason: str = "") -> None:
        """Through the journal of a live run, else by the command line; in a thread, both may wait for a disk."""
        sort, _, name = target.partition(":")
        command = self._build_command(action, sort=sort, target=name, reason=reason)
        self.tracon.last_command = command
        if self.picture.live:
            work = partial(steer.submit_request, self._folder, action, target, reason)
        else:
            work = partial(steer.run_tracon, command[1:])
            self.notify(shlex.join(command), title=f"{actions.BY_ID[action].label}: running the command")
        self.run_worker(partial(self._carry_out, work, command), thread=True, exit_on_error=False)

    def _carry_out(self, work: partial[steer.Result], command: tuple[str, ...]) -> None:
        result = work()
        self.app.call_from_thread(self.look_now)
        self.app.call_from_thread(self._report_result, result, command)

    def _report_result(self, result: steer.Result, command: tuple[str, ...]) -> None:
        if result.done:
            self.notify(f"{shlex.join(command)}\ny copies the command line", title=result.text)
        else:
            self.notify(result.text, title="refused", severity="error", timeout=15)


def _count_unmeasured(cells: int) -> str:
    return f"{format_count(cells, 'cell', 'cells')} not yet measured"
