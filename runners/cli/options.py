"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from runners.cli.spec_options import SpecCommand, SpecOption, SpecOptions
from runners.errors import RunnerError

RUNS_PANEL = "Runs"
RESULTS_PANEL = "Results"
HOST_PANEL = "Host and engines"
ROUTING_PANEL = "Routing"
TRACES_PANEL = "Traces and simulations"
"""Headings of the list of commands."""

PROFILE_HELP = "Use this profile (model, hardware, scale): a name from `tracon profiles`, or the path of a TOML file"
_PYTHON = "Use the engine environment of this Python executable"
_BUILT = "the one `tracon engine install` built"
ProfileOption = Annotated[str, typer.Option("--profile", "-p", help=f"{PROFILE_HELP}.")]
PythonOption = Annotated[Path | None, typer.Option("--engine-python", help=f"{_PYTHON} (default: {_BUILT}).")]
RUN = SpecOptions(
    "runners.campaign.experiment:RunOptions",
    (
        SpecOption("profile", "--profile -p", PROFILE_HELP),
        SpecOption("preset", "--preset", "Use this preset of the profile: `full`, or a smaller one such as `demo`"),
        SpecOption("configs", "--config -c", "Use this connector config: a name, or the path of a TOML file", "CONFIG"),
        SpecOption(
            "seed", "--seed", "Draw the order of configs, schedules and prompts from this seed", default="the preset's"
        ),
        SpecOption(
            "trials", "--trials",
            "Measure each load cell, or those of the confirm stage, N times on fresh engines", None, 1, "the preset's",
        ),
        SpecOption("policies", "--policy", "Use this routing policy: a name, label or Python file", "POLICY"),
        SpecOption("settings", "--set", "Change a setting of the preset (repeatable)", "KEY=VALUE"),
        SpecOption("trace", "--trace", "Replay this trace file in place of the preset's trace", "FILE"),
        SpecOption("simulated", "--simulated", "Start no engine: engines are a model, in simulated time"),
        SpecOption("engine", "--engine", "Simulate with this engine model: a name or a file", "MODEL"),
        SpecOption("on", "--on", "Run simulations on `local`, `ray` or `ray://HEAD:PORT`", "WHERE", default="local"),
        SpecOption("instances", "--instances", "Use this many engines", None, 1, "the preset's"),
        SpecOption("engine_python", "--engine-python", _PYTHON, default=_BUILT),
        SpecOption("port", "--port", "Give the engines ports from this one on", None, 1, "the profile's", 65535),
    ),
)  # fmt: skip
"""Options of `plan` and `run`; `ExperimentCommand` adds their meaning per experiment to the help."""
ExperimentArg = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Experiment to run.")]
WorkspaceOption = Annotated[
    Path | None,
    typer.Option(
        "--workspace",
        "-w",
        envvar="TRACON_WORKSPACE",
        help="Use this folder of runs (default: `$XDG_STATE_HOME/tracon`, else `~/.local/state/tracon`).",
    ),
]
RunArg = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Run id, a unique beginning of it, or its folder; default: the newest."),
]
RunsArg = Annotated[str, typer.Argument(metavar="RUN", help="Run id, a unique beginning of it, or its folder.")]
ComparedArg = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Run id, a unique beginning of it, its folder, or one that `tracon export` wrote."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Return at once and leave the run process working.")]
ConsoleOption = Annotated[
    bool, typer.Option("--console", help="Open the console on the run, if stdin and stdout are a terminal.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the plan, as `tracon plan`; start nothing.")]
SkipStageOption = Annotated[
    list[str] | None,
    typer.Option("--skip-stage", help="Skip this stage (repeatable): `3` or `phase-b`."),
]
PaceOption = Annotated[
    float | None,
    typer.Option(
        "--pace",
        metavar="N",
        help="Simulate N seconds per second, one cell at a time, so that the console shows them live "
        "(0 = as fast as the host can).",
    ),
]
ReasonOption = Annotated[
    str, typer.Option("--reason", "-r", help="Record this reason in the journal; the report shows that of a skip.")
]


class ExperimentCommand(SpecCommand):
    """Completes the help of `plan` and `run` when it is printed: experiments can be registered until then."""

    specs_first = True

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401  # Typer's copy of click is private
        meanings = _describe_options()
        for parameter in self.params:
            text = getattr(parameter, "help", None)
            if text and parameter.name in meanings:
                parameter.help = f"{text.rstrip('.')}{meanings[parameter.name]}."
        super().format_help(ctx, formatter)


def _describe_options() -> dict[str, str]:
    """The meaning of each option to the experiments, by parameter; it follows the option's general help."""
    from runners.experiments.registry import experiments

    known = experiments()
    helps = {"experiment": ": " + ", ".join(f"`{experiment.name}`" for experiment in known)}
    for name in dict.fromkeys(name for experiment in known for name in experiment.option_help):
        meanings = {experiment.name: experiment.option_help.get(name) for experiment in known}
        helps[name] = ". " + "; ".join(f"`{experiment}`: {text}" for experiment, text in meanings.items() if text)
    return helps


def read_pairs(texts: Iterable[str] | None, option: str, shape: str) -> dict[str, str]:
    """Texts of the shape `KEY=VALUE` as a mapping; values stay text. Raises RunnerError for another shape."""
    pairs = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise RunnerError(f"{option} {text!r} is not {shape}", remedy=f"Give it as {shape}.")
        pairs[key.strip()] = value.strip()
    return pairs
