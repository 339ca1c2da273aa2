"""Commands about engines: environments, probe, standalone instances, what this machine has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import runners.cli.terminal as terminal
from results.records.visible import visible
from runners.cli.options import HOST_PANEL, JsonOption, ProfileOption, PythonOption, WorkspaceOption
from runners.errors import ExitCode

engine_app = typer.Typer(no_args_is_help=True, help="Build engine environments; start and stop standalone engines.")
patch_app = typer.Typer(
    no_args_is_help=True,
    help="Install and remove the patches of an engine environment: the probes, and what a CPU build needs.",
)

KindArg = Annotated[str, typer.Argument(help="`cpu` or `cuda`.")]
KindOption = Annotated[str, typer.Option("--kind", help="Use the engine environment of this kind: `cpu` or `cuda`.")]
NameArg = Annotated[
    str, typer.Argument(metavar="NAME", help="Name given at `engine up` (default there: the config's).")
]


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=HOST_PANEL)(doctor)
    app.command(rich_help_panel=HOST_PANEL)(profiles)
    engine_app.command()(install)
    engine_app.command()(up)
    engine_app.command()(down)
    engine_app.command("list")(list_engines)
    engine_app.command()(logs)
    engine_app.command(hidden=True)(hold)
    for command in (apply, revert, status):
        patch_app.command()(command)
    app.add_typer(engine_app, name="engine", rich_help_panel=HOST_PANEL)
    app.add_typer(patch_app, name="patch", rich_help_panel=HOST_PANEL)


def doctor(
    profile: ProfileOption = "cpu-tiny",
    engine_python: PythonOption = None,
    workspace: WorkspaceOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="NAME", help="Check only this row, or this config with what it needs; repeatable."
        ),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 4 where anything is missing.")] = False,
    before_install: Annotated[
        bool,
        typer.Option(
            "--before-install", help="Check only what needs no engine environment: GPUs, driver, RDMA, memory, disk."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Print what this machine has, what each connector config needs, and how to get what is missing.

    Examples: `tracon doctor`, `tracon doctor --profile h200-qwen3-coder-30b-dummy --strict`,
    `tracon doctor --only nixl_both`
    """
    from launch.doctor import examine, narrow_report, to_json
    from launch.doctor_rows import MISSING
    from launch.profile import list_config_names, load_config, load_profile
    from runners.cli.tables import make_doctor_tables

    chosen = load_profile(profile)
    requires = {name: load_config(name).requires_on(chosen.engine.kind) for name in list_config_names()}
    report = examine(chosen, requires, engine_python=engine_python, workspace=workspace, before_install=before_install)
    report = narrow_report(report, only) if only else report
    if before_install:  # only an environment can tell whether a config can run
        report = replace(report, configs=())
    if json:
        terminal.print_json(to_json(report))
    else:
        terminal.out().print(make_doctor_tables(report))
    missing = [row.what for row in report.rows if row.state == MISSING]
    if strict and missing:
        terminal.narrate(f"missing on this host: {', '.join(missing)}. The table has the remedy of each.")
        raise typer.Exit(ExitCode.GATE_FAILED)


def profiles(json: JsonOption = False) -> None:
    """List profiles with their presets, and connector configs."""
    from launch.profile import list_config_names, list_profile_names, load_config, load_profile
    from runners.cli.tables import make_profiles_tables

    known = [load_profile(name) for name in list_profile_names()]
    configs = [load_config(name) for name in list_config_names()]
    if json:
        terminal.print_json(
            {
                "profiles": [
                    {
                        "name": p.name,
                        "description": p.description,
                        "engine": p.engine.kind,
                        "presets": {e: sorted(t) for e, t in p.experiments.items()},
                    }
                    for p in known
                ],
                "configs": [
                    {"name": c.name, "title": c.title, "why": c.why, "requires": list(c.requires)} for c in configs
                ],
            }
        )
    else:
        terminal.out().print(make_profiles_tables(known, configs))


