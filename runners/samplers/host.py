"""Samples the host once a second while cells are measured, in a thread; writes the run's `host.csv`."""

from __future__ import annotations

import csv
import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from results.records.host import HEADER
from runners.samplers.cell_sampler import CellSampler

WORK_ITEMS = 5000
"""Items of the fixed piece of work: about 0.1 ms, a ten-thousandth of a core."""
PRESSURE = Path("/proc/pressure/cpu")
log = logging.getLogger("tracon.host")


class Shares(NamedTuple):
    """Between two moments; None = not known."""

    busy: float | None
    stolen: float | None
    waiting: float | None


class HostClock(NamedTuple):
    """Counters of a moment."""

    t_s: float
    worked_s: tuple[float, ...]
    """Per core."""
    total_s: tuple[float, ...]
    stolen_s: tuple[float, ...]
    waited_s: float | None


class HostSampler(CellSampler):
    """Logs a warning and stops where the disk fails."""

    def _sample(self) -> None:
        try:
            fresh = not self._path.exists() or self._path.stat().st_size == 0
            with self._path.open("a", newline="", encoding="utf-8", buffering=1) as file:
                rows = csv.writer(file)
                if fresh:
                    rows.writerow(HEADER)
                before, cell = read_clock(), self.cell
                while True:
                    due_s = time.monotonic() + self._period_s
                    if self._ended.wait(self._period_s):
                        return
                    late_s = max(0.0, time.monotonic() - due_s)
                    now = read_clock()
                    if cell and cell == self.cell:
                        shares = _format_shares(before, now)
                        rows.writerow([cell, f"{time.time():.3f}", f"{late_s:.4f}", *shares, f"{time_work():.1f}"])
                    before, cell = now, self.cell
        except OSError as error:
            log.warning("the host is no longer sampled: %s: %s", self._path.name, error.strerror)


def read_clock() -> HostClock:
    cores = psutil.cpu_times(percpu=True)
    idle = [core.idle + getattr(core, "iowait", 0.0) for core in cores]
    stolen = tuple(getattr(core, "steal", 0.0) for core in cores)
    # guest time is in user time already
    total = tuple(sum(core) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0) for core in cores)
    worked = tuple(all_s - idle_s - stolen_s for all_s, idle_s, stolen_s in zip(total, idle, stolen, strict=True))
    return HostClock(time.monotonic(), worked, total, stolen, _read_waited_s())


def time_work() -> float:
    """Microseconds of a core's time that a fixed piece of work takes; waiting for a core is not in it."""
    begun_ns, total = time.thread_time_ns(), 0
    for item in range(WORK_ITEMS):
        total += item * item
    return (time.thread_time_ns() - begun_ns) / 1000


def _read_waited_s() -> float | None:
    """Seconds since the boot in which some task waited for a core; None where the kernel does not report it."""
    with suppress(OSError, ValueError, IndexError):
        some = PRESSURE.read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    return None


def compute_shares_between(before: HostClock, now: HostClock) -> Shares:
    """Busy, stolen and waiting between two moments."""
    passed = [after - then for then, after in zip(before.total_s, now.total_s, strict=True)]
    if min(passed, default=0.0) <= 0:
        return Shares(None, None, None)
    worked = sum(now.worked_s) - sum(before.worked_s)
    stolen = [(after - then) / core for then, after, core in zip(before.stolen_s, now.stolen_s, passed, strict=True)]
    waiting = None
    if before.waited_s is not None and now.waited_s is not None:
        waiting = (now.waited_s - before.waited_s) / (now.t_s - before.t_s)
    return Shares(min(max(0.0, worked) / sum(passed), 1.0), max(0.0, *stolen), waiting)


def _format_shares(before: HostClock, now: HostClock) -> list[str]:
    """Empty = not known."""
    return ["" if share is None else f"{share:.4f}" for share in compute_shares_between(before, now)]
