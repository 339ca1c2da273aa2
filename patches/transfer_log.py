"""The transfer log: one JSON object a line, written by each engine process about the KV that comes and goes.

Lines go to a buffer; a thread of the log's own writes the file, so that neither a slow disk nor a full one
reaches the engine. A SIGKILL costs the lines of the last FLUSH_S, and may cut the last line off.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .engine_log import write_line
from .hooks import HookCheck

FLUSH_S = 0.1
MAX_BUFFERED = 100_000
"""Lines kept while the disk does not take them; more, and the log ends."""
MAX_BYTES = 64 << 20
"""Largest file of one process, some 200 000 lines; then the log ends."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Line = Mapping[str, Any]


class TransferLog:
    """The file `<folder>/transfer.<pid>.jsonl` of this process; what writes to it never raises and never waits.

    It is opened at the first line in each process, a forked child writes its own, and it begins with the status of
    each role that the process has. A file that is there already is continued: its new status says so by its time.
    """

    def __init__(self, folder: str) -> None:
        self.failure: str | None = None
        self._folder = Path(folder)
        self._statuses: dict[str, Callable[[], Line]] = {}
        self.forget()
        _LOGS.add(self)

    def declare(self, role: str, status: Callable[[], Line]) -> None:
        """Write what a role can see, now and at the begin of a forked child's file."""
        self._statuses[role] = status
        if not self._begin():
            self.put(status())

    def put(self, line: Line) -> None:
        """Take a line; it is in the file within FLUSH_S or so."""
        self._begin()
        if self.failure is not None:
            return
        if len(self._lines) >= MAX_BUFFERED:
            self._fail(f"{MAX_BUFFERED} lines are waiting to be written")
            return
        self._lines.append(line)
        self._wake.set()

    def forget(self) -> None:
        """Drop file and thread, as if never opened; what a forked child does with its parent's log."""
        self.failure = None
        self._lines: deque[Line] = deque()
        self._wake = threading.Event()
        self._starting = threading.Lock()
        self._begun = False

    def _begin(self) -> bool:
        """Start the writer with the statuses known so far; False where that has been done before."""
        if self._begun:
            return False
        with self._starting:
            if self._begun:
                return False
            try:
                self._lines.extend(status() for status in self._statuses.values())
                self._wake.set()
                threading.Thread(target=self._write, name="tracon-transfer-log", daemon=True).start()
            except Exception as error:  # noqa: BLE001 - what was to be logged goes on, whatever is wrong here
                self._fail(f"{type(error).__name__}: {error}")
            self._begun = True
            return True

    def _write(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"transfer.{os.getpid()}.jsonl"
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            while self.failure is None:
                if os.fstat(file).st_size >= MAX_BYTES:
                    self._fail(f"{path.name} has {MAX_BYTES} bytes, and may have no more")
                    return
                self._wake.wait()
                time.sleep(FLUSH_S)
                self._wake.clear()
                self._flush(file)
        except Exception as error:  # noqa: BLE001 - the engine goes on without its log, whatever is wrong with it
            self._fail(f"{type(error).__name__}: {error}")

    def _flush(self, file: int) -> None:
        lines = self._lines
        ready = [lines.popleft() for _ in range(len(lines))]
        data = "".join(json.dumps(line, separators=(",", ":"), default=str) + "\n" for line in ready).encode()
        while data:
            data = data[os.write(file, data) :]

    def _fail(self, reason: str) -> None:
        """End for good: no more lines, the reason once on stderr."""
        if self.failure is not None:
            return
        write_line(f"transfer log off: {reason} (pid {os.getpid()}, {self._folder})")
        self.failure = reason
        self._lines.clear()


class Report:
    """What one role of this process can see of transfers, why not the rest, and the way into the log.

    An error in what makes an event's lines ends that event, says so in a further status, and goes no further.
    """

    def __init__(self, log: TransferLog, role: str, events: tuple[str, ...], check: HookCheck) -> None:
        self.role = role
        self.connector: str | None = None
        self.reasons: dict[str, str] = {}
        """Event to why it is not available."""
        self._log = log
        self._events = events
        self._check = check

    def offers(self, event: str) -> bool:
        return event not in self.reasons

    def mark_unavailable(self, events: Iterable[str], why: str) -> None:
        """These cannot be seen; the first reason stays."""
        for event in events:
            self.reasons.setdefault(event, why)

    def declare(self) -> None:
        """Put the status into the log."""
        self._log.declare(self.role, self.status)

    def note(self, event: str, make: Callable[..., Iterable[Line]], *args: Any) -> None:
        """Log the lines that `make(*args)` returns of one occurrence, each with `t_ns`, `request` and `transfer`."""
        if event in self.reasons:
            return
        try:
            for line in make(*args):
                self._log.put({"event": event, **line})
        except Exception as error:  # noqa: BLE001 - what the engine was doing must go on
            self.stop((event,), error)

    def stop(self, events: Iterable[str], error: Exception) -> None:
        """These ended with an error of the probe's own."""
        self.mark_unavailable(events, f"stopped: {type(error).__name__}: {error}")
        self.declare()

    def status(self) -> Line:
        return {
            "event": "status",
            "role": self.role,
            "pid": os.getpid(),
            "vllm": self._check.vllm,
            "untested_version": self._check.untested_version,
            "connector": self.connector,
            "boot_id": _read_boot_id(),
            "clock": "CLOCK_MONOTONIC",
            "t_ns": time.perf_counter_ns(),
            "unix_ns": time.time_ns(),
            "available": {event: event not in self.reasons for event in self._events},
            "reasons": dict(self.reasons),
        }


def _read_boot_id() -> str | None:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return None


_LOGS: weakref.WeakSet[TransferLog] = weakref.WeakSet()


def _forget_logs() -> None:
    for log in _LOGS:
        log.forget()


os.register_at_fork(after_in_child=_forget_logs)
