"""What a run folder states: its plan, its configs' launches and environments, its pre-flight decisions.

It is read as plain JSON and text, so that a folder of another version can be read as far as possible.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec

from results.records.environment import CapturedEnvironment, parse_environment
from results.records.errors import DAMAGED_JSON
from results.records.frames import Gap, name_artifact
from results.records.gpu import note_gpus
from results.records.host import host_notes
from results.records.layout import ConfigLayout, RunLayout
from results.records.phase_names import name_phase
from results.records.plan import AcceptedChanges
from results.records.reference_rates import REF_LOAD, REF_SAFE

COMPONENTS = ("vllm", "torch", "mooncake", "nixl", "lmcache")
MOONCAKE_PORT = "VLLM_MOONCAKE_BOOTSTRAP_PORT"
_TYPES: Mapping[str, type] = {
    "experiment": str,
    "profile": str,
    "preset": str,
    "seed": int,
    "configs": list,
    "cells": list,
    "inputs": dict,
    "inputs.simulated": str,
    "inputs.profile": dict,
    "inputs.profile.engine": dict,
    "inputs.profile.engine.kind": str,
    "inputs.engine": dict,
    "inputs.engine.versions": dict,
    "inputs.grid": dict,
    "inputs.grid.saturation": dict,
    "inputs.grid.phase_b": dict,
    "inputs.grid.slo": dict,
    "inputs.grid.simulation": dict,
}
"""What `run_facts` reads of a plan, by dotted key."""
_TYPE_NAMES = {str: "text", int: "integer", list: "list", dict: "object"}


@dataclass(frozen=True, slots=True)
class PlannedCell:
    """A load cell of the plan."""

    cell: str
    """Id, unique in the run."""
    config: str
    phase: str
    """`A`, `B`, `Bp` (B') or `confirm`."""
    stem: str
    """What names its files: `A_r4`."""
    reference: str = ""
    """The reference rate it is measured at, `ref_safe` or `ref_load`; empty = a rate that the plan states."""
    trial: int = 0


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The run's plan, as far as it can be read."""

    run: str
    """Name of the run's folder."""
    experiment: str = ""
    """Its registered name."""
    profile: str = ""
    """Model, hardware and scale."""
    preset: str = ""
    """The grid's scale inside the profile."""
    seed: int | None = None
    """Seed of every schedule, prompt and order; None = not known."""
    engine_kind: str = ""
    """`cpu`, `cuda`, or empty where it is not known, or engines were simulated."""
    configs: tuple[str, ...] = ()
    """By name."""
    cells: tuple[PlannedCell, ...] = ()
    """The load cells of the plan."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Package to version, of the engine."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Limits of saturation, by name: those that the plan states."""
    fixed_rates: Mapping[str, float] = field(default_factory=dict)
    """`ref_safe` and `ref_load` in req/s where the plan fixes both; empty = Phase A gives them."""
    swept_shape: str = ""
    """Shape of Phase A in the plan, as `512x32`; empty = it states none."""
    shapes: Mapping[str, float | None] = field(default_factory=dict)
    """Shapes of Phase B, as `512x32`: the rate of its own that the plan states; None = ref_safe."""
    slo: Mapping[str, float] = field(default_factory=dict)
    """`ttft_s`, `tpot_s`: what a request must meet to count in the goodput; empty = the plan has no objective."""
    host_notes: tuple[str, ...] = ()
    """Sentences: what host and GPUs did meanwhile, which ports were open to other machines, and what had changed when
    the run was resumed with --accept-changes."""
    simulated: str = ""
    """The model that stood in for engines; empty = engines were real."""
    host: str = ""
    """CPU and usable cores, as the first config's env.txt has them; empty = not known."""
    shares_cores: bool = False
    """Engines share the cores of one host: they are CPU builds, or simulated with contention."""

    @property
    def label(self) -> str:
        """Profile and preset."""
        return " ".join(part for part in (self.profile, f"({self.preset})" if self.preset else "") if part) or "unknown"


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """How one config was launched, by its folder."""

    date: str
    config: str
    versions: Mapping[str, str]
    vllm_sha: str
    gpu: str
    launch_command: tuple[str, ...]
    """Preceded by its environment variables (`env NAME=value ...`); secrets are masked."""
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True)
class PreflightDecision:
    """A config's pre-flight."""

    included: bool
    reason: str


