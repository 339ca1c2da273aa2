"""Installs the `patches` package in an engine environment as a separate distribution, and removes it again.

The environment gains `tracon_patches/` and `tracon_patches-<version>.dist-info/` in its site-packages; nothing else
changes. vLLM finds the plugin by its entry point, and `pip uninstall tracon-patches` removes it as well.

Runs and standalone engines may share an environment. Each holds a `PatchUse` while its engines need the patches, and
`revert` leaves them in place meanwhile: engines are launched all through a run, not only at its start.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from launch.environment import Engine, inspect_python
from launch.errors import PatchFailed
from launch.patch_users import UNKNOWN, list_users
from results.records.errors import SHORTAGE_REMEDIES

PACKAGE = "tracon_patches"
_DIGEST_FILE = "DIGEST"
_ENTRY_POINTS = f"[vllm.general_plugins]\ntracon = {PACKAGE}.plugin:register\n"


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """The state of the patches in one environment."""

    applied: bool
    version: str
    """Version of the installed package; of the one to install, where none is."""
    digest: str
    """First 12 hex digits of the SHA-256 over the package's files; tells two builds of one version apart."""
    files: tuple[str, ...]
    """Relative to site-packages."""
    intact: bool
    """Every file is there and has the hash its RECORD gives."""
    current: bool
    """It is the package this Tracon carries."""
    site_packages: str
    reason: str = ""
    """Why it is not applied, not intact or not current; what was done, after `apply` and `revert`."""


@dataclass(frozen=True, slots=True)
class _Source:
    version: str
    digest: str
    files: dict[str, bytes]
    """Path below the package to content."""


def apply(engine: Engine | Path) -> PatchStatus:
    """Install the patches, replacing another build of them; does nothing where they are installed and intact.

    Raises PatchFailed where site-packages cannot be written, and where a run uses another build.
    """
    packages = _find_site_packages(engine)
    descriptor = _open_shared_lock(packages.parent)
    try:
        return _apply_with(packages, descriptor)
    finally:
        os.close(descriptor)


def _apply_with(packages: Path, descriptor: int) -> PatchStatus:
    """`descriptor`: of the caller's own shared lock on the folder above site-packages."""
    source = _read_source()
    before = _read_status(packages, source)
    if before.applied and before.intact and before.current:
        return _add_reason(before, "already applied")
    with _hold_for_writing(packages):
        before = _read_status(packages, source)  # another process may have applied its own meanwhile
        if before.applied and not before.current:
            with _hold_alone(packages, descriptor, before):
                _replace_patches(packages, source)
        else:
            _replace_patches(packages, source)
    after = _read_status(packages, source)
    return _add_reason(after, "applied" if not before.applied else f"replaced {before.version} ({before.reason})")


def _replace_patches(packages: Path, source: _Source) -> None:
    _remove_patches(packages)
    _install_package(packages, source)


def revert(engine: Engine | Path) -> PatchStatus:
    """Remove what `apply` installed, with its bytecode; does nothing where nothing is installed.

    Patches that a run or a standalone engine uses stay: `applied` is then true, and the reason says so.
    """
    packages = _find_site_packages(engine)
    source = _read_source()
    before = _read_status(packages, source)
    with _hold_for_writing(packages), _hold_unused(packages) as unused:
        if not unused:
            return _add_reason(before, IN_USE if before.applied else "was not applied")
        _remove_patches(packages)
    return _add_reason(_read_status(packages, source), "removed" if before.applied else "was not applied")


