"""From what the user asked for to a frozen plan, a run folder and a detached run process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from launch.command import ports_needed
from launch.environment import Engine, find_engine
from launch.errors import LaunchError
from launch.ports import require_free
from launch.profile import ConnectorConfig, Profile, load_config, load_profile
from results.layout import RunLayout, write_atomic
from runners.disk import require_disk
from runners.errors import RunnerError
from runners.experiments import connector_tax_grid as tax_grid
from runners.experiments.connector_tax_plan import make_plan
from state.run import RunPlan
from state.store import RunStore
from state.workspace import Workspace

EXPERIMENTS = (tax_grid.EXPERIMENT,)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for, as given on the command line."""

    experiment: str
    profile: str
    preset: str = "full"
    configs: tuple[str, ...] = ()
    """Empty = those of the preset."""
    seed: int | None = None
    engine_python: Path | None = None
    trials: int | None = None
    """None = as the preset says."""
    port: int | None = None
    """First port of the engines; None = the profile's."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything a run needs, checked."""

    profile: Profile
    grid: tax_grid.Grid
    configs: tuple[ConnectorConfig, ...]
    engine: Engine | None
    """None where no engine environment was found (a plan can be made without one)."""
    plan: RunPlan


def tracon_version() -> str:
    return version("tracon")


def prepare(wish: Wish, *, need_engine: bool) -> Prepared:
    """Check the wish against the profile, the configs and the engine, and freeze the plan.

    Raises RunnerError or LaunchError naming the wrong key, config or missing engine.
    """
    if wish.experiment not in EXPERIMENTS:
        raise RunnerError(f"unknown experiment {wish.experiment!r}", remedy=f"choose one of: {', '.join(EXPERIMENTS)}")
    profile = load_profile(wish.profile)
    if wish.port is not None:
        profile = msgspec.structs.replace(profile, launch=msgspec.structs.replace(profile.launch, port_base=wish.port))
    grid = tax_grid.grid_of(profile.experiments.get(wish.experiment, {}), profile.name, wish.preset)
    if wish.trials is not None:
        grid = msgspec.structs.replace(grid, trials=wish.trials)
    configs = tuple(load_config(name) for name in (wish.configs or grid.configs))
    names = [config.name for config in configs]
    if len(set(names)) < len(names):
        raise RunnerError(f"a config is named twice among {', '.join(names)}", remedy="name each one once")
    if "plain" not in names:
        raise RunnerError("the configs do not include `plain`", remedy="add it: every tax is measured against it")
    engine = _engine(profile, wish.engine_python, need_engine)
    seed = grid.seed if wish.seed is None else wish.seed
    plan = make_plan(
        grid,
        profile=wish.profile,
        preset=wish.preset,
        configs=names,
        seed=seed,
        release_wait_s=profile.launch.release_wait_s,
        inputs=_inputs(wish, profile, grid, configs, engine),
    )
    return Prepared(profile, grid, configs, engine, plan)


def _engine(profile: Profile, engine_python: Path | None, need_engine: bool) -> Engine | None:
    try:
        return find_engine(profile.engine.kind, engine_python)
    except LaunchError:
        if need_engine:
            raise
        return None


def _inputs(
    wish: Wish, profile: Profile, grid: tax_grid.Grid, configs: Sequence[ConnectorConfig], engine: Engine | None
) -> dict[str, Any]:
    described = msgspec.to_builtins(profile)
    for key in ("description", "experiments", "experiment"):
        described.pop(key, None)
    return {
        "profile": described,
        "grid": msgspec.to_builtins(grid),
        "configs": {config.name: msgspec.to_builtins(config) for config in configs},
        "config_names": list(wish.configs or grid.configs),
        "engine": None if engine is None else {"python": str(engine.python), "versions": dict(engine.versions)},
        "tracon": tracon_version(),
    }


def require_ports(prepared: Prepared) -> None:
    """Refuse to start beside a server that listens where the engines will: it would be measured instead of them.

    Raises PortTaken naming port and holder.
    """
    first = prepared.profile.launch.port_base
    count = max(ports_needed(config) for config in prepared.configs)
    require_free({f"engine port {port - first}": port for port in range(first, first + count)})


def wish_of(plan: RunPlan) -> Wish:
    """The wish that makes this plan again (to see whether it would still be the same).

    Raises RunnerError where the plan does not hold what it was made from.
    """
    if "config_names" not in plan.inputs:
        raise RunnerError("the plan does not hold what it was made from", remedy="start a new run")
    engine = plan.inputs.get("engine")
    return Wish(
        experiment=plan.experiment,
        profile=plan.profile,
        preset=plan.preset,
        configs=tuple(plan.inputs["config_names"]),
        seed=plan.seed,
        engine_python=Path(engine["python"]) if engine else None,
        trials=plan.inputs["grid"]["trials"],
        port=plan.inputs["profile"]["launch"]["port_base"],
    )


def create_run(workspace: Workspace, prepared: Prepared) -> Path:
    """A new run folder with its journal begun and its plan written; returns the folder."""
    plan = prepared.plan
    require_disk(workspace.root)
    folder = workspace.create_folder(plan.experiment, prepared.profile.name, datetime.now(UTC))
    write_atomic(RunLayout(folder).plan, msgspec.json.format(msgspec.json.encode(plan), indent=2))
    with RunStore.create(folder, folder.name, plan, tracon_version()):
        return folder


def spawn_worker(folder: Path, *, accept_changes: bool = False) -> subprocess.Popen[bytes]:
    """The run process, in a session of its own: no terminal's end can reach it. Its output goes to run.log."""
    argv = [sys.executable, "-m", "runners.cli", "work", str(folder)]
    if accept_changes:
        argv.append("--accept-changes")
    with RunLayout(folder).log.open("ab") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
