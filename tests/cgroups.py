"""A cgroup of a test's own with limits on memory and CPU time, where this host lets one be made (root, v1 or v2)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The folders that a process joins; empty where none could be made, with the reason."""

    folders: tuple[Path, ...]
    reason: str = ""

    def join(self) -> None:
        """Put this process into it."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))


@contextlib.contextmanager
def limited_cgroup(memory_bytes: int, cores: float) -> Iterator[Cgroup]:
    """Made for the block, removed after it. The processes that joined must have ended by then."""
    quota = int(cores * PERIOD_US)
    name = f"tracon-test-{os.getpid()}"
    if (ROOT / "cgroup.controllers").exists():
        limits = {ROOT / name: {"memory.max": str(memory_bytes), "cpu.max": f"{quota} {PERIOD_US}"}}
    else:
        limits = {
            ROOT / "memory" / name: {"memory.limit_in_bytes": str(memory_bytes)},
            ROOT / "cpu" / name: {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota)},
        }
    made: list[Path] = []
    try:
        try:
            for folder, files in limits.items():
                folder.mkdir()
                made.append(folder)
                for file, value in files.items():
                    (folder / file).write_text(value)
            cgroup = Cgroup(tuple(made))
        except OSError as error:
            cgroup = Cgroup((), f"no cgroup can be made here: {error.strerror}")
        yield cgroup
    finally:
        for folder in made:
            with contextlib.suppress(OSError):  # a process is still in it
                folder.rmdir()
