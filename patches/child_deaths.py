"""Names the death of a vLLM process: its parent reaps it silently, and no one outside learns which signal ended it."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Protocol

from .engine_log import write_line

_MARK = "_tracon_names_deaths"
REAPED_WAIT_S = 1.0
"""How long the thread that reaped the child may take to store its exit code."""
_POLL_S = 0.005
_ASKED = "_tracon_asked_to_end"
"""Set on the Popen object of a child that its parent asks to end."""


class Child(Protocol):
    """What is read of multiprocessing's Popen objects."""

    pid: int
    returncode: int | None
    sentinel: int


def name_child_deaths() -> None:
    """Wrap `Process.start`: a daemon thread waits for each child and writes how it ended to stderr. Idempotent.

    The thread only looks (WNOWAIT): the reaping process still gets its exit code. A child that its parent asked to
    end is not named: vLLM's shutdown kills its processes.
    """
    start = BaseProcess.start
    if hasattr(start, _MARK):
        return
    watchers: list[tuple[threading.Thread, Child]] = []
    atexit.register(_finish_reports, watchers, os.getpid())

    @functools.wraps(start)
    def start_and_watch(process: BaseProcess) -> None:
        start(process)
        try:
            child: Child = process._popen  # type: ignore[attr-defined]
            watcher = threading.Thread(
                target=_report_end, args=(process.name, child), name="tracon-child-deaths", daemon=True
            )
            watcher.start()
            watchers.append((watcher, child))
        except Exception as error:  # noqa: BLE001 - the child runs, and the engine must come up
            write_line(f"the end of process {process.name} will not be named: {type(error).__name__}: {error}")

    setattr(start_and_watch, _MARK, True)
    BaseProcess.start = start_and_watch  # type: ignore[method-assign,assignment]
    BaseProcess.terminate = _mark_and_run(BaseProcess.terminate)  # type: ignore[method-assign,assignment]
    BaseProcess.kill = _mark_and_run(BaseProcess.kill)  # type: ignore[method-assign,assignment]


def _finish_reports(watchers: list[tuple[threading.Thread, Child]], owner: int) -> None:
    """Let the threads of children that end write their line: a process that exits stops its daemon threads.

    vLLM's API server exits at once when its engine process has died. A fork of `owner` has none of these threads.
    """
    if os.getpid() != owner:
        return
    until = time.monotonic() + REAPED_WAIT_S
    for watcher, child in watchers:
        if watcher.is_alive() and _is_ending(child):
            watcher.join(max(0.0, until - time.monotonic()))


def _is_ending(child: Child) -> bool:
    """Whether the kernel has closed the child's files: its end has begun, and it may not be there to reap yet."""
    return bool(wait([child.sentinel], timeout=0))


def _mark_and_run(end: Callable[[BaseProcess], None]) -> Callable[[BaseProcess], None]:
    @functools.wraps(end)
    def mark_and_end(process: BaseProcess) -> None:
        with contextlib.suppress(Exception):  # whatever is wrong with the process, `end` raises it
            # vLLM's monitor wakes up on the sentinel and terminates a child whose end has begun: that asks nothing.
            if process.exitcode is None and not _is_ending(process._popen):  # type: ignore[attr-defined]
                setattr(process._popen, _ASKED, True)  # type: ignore[attr-defined]
        end(process)

    return mark_and_end


def _report_end(name: str, child: Child) -> None:
    try:
        code = _wait_for_end(child)
        if code and not getattr(child, _ASKED, False):
            write_line(f"process {name} pid {child.pid} {describe_end(code)}")
    except Exception as error:  # noqa: BLE001 - a thread of the engine: it must end without a traceback
        write_line(f"the end of process {name} pid {child.pid} is not known: {type(error).__name__}: {error}")


def _wait_for_end(child: Child) -> int | None:
    """The exit code, minus the signal's number where one ended it; None where another process reaped the child."""
    try:
        status = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:  # the parent was faster
        until = time.monotonic() + REAPED_WAIT_S
        while child.returncode is None and time.monotonic() < until:
            time.sleep(_POLL_S)
        return child.returncode
    if status is None:
        return None
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def describe_end(code: int) -> str:
    """In the form that `launch` parses: `died of SIGSEGV`, or `ended with exit code 1`."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"
