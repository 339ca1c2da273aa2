"""A decoder of the ring format, written from its description alone: what the tests hold the writer to."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MISSING = -(2**63)


@dataclass(frozen=True, slots=True)
class RingFile:
    pid: int
    role: str
    capacity: int
    count: int
    status: dict[str, Any]
    rows: list[dict[str, int | None]]
    """The records that are still there, oldest first; None where the file says not measured."""


def decode(path: Path) -> RingFile:
    with path.open("rb") as file:  # the file is sparse and nominally large: read what was written
        data = file.read(4096)
        capacity, count = struct.unpack("<QQ", data[16:32])
        data += file.read(min(count, capacity) * 128)
    assert data[0:8] == b"TRCRING1"
    header_bytes, record_bytes = struct.unpack("<II", data[8:16])
    assert (header_bytes, record_bytes) == (4096, 128)
    (pid,) = struct.unpack("<q", data[32:40])
    (length,) = struct.unpack("<I", data[60:64])
    status = json.loads(data[64 : 64 + length])
    assert len(status["fields"]) == 16
    rows = []
    for k in range(max(0, count - capacity), count):
        start = 4096 + (k % capacity) * 128
        values = struct.unpack("<16q", data[start : start + 128])
        rows.append({f: None if v == MISSING else v for f, v in zip(status["fields"], values, strict=True)})
    return RingFile(pid, data[40:56].rstrip(b"\0").decode(), capacity, count, status, rows)


def only_ring(folder: Path, role: str = "engine") -> RingFile:
    (path,) = folder.glob(f"engine_step.{role}.*.ring")
    return decode(path)
