"""Lists and ends every process that one process started."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

from launch.guard import SHORTAGES, send_signal
from state.process_identity import ProcessIdentity, boot_id, is_alive

KILL_TIMEOUT_S = 5.0
SHORTAGE_TIMEOUT_S = 60.0
"""How long `end_members` waits for descriptors or memory, without which it sees no process."""


def members(identity: ProcessIdentity) -> tuple[int, ...]:
    """The process itself if it lives, its descendants, and every process in the session or group it leads.

    The kernel reuses no pid that still names a session or a group, so these are its own even when it is gone itself.
    Empty where the pid belongs to another process now. Raises OSError while descriptors or memory are short: what
    cannot be seen has not ended.
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

    Blocks for up to grace_s + KILL_TIMEOUT_S, and longer while descriptors or memory are short. Only a hung kernel
    leaves any. Raises OSError where the shortage lasts.
    """
    known = _list_known(identity, frozenset())
    if identity.pid in known:
        send_signal(identity.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while known and time.monotonic() < deadline:
        time.sleep(0.05)
        known = _list_known(identity, known)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while known and time.monotonic() < deadline:
        for pid in known:
            send_signal(pid, signal.SIGKILL)
        time.sleep(0.02)
        known = _list_known(identity, known)
    return tuple(sorted(known))


def _list_known(identity: ProcessIdentity, known: frozenset[int]) -> frozenset[int]:
    """`members`, and what is left of `known`. Waits for up to SHORTAGE_TIMEOUT_S while it cannot look."""
    until = time.monotonic() + SHORTAGE_TIMEOUT_S
    while True:
        try:
            return frozenset(pid for pid in known if not _is_zombie(pid)) | frozenset(members(identity))
        except OSError as error:
            if error.errno not in SHORTAGES or time.monotonic() > until:
                raise
            time.sleep(0.05)


def _is_zombie(pid: int) -> bool:
    """Also where the process is gone."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