class PatchUse:
    """A run's or a standalone engine's use of the patches, from `apply` until `revert` or any end of this process.

    Any number of processes may use those of one environment; while one does, no `revert` removes them.
    """

    def __init__(self, engine: Engine | Path) -> None:
        self._engine = engine
        self._descriptor = -1

    def apply(self) -> PatchStatus:
        """Mark them as used, then `apply`. Waits for a removal in progress.

        Raises PatchFailed, and then uses them only if it did before.
        """
        packages = _find_site_packages(self._engine)
        if self._descriptor >= 0:
            return _apply_with(packages, self._descriptor)
        descriptor = _open_shared_lock(packages.parent)
        try:
            applied = _apply_with(packages, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return applied

    def revert(self) -> PatchStatus:
        """End this use, then `revert`: they stay where another uses them, and where this user may not remove them.

        Raises PatchFailed.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        if not os.access(_find_site_packages(self._engine), os.W_OK):
            return _add_reason(status(self._engine), NOT_WRITABLE)
        return revert(self._engine)


def status(engine: Engine | Path) -> PatchStatus:
    """What is installed, and whether it is intact and current."""
    return _read_status(_find_site_packages(engine), _read_source())


def _read_source() -> _Source:
    """The package that this Tracon carries: its files are read, never imported."""
    spec = importlib.util.find_spec("patches")
    if spec is None or spec.origin is None:
        raise PatchFailed("the package `patches` is not installed beside Tracon", remedy="install Tracon again")
    folder = Path(spec.origin).parent
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in paths
        if "__pycache__" not in path.parts and path.suffix not in (".pyc", ".pyo")
    }
    total = hashlib.sha256()
    for name, content in files.items():
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return _Source(_read_version(files["__init__.py"]), total.hexdigest()[:12], files)


def _read_version(init: bytes) -> str:
    named = re.search(rb'^__version__ = "(.+)"$', init, re.MULTILINE)
    if named is None:
        raise PatchFailed("the package `patches` names no __version__", remedy="install Tracon again")
    return named[1].decode()


def _install_package(packages: Path, source: _Source) -> None:
    """Both folders are written under other names, then renamed; the metadata, which vLLM looks for, comes last."""
    info = f"{PACKAGE}-{source.version}.dist-info"
    contents = {f"{PACKAGE}/{name}": content for name, content in source.files.items()}
    contents |= {f"{info}/{name}": text.encode() for name, text in _build_metadata(source).items()}
    rows = [f"{name},{_hash_for_record(content)},{len(content)}" for name, content in contents.items()]
    contents[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    with tempfile.TemporaryDirectory(prefix=f".{PACKAGE}-", dir=packages) as scratch:
        for name, content in contents.items():
            path = Path(scratch, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for folder in (PACKAGE, info):
            Path(scratch, folder).rename(packages / folder)


def _build_metadata(source: _Source) -> dict[str, str]:
    return {
        "METADATA": (
            f"Metadata-Version: 2.1\nName: tracon-patches\nVersion: {source.version}\n"
            "Summary: Step timing, no-op connector and CPU shims of Tracon, as a vLLM plugin\n"
        ),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tracon\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "INSTALLER": "tracon\n",
        "entry_points.txt": _ENTRY_POINTS,
        "top_level.txt": f"{PACKAGE}\n",
        _DIGEST_FILE: f"{source.digest}\n",
    }


def _hash_for_record(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _remove_patches(packages: Path) -> None:
    """The metadata is removed first, so that no engine finds an entry point without its package.

    It stays under another name until the package's files are gone: the next removal finishes an interrupted one.
    """
    for info in _list_metadata_folders(packages):
        info.rename(packages / f".{info.name}.removed")
    for leftover in sorted(packages.glob(f".{PACKAGE}-*")):
        for name, _ in _read_listed_files(leftover):
            if name.startswith(f"{PACKAGE}/"):
                (packages / name).unlink(missing_ok=True)
    _remove_package(packages / PACKAGE)
    for leftover in packages.glob(f".{PACKAGE}-*"):
        shutil.rmtree(leftover)


def _remove_package(folder: Path) -> None:
    """What is left in the package folder: bytecode, files of an install that never got its metadata, empty folders."""
    names = set(_read_source().files)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.parent.name == "__pycache__" or path.relative_to(folder).as_posix() in names:
            path.unlink()
    if not folder.is_dir():
        return
    foreign = sorted(path.name for path in folder.iterdir())
    if foreign:
        raise PatchFailed(
            f"{folder} holds files that do not belong to the patches: {', '.join(foreign)}", remedy="move them away"
        )
    folder.rmdir()


def _list_metadata_folders(packages: Path) -> list[Path]:
    return sorted(packages.glob(f"{PACKAGE}-*.dist-info"))


def _read_listed_files(info: Path) -> list[tuple[str, str]]:
    """RECORD's rows: path relative to site-packages, hash (empty for RECORD itself)."""
    try:
        lines = (info / "RECORD").read_text().splitlines()
    except OSError:
        return []
    parts = (line.rsplit(",", 2) for line in lines if line.count(",") >= 2)
    return [(name, digest) for name, digest, _ in parts]


def _read_status(packages: Path, source: _Source) -> PatchStatus:
    infos = _list_metadata_folders(packages)
    if not infos:
        left = "; files of an unfinished install are left" if (packages / PACKAGE).exists() else ""
        return PatchStatus(False, source.version, source.digest, (), False, False, str(packages), f"not applied{left}")
    info = infos[0]
    listed = _read_listed_files(info)
    changed = [name for name, digest in listed if digest and not _has_digest(packages / name, digest)]
    wrong = [*changed, *([] if listed else [f"{info.name}/RECORD"]), *(other.name for other in infos[1:])]
    version = info.name.removeprefix(f"{PACKAGE}-").removesuffix(".dist-info")
    digest = (info / _DIGEST_FILE).read_text().strip() if (info / _DIGEST_FILE).is_file() else ""
    current = (version, digest) == (source.version, source.digest)
    reason = (
        f"changed or missing: {', '.join(wrong)}" if wrong else "" if current else "another build than this Tracon's"
    )
    return PatchStatus(
        True, version, digest, tuple(name for name, _ in listed), not wrong, current, str(packages), reason
    )


def _has_digest(path: Path, digest: str) -> bool:
    try:
        return _hash_for_record(path.read_bytes()) == digest
    except OSError:
        return False


def _find_site_packages(engine: Engine | Path) -> Path:
    if isinstance(engine, Engine):
        return engine.site_packages
    return Path(inspect_python(engine.absolute())["site_packages"])


@contextmanager
def _hold_for_writing(packages: Path) -> Iterator[None]:
    """Hold site-packages against another apply or revert; what cannot be written becomes a PatchFailed."""
    try:
        descriptor = os.open(packages, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        remedy = SHORTAGE_REMEDIES.get(error.errno or 0, _OWN_ENVIRONMENT)
        raise PatchFailed(f"cannot change {packages}: {error.strerror or error}", remedy=remedy) from error


def _open_shared_lock(folder: Path) -> int:
    """An open descriptor of the folder that holds a lock shared with other users. Raises PatchFailed."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except OSError as error:
        raise PatchFailed(
            f"cannot mark the patches below {folder} as used: {error.strerror or error}",
            remedy=SHORTAGE_REMEDIES.get(error.errno or 0, _OWN_ENVIRONMENT),
        ) from error
    return descriptor


@contextmanager
def _hold_alone(packages: Path, descriptor: int, installed: PatchStatus) -> Iterator[None]:
    """Hold the patches so that no other process uses them, by the lock that the caller shares; then share it again.

    Call it within `_hold_for_writing`: then no `revert` takes the lock while it changes its kind. Raises PatchFailed
    where another process uses them.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # the failed change may have released it
        raise _refuse_replacement(packages, installed) from None
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def _refuse_replacement(packages: Path, installed: PatchStatus) -> PatchFailed:
    users = [user for user in list_users(packages.parent) if user.pid != os.getpid()]
    names = " and ".join(user.text for user in users) or UNKNOWN
    ends = [user.end for user in users if user.end]
    end = f"wait until it has ended, or end it ({', '.join(ends)})" if ends else "wait until it has ended"
    uses = "use" if len(users) > 1 else "uses"
    return PatchFailed(
        f"{names} {uses} another build of the patches in {packages} (version {installed.version}, digest "
        f"{installed.digest or 'unknown'})",
        remedy=f"{end}; or use an engine environment of your own (`TRACON_HOME=FOLDER tracon engine install KIND`, or "
        "--engine-python)",
    )


@contextmanager
def _hold_unused(packages: Path) -> Iterator[bool]:
    """Whether no PatchUse is held; if so, none begins inside this context.

    The mark is a lock on the folder above site-packages: it writes nothing there, and it ends with the process.
    """
    descriptor = os.open(packages.parent, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


IN_USE = "left in place: a run or a standalone engine uses them; they can be removed when it has ended"
NOT_WRITABLE = "left in place: another user owns this environment, and applied them"
_OWN_ENVIRONMENT = (
    "run as the user who owns that environment, or build your own with `tracon engine install` and omit --engine-python"
)


def _add_reason(patches: PatchStatus, done: str) -> PatchStatus:
    return replace(
        patches, reason=f"{done}; {patches.reason}" if patches.reason and patches.reason != "not applied" else done
    )
