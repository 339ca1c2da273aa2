"""What this machine has for running engines, what each config needs, and the remedy for what is missing."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from launch import patching
from launch.doctor_rows import MISSING, OK, WARN, Row
from launch.environment import COMPONENTS, Engine, find_engine, home
from launch.errors import LaunchError
from launch.gpu_checks import NO_DRIVER, check_cuda_host
from launch.gpu_devices import VISIBLE, is_among, list_gpus, list_visible_devices
from launch.gpu_modes import SHARING, check_sharing
from launch.host_checks import (
    check_cpu,
    check_disk,
    check_instruction_set,
    check_libc,
    check_memory,
    check_ports,
    describe_mooncake_ports,
    describe_part,
)
from launch.install_plan import CONNECTORS, DISK_BYTES, list_modules, read_locked_versions
from launch.instruction_sets import NAMED, Part, describe_parts, kernel_grants_amx, read_flags
from launch.libraries import SYSTEM_LIBRARIES, Library, loadable, make_apt_remedy
from launch.profile import Profile
from launch.rdma_checks import RDMA
from launch.vllm_fit import describe_fit
from state.workspace import find_default_root

RUN_BYTES = 2_000_000_000
"""Room that a run's artifacts should find."""
INFINIBAND = Path("/sys/class/infiniband")
DRIVER_LIBRARY = "libcuda.so.1"
"""It comes with NVIDIA's driver, not with any package."""
ROWS_OF: Mapping[str, tuple[str, ...]] = {
    "mooncake": ("mooncake", "mooncake ports", RDMA),
    "nixl": ("nixl", SHARING),
    "lmcache": ("lmcache",),
}
"""By connector, the rows that matter to it alone."""


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """Whether one config could run here."""

    config: str
    ok: bool
    requires: tuple[str, ...]
    missing: tuple[str, ...]
    """What it needs and this machine lacks; `engine` without an engine environment."""
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True)
class DoctorReport:
    kind: str
    rows: tuple[Row, ...]
    configs: tuple[ConfigRow, ...]
    instruction_sets: Mapping[str, bool]
    """Those that some part of a CPU engine asks about: whether this CPU has it."""
    parts: tuple[Part, ...]
    """What each part of a CPU engine needs and does here; empty for a CUDA engine."""

    @property
    def ok(self) -> bool:
        """Nothing is missing and every config could run."""
        return all(row.state != MISSING for row in self.rows) and all(config.ok for config in self.configs)


def examine(
    profile: Profile,
    requires: Mapping[str, Sequence[str]],
    *,
    engine_python: Path | None = None,
    workspace: Path | None = None,
    before_install: bool = False,
) -> DoctorReport:
    """Check this machine for engines of the profile; changes nothing.

    `requires`: for each config the names it needs among `patches`, `mooncake`, `nixl`, `lmcache`. `before_install`:
    only rows that need no engine environment, the driver judged by the lock's CUDA.
    """
    kind = profile.engine.kind
    existing, engine_row = _check_engine(kind, engine_python)
    engine = None if before_install else existing
    components = {} if engine is None else _check_components(engine)
    flags = read_flags()
    parts = describe_parts(flags, kernel_grants_amx()) if kind == "cpu" else ()
    rows = [
        *(() if before_install else (engine_row,)),
        *components.values(),
        *(() if engine is None else (describe_fit(engine.site_packages, kind),)),
        _check_library(kind, engine),
        _check_gpus(kind),
        *_check_accelerator(engine, profile),
        *_check_sharing(requires, profile),
        *((check_libc(),) if kind == "cuda" and existing is None else ()),
        check_ports(profile.launch.port_base),
        *([describe_mooncake_ports()] if engine is not None and "mooncake" in engine.versions else []),
        check_disk("disk for engines", home(), DISK_BYTES[kind] if existing is None else 0),
        check_disk("disk for runs", workspace or find_default_root(), RUN_BYTES),
        check_memory(kind),
        check_cpu(),
        check_instruction_set(flags),
        *(describe_part(part) for part in parts),
        Row("python", OK, f"{platform.python_version()} (Tracon's own)"),
    ]
    shared = {row.what: row for row in rows if row.what in (RDMA, SHARING)}
    configs = (
        _check_config(name, tuple(needs), engine_row, components and components | shared)
        for name, needs in requires.items()
    )
    sets = {name: name in flags for name in NAMED}
    return DoctorReport(kind, tuple(rows), tuple(configs), sets, parts)


