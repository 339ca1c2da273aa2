"""The processes of a run, by their role, and what can be done to them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from launch.ports import LOOPBACK

_PR_SET_CHILD_SUBREAPER = 36
MEMORY_SPARE_BYTES = 16 << 20
DESCRIPTORS_SPARE = 4
DISK_SPARE_BYTES = 256 << 10
DISK_BYTES = 1 << 30


def adopt_orphans() -> None:
    """From now on every process below this one stays below it, whatever becomes of those between."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)


def reap(keep: Sequence[int] = ()) -> None:
    """Collect adopted children that have ended, but those that another part of this process waits for."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, ChildProcessError):
            if child.pid not in keep and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def live_below(pid: int) -> dict[int, list[str]]:
    """Every live process below `pid` and its command line; zombies are none."""
    commands: dict[int, list[str]] = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    commands[process.pid] = process.cmdline()
    return commands


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def find_role(role: str, run: int, engines: Sequence[int]) -> list[int]:
    """The processes of a run that have this role. `engines`: main processes of its live engines, by its journal."""
    below = live_below(run)
    if role == "run":
        return [run] if is_running(run) else []
    if role in ("load", "router"):
        return [pid for pid, words in below.items() if f"runners.{role}" in words]
    if role == "engine":
        return [pid for pid in _with_descendants(engines, below) if "resource_tracker" not in " ".join(below[pid])]
    servers = [pid for pid, words in below.items() if _is_fork_server(pid, words, below)]
    if role == "fork_server":
        return servers
    holding = [pid for engine in engines for pid in _parents(engine, 2) if pid in below and pid not in servers]
    return sorted({*holding, *(pid for pid, words in below.items() if _is_guard(words))})


def _is_guard(words: Sequence[str]) -> bool:
    return any(word.endswith("launch/guard.py") for word in words)


def _is_fork_server(pid: int, words: Sequence[str], below: dict[int, list[str]]) -> bool:
    """The guards of engines are forked from it and have its command line: only its own parent is a guard's file."""
    named = any(word.endswith("launch/fork_server.py") for word in words)
    return named and any(_is_guard(below.get(parent, [])) for parent in _parents(pid, 1))


def _parents(pid: int, count: int) -> list[int]:
    parents: list[int] = []
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for _ in range(count):
            process = psutil.Process(process.ppid())
            parents.append(process.pid)
    return parents


def _with_descendants(roots: Sequence[int], below: dict[int, list[str]]) -> list[int]:
    return sorted({pid for root in roots for pid in (root, *live_below(root)) if pid in below})


def send(pid: int, number: signal.Signals) -> bool:
    """Whether the process was there to get the signal."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    send(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pid, signal.SIGCONT)


@contextlib.contextmanager
def few_descriptors(pid: int, spare: float) -> Iterator[None]:
    """It can open a few more files at most."""
    highest = max(int(entry.name) for entry in os.scandir(f"/proc/{pid}/fd"))
    with _limited(pid, resource.RLIMIT_NOFILE, highest + 1 + int(spare * DESCRIPTORS_SPARE)):
        yield


@contextlib.contextmanager
def little_memory(pid: int, spare: float) -> Iterator[None]:
    """Its address space can grow by a few MiB at most."""
    size = psutil.Process(pid).memory_info().vms
    with _limited(pid, resource.RLIMIT_AS, size + int(spare * MEMORY_SPARE_BYTES)):
        yield


@contextlib.contextmanager
def _limited(pid: int, limit: int, value: int) -> Iterator[None]:
    _, hard = before = resource.prlimit(pid, limit)
    resource.prlimit(pid, limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, limit, before)


@contextlib.contextmanager
def port_taken(port: int) -> Iterator[None]:
    """This process listens there, and answers no one. Raises OSError where another process does."""
    with socket.create_server((LOOPBACK, port)):
        yield


class Disk:
    """A small file system of its own for the runs, where one can be mounted; `reason` says why none is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reason = self._mount()

    def _mount(self) -> str:
        options = f"size={DISK_BYTES}"
        done = _call("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder))
        return done or ""

    @contextlib.contextmanager
    def full(self, spare: float) -> Iterator[None]:
        """Nothing fits on it any more but a few KiB, for every process at once."""
        state = os.statvfs(self.folder)
        used = (state.f_blocks - state.f_bfree) * state.f_frsize
        _call("mount", "-o", f"remount,size={used + int(spare * DISK_SPARE_BYTES) + state.f_frsize}", str(self.folder))
        try:
            yield
        finally:
            _call("mount", "-o", f"remount,size={DISK_BYTES}", str(self.folder))

    def close(self) -> None:
        if not self.reason:
            _call("umount", "--lazy", str(self.folder))


def _call(*words: str) -> str:
    """Why the command failed; empty where it did not."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{words[0]}: {error.strerror}"
    return done.stderr.strip() if done.returncode else ""


def wait_for(holds: Callable[[], bool], limit_s: float, poll_s: float = 0.02) -> bool:
    """Whether it held within the limit."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True
