"""The step ring: a file of fixed-size records that a process writes through a mapping while others read it.

Layout (little endian): a header of 4096 bytes, then `capacity` records of 128 bytes; record k lies at
4096 + (k % capacity) * 128.

    [0:8] b"TRCRING1"   [8:12] u32 header bytes   [12:16] u32 record bytes   [16:24] u64 capacity
    [24:32] u64 count: records ever written, advanced after the record is whole
    [32:40] i64 pid   [40:56] role, NUL padded   [60:64] u32 length of the JSON   [64:4096] JSON: status and field names

A record is sixteen int64; INT64_MIN means not measured. Pages of a shared mapping belong to the kernel, so what was
written is there after SIGKILL.

A full disk must not kill the engine. Storing through a mapping into a hole of a sparse file allocates a block at that
moment, and where none is left the kernel answers with SIGBUS. Therefore the file is sparse, but its blocks are
allocated a chunk ahead (posix_fallocate fails with an error, not a signal) and the chunk's pages are then touched with
MADV_POPULATE_WRITE, which reports what would have been a SIGBUS as an error. Both are needed: ext4 on its last blocks
grants the first and refuses the second. That guarantee holds on file systems that overwrite allocated blocks in place
and from Linux 5.14; elsewhere (copy-on-write, network, overlay) records are written with pwrite, which is slower and
reports every failure as an error. After the first failure nothing more is written, the header says why, and the engine
goes on.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import struct
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .engine_log import write_line

MAGIC = b"TRCRING1"
HEADER_BYTES = 4096
RECORD_BYTES = 128
CAPACITY = 1 << 20
"""Records before the oldest is overwritten: 17 minutes at 1000 steps a second."""
CHUNK_RECORDS = 1024
"""Records allocated at a time: 128 KiB, some tens of microseconds once in a thousand records."""
MISSING = -(1 << 63)

_HEADER = struct.Struct("<8sIIQQq16s")
_COUNT = struct.Struct("<Q")
_COUNT_OFFSET = 24
_JSON_LENGTH_OFFSET = 60
_JSON_OFFSET = 64
_MADV_POPULATE_WRITE = 23
_OVERWRITES_IN_PLACE = frozenset({0xEF53, 0x58465342, 0x01021994, 0xF2F52010})
"""statfs types of ext2/3/4, XFS, tmpfs and F2FS."""

Describe = Callable[[], Mapping[str, Any]]
Put = Callable[[Sequence[int]], None]


class Ring:
    """The ring of one role in this process; `put` takes a record (a value per field) and never raises for a full disk.

    The file `<stem>.<role>.<pid>.ring` is opened at the first use in each process: a forked child writes its own.
    """

    def __init__(
        self, log_path: str, role: str, fields: tuple[str, ...], describe: Describe, capacity: int = CAPACITY
    ) -> None:
        self.role = role
        self.failure: str | None = None
        self._log_path = Path(log_path)
        self._columns = [*fields, *(f"pad{column}" for column in range(len(fields), 16))]
        self._describe = describe
        self._capacity = capacity
        self._record = struct.Struct(f"<{len(fields)}q{RECORD_BYTES - 8 * len(fields)}s")
        self._padding = struct.pack("<q", MISSING) * (16 - len(fields))
        self._file: int | None = None
        self._mapping: mmap.mmap | None = None
        self._opened_at: tuple[int, int] = (0, 0)
        self.put: Put = self._open_and_put
        _RINGS.add(self)

    def open(self) -> None:
        """Create the file now, so that a reader finds its status before the first step."""
        if self._file is None and self.failure is None:
            try:
                self._open()
            except Exception as error:  # noqa: BLE001 - called while the engine is being made, which must succeed
                self.fail(f"{type(error).__name__}: {error}")

    def write_status(self) -> None:
        """Write the header's JSON again, after something was found not to be measurable."""
        if self._file is None:
            return
        try:
            self._pwrite(self._pack_status(), _JSON_LENGTH_OFFSET)
        except (OSError, ValueError) as error:
            self._warn(f"status not written: {error}")

    def fail(self, reason: str) -> None:
        """Stop for good: no more records, the reason in the header (if there is one) and once on stderr."""
        if self.failure is not None:
            return
        self.failure = reason
        self.put = _ignore
        self._warn(f"step timing off: {reason}")
        self.write_status()

    def _open_and_put(self, values: Sequence[int]) -> None:
        self.open()
        if self.failure is None:
            self.put(values)

    def _open(self) -> None:
        pid = os.getpid()
        path = self._log_path.with_name(f"{self._log_path.stem}.{self.role}.{pid}.ring")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():  # an earlier process with this pid, common in containers: its records stay
            path.replace(path.with_name(f"{self._log_path.stem}.{self.role}.{pid}.{time.time_ns()}.ring"))
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._opened_at = (time.perf_counter_ns(), time.time_ns())
        os.ftruncate(self._file, HEADER_BYTES + self._capacity * RECORD_BYTES)
        os.posix_fallocate(self._file, 0, HEADER_BYTES)
        self._pwrite(self._pack_status(), _JSON_LENGTH_OFFSET)
        role = self.role.encode()
        self._pwrite(_HEADER.pack(MAGIC, HEADER_BYTES, RECORD_BYTES, self._capacity, 0, pid, role), 0)
        self.put = self._make_mapped_put() if self._can_map() else self._make_written_put()

    def _can_map(self) -> bool:
        """Map the file if storing through the mapping is safe here."""
        assert self._file is not None
        if not _can_overwrite_in_place(self._file):
            return False
        self._mapping = mmap.mmap(self._file, HEADER_BYTES + self._capacity * RECORD_BYTES)
        try:
            self._mapping.madvise(_MADV_POPULATE_WRITE, 0, HEADER_BYTES)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._mapping = None  # Linux before 5.14
            return False
        return True

    def _make_mapped_put(self) -> Put:
        assert self._mapping is not None
        mapping = self._mapping
        pack, advance = self._record.pack_into, _COUNT.pack_into
        capacity, padding, grow = self._capacity, self._padding, self._grow
        count = 0
        limit = 0  # the count at which the next chunk is needed; never reached again once all is allocated

        def put(values: Sequence[int]) -> None:
            nonlocal count, limit
            if count == limit:
                limit = grow(count)
            if limit:
                pack(mapping, HEADER_BYTES + (count % capacity) * RECORD_BYTES, *values, padding)
                count += 1
                advance(mapping, _COUNT_OFFSET, count)

        return put

    def _grow(self, count: int) -> int:
        """Allocate the chunk at record `count`; returns the count at which the next is due: -1 = never, 0 = failed."""
        if count >= self._capacity:
            return -1
        records = min(CHUNK_RECORDS, self._capacity - count)
        start, length = HEADER_BYTES + count * RECORD_BYTES, records * RECORD_BYTES
        page = start - start % mmap.PAGESIZE
        try:
            assert self._file is not None
            assert self._mapping is not None
            os.posix_fallocate(self._file, start, length)
            self._mapping.madvise(_MADV_POPULATE_WRITE, page, start + length - page)
        except OSError as error:
            self._fail_at(count, error)
            return 0
        return count + records

    def _make_written_put(self) -> Put:
        pack, pwrite = self._record.pack, self._pwrite
        capacity, padding = self._capacity, self._padding
        count = 0

        def put(values: Sequence[int]) -> None:
            nonlocal count
            try:
                pwrite(pack(*values, padding), HEADER_BYTES + (count % capacity) * RECORD_BYTES)
                count += 1
                pwrite(_COUNT.pack(count), _COUNT_OFFSET)
            except OSError as error:
                self._fail_at(count, error)

        return put

    def _fail_at(self, count: int, error: OSError) -> None:
        would_be_sigbus = error.errno == errno.EFAULT
        why = os.strerror(errno.ENOSPC) if would_be_sigbus else error.strerror or str(error)
        self.fail(f"{why} after {count} records at t_ns={time.perf_counter_ns()}")

    def _pwrite(self, data: bytes, offset: int) -> None:
        assert self._file is not None
        if os.pwrite(self._file, data, offset) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _pack_status(self) -> bytes:
        """The length and the JSON, blank to the header's end so that no tail of a longer one is left."""
        t_ns, unix_ns = self._opened_at
        status: dict[str, Any] = {
            "fields": self._columns, "role": self.role, "pid": os.getpid(), "clock": "CLOCK_MONOTONIC", "t_ns": t_ns,
            "unix_ns": unix_ns, **self._describe(),
        }  # fmt: skip
        if self.failure is not None:
            status |= {"step_timing_available": False, "reason": self.failure}
        data = fit_json(status, HEADER_BYTES - _JSON_OFFSET)
        return struct.pack("<I", len(data)) + data.ljust(HEADER_BYTES - _JSON_OFFSET)

    def _warn(self, message: str) -> None:
        write_line(f"{message} ({self.role}, pid {os.getpid()}, {self._log_path})")

    def forget(self) -> None:
        """Drop the file, as if never opened; what a forked child does with its parent's ring."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._mapping, self.failure = None, None, None
        self.put = self._open_and_put


def fit_json(status: Mapping[str, Any], limit: int) -> bytes:
    """JSON of at most `limit` bytes: reasons are cut shorter until it fits."""
    for longest in (400, 160, 80, 40, 16):
        data = json.dumps(_shorten(status, longest), separators=(",", ":")).encode()
        if len(data) <= limit:
            return data
    raise ValueError(f"the status does not fit {limit} bytes")


def _shorten(value: object, longest: int) -> object:
    if isinstance(value, Mapping):
        return {key: _shorten(item, longest) for key, item in value.items()}
    if isinstance(value, str) and len(value) > longest:
        return value[: longest - 3] + "..."
    return value


def _can_overwrite_in_place(file: int) -> bool:
    """Whether a store into an allocated block can never need a new one on this file system."""
    buffer = ctypes.create_string_buffer(512)  # struct statfs begins with f_type, a long
    try:
        if ctypes.CDLL(None).fstatfs(file, buffer) != 0:
            return False
    except (OSError, AttributeError):
        return False
    kind = int.from_bytes(buffer.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder)
    return kind & 0xFFFFFFFF in _OVERWRITES_IN_PLACE


def _ignore(_values: Sequence[int]) -> None:
    return


_RINGS: weakref.WeakSet[Ring] = weakref.WeakSet()


def _forget_rings() -> None:
    for ring in _RINGS:
        ring.forget()


os.register_at_fork(after_in_child=_forget_rings)