def narrow_report(report: DoctorReport, names: Sequence[str]) -> DoctorReport:
    """The report on these rows and configs alone; a config adds every row but those of connectors it does not need.

    Case is ignored. Raises LaunchError for a name that is neither a row nor a config.
    """
    known = [row.what for row in report.rows] + [config.config for config in report.configs]
    spelled = {name.casefold(): name for name in known}
    unknown = [name for name in names if name.casefold() not in spelled]
    names = [spelled[name.casefold()] for name in names if name not in unknown]
    if unknown:
        raise LaunchError(
            f"the doctor has no row or config {', '.join(unknown)}", remedy=f"name some of: {', '.join(known)}"
        )
    configs = tuple(config for config in report.configs if config.config in names)
    needs = {need for config in configs for need in config.requires}
    spared = {what for connector, whats in ROWS_OF.items() if connector not in needs for what in whats}
    rows = tuple(row for row in report.rows if row.what in names or (configs and row.what not in spared))
    return replace(report, rows=rows, configs=configs)


def to_json(report: DoctorReport) -> dict[str, Any]:
    """The report as JSON values: `kind`, `ok`, `rows`, `configs`, `instruction_sets`, `parts`."""
    return {"ok": report.ok, **asdict(report)}


def _check_engine(kind: str, engine_python: Path | None) -> tuple[Engine | None, Row]:
    try:
        engine = find_engine(kind, engine_python)
    except LaunchError as error:
        return None, Row("engine", MISSING, str(error), error.remedy)
    origin = "built by Tracon" if engine.managed else "given with --engine-python"
    return engine, Row("engine", OK, f"{kind}, {origin}: {engine.python}")


def _check_components(engine: Engine) -> dict[str, Row]:
    # A CUDA environment may have been built on a host without a GPU: what a run imports is tried on this one.
    recorded = engine.managed and engine.kind == "cpu" and not any(engine.imports.values())
    imports = engine.imports if recorded else _try_imports(engine)
    lacking = [library for library in SYSTEM_LIBRARIES[engine.kind] if library.soname in engine.lacking]
    rows = {name: _check_component(name, engine, imports.get(name, ""), lacking) for name in COMPONENTS}
    rows["patches"] = _check_patches(engine)
    return rows


def _check_component(name: str, engine: Engine, import_error: str, lacking: Sequence[Library]) -> Row:
    version = engine.versions.get(name)
    what = "vLLM" if name == "vllm" else name
    if version is None:
        remedy = f"run `tracon engine install {engine.kind}`" if engine.managed else _explain_pip(engine, name)
        return Row(what, MISSING, "not in the engine environment", remedy)
    needed = [library for library in lacking if name in library.needed_by]
    if needed:
        names = ", ".join(library.soname for library in needed)
        return Row(what, MISSING, f"{version}, but it cannot load {names}", make_apt_remedy(needed))
    if import_error:
        modules = ", ".join(("torch", *list_modules(name, engine.kind, engine.site_packages)))
        remedy = NO_DRIVER if DRIVER_LIBRARY in import_error else f"see `{engine.python} -c 'import {modules}'`"
        return Row(what, MISSING, f"{version}, but its import fails: {import_error}", remedy)
    return Row(what, OK, version)


def _explain_pip(engine: Engine, component: str) -> str:
    """How to add a component to an environment that is not Tracon's: the name under which a registry has it."""
    locked = read_locked_versions(engine.kind)
    package = next((name for name in COMPONENTS[component] if name in locked), component)
    return f"`{engine.python} -m pip install {package.replace('_', '-')}`"


_TRY = """
import importlib, sys
try:
    import torch  # an engine has it by then, and with it the CUDA libraries that a connector links to
    for name in sys.argv[1:]:
        importlib.import_module(name)
except BaseException as error:
    print(f"tracon-import {type(error).__name__}: {error}")
"""
IMPORT_TIMEOUT_S = 300.0
"""For one connector: LMCache's adapter imports vLLM, perhaps from a cold disk."""


