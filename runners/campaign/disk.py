"""Room on the disk: checked before it is needed, so that a full disk stops a run between cells and not inside one."""

from __future__ import annotations

import shutil
from pathlib import Path

from runners.errors import RunnerError

MIN_FREE_BYTES = 256 * 1024 * 1024
"""A cell's records and step rings fit into this; a run continues only while it is free."""


class DiskFull(RunnerError):
    """Too little room where the runs live."""


def require_disk(folder: Path) -> None:
    """Raise DiskFull unless MIN_FREE_BYTES are free where `folder` is, or will be."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < MIN_FREE_BYTES:
        raise DiskFull(
            f"the disk is full: {free // 2**20} MiB are free at {folder}, {MIN_FREE_BYTES // 2**20} MiB are needed",
            remedy="free some room and `tracon resume`, or name another folder with --workspace",
        )
