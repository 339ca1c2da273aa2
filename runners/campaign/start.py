"""From the user's options to a frozen plan, a run folder and a detached run process."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from launch.environment import Engine, find_engine
from launch.errors import LaunchError
from launch.gpu_devices import require_gpu
from launch.ports import require_free
from launch.profile import Profile, load_profile
from launch.redaction import redact_settings
from results.records.events import Noted, PaceChosen
from results.records.layout import RunLayout, write_indented_json
from results.records.plan import RunPlan
from runners.campaign.disk import require_disk
from runners.campaign.experiment import DraftPlan, Experiment, RunOptions
from runners.campaign.plan import freeze_plan
from runners.errors import RunnerError
from state.store import RunStore
from state.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything a run needs, checked."""

    draft: DraftPlan
    engine: Engine | None
    """None where no engine environment was found (a plan can be made without one), or none is needed."""
    plan: RunPlan


def prepare_run(experiment: Experiment, options: RunOptions, *, need_engine: bool) -> Prepared:
    """Check the options against the profile, the configs and the engine, and freeze the plan.

    Raises RunnerError or LaunchError naming the wrong key, config, missing GPU or missing engine.
    """
    profile = load_profile(options.profile)
    if options.port is not None:
        launch = msgspec.structs.replace(profile.launch, port_base=options.port)
        profile = msgspec.structs.replace(profile, launch=launch)
    draft = experiment.draft_plan(options, profile)
    if need_engine and draft.needs_engine:
        require_gpu(profile)
    engine = _find_engine(profile, options.engine_python, need_engine) if draft.needs_engine else None
    plan = freeze_plan(
        experiment=experiment.name,
        profile=options.profile,
        preset=options.preset,
        configs=[config.name for config in draft.configs],
        seed=draft.seed,
        stages=draft.stages,
        cells=draft.cells,
        inputs=_describe_inputs(draft, engine),
    )
    return Prepared(draft, engine, plan)


def _find_engine(profile: Profile, engine_python: Path | None, need_engine: bool) -> Engine | None:
    try:
        return find_engine(profile.engine.kind, engine_python)
    except LaunchError:
        if need_engine:
            raise
        return None


def _describe_inputs(draft: DraftPlan, engine: Engine | None) -> Mapping[str, Any]:
    described = msgspec.to_builtins(draft.profile)
    for key in ("description", "capacity", "experiments", "experiment"):
        described.pop(key, None)
    described["launch"].pop("cold_start_s", None)  # it shapes the time estimate alone
    return {
        "profile": redact_settings(described),
        "engine": None if engine is None else {"python": str(engine.python), "versions": dict(engine.versions)},
        "tracon": version("tracon"),
        **redact_settings(draft.inputs),
    }


def require_ports(prepared: Prepared) -> None:
    """Refuse to start where a server listens on an engine's port: it would be measured in its place.

    Raises PortTaken naming port and holder.
    """
    first = prepared.draft.profile.launch.port_base
    require_free({f"engine port {port - first}": port for port in range(first, first + prepared.draft.ports)})


def rebuild_options(plan: RunPlan) -> RunOptions:
    """The options that make this plan again, to compare both.

    An engine environment that is gone is left out: the one found in its place is a change like any other. Raises
    RunnerError where the plan does not state its options.
    """
    if "config_names" not in plan.inputs:
        raise RunnerError("the plan does not state the options that it was made from", remedy="start a new run")
    engine = plan.inputs.get("engine")
    python = Path(engine["python"]) if engine else None
    return RunOptions(
        experiment=plan.experiment,
        profile=plan.profile,
        preset=plan.preset,
        configs=tuple(plan.inputs["config_names"]),
        seed=plan.seed,
        engine_python=python if python is not None and python.exists() else None,
        trials=plan.inputs["grid"].get("trials"),
        port=plan.inputs["profile"]["launch"]["port_base"],
        policies=tuple(plan.inputs.get("policy_names", ())),
        settings=tuple(plan.inputs.get("settings", ())),
        trace=plan.inputs.get("trace_path", ""),
    )


def require_pace(pace: float | None, draft: DraftPlan) -> None:
    """Raises RunnerError where the run's cells cannot be simulated at this multiple of real time. None = not asked."""
    if pace is None:
        return
    if not draft.has_pace:
        raise RunnerError(
            "--pace sets the speed of simulated cells of `routing`, and this run has none",
            remedy="leave --pace out, or run `tracon run routing --simulated`",
        )
    if pace and not 1 <= pace < math.inf:
        raise RunnerError(f"--pace is {pace:g}", remedy="give 1 or more simulated seconds per second; 0 = no limit")


def create_run(workspace: Workspace, prepared: Prepared, unrest: str = "", pace: float | None = None) -> Path:
    """Create the run's folder with its plan and its journal; returns the folder.

    unrest: why the host is not at rest, for the journal; empty = it is. pace: as `PaceChosen` has it; None = no limit.
    """
    plan = prepared.plan
    require_disk(workspace.root)
    folder = workspace.create_folder(plan.experiment, prepared.draft.profile.name, datetime.now(UTC))
    write_indented_json(RunLayout(folder).plan, plan)
    with RunStore.create(folder, folder.name, plan, version("tracon")) as store:
        if unrest:
            store.append(Noted("warning", folder.name, unrest))
        if pace is not None:
            store.append(PaceChosen(pace))
    return folder


def spawn_run_process(folder: Path, *, accept_changes: bool = False) -> subprocess.Popen[bytes]:
    """Start the run process in its own session, so that it outlives the terminal. Its output goes to run.log."""
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
