"""Settings of the load's process, so that it disturbs the stamps as little as possible."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Iterator

from runners.load.messages import LoadError


def allow_connections(count: int, remedy: str) -> None:
    """Raise the soft limit on open files to what is needed. Raises LoadError where the hard limit is below it."""
    needed = count + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise LoadError(
                f"{count} connections need {needed} open files, the limit is {hard}",
                remedy=f"Raise it (ulimit -Hn) or {remedy}.",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


@contextlib.contextmanager
def disable_gc() -> Iterator[None]:
    """No garbage collection while stamps are taken; the hot path makes no cycles."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextlib.contextmanager
def schedule_in_real_time(wanted: bool) -> Iterator[bool]:
    """SCHED_RR at its lowest priority, where permitted; yields whether it is. The kernel bounds its share of a core.

    With three busy processes on two cores a timer fired 0.1 ms late with it and 4 to 12 ms late without (p99).
    """
    granted = False
    if wanted and hasattr(os, "sched_setscheduler"):
        with contextlib.suppress(PermissionError):
            before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
            granted = True
    try:
        yield granted
    finally:
        if granted:
            os.sched_setscheduler(0, before, parameters)
