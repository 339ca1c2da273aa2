"""Keys that change a run: what reaches the journal, what is asked first, and what read-only takes away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.widgets import Button, OptionList
from typer.main import get_command

from console import actions, steer
from console.actions import ACTIONS, suggest_instead, why_not
from console.screens.dialogs import Confirm, Menu, Skip
from console.screens.help import Help
from console.screens.run import RunScreen
from console.screens.start import Start
from results.records.events import CellChanged, CellState, RunState
from runners.cli import app as cli
from state.store import RunStore
from tests.console.conftest import NARROW, RUN, WAIT_S, asked, press_and_see, sees, shown, until, watching


async def test_pause_is_a_request_in_the_journal(live_run: Path) -> None:
    async with watching(live_run) as pilot:
        await pilot.press("p")
        await until(pilot, lambda: bool(asked(live_run)), "no request")
        await sees(pilot, "pausing")
    (request,) = asked(live_run)
    assert (request.action, request.target) == ("pause", "")
    assert "console" in request.by


@pytest.mark.parametrize(("key", "action"), [("t", "stop"), ("T", "stop_now"), ("R", "retry")])
async def test_what_cannot_be_taken_back_asks_first_with_cancel_focused(live_run: Path, key: str, action: str) -> None:
    with RunStore.open(live_run) as store:
        cell = store.view().current_cells[0]
        store.append(CellChanged(cell.cell, CellState.FAILED, cell.attempt, "the engine died"))
    async with watching(live_run, NARROW) as pilot:
        await pilot.press(key)
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm), "no question")
        assert RUN in "".join(shown(pilot.app))
        assert isinstance(pilot.app.focused, Button)
        assert pilot.app.focused.id == "cancel"
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, RunScreen)
        await pilot.press(key)
        await until(pilot, lambda: isinstance(pilot.app.screen, Confirm), "no question")
        await pilot.press("right", "enter")
        await until(pilot, lambda: bool(asked(live_run)), "no request")
    assert [request.action for request in asked(live_run)] == [action]


async def test_a_key_that_can_do_nothing_states_why_and_what_would(live_run: Path) -> None:
    async with watching(live_run, notifications=True) as pilot:
        await pilot.press("R")
        await sees(pilot, "no cell has failed")
        await sees(pilot, "once a cell has failed")
        assert isinstance(pilot.app.screen, RunScreen)
        await pilot.press("r")
        await sees(pilot, "the run is running: p pauses it")
    assert asked(live_run) == []


async def test_a_letter_in_the_filter_is_no_key(live_run: Path) -> None:
    async with watching(live_run, notifications=True) as pilot:
        await pilot.press("slash", "R", "r")
        await pilot.pause()
        assert "no cell has failed" not in "\n".join(shown(pilot.app))


async def test_a_pause_that_waits_for_the_running_cell_can_be_withdrawn(live_run: Path) -> None:
    async with watching(live_run, notifications=True) as pilot:
        await press_and_see(pilot, "p", "pausing")
        await press_and_see(pilot, "p", "the run pauses after", "withdraws")
        await pilot.press("r")
        await until(pilot, lambda: len(asked(live_run)) == 2, "the pause stands")
    assert [request.action for request in asked(live_run)] == ["pause", "resume"]


def test_where_there_is_no_list_of_runs_it_names_no_way_back_to_it() -> None:
    assert "esc" not in suggest_instead("pause", RunState.DONE, False, has_list=False)
    assert "tracon" in suggest_instead("pause", RunState.DONE, False, has_list=False)


@pytest.mark.parametrize(
    ("action", "state", "live", "instead"),
    [
        ("retry", RunState.DONE, False, "esc, then n, starts a new run"),
        ("retry", RunState.INTERRUPTED, False, "r continues the run"),
        ("retry", RunState.RUNNING, True, "R works once a cell has failed"),
        ("pause", RunState.PAUSED, True, "r continues the run"),
        ("stop", RunState.FAILED, False, "R puts the failed cells back to pending, then r runs them"),
    ],
)
def test_what_an_operator_can_do_instead(action: str, state: RunState, live: bool, instead: str) -> None:
    assert why_not(action, state, live, int(state is RunState.FAILED))
    assert suggest_instead(action, state, live) == instead


async def test_escape_is_cancel(live_run: Path) -> None:
    async with watching(live_run, NARROW) as pilot:
        for key in ("T", "k", "x"):
            await pilot.press(key)
            await until(pilot, lambda: not isinstance(pilot.app.screen, RunScreen), "no dialog")
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "the dialog stayed")
    assert asked(live_run) == []


async def test_skip_asks_what_and_why(live_run: Path) -> None:
    async with watching(live_run) as pilot:
        await pilot.press("k")
        await until(pilot, lambda: isinstance(pilot.app.screen, Skip), "no dialog")
        options = pilot.app.screen.query_one(OptionList)
        names = [options.get_option_at_index(i).id or "" for i in range(options.option_count)]
        assert [name.partition(":")[0] for name in names] == ["cell", "config", "stage"]
        await pilot.press("down", "enter", *"too slow", "enter", "tab", "enter")
        await until(pilot, lambda: bool(asked(live_run)), "no request")
    (request,) = asked(live_run)
    assert (request.action, request.target, request.reason) == ("skip", names[1], "too slow")


async def test_the_menu_offers_what_makes_sense_and_copies_commands(live_run: Path) -> None:
    async with watching(live_run) as pilot:
        await pilot.press("x")
        await until(pilot, lambda: isinstance(pilot.app.screen, Menu), "no menu")
        await sees(pilot, "the run is running")
        await pilot.press("y")
        assert pilot.app.clipboard == f"tracon pause {RUN} --workspace {live_run.parent}"
        await pilot.press("enter")
        await until(pilot, lambda: bool(asked(live_run)), "no request")
    assert asked(live_run)[0].action == "pause"


async def test_a_menu_without_a_possible_action_says_so_and_copies_nothing(made: Callable[[str], Path]) -> None:
    async with watching(made("routed"), NARROW) as pilot:
        await press_and_see(pilot, "x", "none of them is possible now")
        await pilot.press("y")
        assert pilot.app.clipboard == ""


async def test_y_copies_the_command_of_what_was_done_last(live_run: Path) -> None:
    async with watching(live_run) as pilot:
        await pilot.press("y")
        assert pilot.app.clipboard == f"tracon status {RUN} --workspace {live_run.parent}"
        await pilot.press("p")
        await until(pilot, lambda: bool(asked(live_run)), "no request")
        await pilot.press("y")
        assert pilot.app.clipboard == f"tracon pause {RUN} --workspace {live_run.parent}"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The commands that the console runs, as they come; each is done at once and names RUN."""
    commands: list[tuple[str, ...]] = []

    def tracon(words: tuple[str, ...]) -> steer.Result:
        commands.append(tuple(words))
        return steer.Result(True, RUN)

    monkeypatch.setattr(steer, "run_tracon", tracon)
    return commands