def install(kind: KindArg = "cpu", json: JsonOption = False) -> None:
    """Build an engine environment from its lock file (idempotent; honors PIP_FIND_LINKS and UV_FIND_LINKS).

    `cpu`: about two minutes, 3 GB (to build it: 6 GB of free disk). `cuda`: three to seven minutes, 9.5 GB (25 GB).

    Examples: `tracon engine install cpu`, `tracon engine install cuda`
    """
    from launch.install import install as install_engine

    with terminal.show_step_progress() as progress:
        engine = install_engine(kind, progress=progress)
    if json:
        terminal.print_json({"kind": engine.kind, "python": str(engine.python), "versions": dict(engine.versions)})
    else:
        versions = ", ".join(f"{name} {number}" for name, number in engine.versions.items() if number)
        terminal.narrate("engine ", (engine.kind, "bold"), f" is ready: {versions}")


def up(
    config: Annotated[str, typer.Argument(help="Connector config, e.g. `plain` or `mooncake_both`.")] = "plain",
    profile: ProfileOption = "cpu-tiny",
    name: Annotated[str, typer.Option("--name", help="Give the engine this name (default: the config's).")] = "",
    port: Annotated[int | None, typer.Option("--port", help="Serve on this port (default: the profile's).")] = None,
    engine_python: PythonOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Start a standalone engine and leave it running until `tracon engine down`; prints its URL when it serves.

    Examples: `tracon engine up`, `tracon engine up nixl_both --name b --port 18200`
    """
    from runners.standalone_engine import bring_up

    row = bring_up(config, profile, name or config, port, engine_python, workspace)
    if json:
        terminal.print_json(row)
    else:
        terminal.narrate("engine ", (row.name, "bold"), f" serves {row.model} at {row.url} (pid {row.pid})")


def down(name: NameArg, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """Stop an engine started by `engine up`, and check that all its processes are gone."""
    from runners.standalone_engine import take_down

    row = take_down(name, workspace)
    if json:
        terminal.print_json(row)
    else:
        terminal.narrate("engine ", (name, "bold"), " is gone")


def list_engines(workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """List engine environments and standalone engines."""
    from launch.environment import environments
    from runners.cli.tables import make_engines_tables
    from runners.standalone_engine import list_running

    built, rows = environments(), list_running(workspace)
    if json:
        terminal.print_json(
            {
                "environments": [
                    {"kind": e.kind, "python": str(e.python), "versions": dict(e.versions)} for e in built
                ],
                "engines": rows,
            }
        )
    else:
        terminal.out().print(make_engines_tables(built, rows))


def logs(
    name: NameArg,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Print this many lines, from the end.")] = 40,
    workspace: WorkspaceOption = None,
) -> None:
    """Print the last lines of a standalone engine."""
    from runners.standalone_engine import read_log_lines

    for line in read_log_lines(name, lines, workspace):
        print(visible(line))


def hold(name: str, config: str, profile: str, folder: Path, port: int, python: Path) -> None:
    """The process that keeps a standalone engine; `up` starts it."""
    from runners.standalone_engine import hold as hold_engine

    raise typer.Exit(hold_engine(name, config, profile, folder, port, python))


def apply(kind: KindOption = "cpu", engine_python: PythonOption = None, json: JsonOption = False) -> None:
    """Install the patches, probes among them, into an engine environment (idempotent; edits no file of the engine)."""
    _change_patches("apply", kind, engine_python, json)


def revert(kind: KindOption = "cpu", engine_python: PythonOption = None, json: JsonOption = False) -> None:
    """Remove exactly what `apply` installed (idempotent)."""
    _change_patches("revert", kind, engine_python, json)


def status(kind: KindOption = "cpu", engine_python: PythonOption = None, json: JsonOption = False) -> None:
    """Print whether the patches are installed, their version, and whether their files are intact."""
    _change_patches("status", kind, engine_python, json)


def _change_patches(action: str, kind: str, engine_python: Path | None, json: bool) -> None:
    from launch import patching
    from launch.environment import find_engine

    engine = find_engine(kind, engine_python)
    result = {"apply": patching.apply, "revert": patching.revert, "status": patching.status}[action](engine)
    if json:
        terminal.print_json(result)
        return
    state = "applied" if result.applied else "not applied"
    changed = ", but its files were changed" if result.applied and not result.intact else ""
    terminal.narrate(f"patches {result.version or ''} {state}{changed} in {engine.python}")
    if action == "revert" and result.applied:
        terminal.narrate(result.reason)
    if result.applied and not result.intact:
        raise typer.Exit(ExitCode.GATE_FAILED)
