"""Reads what the transfer probe has written, once it has."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from patches.transfer_log import TransferLog

Line = dict[str, Any]
WRITTEN_S = 10.0


def said(folder: Path, lines: int, pid: int | None = None) -> list[Line]:
    """The log of this process, or of `pid`, as soon as it has this many lines (the writer is a thread of its own)."""
    deadline = time.monotonic() + WRITTEN_S
    while True:
        paths = list(folder.glob(f"transfer.{pid or '*'}.jsonl"))
        found = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
        if len(found) >= lines:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def await_failure(log: TransferLog) -> None:
    deadline = time.monotonic() + WRITTEN_S
    while log.failure is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def events(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["event"] != "status"]


def latest_status(lines: list[Line], role: str) -> Line:
    return [line for line in lines if line["event"] == "status" and line["role"] == role][-1]