def run_facts(root: Path) -> tuple[RunFacts, tuple[Gap, ...]]:
    """The facts of `plan.json`; what it does not state is empty.

    A gap: a missing or damaged plan, and what it states in another type, which is empty too.
    """
    path = RunLayout(root).plan
    plan = _read_json_object(path)
    if isinstance(plan, Gap):
        return RunFacts(root.name), (plan,)
    inputs = _read_object(plan, "inputs")
    simulated = _read_text(inputs, "simulated")
    simulation = _read_numbers(_read_object(_read_object(inputs, "grid"), "simulation"))
    kind = _read_text(_read_object(_read_object(inputs, "profile"), "engine"), "kind")
    return (
        RunFacts(
            run=root.name,
            experiment=_read_text(plan, "experiment"),
            profile=_read_text(plan, "profile"),
            preset=_read_text(plan, "preset"),
            seed=plan["seed"] if type(plan.get("seed")) is int else None,
            engine_kind="" if simulated else kind,
            configs=tuple(sorted(name for name in _read_list(plan, "configs") if isinstance(name, str))),
            cells=_read_cells(_read_list(plan, "cells")),
            versions=_read_strings(_read_object(_read_object(inputs, "engine"), "versions")),
            thresholds=_read_numbers(_read_object(_read_object(inputs, "grid"), "saturation")),
            fixed_rates=_read_fixed_rates(_read_object(inputs, "grid")),
            swept_shape=_read_swept_shape(_read_object(_read_object(inputs, "grid"), "phase_a")),
            shapes=_read_shapes(_read_object(_read_object(inputs, "grid"), "phase_b")),
            slo=_read_numbers(_read_object(_read_object(inputs, "grid"), "slo")),
            host_notes=(*_list_accepted(root), *(() if simulated else _note_host(root, kind))),
            simulated=simulated,
            host=_describe_host(root),
            shares_cores=simulation.get("contention", 0.0) > 0 if simulated else kind == "cpu",
        ),
        tuple(Gap(name_artifact(path), reason) for reason in _find_other_types(plan)),
    )


def _find_other_types(plan: Mapping[str, Any]) -> Iterator[str]:
    """Each key of _TYPES with a value of another type, as the reason of a gap."""
    for key, kind in _TYPES.items():
        *above, name = key.split(".")
        value = reduce(_read_object, above, plan).get(name)
        if value is not None and type(value) is not kind:
            yield f"is damaged: `{key}` is not of type {_TYPE_NAMES[kind]}"
    for key, kind in (("configs", str), ("cells", dict)):
        if any(type(value) is not kind for value in _read_list(plan, key)):
            yield f"is damaged: `{key}` has an element that is not of type {_TYPE_NAMES[kind]}"


def _note_host(root: Path, kind: str) -> tuple[str, ...]:
    layout = RunLayout(root)
    return (*host_notes(layout.host_csv), *note_gpus(layout.gpu_csv, kind), *_list_open_ports(root))


def _list_accepted(root: Path) -> tuple[str, ...]:
    """A sentence for each resume with --accept-changes."""
    path = RunLayout(root).accepted_changes
    try:
        rows = msgspec.json.Decoder(AcceptedChanges).decode_lines(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, *DAMAGED_JSON) as error:
        return (f"The run was resumed with --accept-changes; what had changed cannot be read: {path.name}: {error}.",)
    return tuple(
        "The run was resumed with --accept-changes: its later cells were measured with "
        f"{row.changes} (before -> after). Cells from before and after that are compared as if they were alike."
        for row in rows
    )


def _list_open_ports(root: Path) -> tuple[str, ...]:
    """A sentence where engines listened on every interface of the host, as Mooncake's do."""
    launches = [_read_json_object(layout.config_json) for layout in RunLayout(root).configs()]
    configs = sorted(
        str(launch.get("config"))
        for launch in launches
        if not isinstance(launch, Gap) and MOONCAKE_PORT in _read_object(launch, "ports")
    )
    if not configs:
        return ()
    return (
        f"Engines of {', '.join(configs)} listened on every interface of the host: Mooncake has no setting for an "
        "address. Whoever reaches the host reaches the KV of these engines, so keep it behind a firewall.",
    )


