"""How an engine environment is built: the commands, in order, as data. Nothing is run here.

The lock files under `engines/` say what goes in. The CPU build of torch is no package of the registry: it comes from a
folder of wheels the user points at (PIP_FIND_LINKS, UV_FIND_LINKS), else from PyTorch's own index, and in a step of its
own, so that no other package can come from there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from launch.errors import LaunchError

KINDS = ("cpu", "cuda")
PYTHON = "3.11"
"""Python of an engine environment. The locks fit 3.12 as well; 3.11 is what was run."""
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LOCKS = Path(__file__).parent / "engines"
DISK_BYTES: Mapping[str, int] = {"cpu": 6_000_000_000, "cuda": 25_000_000_000}
"""What must be free before an install: the environment, its bytecode, and the downloads in uv's cache."""

CONNECTORS = ("mooncake", "nixl", "lmcache")
_MODULES = {"mooncake": "mooncake.engine", "nixl": "nixl._api", "lmcache": "lmcache"}
"""For each connector, the module that loads its compiled part; LMCache's has none."""
_LMCACHE_ADAPTER = "lmcache.integration.vllm.vllm_v1_adapter"
"""What vLLM's connector imports of LMCache."""
_LMCACHE_KERNELS = ("cuda_ops", "c_ops")
"""LMCache's kernels for a GPU: their name in 0.5.6, and an older one. If 0.5.6 cannot import them it copies KV with
torch and only logs that: its tax would be another."""

_MUST_IMPORT: Mapping[str, tuple[str, ...]] = {
    "cpu": ("torch", "vllm", "vllm.entrypoints.openai.api_server"),
    "cuda": ("torch", "vllm"),  # the server's modules ask for a GPU, and there may be none
}
VERIFIED = "tracon-verified "
"""What the verification prints before its JSON."""
_VERIFY = """
import importlib, json, sys
must, may, kind = json.loads(sys.argv[1])
for name in must:
    importlib.import_module(name)
import torch
if kind == "cuda" and torch.version.cuda is None:
    sys.exit(f"torch {torch.__version__} was built without CUDA")
result = {}
for name in may:
    component = name.partition(".")[0]
    try:
        importlib.import_module(name)
    except BaseException as error:
        if not result.get(component):
            result[component] = f"{type(error).__name__}: {error}"
    else:
        result.setdefault(component, "")
print()
print(sys.argv[2] + json.dumps(result), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Step:
    """One command of an install."""

    title: str
    argv: tuple[str, ...]
    timeout_s: float
    fine_exit_codes: tuple[int, ...] = (0,)
    uses_engine_libraries: bool = False
    """It loads the engine's packages, so it needs the library path that an engine gets."""


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """How one environment comes to be: built in `partial`, then renamed to `root`."""

    kind: str
    lock_hash: str
    """First 12 hex digits of the SHA-256 of the lock's pins."""
    root: Path
    partial: Path
    steps: tuple[Step, ...]

    @property
    def site_packages(self) -> Path:
        return _locate_packages(self.partial)


def lock_file(kind: str) -> Path:
    """The lock of an engine kind. Raises LaunchError for an unknown kind."""
    if kind not in KINDS:
        raise LaunchError(f"unknown engine kind {kind!r}", remedy=f"choose one of: {', '.join(KINDS)}")
    return LOCKS / f"{kind}.lock"


def read_locked_pins(kind: str) -> list[str]:
    """The lock's lines `name==version`, without the hashes of the files that may be downloaded for them."""
    lines = lock_file(kind).read_text().splitlines()
    return [line.removesuffix(" \\") for line in lines if not line.startswith("    --hash=")]


def lock_hash(kind: str) -> str:
    """First 12 hex digits of the SHA-256 of the kind's pins."""
    return hashlib.sha256("".join(f"{pin}\n" for pin in read_locked_pins(kind)).encode()).hexdigest()[:12]


def read_locked_versions(kind: str) -> dict[str, str]:
    """Distribution name (normalized) to version, as locked."""
    pairs = (pin.split("==") for pin in read_locked_pins(kind))
    return {normalize(name): version.strip() for name, version in pairs}


def normalize(distribution: str) -> str:
    """A distribution's name as folders of installed metadata spell it."""
    return re.sub(r"[-_.]+", "_", distribution).lower()


def find_links(environ: Mapping[str, str], cwd: Path) -> tuple[str, ...]:
    """The wheel folders and pages of PIP_FIND_LINKS (parted by blanks) and UV_FIND_LINKS (by commas), each once.

    Folders are made absolute; those that do not exist are left out, as pip does.
    """
    entries = [*environ.get("UV_FIND_LINKS", "").split(","), *environ.get("PIP_FIND_LINKS", "").split()]
    links: dict[str, None] = {}
    for entry in filter(None, map(str.strip, entries)):
        url = urlsplit(entry)
        if url.scheme in ("http", "https"):
            links[entry] = None
            continue
        folder = cwd / Path(unquote(url.path) if url.scheme == "file" else entry).expanduser()
        if folder.exists():
            links[str(folder)] = None
    return tuple(links)