def _try_imports(engine: Engine) -> dict[str, str]:
    """Import each installed connector in a process of its own; returns component to why it failed."""
    failed: dict[str, str] = {}
    for name in (name for name in CONNECTORS if name in engine.versions):
        argv = [str(engine.python), "-c", _TRY, *list_modules(name, engine.kind, engine.site_packages)]
        try:
            run = subprocess.run(
                argv,
                env={**os.environ, **engine.env},
                capture_output=True,
                text=True,
                timeout=IMPORT_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            failed[name] = str(error)
            continue
        report = re.search(r"^tracon-import (.*)", run.stdout, re.MULTILINE)
        if report or run.returncode:
            failed[name] = report.group(1) if report else f"it ended with {run.returncode}"
    return failed


def _check_patches(engine: Engine) -> Row:
    which = "" if engine.managed else f" --engine-python {engine.python}"
    remedy = f"run `tracon patch apply --kind {engine.kind}{which}`"
    try:
        patches = patching.status(engine)
    except (LaunchError, OSError) as error:
        return Row("patches", MISSING, str(error), getattr(error, "remedy", ""))
    if patches.applied and patches.intact and patches.current:
        return Row("patches", OK, f"{patches.version} ({patches.digest}), intact")
    if not os.access(engine.site_packages, os.W_OK):
        return Row(
            "patches", MISSING, f"{patches.reason}; {engine.site_packages} cannot be written", _OTHER_ENVIRONMENT
        )
    return Row("patches", WARN, f"{patches.reason}; a run applies them itself", remedy)


_OTHER_ENVIRONMENT = "apply them as the user who owns it, or use an environment of your own"


def _check_library(kind: str, engine: Engine | None) -> Row:
    what = "system libraries"
    absent = [library for library in SYSTEM_LIBRARIES[kind] if not loadable(library.soname)]
    if not absent:
        return Row(what, OK, ", ".join(library.soname for library in SYSTEM_LIBRARIES[kind]))
    names = ", ".join(library.soname for library in absent)
    if engine is None:
        return Row(
            what, WARN, f"not on this system: {names}; an engine brings copies with NIXL", make_apt_remedy(absent)
        )
    lacking = [library for library in absent if library.soname in engine.lacking]
    if lacking:
        return Row(what, MISSING, ", ".join(library.soname for library in lacking), make_apt_remedy(lacking))
    return Row(what, OK, f"not on this system, taken from the engine's NIXL: {names}")


def _check_gpus(kind: str) -> Row:
    listed = list_gpus()
    if isinstance(listed, list) and listed:
        return _describe_gpus(listed, None if kind == "cpu" else list_visible_devices())
    why = listed if isinstance(listed, str) else "nvidia-smi lists none"
    if kind == "cpu":
        return Row("GPU", OK, f"none, and a CPU engine needs none ({why})")
    return Row("GPU", MISSING, why, "run on a host with an NVIDIA GPU and its driver, or use a CPU profile")


def _describe_gpus(listed: Sequence[str], devices: Sequence[str] | None) -> Row:
    """`devices`: those that engines may use; None = all."""
    visible = [line for line in listed if is_among(devices, *_read_identity(line))]
    names = ", ".join(sorted({line.partition(":")[2].partition(" (UUID")[0].strip() for line in visible}))
    if devices is None:
        return Row("GPU", OK, f"{len(listed)} ({names})")
    named = f"{VISIBLE}={','.join(devices)}"
    if not visible:
        remedy = "name GPUs by index or UUID: `nvidia-smi -L` lists them"
        return Row("GPU", MISSING, f"{named} names none of the {len(listed)} GPUs of this host", remedy)
    return Row("GPU", OK, f"{len(visible)} of {len(listed)} ({names}): {named}")


def _read_identity(line: str) -> tuple[str, str]:
    """Index and UUID in a line of `nvidia-smi -L`."""
    head, _, rest = line.partition(":")
    return head.removeprefix("GPU").strip(), rest.partition("(UUID:")[2].strip(" )")


def _check_accelerator(engine: Engine | None, profile: Profile) -> tuple[Row, ...]:
    if profile.engine.kind == "cuda":
        return check_cuda_host(engine, INFINIBAND, profile)
    devices = sorted(path.name for path in INFINIBAND.iterdir()) if INFINIBAND.is_dir() else []
    return (Row("RDMA", OK, ", ".join(devices) or "none; connectors use TCP and shared memory"),)


def _check_sharing(requires: Mapping[str, Sequence[str]], profile: Profile) -> tuple[Row, ...]:
    """Check the configs with NIXL, whose proof may take two engines on one GPU."""
    if profile.engine.kind != "cuda" or not any("nixl" in needs for needs in requires.values()):
        return ()
    row = check_sharing(profile.engine.tensor_parallel_size)
    return () if row is None else (row,)


def _check_config(config: str, requires: tuple[str, ...], engine: Row, parts: Mapping[str, Row]) -> ConfigRow:
    if not parts:
        return ConfigRow(config, False, requires, ("engine", *requires), engine.detail, engine.remedy)
    needed = {name: parts.get(name) for name in ("vllm", "torch", *requires)}
    if "mooncake" in requires:
        needed[RDMA] = parts.get(RDMA)
    if "nixl" in requires and SHARING in parts:
        needed[SHARING] = parts[SHARING]
    bad = {name: row for name, row in needed.items() if row is None or row.state == MISSING}
    detail = "; ".join(f"{name}: {row.detail if row else 'unknown to this Tracon'}" for name, row in bad.items())
    remedies = dict.fromkeys(row.remedy for row in bad.values() if row and row.remedy)
    return ConfigRow(config, not bad, requires, tuple(bad), detail, "; ".join(remedies))
