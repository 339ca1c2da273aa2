"""The cores and memory of the host that this process may use: by affinity, cgroup quota and cgroup limit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the cgroups of a process allow; None where none of them limits it."""

    cores: float | None = None
    """CPU time per wall time: `cpu.max`, the tightest of all ancestors."""
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    """The smallest room left below a limit; pages of files count as room."""


@dataclass(frozen=True, slots=True)
class Host:
    """Cores and memory that engines started from here share."""

    cores: int
    """Cores that the process may be scheduled on; `limits.cores` may allow less time than they have."""
    host_cores: int
    memory_bytes: int
    """The host's, or the cgroup's limit where that is less."""
    available_bytes: int
    limits: Limits


def read_host(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> Host:
    """A cgroup file that is absent or unreadable limits nothing."""
    memory, limits = psutil.virtual_memory(), read_limits(root, own)
    return Host(
        cores=len(os.sched_getaffinity(0)),
        host_cores=os.cpu_count() or 1,
        memory_bytes=min(memory.total, limits.memory_bytes or memory.total),
        available_bytes=min(
            memory.available,
            memory.available if limits.memory_available_bytes is None else limits.memory_available_bytes,
        ),
        limits=limits,
    )


def read_limits(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> Limits:
    """The limits of this process's cgroups (v2, or the `cpu` and `memory` controllers of v1) and of their ancestors."""
    paths = read_cgroups(own)
    quotas: list[float] = []
    rooms: list[tuple[int, int]] = []
    if "" in paths:
        for folder in _list_ancestors(root, paths[""]):
            quotas += _parse_quota(_read_words(folder / "cpu.max"))
            rooms += _read_room(folder, "memory.max", "memory.current", "inactive_file")
    if "cpu" in paths:
        for folder in _list_ancestors(root / "cpu", paths["cpu"]):
            quotas += _parse_quota(_read_words(folder / "cpu.cfs_quota_us") + _read_words(folder / "cpu.cfs_period_us"))
    if "memory" in paths:
        for folder in _list_ancestors(root / "memory", paths["memory"]):
            rooms += _read_room(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return Limits(
        cores=min(quotas, default=None),
        memory_bytes=min((limit for limit, _ in rooms), default=None),
        memory_available_bytes=min((left for _, left in rooms), default=None),
    )


def read_cgroups(own: Path = OWN_CGROUP) -> dict[str, str]:
    """This process's cgroup by controller; version 2's has the name "". Empty where they cannot be read."""
    try:
        rows = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return {}
    return {name: row[2] for row in rows if len(row) == 3 for name in row[1].split(",")}


def _list_ancestors(root: Path, path: str) -> Iterator[Path]:
    """The cgroup's folder and its ancestors' up to the root. Inside a container the path may be the host's: then only
    the root, which is the container's own, is there."""
    folder = root / path.strip("/")
    yield folder
    while folder != root and root in folder.parents:
        folder = folder.parent
        yield folder


def _parse_quota(words: list[str]) -> list[float]:
    """`max 100000` and `-1 100000` are no quota."""
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return []
    return [int(words[0]) / int(words[1])]


def _read_room(folder: Path, limit: str, used: str, reclaimable: str) -> list[tuple[int, int]]:
    """Limit and room left, in bytes; none where the limit is `max` or more than the host has."""
    words = _read_words(folder / limit)
    if len(words) != 1 or not words[0].isdigit() or int(words[0]) >= psutil.virtual_memory().total:
        return []
    current = next((int(word) for word in _read_words(folder / used) if word.isdigit()), 0)
    statistics = _read_words(folder / "memory.stat")
    files = int(statistics[statistics.index(reclaimable) + 1]) if reclaimable in statistics else 0
    return [(int(words[0]), max(0, int(words[0]) - max(0, current - files)))]


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
