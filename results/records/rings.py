"""Reads the step rings that the probe writes inside engine processes, also while they are being written.

A ring is one file per process: a 4096-byte header and `capacity` records of int64 columns, named by the header. The
writer completes a record and then advances `count`, so everything below `count` is whole, except what a later lap has
overwritten. Reading goes through `pread`: a file that shrinks under the reader is an error, not a SIGBUS.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt

from results.records.errors import DAMAGED_JSON, RingError

MAGIC = b"TRCRING1"
MISSING: int = -(2**63)
"""INT64_MIN: this column was not measured in this record."""

_HEADER_BYTES = 4096
_FIXED = struct.Struct("<8sIIQQq16s4xI")
_COUNT_OFFSET = 24
_CHUNK_RECORDS = 1 << 16
_HEADER_TRIES = 3  # the writer may be in the middle of rewriting its status
_REMEDY = "the file was cut short, overwritten or is no ring; step timing of this launch is not available"

Records = npt.NDArray[np.int64]
"""Shape (n, columns); `MISSING` = not measured."""


@dataclass(frozen=True, slots=True)
class RingHeader:
    """What a ring says about itself."""

    path: Path
    role: str
    """`engine` or `worker`."""
    pid: int
    capacity: int
    record_bytes: int
    fields: tuple[str, ...]
    """Column names in record order; durations end in `_ns`."""
    step_timing_available: bool
    reason: str | None
    """Why step timing is not available."""
    unavailable: Mapping[str, str]
    """Column name to why it is never measured here."""
    info: Mapping[str, Any]
    """The header's JSON as written: versions, clock, hooks, batch_queue."""

    @property
    def columns(self) -> int:
        return self.record_bytes // 8

    def index(self, field: str) -> int | None:
        """Column number of `field`, None where this ring has no such column."""
        return self.fields.index(field) if field in self.fields else None


def read_ring_header(path: Path) -> RingHeader:
    """The header of the ring at `path`.

    Raises RingError with the reason: missing, no ring, cut short, or a header that contradicts itself.
    """
    for attempt in range(_HEADER_TRIES):
        try:
            with path.open("rb") as file:
                return _parse_header(path, file.read(_HEADER_BYTES))
        except OSError as error:
            raise RingError(f"step ring {path.name} cannot be read: {error.strerror}", remedy=_REMEDY) from error
        except RingError:
            if attempt == _HEADER_TRIES - 1:
                raise
    raise AssertionError("unreachable")


def _parse_header(path: Path, raw: bytes) -> RingHeader:
    if len(raw) < _HEADER_BYTES:
        raise RingError(f"step ring {path.name} is cut short: {len(raw)} bytes of header", remedy=_REMEDY)
    magic, header_bytes, record_bytes, capacity, _count, pid, role, json_bytes = _FIXED.unpack_from(raw)
    if magic != MAGIC:
        raise RingError(f"step ring {path.name} does not begin with {MAGIC!r}", remedy=_REMEDY)
    if header_bytes != _HEADER_BYTES or record_bytes == 0 or record_bytes % 8 or capacity == 0:
        raise RingError(
            f"step ring {path.name} has a broken header (header {header_bytes} B, record {record_bytes} B, "
            f"capacity {capacity})",
            remedy=_REMEDY,
        )
    info = _parse_info(path, raw, json_bytes)
    fields = info.get("fields")
    if not isinstance(fields, list) or not fields or len(fields) > record_bytes // 8:
        raise RingError(f"step ring {path.name} names {fields!r} as its columns", remedy=_REMEDY)
    unavailable = info.get("unavailable")
    return RingHeader(
        path=path,
        role=role.rstrip(b"\0").decode("utf-8", "replace"),
        pid=pid,
        capacity=capacity,
        record_bytes=record_bytes,
        fields=tuple(str(name) for name in fields),
        step_timing_available=bool(info.get("step_timing_available", False)),
        reason=info.get("reason"),
        unavailable=dict(unavailable) if isinstance(unavailable, dict) else {},
        info=info,
    )


