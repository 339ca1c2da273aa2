"""The router's record files: each record is encoded when complete, and a thread writes them in batches.

The decision log names sessions, so the files are readable by their owner only. A full disk may truncate a line, which
readers skip.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import msgspec

from results.records.decisions import DecisionRecord
from results.records.instance_events import InstanceEvent
from runners.router.messages import RouterError

FLUSH_S = 0.25
"""Longest wait of a record for the thread; `flush_records` at the end of a batch hands it over at once."""
BACKLOG_LIMIT_BYTES = 64 << 20
"""Limit of the records waiting for a slow disk; further records are lost and counted."""


class RecordFile:
    """A JSON lines file. Requests never wait for it: if the disk fails, records are lost and counted.

    The thread reports nothing back to the event loop, because each wake-up of the loop would cost more than the write.
    """

    def __init__(self, path: str) -> None:
        self.error = ""
        """The disk's last error; empty = it never failed."""
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._added_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._batches: SimpleQueue[list[bytes]] = SimpleQueue()
        """An empty batch ends the thread."""
        self._writer: Thread | None = None
        self._done_bytes = 0
        """Written or lost; only the writer changes it: the thread, or the event loop while there is none."""
        self._refused = 0
        self._unwritten = 0
        """Records that a failing disk or a want of memory cost; only the writer changes it."""
        self._is_closing = False
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
    def lost(self) -> int:
        """Records that were not written."""
        return self._refused + self._unwritten

    @property
    def backlog_bytes(self) -> int:
        """Bytes of records that wait to be written."""
        return self._added_bytes - self._done_bytes

    def append_record(self, record: DecisionRecord | InstanceEvent) -> None:
        """Queue a record; it is written within about FLUSH_S."""
        if self._file < 0:
            return
        if self._is_closing or self.backlog_bytes > BACKLOG_LIMIT_BYTES:
            self._refused += 1
            return
        try:
            line = self._encode(record)
        except (TypeError, ValueError, OverflowError) as error:  # a user's policy may put anything into its decision
            self._refused += 1
            name = f"pick {record.seq}" if isinstance(record, DecisionRecord) else f"{record.what} of {record.instance}"
            self.error = f"{name} cannot be written as JSON: {error}"
            return
        self._added_bytes += len(line)
        self._lines.append(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self.flush_records)

    def flush_records(self) -> None:
        """Hand the queued records to the thread."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        if (self._writer is not None and self._writer.is_alive()) or self._start_writer():
            self._batches.put(lines)
        else:
            self._write_batch(lines)

    def _start_writer(self) -> bool:
        """False = no thread can be started, for want of memory: requests wait for this write."""
        writer = Thread(target=self._write_batches, name="record file", daemon=True)
        try:
            writer.start()
        except RuntimeError:
            return False
        self._writer = writer
        return True

    async def close(self) -> None:
        """Write what is queued, and close the file. A record that comes later is lost, and counted."""
        self.flush_records()
        self._is_closing = True
        if self._writer is not None:
            self._batches.put([])
            try:
                await asyncio.to_thread(self._writer.join)
            except RuntimeError:  # no other thread can be started
                self._writer.join()
            self._writer = None
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write_batches(self) -> None:
        while lines := self._batches.get():
            self._write_batch(lines)

    def _write_batch(self, lines: list[bytes]) -> None:
        try:
            self._write_lines(b"\n".join(lines) + b"\n")
        except MemoryError:
            self._unwritten += len(lines)
            self.error = "out of memory"
        self._done_bytes += sum(map(len, lines))

    def _write_lines(self, lines: bytes) -> None:
        """Write whole lines; if the last write was cut, begin on a new line."""
        lead = b"\n" if self._is_torn else b""
        data, written = lead + lines, 0
        try:
            while written < len(data):
                written += os.write(self._file, memoryview(data)[written:])
        except OSError as error:
            self.error = error.strerror or str(error)
            self._unwritten += lines.count(b"\n", max(0, written - len(lead)))
        if written:
            self._is_torn = data[written - 1 : written] != b"\n"
