"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ExperimentArg = Annotated[str, typer.Argument(help="What to run: `connector-tax`, `routing` or `pd-lifecycle`.")]
ProfileOption = Annotated[
    str, typer.Option("--profile", "-p", help="Profile name or TOML file: model, hardware, scale.")
]
PresetOption = Annotated[
    str, typer.Option("--preset", help="Grid of the profile: `full`, or a smaller one such as `demo`.")
]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        help="`connector-tax`: only these configs (repeatable), `plain` among them. `routing`: of all engines. "
        "`pd-lifecycle`: of both engines, or the prefill and then the decode engine's.",
    ),
]
PolicyOption = Annotated[
    list[str] | None,
    typer.Option("--policy", help="`routing`: only these policies (repeatable), by name, label or Python file."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="`routing`, `pd-lifecycle`: KEY=VALUE over the preset (repeatable): `trace.sessions=50`, "
        "`unified.overload_factor=1.3`, `new_tokens=[512,2048]`.",
    ),
]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", help="`routing`: replay this trace file instead of the preset's.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of config order, schedules and prompts.")]
TrialsOption = Annotated[
    int | None,
    typer.Option("--trials", min=1, help="Measure every load cell so often, each time on fresh engines."),
]
PythonOption = Annotated[
    Path | None, typer.Option("--engine-python", help="Python of an engine environment that exists.")
]
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
DetachOption = Annotated[bool, typer.Option("--detach", "-d", help="Leave the run process working and return at once.")]
SkipStageOption = Annotated[
    list[str] | None,
    typer.Option("--skip-stage", help="Skip this stage (repeatable): `3` or `phase-b`."),
]
ReasonOption = Annotated[str, typer.Option("--reason", "-r", help="Why; kept in the journal and the manifest.")]
