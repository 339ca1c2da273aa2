"""What an operator can do beside opening a panel; `console.keys` adds the panels and makes the key table of it all."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from state.run import RunState

RUN, RUNS, INSTANCE = "run", "runs", "instance"
"""The screens an action can belong to."""
EVERYWHERE = (RUN, RUNS, INSTANCE)
GROUPS = ("Steer the run", "Look", "Move", "Console")


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    id: str
    """Also the name of the request where there is one."""
    keys: tuple[str, ...]
    """As Textual names them; the first is the one shown."""
    label: str
    help: str
    """Names in braces are filled in by what the panels declare."""
    group: str
    screens: tuple[str, ...] = (RUN,)
    footer: bool = False
    steers: bool = False
    """It changes a run: `--read-only` takes it away."""
    question: str = ""
    """Asked before it is done, with Cancel focused; `{run}` stands for the run's name."""
    command: tuple[str, ...] = ()
    """The equal command line; names in braces are filled in."""
    method: str = ""
    """The Textual action, with its parameters, where it is not `id`."""

    @property
    def key(self) -> str:
        """The key as people write it."""
        return " ".join(KEY_NAMES.get(key, key) for key in self.keys)


KEY_NAMES = {
    "space": "space",
    "enter": "enter",
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
        "choose experiment, profile and preset, see the plan and its time, and start it as a process of its own",
        GROUPS[0],
        (RUNS,),
        footer=True,
        steers=True,
        command=("tracon", "run", "{experiment}", "--profile", "{profile}", "--preset", "{preset}", "--detach"),
    ),
    Action(
        "menu",
        ("x",),
        "Actions",
        "every action on this run, each with the command line that does the same",
        GROUPS[0],
        footer=True,
        steers=True,
    ),
    Action(
        "pause",
        ("p",),
        "Pause",
        "finish the running cell, then hold; engines are stopped while the run is paused",
        GROUPS[0],
        footer=True,
        steers=True,
        command=("tracon", "pause", "{run}"),
    ),
    Action(
        "resume",
        ("r",),
        "Resume",
        "go on: a paused run at once, an interrupted one in a new process; finished cells are never repeated",
        GROUPS[0],
        footer=True,
        steers=True,
        command=("tracon", "resume", "{run}", "--detach"),
    ),
    Action(
        "stop",
        ("t",),
        "Stop after cell",
        "finish the running cell, then end the run; it can be resumed",
        GROUPS[0],
        footer=True,
        steers=True,
        question="Stop {run} after the running cell? It can be resumed later.",
        command=("tracon", "stop", "{run}"),
    ),
    Action(
        "stop_now",
        ("T",),
        "Stop now",
        "cut the running cell and end the run; a resume measures that cell again",
        GROUPS[0],
        steers=True,
        question="Stop {run} now? The running cell is cut and will be measured again after a resume.",
        command=("tracon", "stop", "{run}", "--now"),
    ),
    Action(
        "skip",
        ("k",),
        "Skip",
        "leave out a cell, a config or a stage; asks which and why, and the reason goes into the manifest",
        GROUPS[0],
        steers=True,
        command=("tracon", "skip", "{run}", "--{sort}", "{target}", "--reason", "{reason}"),
    ),
    Action(
        "retry",
        ("R",),
        "Retry failed",
        "put every failed cell back to pending and run it again",
        GROUPS[0],
        steers=True,
        question="Run every failed cell of {run} again?",
        command=("tracon", "retry", "{run}"),
    ),
    Action(
        "section_before",
        ("left",),
        "Previous section",
        "{previous}",
        GROUPS[1],
    ),
    Action(
        "section_after",
        ("right",),
        "Next section",
        "{next}",
        GROUPS[1],
    ),
    Action(
        "export",
        ("e",),
        "Export",
        "{exports}",
        GROUPS[1],
        command=("tracon", "report", "{run}", "--json"),
    ),
    Action("zoom", ("z",), "Zoom", "the focused panel alone, and back", GROUPS[1]),
    Action(
        "freeze",
        ("space",),
        "Freeze",
        "hold tables and plots still; the header stays live and counts what came meanwhile",
        GROUPS[1],
        (RUN, INSTANCE),
        footer=True,
    ),
    Action(
        "shorter",
        ("left_square_bracket",),
        "Shorter",
        "shorter time window: 60, 15, 5, 1 min",
        GROUPS[1],
        (RUN, INSTANCE),
    ),
    Action(
        "longer",
        ("right_square_bracket",),
        "Longer",
        "longer time window: 5, 15, 60 min, whole run",
        GROUPS[1],
        (RUN, INSTANCE),
    ),
    Action(
        "filter",
        ("slash",),
        "Filter",
        "keep the rows that contain a text; ! in front keeps the others; esc clears",
        GROUPS[1],
        EVERYWHERE,
        footer=True,
    ),
    Action(
        "follow",
        ("f",),
        "Follow",
        "stay at the newest event and at the running cell; moving up turns it off",
        GROUPS[1],
        (RUN, INSTANCE),
    ),
    Action(
        "open",
        ("enter",),
        "Open",
        "what is under the cursor: a run, a cell's numbers, an instance, an event",
        GROUPS[2],
        EVERYWHERE,
    ),
    Action(
        "back", ("escape",), "Back", "clear the filter, leave the zoom, the instance or the run", GROUPS[2], EVERYWHERE
    ),
    Action(
        "copy",
        ("y",),
        "Copy",
        "copy the command line that does what was last done here (in the menu: the highlighted one)",
        GROUPS[3],
        EVERYWHERE,
        command=("tracon", "status", "{run}"),
    ),
    Action(
        "screenshot", ("s",), "Screenshot", "save this screen as an SVG file in the run's folder", GROUPS[3], EVERYWHERE
    ),
    Action("help", ("question_mark",), "Help", "keys, and what every number means", GROUPS[3], EVERYWHERE, footer=True),
    Action("command_palette", ("ctrl+p",), "Palette", "find an action by name, choose a theme", GROUPS[3], EVERYWHERE),
    Action("quit", ("q", "ctrl+c"), "Quit", "leave the console; the run goes on", GROUPS[3], EVERYWHERE, footer=True),
)

BY_ID = {action.id: action for action in ACTIONS}


def why_not(action: str, state: RunState | None, live: bool) -> str:
    """Why a steering action makes no sense now; empty = it does. `live`: a process holds the run's lease."""
    if state is None:
        return "the run is not loaded yet"
    if action in ("stop", "stop_now") and not live:
        return "no process runs it"
    if action == "pause" and not (live and state is RunState.RUNNING):
        return "the run is not running"
    if action == "resume" and live and state is not RunState.PAUSED:
        return "the run is running"
    if action in ("resume", "skip") and state is RunState.DONE:
        return "the run is done"
    return ""


def fill_command(
    words: tuple[str, ...], run: Path, workspace: Path | None = None, values: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The argument vector of a command with names in braces."""
    filled = tuple(word.format(run=run.name, **(values or {})) for word in words)
    return filled if workspace is None else (*filled, "--workspace", str(workspace))


def command_line(action: str, run: Path, workspace: Path | None = None, **values: str) -> tuple[str, ...]:
    """The argument vector that does the same as this action."""
    return fill_command(BY_ID[action].command, run, workspace, values)


def shell_text(command: tuple[str, ...]) -> str:
    """A command line as it can be pasted into a shell."""
    return shlex.join(command)
