"""Wakes the event loop at absolute times: a timerfd, because the loop's own timers round to a millisecond."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from time import perf_counter_ns

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK, _TFD_CLOEXEC, _TFD_TIMER_ABSTIME = 0o4000, 0o2000000, 1


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class Pacer:
    """Calls `on_due` once after each `arm`, at that time or as soon after as the kernel wakes us; never before it."""

    def __init__(self, on_due: Callable[[], None]) -> None:
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._fd = _open_timerfd()
        if self._fd is not None:
            self._loop.add_reader(self._fd, self._on_timer)

    def arm(self, t_ns: int) -> None:
        """Wake at `t_ns` (perf_counter_ns); a time that has passed wakes at once. Replaces what was armed."""
        if self._fd is None:
            self._arm_loop(t_ns)
            return
        moment = max(t_ns, 1)  # 0 would disarm
        value = _Itimerspec(_Timespec(0, 0), _Timespec(moment // 1_000_000_000, moment % 1_000_000_000))
        if _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(value), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _on_timer(self) -> None:
        assert self._fd is not None
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # armed again between the wake-up and this call
            return
        self._on_due()

    def _arm_loop(self, t_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(0.0, (t_ns - perf_counter_ns()) / 1e9), self._fire_when_due, t_ns)

    def _fire_when_due(self, t_ns: int) -> None:
        if perf_counter_ns() < t_ns:  # uvloop may fire a little early
            self._timer = self._loop.call_soon(self._fire_when_due, t_ns)
        else:
            self._on_due()


def _open_timerfd() -> int | None:
    """A timerfd on the clock of perf_counter_ns; None where the kernel has none."""
    if sys.platform != "linux":
        return None
    descriptor: int = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
    return descriptor if descriptor >= 0 else None


_libc = ctypes.CDLL(None, use_errno=True)
