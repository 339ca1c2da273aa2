"""Looks at the host once a second while cells are measured, from a thread of its own; rows of `host.csv`."""

from __future__ import annotations

import csv
import logging
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import psutil

from results.records.host import HEADER

PERIOD_S = 1.0
PRESSURE = Path("/proc/pressure/cpu")
log = logging.getLogger("tracon.host")


class _Clock(NamedTuple):
    """Counters of a moment."""

    t_s: float
    worked_s: tuple[float, ...]
    """Per core."""
    total_s: tuple[float, ...]
    stolen_s: tuple[float, ...]
    waited_s: float | None


class HostSampler:
    """Samples while `cell` is not empty, for the length of a `with` block. A disk that fails ends it, with a word."""

    def __init__(self, path: Path, *, period_s: float = PERIOD_S) -> None:
        self.cell = ""
        """The cell that is measured now."""
        self._path = path
        self._period_s = period_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_host, name="host-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sample_host(self) -> None:
        try:
            fresh = not self._path.exists() or self._path.stat().st_size == 0
            with self._path.open("a", newline="", encoding="utf-8", buffering=1) as file:
                rows = csv.writer(file)
                if fresh:
                    rows.writerow(HEADER)
                before, cell = _read_clock(), self.cell
                while True:
                    due_s = time.monotonic() + self._period_s
                    if self._ended.wait(self._period_s):
                        return
                    late_s = max(0.0, time.monotonic() - due_s)
                    now = _read_clock()
                    if cell and cell == self.cell:
                        rows.writerow([cell, f"{time.time():.3f}", f"{late_s:.4f}", *_compute_shares(before, now)])
                    before, cell = now, self.cell
        except OSError as error:
            log.warning("the host is not looked at any more: %s: %s", self._path.name, error.strerror)


def _read_clock() -> _Clock:
    cores = psutil.cpu_times(percpu=True)
    idle = [core.idle + getattr(core, "iowait", 0.0) for core in cores]
    stolen = tuple(getattr(core, "steal", 0.0) for core in cores)
    # guest time is in user time already
    total = tuple(sum(core) - getattr(core, "guest", 0.0) - getattr(core, "guest_nice", 0.0) for core in cores)
    worked = tuple(all_s - idle_s - stolen_s for all_s, idle_s, stolen_s in zip(total, idle, stolen, strict=True))
    return _Clock(time.monotonic(), worked, total, stolen, _waited_s())


def _waited_s() -> float | None:
    """Seconds since the boot in which some task had no core; None where this kernel does not tell."""
    with suppress(OSError, ValueError, IndexError):
        some = PRESSURE.read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    return None


def _compute_shares(before: _Clock, now: _Clock) -> list[str]:
    """Busy, stolen and waiting between two moments; empty = not known."""
    passed = [after - then for then, after in zip(before.total_s, now.total_s, strict=True)]
    if min(passed, default=0.0) <= 0:
        return ["", "", ""]
    worked = sum(now.worked_s) - sum(before.worked_s)
    stolen = [
        (after - then) / core
        for then, after, core in zip(before.stolen_s, now.stolen_s, passed, strict=True)
    ]  # fmt: skip
    waiting = ""
    if before.waited_s is not None and now.waited_s is not None:
        waiting = f"{(now.waited_s - before.waited_s) / (now.t_s - before.t_s):.4f}"
    return [f"{max(0.0, worked) / sum(passed):.4f}", f"{max(0.0, *stolen):.4f}", waiting]
