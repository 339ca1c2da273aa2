"""Lists and ends every process that one process started."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

from launch.guard import send_signal
from state.process_identity import ProcessIdentity, boot_id, is_alive

KILL_TIMEOUT_S = 5.0


def members(identity: ProcessIdentity) -> tuple[int, ...]:
    """The process itself if it lives, its descendants, and every process in the session or group it leads.

    The kernel reuses no pid that still names a session or a group, so these are its own even when it is gone itself.
    Empty where the pid belongs to another process now.
    """
    if identity.boot_id != boot_id():
        return ()
    if psutil.pid_exists(identity.pid) and not is_alive(identity) and not _is_zombie(identity.pid):
        return ()
    own = os.getpid()
    members: set[int] = set()
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if identity.pid in (os.getsid(pid), os.getpgid(pid)):
                members.add(pid)
    with contextlib.suppress(psutil.NoSuchProcess):
        members.update(child.pid for child in psutil.Process(identity.pid).children(recursive=True))
    return tuple(sorted(pid for pid in members if pid != own and not _is_zombie(pid)))


def end_members(identity: ProcessIdentity, grace_s: float) -> tuple[int, ...]:
    """TERM to the process, KILL to all of `members` after `grace_s`; returns who is left.

    Blocks for up to grace_s + KILL_TIMEOUT_S. Only a hung kernel leaves any.
    """
    known = set(members(identity))
    if identity.pid in known:
        send_signal(identity.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while known and time.monotonic() < deadline:
        time.sleep(0.05)
        known = {pid for pid in known if not _is_zombie(pid)} | set(members(identity))
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while known and time.monotonic() < deadline:
        for pid in known:
            send_signal(pid, signal.SIGKILL)
        time.sleep(0.02)
        known = {pid for pid in known if not _is_zombie(pid)} | set(members(identity))
    return tuple(sorted(known))


def _is_zombie(pid: int) -> bool:
    """Also where the process is gone."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
