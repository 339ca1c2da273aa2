"""The thread that runs the steps of a CPU engine gets a core that neither its API server nor the load uses.

On a host whose cores they share, the kernel moves them to and fro, otherwise in every launch: a part of what launches
of one config differ by (docs/load.md). Only the main thread of the engine core stays on the core. Its other
threads, a connector's among them, run on every core: squeezed onto that of the steps they would lengthen each step,
kept off it they would only take from the client.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from launch.host import read_host

TRACKER = "resource_tracker"
"""In the command line of the process that multiprocessing starts beside a spawned one."""


@dataclass(slots=True)
class StepCore:
    """How the cores are divided while one engine lives. Without a core for the steps nothing is bound."""

    core: int | None
    """Where the steps run."""
    others: tuple[int, ...]
    """Of the API server, of this process and of those that it starts."""
    reason: str
    """Why the steps have no core of their own; empty where they have."""
    engine_core: int = 0
    """Process id; its main thread has the same."""
    known: set[int] = field(default_factory=set)
    """Threads of the engine core that have been looked at."""

    def describe(self) -> dict[str, Any]:
        """As a cell's record holds it."""
        if self.core is None:
            return {"step": None, "others": list(self.others), "reason": self.reason}
        return {"step": self.core, "others": list(self.others)}

    def free_new_threads(self) -> None:
        """Let threads that the main one has started since run on every core: they begin where it is bound."""
        if self.core is None:
            return
        for thread in set(_list_threads(self.engine_core)) - self.known:
            with suppress(OSError):  # it has ended
                if os.sched_getaffinity(thread) == {self.core}:
                    os.sched_setaffinity(thread, (*self.others, self.core))
            self.known.add(thread)

    def release(self) -> None:
        """Let this process run on every core again; the engine is gone."""
        if self.core is not None:
            _bind(_list_threads(os.getpid()), (*self.others, self.core))


def why_no_step_core() -> str:
    """Why the steps of an engine can have no core of their own on this host; empty where they can."""
    host = read_host()
    if host.cores < 2:
        return "this process may use one core only"
    if host.limits.cores is not None and host.limits.cores < 2:
        return f"the quota of this cgroup (cpu.max) is {host.limits.cores:g} cores' worth of time"
    return ""


def give_step_core(api_server: int) -> StepCore:
    """Divide the cores for a ready engine, the only one on this host; `api_server` is the id of its main process.

    The last core goes to the thread of its steps, the others to its API server and to every thread of this process,
    from which those of the load are started.
    """
    cores = tuple(sorted(os.sched_getaffinity(0)))
    reason = why_no_step_core()
    if reason:
        return StepCore(None, cores, reason)
    children = _list_engine_processes(api_server)
    if len(children) != 1:
        return StepCore(None, cores, f"the engine has {len(children)} processes below its API server, not one")
    split = StepCore(cores[-1], cores[:-1], "", children[0])
    try:
        split.known.update(_list_threads(split.engine_core))
        os.sched_setaffinity(split.engine_core, cores[-1:])
        _bind(_list_threads(api_server), split.others)
        _bind(_list_threads(os.getpid()), split.others)
    except OSError as error:
        split.release()
        return StepCore(None, cores, f"the kernel refused: {error.strerror}")
    return split


def _list_engine_processes(api_server: int) -> list[int]:
    try:
        children = psutil.Process(api_server).children()
        return [child.pid for child in children if TRACKER not in " ".join(child.cmdline())]
    except psutil.Error:  # the engine has died; its caller reports that
        return []


def _list_threads(process: int) -> list[int]:
    try:
        return [int(task.name) for task in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return []


def _bind(threads: Iterable[int], cores: tuple[int, ...]) -> None:
    for thread in threads:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread, cores)
