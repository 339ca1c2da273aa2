"""Operator actions except opening a panel; `console.keys` adds the panels and builds the key table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from results.records.events import RunState

RUN, RUNS, INSTANCE = "run", "runs", "instance"
"""The screens an action can belong to."""
EVERYWHERE = (RUN, RUNS, INSTANCE)
STEER, LOOK, MOVE, CONSOLE = GROUPS = ("Steer the run", "Look", "Move", "Console")


@dataclass(frozen=True, slots=True)
class Action:
    id: str
    """Also the name of the request where there is one."""
    keys: tuple[str, ...]
    """As Textual names them; the first is the one shown."""
    label: str
    help: str
    """Names in braces are filled in from what the panels declare."""
    group: str
    screens: tuple[str, ...] = (RUN,)
    footer: bool = False
    question: str = ""
    """Asked before the action, with Cancel focused; `{run}` stands for the run's name."""
    command: tuple[str, ...] = ()
    """The equivalent command line; names in braces are filled in."""
    method: str = ""
    """The Textual action, with its parameters, where it is not `id`."""

    @property
    def steers(self) -> bool:
        """It changes a run: `--read-only` disables it."""
        return self.group == STEER

    @property
    def key(self) -> str:
        """The key as people write it."""
        return " ".join(KEY_NAMES.get(key, key) for key in self.keys)


KEY_NAMES = {
    "escape": "esc",
    "slash": "/",
    "question_mark": "?",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left": "←",
    "right": "→",
}

ACTIONS: tuple[Action, ...] = (
    Action(
        "start",
        ("n",),
        "New run",
        "choose experiment, profile and preset, see the plan and its time, and start it as a separate process",
        STEER,
        (RUNS,),
        footer=True,
        command=("tracon", "run", "{experiment}", "--profile", "{profile}", "--preset", "{preset}", "--detach"),
    ),
    Action(
        "menu",
        ("x",),
        "Actions",
        "every action on this run, each with the command line that does the same",
        STEER,
        footer=True,
    ),
    Action(
        "pause",
        ("p",),
        "Pause",
        "finish the running cell, then hold; engines are stopped while the run is paused",
        STEER,
        footer=True,
        command=("tracon", "pause", "{run}"),
        method="steer('pause')",
    ),
    Action(
        "resume",
        ("r",),
        "Resume",
        "continue a paused run at once, an interrupted one in a new process; withdraw a pause that waits for the "
        "running cell; finished cells are never repeated",
        STEER,
        footer=True,
        command=("tracon", "resume", "{run}", "--detach"),
        method="steer('resume')",
    ),
    Action(
        "stop",
        ("t",),
        "Stop after cell",
        "finish the running cell, then end the run; it can be resumed",
        STEER,
        footer=True,
        question="Stop {run} after the running cell? It can be resumed later.",
        command=("tracon", "stop", "{run}"),
        method="steer('stop')",
    ),
    Action(
        "stop_now",
        ("T",),
        "Stop now",
        "cut the running cell and end the run; a resume measures that cell again",
        STEER,
        question="Stop {run} now? The running cell is cut and will be measured again after a resume.",
        command=("tracon", "stop", "{run}", "--now"),
        method="steer('stop_now')",
    ),
    Action(
        "skip",
        ("k",),
        "Skip",
        "skip a cell, a config or a stage; asks which and why; the report shows the reason",
        STEER,
        command=("tracon", "skip", "{run}", "--{sort}", "{target}", "--reason", "{reason}"),
        method="steer('skip')",
    ),
    Action(
        "retry",
        ("R",),
        "Retry failed",
        "put every failed cell back to pending and run it again",
        STEER,
        question="Run every failed cell of {run} again?",
        command=("tracon", "retry", "{run}"),
        method="steer('retry')",
    ),
    Action("section_before", ("left",), "Previous section", "{previous}", LOOK, method="step_section(-1)"),
    Action("section_after", ("right",), "Next section", "{next}", LOOK, method="step_section(1)"),
    Action("export", ("e",), "Export", "{exports}", LOOK, command=("tracon", "report", "{run}", "--json")),
    Action("zoom", ("z",), "Zoom", "the focused panel alone, and back", LOOK),
    Action(
        "freeze",
        ("space",),
        "Freeze",
        "hold tables and plots still; the header stays live and counts the events since",
        LOOK,
        (RUN, INSTANCE),
        footer=True,
    ),
    Action(
        "shorter",
        ("left_square_bracket",),
        "Shorter",
        "shorter time window: 60, 15, 5, 1 min",
        LOOK,
        (RUN, INSTANCE),
        method="step_window(-1)",
    ),
    Action(
        "longer",
        ("right_square_bracket",),
        "Longer",
        "longer time window: 5, 15, 60 min, whole run",
        LOOK,
        (RUN, INSTANCE),
        method="step_window(1)",
    ),
    Action(
        "filter",
        ("slash",),
        "Filter",
        "keep the rows that contain a text; ! in front keeps the others; esc clears",
        LOOK,
        EVERYWHERE,
        footer=True,
    ),
    Action(
        "follow",
        ("f",),
        "Follow",
        "stay at the newest event and at the running cell; moving up turns it off",
        LOOK,
        (RUN, INSTANCE),
    ),
    Action(
        "open",
        ("enter",),
        "Open",
        "what is under the cursor: a run, a cell's numbers, an instance, an event",
        MOVE,
        EVERYWHERE,
    ),
    Action("back", ("escape",), "Back", "clear the filter, leave the zoom, the instance or the run", MOVE, EVERYWHERE),
    Action(
        "copy",
        ("y",),
        "Copy",
        "copy the command line of the last action here (in the menu: of the highlighted one)",
        CONSOLE,
        EVERYWHERE,
        command=("tracon", "status", "{run}"),
    ),
    Action(
        "screenshot", ("s",), "Screenshot", "save this screen as an SVG file in the run's folder", CONSOLE, EVERYWHERE
    ),
    Action("help", ("question_mark",), "Help", "keys, and what every number means", CONSOLE, EVERYWHERE, footer=True),
    Action("command_palette", ("ctrl+p",), "Palette", "find an action by name, choose a theme", CONSOLE, EVERYWHERE),
    Action("quit", ("q", "ctrl+c"), "Quit", "leave the console; the run continues", CONSOLE, EVERYWHERE, footer=True),
)

