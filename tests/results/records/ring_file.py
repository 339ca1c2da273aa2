"""Writes ring files as the probe does, record by record or all at once."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

MISSING = -(2**63)
Values = int | npt.NDArray[Any]
ENGINE_FIELDS = (
    "t_ns", "step_id", "step_duration_ns", "build_meta_ns", "num_running", "num_waiting", "prefill_tokens",
    "decode_tokens", "scheduled_requests", "exec_ns", "update_ns", "engine_step_ns", "period_ns",
    "child1_ns", "child2_ns",
)  # fmt: skip
WORKER_FIELDS = (
    "t_ns", "step_id", "get_finished_ns", "start_load_kv_ns", "wait_for_save_ns", "child1_ns", "child2_ns",
)  # fmt: skip


class RingFile:
    """A ring that a test fills."""

    def __init__(
        self, path: Path, role: str, pid: int, *, capacity: int = 1 << 12, status: Mapping[str, Any] | None = None
    ) -> None:
        self.path = path
        self.capacity = capacity
        self.count = 0
        self.fields = ENGINE_FIELDS if role == "engine" else WORKER_FIELDS
        header = {
            "fields": [*self.fields, *(f"pad{n}" for n in range(len(self.fields), 16))],
            "role": role,
            "pid": pid,
            "step_timing_available": True,
            "reason": None,
            "unavailable": {},
            **(status or {}),
        }
        body = json.dumps(header).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            numbers = (4096, 128, capacity, 0, pid, role.encode(), len(body))
            file.write(struct.pack("<8sIIQQq16s4xI", b"TRCRING1", *numbers))
            file.write(body)
            file.truncate(4096 + capacity * 128)

    def put(self, rows: npt.ArrayLike) -> None:
        """Append rows (n x number of fields), and advance the count after them."""
        values = np.asarray(rows, dtype=np.int64).reshape(-1, len(self.fields))
        whole = np.full((len(values), 16), MISSING, dtype="<i8")
        whole[:, : len(self.fields)] = values
        with self.path.open("r+b") as file:
            for record in _laps(whole, self.count, self.capacity):
                slot, block = record
                file.seek(4096 + slot * 128)
                file.write(block.tobytes())
            self.count += len(values)
            file.seek(24)
            file.write(struct.pack("<Q", self.count))

    def half_write(self, row: Sequence[int]) -> None:
        """Begin the next record without finishing it, as a process that is killed does."""
        with self.path.open("r+b") as file:
            file.seek(4096 + (self.count % self.capacity) * 128)
            file.write(np.asarray(row, dtype="<i8").tobytes()[:40])


def _laps(rows: npt.NDArray[np.int64], start: int, capacity: int) -> list[tuple[int, npt.NDArray[np.int64]]]:
    rows_by_slot = []
    done = 0
    while done < len(rows):
        slot = (start + done) % capacity
        size = min(capacity - slot, len(rows) - done)
        rows_by_slot.append((slot, rows[done : done + size]))
        done += size
    return rows_by_slot


def engine_rows(
    steps: int, *, t0_ns: int = 1_000_000_000, first_step: int = 0, spacing_ns: int = 1_000_000, **columns: Values
) -> npt.NDArray[np.int64]:
    """Engine records with plausible values; `columns` overrides by field name (a number or an array)."""
    rows = np.zeros((steps, len(ENGINE_FIELDS)), dtype=np.int64)
    plausible: dict[str, Values] = {
        "t_ns": t0_ns + spacing_ns * np.arange(steps),
        "step_id": first_step + np.arange(steps),
        "step_duration_ns": 40_000,
        "build_meta_ns": 500,
        "num_running": 2,
        "num_waiting": 0,
        "prefill_tokens": 0,
        "decode_tokens": 2,
        "scheduled_requests": 2,
        "exec_ns": 700_000,
        "update_ns": 30_000,
        "engine_step_ns": 770_000,
        "period_ns": 800_000,
        "child1_ns": MISSING,
        "child2_ns": MISSING,
    }
    for name, value in (plausible | columns).items():
        rows[:, ENGINE_FIELDS.index(name)] = value
    return rows


def worker_rows(engine: npt.NDArray[np.int64], **columns: Values) -> npt.NDArray[np.int64]:
    """The worker's records of these engine records."""
    rows = np.zeros((len(engine), len(WORKER_FIELDS)), dtype=np.int64)
    plausible: dict[str, Values] = {
        "t_ns": engine[:, 0] + 50_000,
        "step_id": engine[:, 1],
        "get_finished_ns": 2_000,
        "start_load_kv_ns": 800,
        "wait_for_save_ns": 600,
        "child1_ns": MISSING,
        "child2_ns": MISSING,
    }
    for name, value in (plausible | columns).items():
        rows[:, WORKER_FIELDS.index(name)] = value
    return rows
