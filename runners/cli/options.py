"""Arguments and options that several commands share; defaults of a run come from RunOptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from typer.models import ParameterInfo

from runners.errors import RunnerError

_PROFILE = "Model, hardware and scale: name of a profile, or path of a TOML file."
_PYTHON = "Use the engine environment of this Python executable (default: the one `tracon engine install` built)."
ProfileOption = Annotated[str, typer.Option("--profile", "-p", help=_PROFILE)]
PythonOption = Annotated[Path | None, typer.Option("--engine-python", help=_PYTHON)]
RUN_OPTIONS: Mapping[str, ParameterInfo] = {
    "experiment": typer.Argument(help="Experiment to run."),
    "profile": typer.Option("--profile", "-p", help=_PROFILE),
    "preset": typer.Option("--preset", help="Preset of the profile: `full`, or a smaller one such as `demo`."),
    "configs": typer.Option("--config", "-c", help="Connector config by name, or path of a TOML file."),
    "seed": typer.Option("--seed", help="Seed of config order, schedules and prompts (default: the preset's)."),
    "trials": typer.Option(
        "--trials",
        min=1,
        help="Measure each load cell, or those of the confirm stage, N times on fresh engines (default: the preset's).",
    ),
    "policies": typer.Option("--policy", help="Routing policy."),
    "settings": typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the preset (repeatable)."),
    "trace": typer.Option("--trace", metavar="FILE", help="Trace file."),
    "simulated": typer.Option("--simulated", help="Start no engine: engines are a model, in simulated time."),
    "engine": typer.Option("--engine", metavar="MODEL", help="Engine model of a simulated run, by name or file."),
    "instances": typer.Option("--instances", min=1, help="Number of engines (default: the preset's)."),
    "engine_python": typer.Option("--engine-python", help=_PYTHON),
    "port": typer.Option("--port", min=1, max=65535, help="First port of the engines (default: the profile's)."),
}
"""By field of RunOptions; help of the shared ones ends with what they mean to each experiment."""
WorkspaceOption = Annotated[
    Path | None,
    typer.Option(
        "--workspace", "-w", envvar="TRACON_WORKSPACE", help="Folder of runs (default: the XDG state folder)."
    ),
]
RunArg = Annotated[
    str | None,
    typer.Argument(metavar="[RUN]", help="Run id, a unique beginning of it, or its folder; default: the newest."),
]
RunsArg = Annotated[str, typer.Argument(metavar="RUN", help="Run id, a unique beginning of it, or its folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Return at once and leave the run process working.")]
SkipStageOption = Annotated[
    list[str] | None,
    typer.Option("--skip-stage", help="Skip this stage (repeatable): `3` or `phase-b`."),
]
ReasonOption = Annotated[str, typer.Option("--reason", "-r", help="Reason, recorded in the journal and the manifest.")]


def read_pairs(texts: Iterable[str] | None, option: str, shape: str) -> dict[str, str]:
    """Texts of the shape `KEY=VALUE` as a mapping; values stay text. Raises RunnerError for another shape."""
    pairs = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise RunnerError(f"{option} {text!r} is not {shape}", remedy=f"Give it as {shape}.")
        pairs[key.strip()] = value.strip()
    return pairs