BY_ID = {action.id: action for action in ACTIONS}
STEERED_BY = {key: action for action in ACTIONS if action.method == f"steer('{action.id}')" for key in action.keys}
"""The keys, as Textual names them, whose action depends on the run's state."""


def is_steering(method: str) -> bool:
    """Whether this Textual action changes a run."""
    return method == "steer" or (method in BY_ID and BY_ID[method].steers)


def why_not(action: str, state: RunState | None, live: bool, failed: int, *, pausing: bool = False) -> str:
    """Why a steering action is not possible now; empty = it is.

    `live`: a process holds the run's lease. `failed`: how many cells failed. `pausing`: a pause waits for the running
    cell, and Resume withdraws it.
    """
    if state is None:
        return "the run is not loaded yet"
    if state is RunState.DONE and action != "retry":
        return "the run is done"
    if action in ("stop", "stop_now") and not live:
        return "no process runs it"
    if action == "pause" and pausing:
        return "the run pauses after the running cell"
    if action == "pause" and not (live and state is RunState.RUNNING):
        return "the run is not running"
    if action == "resume" and live and state is not RunState.PAUSED and not pausing:
        return "the run is running"
    if action == "retry" and not failed:
        return "the run is done, and no cell failed" if state is RunState.DONE else "no cell has failed"
    return ""


def suggest_instead(
    action: str, state: RunState | None, live: bool, *, pausing: bool = False, has_list: bool = True
) -> str:
    """What the operator can do where `why_not` gives a reason; empty = wait.

    `has_list`: there is a list of runs to go back to.
    """
    if state is RunState.DONE:
        return (
            "esc, then n, starts a new run" if has_list else "q leaves; tracon lists the runs, and n there starts one"
        )
    if state is RunState.FAILED:
        return "R puts the failed cells back to pending, then r runs them"
    if state is not None and not live:
        return "r continues the run"
    return {
        "pause": "r withdraws the pause" if pausing else "r continues the run",
        "resume": "p pauses it, t stops it after the running cell",
        "retry": "R works once a cell has failed",
    }.get(action, "")


def fill_command(
    words: tuple[str, ...], run: Path, workspace: Path | None = None, values: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The argument vector of a command with names in braces."""
    filled = tuple(word.format(run=run.name, **(values or {})) for word in words)
    return filled if workspace is None else (*filled, "--workspace", str(workspace))


def make_command_line(action: str, run: Path, workspace: Path | None = None, **values: str) -> tuple[str, ...]:
    """The argument vector that does the same as this action."""
    return fill_command(BY_ID[action].command, run, workspace, values)
