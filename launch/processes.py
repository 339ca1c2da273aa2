"""Lists and ends every process that one process started."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

from launch.errors import HostObstacle
from launch.guard import SHORTAGES, send_signal
from results.records.errors import SHORTAGE_REMEDIES
from state.process_identity import ProcessIdentity, boot_id, is_alive

KILL_TIMEOUT_S = 5.0
SHORTAGE_TIMEOUT_S = 60.0
"""How long `wait_to_see` waits for descriptors or memory, without which no process can be seen."""

_Seen = TypeVar("_Seen")


class ProcessesUnseen(HostObstacle):
    """Descriptors or memory were short for too long: whether an engine has ended cannot be seen."""

    exit_code = 1


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
    leaves any. Raises ProcessesUnseen where the shortage lasts.
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


def wait_to_see(look: Callable[[], _Seen], pid: int) -> _Seen:
    """What `look` returns of an engine whose main process is, or was, `pid`.

    Waits for up to SHORTAGE_TIMEOUT_S while descriptors or memory are short, and then raises ProcessesUnseen.
    """
    until = time.monotonic() + SHORTAGE_TIMEOUT_S
    while True:
        try:
            return look()
        except OSError as error:
            if error.errno not in SHORTAGES:
                raise
            if time.monotonic() > until:
                raise ProcessesUnseen(
                    f"cannot see whether all processes of the engine with pid {pid} have ended: {error}",
                    remedy=SHORTAGE_REMEDIES.get(error.errno or 0, ""),
                ) from error
            time.sleep(0.05)


def _list_known(identity: ProcessIdentity, known: frozenset[int]) -> frozenset[int]:
    """`members`, and what is left of `known`. Waits as `wait_to_see`."""

    def look() -> frozenset[int]:
        return frozenset(pid for pid in known if not _is_zombie(pid)) | frozenset(members(identity))

    return wait_to_see(look, identity.pid)


def _is_zombie(pid: int) -> bool:
    """Also where the process is gone."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
