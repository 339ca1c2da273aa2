"""A step that stalls leaves the stacks of all threads in the engine's log.

In a process with a scheduler a step is the scheduler's; in a process that has a worker alone, what the worker executes.
A daemon thread checks once a second whether the open step is still the same. After `limit_s` of the same step it writes
one line that names the innermost frame, then every stack. It cannot run while a step holds the GIL: faulthandler's C
thread, which it re-arms each second, then writes "Timeout" and every stack.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from .engine_log import write_line
from .hooks import replace_on_instance
from .workers import change_each_worker

LIMIT_VARIABLE = "TRACON_STALL_S"
"""Seconds after which a step counts as stalled; 0 turns the watch off."""
LIMIT_S = 5.0
POLL_S = 1.0
PACKAGES = "/site-packages/"
MAX_STALLS = 20
"""Stalls per engine process whose stacks are written; the watch ends afterwards."""


def claim_fault_handler() -> None:
    """Put faulthandler, where it is enabled, before handlers that libraries have installed since (libtvm_ffi does).

    Theirs write a C stack for SIGSEGV and no Python stack.
    """
    if faulthandler.is_enabled():
        faulthandler.disable()
        faulthandler.enable(file=2)


def read_limit() -> float:
    """The limit in seconds. Raises ValueError where the variable is no number."""
    return float(os.environ.get(LIMIT_VARIABLE) or LIMIT_S)


def begin_watch(open_step: Callable[[], int | None]) -> None:
    """Watch this thread's steps unless the environment turns that off; never raises."""
    try:
        limit_s = read_limit()
        if limit_s > 0:
            StallWatch(open_step, limit_s).begin()
    except Exception as error:  # noqa: BLE001 - the engine must come up
        write_line(f"stalled steps are not reported: {type(error).__name__}: {error} (pid {os.getpid()})")


def watch_each_worker() -> None:
    """Watch every worker that has a process of its own; beside a scheduler, the scheduler's steps cover it."""
    change_each_worker(_watch_own_process, "_tracon_watched")


def _watch_own_process(worker: Any) -> None:  # noqa: ANN401 - a class of vLLM's
    parallel = getattr(worker, "parallel_config", None)
    if getattr(parallel, "distributed_executor_backend", None) == "uni":
        return
    calls = WorkerCalls()
    for method in ("execute_model", "sample_tokens"):
        why = replace_on_instance(worker, method, 1, calls.wrap)
        if why is not None:
            write_line(f"a stall in {method} is not reported: {why} (pid {os.getpid()})")


class WorkerCalls:
    """What a worker executes, one call after another; the first one begins the watch, in the thread that executes."""

    def __init__(self) -> None:
        self._begun = 0
        self._running = False

    def open_call(self) -> int | None:
        return self._begun if self._running else None

    def wrap(self, original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> object:
            if self._begun == 0:
                begin_watch(self.open_call)
            self._begun += 1
            self._running = True
            try:
                return original(*args, **kwargs)
            finally:
                self._running = False

        return call


class StallWatch:
    """Watches the steps of the thread that makes it. `open_step` returns the id of the step under way, else None."""

    def __init__(self, open_step: Callable[[], int | None], limit_s: float) -> None:
        self._open_step = open_step
        self._limit_s = limit_s
        self._thread_id = threading.get_ident()
        self._step: int | None = None
        self._since_s = self._looked_s = time.monotonic()
        self._reported = False
        self.stalls = 0

    def begin(self) -> None:
        """Start the daemon thread."""
        claim_fault_handler()
        threading.Thread(target=self._run, name="tracon-stalls", daemon=True).start()

    def _run(self) -> None:
        poll_s = min(POLL_S, self._limit_s / 2)
        try:
            while self.stalls < MAX_STALLS:
                faulthandler.dump_traceback_later(self._limit_s, exit=False, file=2)
                time.sleep(poll_s)
                now = time.monotonic()
                starved_s = now - self._looked_s if now - self._looked_s > self._limit_s else 0.0
                if starved_s:
                    time.sleep(poll_s)  # a stopped process wakes faulthandler's thread and ours: its goes first
                faulthandler.cancel_dump_traceback_later()  # waits for what it writes: its stacks come before our line
                self.look(now, starved_s)
                if starved_s:
                    self._looked_s += poll_s  # the wait is no gap, what follows it may be one
            write_line(f"{MAX_STALLS} steps stalled: further ones are not reported (pid {os.getpid()})")
        except Exception as error:  # noqa: BLE001 - a thread of the engine: it must end without a traceback
            write_line(f"stalled steps are not reported: {type(error).__name__}: {error} (pid {os.getpid()})")
        finally:
            faulthandler.cancel_dump_traceback_later()

    def look(self, now_s: float, starved_s: float) -> None:
        """`starved_s`: how long this thread could not run, where that is more than the limit; else 0."""
        starved = starved_s > 0
        step = self._open_step()
        if step != self._step:
            if self._reported:
                write_line(f"step {self._step} ended after {now_s - self._since_s:.1f} s (pid {os.getpid()})")
            self._step, self._since_s, self._reported = step, self._looked_s if starved else now_s, False
        self._looked_s = now_s
        if starved:
            self.stalls += 1
            write_line(f"no Python thread ran for {starved_s:.1f} s (pid {os.getpid()})")
            self._reported = step is not None
        elif step is not None and not self._reported and now_s - self._since_s >= self._limit_s:
            self.stalls += 1
            self._reported = True
            frame = self._find_frame()
            write_line(f"a step has run for {self._limit_s:g} s, {frame} (step {step}, pid {os.getpid()})")
            faulthandler.dump_traceback(file=2, all_threads=True)

    def _find_frame(self) -> str:
        """The innermost frame; where the standard library holds it, also the innermost one of an installed package."""
        inner = frame = sys._current_frames().get(self._thread_id)
        if inner is None:
            return "a thread that has ended"
        while frame is not None and PACKAGES not in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is None or frame is inner:
            return _format_place(inner)
        return f"{_format_place(inner)} from {_format_place(frame)}"


def _format_place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
