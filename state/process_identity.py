"""The identity of a process, and whether a recorded process still runs."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

_START_TOLERANCE_S = 1.0


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, distinct from every other that ever had its pid."""

    pid: int
    process_start: float
    """psutil creation time, seconds since the epoch; moves when the host's clock is set."""
    start_ticks: int | None
    """Start in clock ticks since boot, which no clock change moves; None where /proc cannot be read."""
    boot_id: str
    host: str
    pid_namespace: str
    """The namespace in which the pid is valid; empty where there is none."""


def identify(pid: int) -> ProcessIdentity:
    """The identity of a process of this host. Raises psutil.NoSuchProcess where there is none, and OSError where
    descriptors or memory are too short to look."""
    started = psutil.Process(pid).create_time()
    return ProcessIdentity(pid, started, _start_ticks(pid), boot_id(), platform.node(), _read_pid_namespace())


def identify_this_process() -> ProcessIdentity:
    return identify(os.getpid())


def can_see(identity: ProcessIdentity) -> bool:
    """Whether the process's pid is valid here: same host, same pid namespace."""
    return identity.host == platform.node() and identity.pid_namespace == _read_pid_namespace()


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether this very process of this host still runs; a zombie or a reused pid does not count."""
    if identity.boot_id != boot_id() or identity.pid < 1:
        return False
    try:
        process = psutil.Process(identity.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        ticks = _start_ticks(identity.pid)
        if ticks is not None and identity.start_ticks is not None:
            return ticks == identity.start_ticks
        return abs(process.create_time() - identity.process_start) < _START_TOLERANCE_S
    except psutil.NoSuchProcess:
        return False


def is_verifiable(identity: ProcessIdentity) -> bool:
    """Whether `is_alive` is certain: not on another host or in another pid namespace, nor where only the clock could
    show that the pid was reused."""
    if not can_see(identity):
        return False
    if identity.boot_id != boot_id() or identity.start_ticks is not None:
        return True
    return is_alive(identity) or not psutil.pid_exists(identity.pid)


def boot_id() -> str:
    """An id that changes with every boot of this host."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, PermissionError):  # not for want of a descriptor: the id must not seem to change
        return f"{psutil.boot_time():.0f}"


def _start_ticks(pid: int) -> int | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return int(line.rpartition(")")[2].split()[19])


def _read_pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
