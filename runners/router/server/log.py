"""The router's record files: each record is encoded when complete, and a thread writes them in batches.

The decision log names sessions, so the files are readable by their owner only. A full disk may truncate a line, which
readers skip.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections import deque
from pathlib import Path

import msgspec

from results.records.decisions import DecisionRecord
from results.records.instance_events import InstanceEvent
from runners.router.spec import RouterError

FLUSH_S = 0.25
BACKLOG_LIMIT_BYTES = 64 << 20
"""Limit of the records waiting for a slow disk; further records are lost and counted."""


class RecordFile:
    """A JSON lines file. Requests never wait for it: if the disk fails, records are lost and counted."""

    def __init__(self, path: str) -> None:
        self.lost = 0
        self.error = ""
        """The disk's last error; empty = it never failed."""
        self._encode = msgspec.json.Encoder().encode
        self._backlog: list[bytes] = []
        self._backlog_bytes = 0
        self._batches: deque[bytes] = deque()
        """Taken from the backlog and not written yet: one at most."""
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._file = -1
        self._is_torn = False
        """The last write ended in the middle of a line."""
        if path:
            try:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(path, flags, 0o600)
                if stat.S_ISREG(os.fstat(self._file).st_mode):  # never change the mode of /dev/null
                    with contextlib.suppress(PermissionError):  # another user's file
                        os.fchmod(self._file, 0o600)  # `open` does not change the mode of an existing file
            except OSError as error:
                remedy = "Free space on that disk or name another path."
                raise RouterError(f"cannot write {path}: {error.strerror}", remedy=remedy) from error

    @property
    def is_open(self) -> bool:
        return self._file >= 0

    @property
    def backlog_bytes(self) -> int:
        """Of records that wait to be written."""
        return self._backlog_bytes

    def append_record(self, record: DecisionRecord | InstanceEvent) -> None:
        """Queue a record; it is written within about FLUSH_S."""
        if self._file < 0:
            return
        if self._backlog_bytes > BACKLOG_LIMIT_BYTES:
            self.lost += 1
            return
        try:
            line = self._encode(record)
        except (TypeError, ValueError, OverflowError) as error:  # a user's policy may put anything into its decision
            self.lost += 1
            name = f"pick {record.seq}" if isinstance(record, DecisionRecord) else f"{record.what} of {record.instance}"
            self.error = f"{name} cannot be written as JSON: {error}"
            return
        self._backlog_bytes += len(line) + 1
        self._backlog.append(line)
        if self._task is None:
            self._task = asyncio.create_task(self._flush_soon())

    async def close(self) -> None:
        self._closing.set()
        if self._task is not None:
            await asyncio.shield(self._task)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def _flush_soon(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._closing.wait()
        while self._backlog:
            lines, self._backlog = self._backlog, []
            self._backlog_bytes = 0
            self._batches.append(b"\n".join(lines) + b"\n")
            try:
                await asyncio.to_thread(self._write_batches)
            except RuntimeError:  # no thread can be started, for want of memory: requests wait for this write
                self._write_batches()
        self._task = None

    def _write_batches(self) -> None:
        """A thread that could not be started may run this later: then nothing is left to write."""
        while self._batches:
            self._write_lines(self._batches.popleft())

    def _write_lines(self, lines: bytes) -> None:
        """Write whole lines; if the last write was cut, begin on a new line."""
        lead = b"\n" if self._is_torn else b""
        data, written = lead + lines, 0
        try:
            while written < len(data):
                written += os.write(self._file, memoryview(data)[written:])
        except OSError as error:
            self.error = error.strerror or str(error)
            self.lost += lines.count(b"\n", max(0, written - len(lead)))
        if written:
            self._is_torn = data[written - 1 : written] != b"\n"