def find_torch_wheel(entries: Sequence[str], version: str) -> Path | None:
    """The wheel of torch `version` in the first folder of these find-links entries that holds one; else None."""
    wanted = f"torch-{version}-cp{PYTHON.replace('.', '')}-"
    for entry in entries:
        if urlsplit(entry).scheme:
            continue
        for wheel in sorted(Path(entry).glob("torch-*.whl")):
            if unquote(wheel.name).startswith(wanted) and "x86_64" in wheel.name:
                return wheel
    return None


def install_plan(
    kind: str, folder: Path, *, uv: str, interpreter: str = PYTHON, environ: Mapping[str, str] | None = None
) -> InstallPlan:
    """The commands that build the `kind` environment below `folder`.

    `interpreter` is what uv makes the environment from: a version (uv finds or downloads it) or a path.
    """
    lock = lock_file(kind)
    digest = lock_hash(kind)
    root = folder / f"{kind}-{digest}"
    partial = folder / f"{kind}-{digest}.partial"
    python = str(partial / "bin" / "python")
    # For CUDA no wheel folder counts: one with the CPU build of torch would pass as the locked version.
    entries = find_links(os.environ if environ is None else environ, Path.cwd()) if kind == "cpu" else ()
    links = tuple(f"--find-links={entry}" for entry in entries)
    install = (uv, "pip", "install", "--python", python, "--no-deps", "--only-binary", ":all:")
    steps = [
        Step(
            "create the environment",
            (uv, "venv", "--relocatable", "--no-project", "--python", interpreter, str(partial)),
            600,
        ),
        *([_plan_torch(install, links, entries)] if kind == "cpu" else []),
        Step(
            f"install {len(read_locked_versions(kind))} packages", (*install, *links, "--requirements", str(lock)), 3000
        ),
        _plan_compile(python, partial, root),
        Step(
            "verify the imports",
            (python, "-c", _VERIFY, _list_imports(kind, partial), VERIFIED),
            600,
            uses_engine_libraries=True,
        ),
    ]
    return InstallPlan(kind, digest, root, partial, tuple(steps))


def install_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of the install's commands: the caller's without its own Python and what the plan passes."""
    own = {
        "VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "UV_FIND_LINKS",
        "UV_PYTHON",
    }  # fmt: skip
    inherited = {name: value for name, value in environ.items() if name not in own}
    return {"UV_HTTP_TIMEOUT": "180", **inherited, "NO_COLOR": "1", "UV_NO_PROGRESS": "1"}


def _plan_torch(install: tuple[str, ...], links: tuple[str, ...], entries: Sequence[str]) -> Step:
    version = read_locked_versions("cpu")["torch"]
    if find_torch_wheel(entries, version) is not None:
        return Step("install torch from a wheel folder", (*install, "--no-index", *links, f"torch=={version}"), 1200)
    index = ("--default-index", TORCH_CPU_INDEX)
    return Step("install torch from PyTorch's index", (*install, *index, *links, f"torch=={version}"), 3000)


def _plan_compile(python: str, partial: Path, root: Path) -> Step:
    # Bytecode carries the path it was made for; some packages ship templates that are no Python: exit code 1.
    packages = str(_locate_packages(partial))
    argv = (python, "-m", "compileall", "-q", "-j", "0", "-s", str(partial), "-p", str(root), packages)
    return Step("byte-compile, so that engines start faster", argv, 1800, fine_exit_codes=(0, 1))


def list_modules(connector: str, kind: str, site_packages: Path) -> tuple[str, ...]:
    """What an engine of this kind imports of a connector; before an install, of the locked one. All of it but
    Mooncake's, which needs the driver's library, imports on a host without a GPU."""
    if connector != "lmcache" or kind != "cuda":
        return (_MODULES[connector],)
    built = [name for name in _LMCACHE_KERNELS if any((site_packages / "lmcache").glob(f"{name}.*"))]
    kernels = built[0] if built else _LMCACHE_KERNELS[0]
    return (_LMCACHE_ADAPTER, f"lmcache.{kernels}")


def _list_imports(kind: str, partial: Path) -> str:
    packages = _locate_packages(partial)
    modules = [module for connector in CONNECTORS for module in list_modules(connector, kind, packages)]
    return json.dumps([_MUST_IMPORT[kind], modules, kind])


def _locate_packages(partial: Path) -> Path:
    return partial / "lib" / f"python{PYTHON}" / "site-packages"