async def test_a_dead_run_is_resumed_by_the_command_line(dead_run: Path, ran: list[tuple[str, ...]]) -> None:
    async with watching(dead_run) as pilot:
        await pilot.press("p", "t")  # there is no process to pause or stop
        await pilot.press("r")
        await until(pilot, lambda: bool(ran), "no command")
    assert ran == [("resume", RUN, "--detach", "--workspace", str(dead_run.parent))]
    assert asked(dead_run) == []


async def test_a_command_that_takes_a_while_is_named_at_once(dead_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def wait(words: tuple[str, ...]) -> steer.Result:
        ended.wait(WAIT_S)
        return steer.Result(True, "done")

    monkeypatch.setattr("console.steer.run_tracon", wait)
    async with watching(dead_run, notifications=True) as pilot:
        await press_and_see(pilot, "r", "Resume: running the command")
        ended.set()


async def test_read_only_has_no_key_that_changes_a_run(live_run: Path) -> None:
    async with watching(live_run, read_only=True) as pilot:
        await sees(pilot, "read-only")
        footer = shown(pilot.app)[-1]
        for word in ("Pause", "Stop", "Resume", "Actions"):
            assert word not in footer
        for action in ACTIONS:
            if action.steers:
                await pilot.press(*action.keys)
        await pilot.pause()
        assert isinstance(pilot.app.screen, RunScreen)
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, Help), "no help")
        assert "Stop after cell" not in "\n".join(shown(pilot.app))
    assert asked(live_run) == []