def _parse_info(path: Path, raw: bytes, json_bytes: int) -> dict[str, Any]:
    try:
        info = msgspec.json.decode(raw[_FIXED.size : _FIXED.size + json_bytes])
    except DAMAGED_JSON as error:
        raise RingError(f"step ring {path.name} has a header that is no JSON: {error}", remedy=_REMEDY) from error
    if not isinstance(info, dict):
        raise RingError(f"step ring {path.name} has a header that is no JSON object", remedy=_REMEDY)
    return info


class RingReader:
    """Reads one ring from where the last read ended; safe beside a live writer, and after its death.

    `lost` counts the records that the writer overwrote before they were read.
    """

    def __init__(self, path: Path, *, start: Literal["oldest", "newest"] = "oldest") -> None:
        """Begins at the oldest record still there, or (`newest`) after the last one written so far."""
        self.header = read_ring_header(path)
        self.lost = 0
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._next = self._read_count() if start == "newest" else 0

    def read_new(self) -> Records:
        """Every record written since the last call, oldest first. Raises RingError where the file is cut short."""
        chunks = list(self.chunks())
        return np.concatenate(chunks) if chunks else self._make_empty()

    def chunks(self, records: int = _CHUNK_RECORDS) -> Iterator[Records]:
        """The same in pieces of at most `records`, up to the count at the call: bounded memory for whole rings."""
        count = self._read_count()
        if count < self._next:
            raise RingError(
                f"step ring {self.header.path.name} went back from record {self._next} to {count}",
                remedy="another process writes this file; open it again",
            )
        while self._next < count:
            self._skip_overwritten()
            if self._next >= count:
                return
            yield self._read_records(min(records, count - self._next, self.header.capacity))

    def _read_records(self, wanted: int) -> Records:
        """`wanted` records from `_next`, less those the writer reached while they were being read."""
        capacity, width = self.header.capacity, self.header.record_bytes
        first = self._next % capacity
        before_wrap = min(wanted, capacity - first)
        raw = self._pread(before_wrap * width, first * width)
        if before_wrap < wanted:
            raw += self._pread((wanted - before_wrap) * width, 0)
        rows = np.frombuffer(raw, dtype="<i8").reshape(wanted, self.header.columns)
        start = self._next
        self._next += wanted
        overwritten = min(max(self._find_oldest_whole() - start, 0), wanted)
        self.lost += overwritten
        return rows[overwritten:].astype(np.int64, copy=False)

    def _pread(self, size: int, offset: int) -> bytes:
        begin, end = _HEADER_BYTES + offset, os.fstat(self._descriptor).st_size
        if begin + size <= end:  # before memory is asked for: a damaged header may promise any size
            data = os.pread(self._descriptor, size, begin)
            if len(data) == size:
                return data
            end = begin + len(data)
        raise RingError(
            f"step ring {self.header.path.name} is cut short: its count promises records beyond byte {end}",
            remedy=_REMEDY,
        )

    def _skip_overwritten(self) -> None:
        oldest = self._find_oldest_whole()
        if oldest > self._next:
            self.lost += oldest - self._next
            self._next = oldest

    def _find_oldest_whole(self) -> int:
        """The slot after the newest record may be half overwritten at any moment, so its old record does not count."""
        count = self._read_count()
        return count - self.header.capacity + 1 if count >= self.header.capacity else 0

    def _read_count(self) -> int:
        raw = os.pread(self._descriptor, 8, _COUNT_OFFSET)
        if len(raw) < 8:
            raise RingError(f"step ring {self.header.path.name} is cut short: no count", remedy=_REMEDY)
        return int.from_bytes(raw, "little")

    def _make_empty(self) -> Records:
        return np.empty((0, self.header.columns), dtype=np.int64)

    def close(self) -> None:
        """Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def list_ring_paths(folder: Path, role: str) -> tuple[Path, ...]:
    """The rings of one role (`engine` or `worker`) in `folder` and below, by name."""
    return tuple(sorted(folder.rglob(f"engine_step.{role}.*.ring"))) if folder.is_dir() else ()
