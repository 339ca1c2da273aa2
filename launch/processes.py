"""What tells one process, and everything it started, from all others of the host."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

import psutil

from state.process import boot_id

START_TOLERANCE_S = 2.0
"""psutil derives creation times from the boot time, which a clock adjustment moves a little between two readers."""
KILL_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of one boot: a pid that was handed out again is not it."""

    pid: int
    pgid: int
    process_start: float
    """Creation time, seconds since the epoch (psutil)."""
    boot_id: str


def identify(pid: int, pgid: int | None = None) -> ProcessIdentity:
    """The identity of a process that is there. Raises psutil.NoSuchProcess where it is not."""
    return ProcessIdentity(pid, os.getpgid(pid) if pgid is None else pgid, psutil.Process(pid).create_time(), boot_id())


def is_same(identity: ProcessIdentity) -> bool:
    """Whether that very process still runs (a zombie does not)."""
    if identity.boot_id != boot_id():
        return False
    try:
        process = psutil.Process(identity.pid)
        same = abs(process.create_time() - identity.process_start) < START_TOLERANCE_S
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def members(identity: ProcessIdentity) -> tuple[int, ...]:
    """Every live process of it: itself, its descendants, and every process in the session or group it leads.

    The kernel hands out no pid that still names a session or a group, so these are its own even when it is gone itself.
    Empty where the pid belongs to another process now.
    """
    if identity.boot_id != boot_id():
        return ()
    if psutil.pid_exists(identity.pid) and not is_same(identity) and not _is_zombie(identity.pid):
        return ()
    own = os.getpid()
    members: set[int] = set()
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            leader = identity.pgid == identity.pid and os.getsid(pid) == identity.pid
            if (leader or os.getpgid(pid) == identity.pgid) and not _is_zombie(pid):
                members.add(pid)
    with contextlib.suppress(psutil.NoSuchProcess):
        members.update(child.pid for child in psutil.Process(identity.pid).children(recursive=True))
    return tuple(sorted(pid for pid in members if pid != own and not _is_zombie(pid)))


def end_members(identity: ProcessIdentity, grace_s: float) -> tuple[int, ...]:
    """TERM to the process, KILL to all of `members` after `grace_s`; returns who is left.

    Blocks for up to grace_s + KILL_TIMEOUT_S. Only a hung kernel leaves anybody.
    """
    known = set(members(identity))
    if identity.pid in known:
        _send_signal(identity.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while known and time.monotonic() < deadline:
        time.sleep(0.05)
        known = {pid for pid in known if not _is_zombie(pid)} | set(members(identity))
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while known and time.monotonic() < deadline:
        for pid in known:
            _send_signal(pid, signal.SIGKILL)
        time.sleep(0.02)
        known = {pid for pid in known if not _is_zombie(pid)} | set(members(identity))
    return tuple(sorted(known))


def _send_signal(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def _is_zombie(pid: int) -> bool:
    """Also where the process is gone."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