async def test_a_refusal_is_shown(live_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = steer.Result(False, "no process runs it. `tracon resume` starts one")
    monkeypatch.setattr(steer, "submit_request", lambda *_: refused)
    async with watching(live_run, notifications=True) as pilot:
        await pilot.press("p")
        await sees(pilot, "no process runs it")


async def test_a_run_is_started_from_the_list(
    ended_run: Path, monkeypatch: pytest.MonkeyPatch, ran: list[tuple[str, ...]]
) -> None:
    offers = (steer.ProfileOffer("cpu-tiny", presets={"connector-tax": ["demo", "full"]}),)
    plan = steer.PlanPreview(configs=["plain", "nixl_both"], stages=[], cells=[], estimated_s=196.0)
    monkeypatch.setattr(steer, "list_profiles", lambda: offers)
    monkeypatch.setattr(steer, "preview_plan", lambda *_: plan)
    workspace = ended_run.parent
    async with watching(None, workspace=workspace) as pilot:
        await pilot.press("n")
        await until(pilot, lambda: isinstance(pilot.app.screen, Start), "no dialog")
        await sees(pilot, "3 min 16 s")
        await sees(pilot, "plain, nixl_both")
        pilot.app.screen.query_one("#confirm", Button).press()
        await until(pilot, lambda: isinstance(pilot.app.screen, RunScreen), "the new run was not opened")
        await sees(pilot, "Phase A")
    options = ("--profile", "cpu-tiny", "--preset", "demo", "--detach", "--workspace", str(workspace))
    assert ran == [("run", "connector-tax", *options)]


def test_the_profiles_and_the_plan_come_from_the_command_line() -> None:
    profiles = steer.list_profiles()
    assert not isinstance(profiles, str), profiles
    assert "connector-tax" in next(each.presets for each in profiles if each.name == "cpu-tiny")
    plan = steer.preview_plan("connector-tax", "cpu-tiny", "demo")
    assert not isinstance(plan, str), plan
    assert plan.estimated_s > 0
    assert "plain" in plan.configs
    refusal = steer.preview_plan("connector-tax", "cpu-tiny", "no-such-preset")
    assert isinstance(refusal, str)
    assert "no-such-preset" in refusal


def test_a_failed_command_gives_one_paragraph(dead_run: Path) -> None:
    result = steer.run_tracon(("resume", "no-such-run", "--detach", "--workspace", str(dead_run.parent)))
    assert not result.done
    assert "no-such-run" in result.text
    assert "\n" not in result.text


@pytest.mark.parametrize("action", [action for action in ACTIONS if action.command], ids=lambda action: action.id)
def test_every_command_that_is_shown_is_one_the_command_line_knows(action: actions.Action) -> None:
    names = {
        name: "x"
        for name in ("run", "experiment", "profile", "preset", "target", "reason", "request", "place", "session")
    }
    words = [word.format(**names, sort="cell") for word in action.command] + ["--workspace", "/nowhere"]
    assert words[0] == "tracon"
    command = get_command(cli).commands[words[1]]  # type: ignore[attr-defined]
    command.make_context(words[1], words[2:])  # raises a usage error for an option that does not exist


@pytest.mark.parametrize(
    ("action", "state", "live", "possible"),
    [
        ("pause", RunState.RUNNING, True, True),
        ("pause", RunState.RUNNING, False, False),
        ("pause", RunState.PAUSED, True, False),
        ("resume", RunState.PAUSED, True, True),
        ("resume", RunState.RUNNING, True, False),
        ("resume", RunState.RUNNING, False, True),
        ("resume", RunState.INTERRUPTED, False, True),
        ("resume", RunState.DONE, False, False),
        ("stop", RunState.RUNNING, True, True),
        ("stop_now", RunState.INTERRUPTED, False, False),
        ("skip", RunState.INTERRUPTED, False, True),
        ("retry", RunState.FAILED, False, True),
        ("retry", RunState.RUNNING, True, False),
        ("retry", RunState.DONE, False, False),
    ],
)
def test_actions_are_offered_only_where_they_make_sense(
    action: str, state: RunState, live: bool, possible: bool
) -> None:
    failed = int(state is RunState.FAILED)
    assert (why_not(action, state, live, failed) == "") is possible


def test_the_command_of_an_action_names_the_run_its_target_and_the_workspace(tmp_path: Path) -> None:
    command = actions.make_command_line(
        "skip", tmp_path / "r", tmp_path, sort="config", target="plain", reason="it's slow; rm -rf"
    )
    skipped = ("--config", "plain", "--reason", "it's slow; rm -rf")
    assert command == ("tracon", "skip", "r", *skipped, "--workspace", str(tmp_path))
