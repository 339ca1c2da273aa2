"""Shared libraries an engine loads from the system, and where they come from when the system has none.

Mooncake and vLLM's CPU kernels link libraries that a bare machine lacks and only root can install. The NIXL wheels
carry copies of them under other file names. A folder of links with the right names, on the engine's library path, lets
the loader find them. Nothing is copied and no file of the engine is changed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Library:
    soname: str
    package: str
    """Debian and Ubuntu's name of the package that has it."""
    needed_by: tuple[str, ...]
    """Components: `vllm`, `mooncake`."""


_COMMON = (
    Library("libnuma.so.1", "libnuma1", ("vllm", "mooncake")),
    Library("libibverbs.so.1", "libibverbs1", ("mooncake",)),
    Library("libcurl.so.4", "libcurl4", ("mooncake",)),
)
SYSTEM_LIBRARIES = {"cpu": _COMMON, "cuda": (*_COMMON, Library("libmlx5.so.1", "ibverbs-providers", ("mooncake",)))}
_DONORS = ("nixl_cu13.libs", "nixl_cu12.libs")


@dataclass(frozen=True, slots=True)
class LibraryState:
    """Where an engine gets the libraries that it needs from the system."""

    lacking: tuple[Library, ...]
    """Missing on this system, and not inside the engine environment either."""
    path: tuple[Path, ...]
    """What to put on the engine's library path, in order; empty when nothing is borrowed."""


def loadable(soname: str) -> bool:
    """Whether this system's loader finds and loads it."""
    try:
        ctypes.CDLL(soname)
    except OSError:
        return False
    return True


def make_apt_remedy(libraries: Sequence[Library]) -> str:
    return "apt-get install " + " ".join(sorted({library.package for library in libraries}))


def provide(
    kind: str, site_packages: Path, folder: Path, is_loadable: Callable[[str], bool] | None = None
) -> LibraryState:
    """Link the environment's own copies of the libraries that the system lacks into `folder`.

    Links are relative: an environment may be moved with its folder. A folder that cannot be written counts as no copy.
    """
    missing = [library for library in SYSTEM_LIBRARIES[kind] if not (is_loadable or loadable)(library.soname)]
    lacking: list[Library] = []
    donors: dict[Path, None] = {}
    for library in missing:
        copy = _find_copy(library, site_packages)
        if copy is not None and _link_copy(folder / library.soname, copy):
            donors[copy.parent] = None
        else:
            lacking.append(library)
    return LibraryState(tuple(lacking), (folder, *donors) if donors else ())


def _find_copy(library: Library, site_packages: Path) -> Path | None:
    """`libX-<hash>.so.N...`: the name a wheel repair tool gives the copy of `libX.so.N`."""
    stem, _, major = library.soname.partition(".so.")
    for donor in _DONORS:
        for path in sorted((site_packages / donor).glob(f"{stem}-*.so.{major}*")):
            return path
    return None


def _link_copy(link: Path, target: Path) -> bool:
    relative = os.path.relpath(target, link.parent)
    try:
        if link.is_symlink() and str(link.readlink()) == relative:
            return True
        link.parent.mkdir(parents=True, exist_ok=True)
        fresh = link.with_name(f".{link.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(relative)
        fresh.replace(link)
    except OSError:
        return False
    return True