def _describe_host(root: Path) -> str:
    for layout in RunLayout(root).configs():
        try:
            environment = parse_environment(layout.env_txt.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue
        cores, cpu = environment.stated("cores"), environment.stated("cpu")
        if cores or cpu:
            usable = re.search(r"\((\d+) usable\)", cores)
            count = usable.group(1) if usable else cores
            return ", ".join(part for part in (f"{count} cores" if count else "", cpu) if part)
    return ""


def read_preflight_decisions(root: Path) -> tuple[Mapping[str, PreflightDecision], tuple[Gap, ...]]:
    """`preflight_status.json` by config."""
    rows = _read_json_object(RunLayout(root).preflight_status)
    if isinstance(rows, Gap):
        return {}, (rows,)
    return {
        config: PreflightDecision(str(row.get("decision", "")).upper() != "SKIP", str(row.get("reason") or ""))
        for config, row in rows.items()
        if isinstance(row, dict)
    }, ()


def read_config_facts(layout: ConfigLayout) -> ConfigFacts:
    """The facts of one config folder, from config.json and env.txt."""
    date, _, config = layout.root.name.partition("_")
    launch = _read_json_object(layout.config_json)
    gaps = [launch] if isinstance(launch, Gap) else []
    stated = {} if isinstance(launch, Gap) else launch
    try:
        environment = parse_environment(layout.env_txt.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        gaps.append(Gap(name_artifact(layout.env_txt), _explain_error(error)))
        environment = CapturedEnvironment()
    command = stated.get("launch_command") or stated.get("argv") or ()
    return ConfigFacts(
        date=date,
        config=str(stated.get("config") or config),
        versions=_list_versions(environment) | _read_strings(_read_object(stated, "versions")),
        vllm_sha=str(stated.get("vllm_sha") or environment.stated("vllm commit")),
        gpu=str(stated.get("gpu") or "; ".join(environment.gpu)),
        launch_command=_prepend_environment(stated, command) if isinstance(command, list) else (),
        gaps=tuple(gaps),
    )


def _prepend_environment(stated: Mapping[str, Any], command: Sequence[object]) -> tuple[str, ...]:
    added = _read_strings(_read_object(stated, "env"))
    variables = ("env", *(f"{name}={value}" for name, value in sorted(added.items()))) if added else ()
    return (*variables, *map(str, command))


def list_missing_files(layout: ConfigLayout) -> tuple[Gap, ...]:
    """Files that every config that ran must have and this one lacks, beside those that `read_config_facts` reads."""
    wanted = (layout.launch_sh, layout.stdout, layout.stderr)
    return tuple(Gap(name_artifact(path), "is missing") for path in wanted if not path.is_file())


def _read_cells(cells: Sequence[object]) -> tuple[PlannedCell, ...]:
    rows = [cell for cell in cells if isinstance(cell, dict)]
    return tuple(
        PlannedCell(
            cell=_read_text(cell, "cell"),
            config=_read_text(cell, "config"),
            phase=name_phase(_read_text(_read_object(cell, "params"), "phase")),
            stem=_read_text(_read_object(cell, "params"), "stem"),
            reference=_read_text(_read_object(cell, "params"), "rate"),
            trial=trial if type(trial := cell.get("trial")) is int else 0,
        )
        for cell in rows
        if cell.get("kind") == "load"
    )


def _read_fixed_rates(grid: Mapping[str, Any]) -> dict[str, float]:
    numbers = _read_numbers(grid)
    rates = {name: numbers.get(f"{name}_per_s") for name in (REF_SAFE, REF_LOAD)}
    known = {name: rate for name, rate in rates.items() if rate is not None}
    return known if len(known) == len(rates) else {}


def _read_swept_shape(phase_a: Mapping[str, Any]) -> str:
    lengths = [phase_a.get(name) for name in ("input_tokens", "output_tokens")]
    return "x".join(map(str, lengths)) if all(type(length) is int for length in lengths) else ""


def _read_shapes(phase_b: Mapping[str, Any]) -> dict[str, float | None]:
    lengths = (phase_b.get("input_tokens"), phase_b.get("output_tokens"))
    inputs, outputs = (length if isinstance(length, list) else [] for length in lengths)
    shapes = [f"{each}x{other}" for each in inputs for other in outputs]
    own = _read_object(phase_b, "shape_rates")
    rates = {shape: _read_numbers(_read_object(own, shape)).get("rate_per_s") for shape in own}
    return {shape: rates.get(shape) for shape in shapes}


def _read_json_object(path: Path) -> dict[str, Any] | Gap:
    try:
        value = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        return Gap(name_artifact(path), _explain_error(error))
    except DAMAGED_JSON as error:
        return Gap(name_artifact(path), f"is damaged: {error}")
    return value if isinstance(value, dict) else Gap(name_artifact(path), "is damaged: no JSON object")


def _explain_error(error: OSError) -> str:
    return "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"


def _read_object(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = value.get(key)
    return part if isinstance(part, dict) else {}


def _read_list(value: Mapping[str, Any], key: str) -> list[Any]:
    part = value.get(key)
    return part if isinstance(part, list) else []


def _read_text(value: Mapping[str, Any], key: str) -> str:
    part = value.get(key)
    return part if isinstance(part, str) else ""


def _read_strings(value: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(text) for name, text in value.items() if text}


def _read_numbers(value: Mapping[str, Any]) -> dict[str, float]:
    return {
        str(name): float(number)
        for name, number in value.items()
        if type(number) in (int, float) and abs(number) <= sys.float_info.max
    }


def _list_versions(environment: CapturedEnvironment) -> dict[str, str]:
    return {name: version for name in COMPONENTS if (version := environment.stated(f"{name} version"))}
