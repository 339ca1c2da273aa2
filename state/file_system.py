"""Which file system a folder is on, and whether a run's state may be there."""

from __future__ import annotations

import re
from pathlib import Path

from state.errors import StoreUnusable

_ESCAPED = re.compile(r"\\([0-7]{3})")
MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset((
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "ceph", "glusterfs", "fuse.glusterfs", "fuse.sshfs", "beegfs",
    "gpfs", "lustre", "orangefs", "pvfs2", "fuse.juicefs", "9p", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "fuse.goofys",
    "fuse.gcsfuse", "fuse.mount-s3", "fuse.blobfuse", "fuse.blobfuse2", "wekafs", "panfs",
))  # fmt: skip
"""SQLite's write-ahead log needs memory shared by all its users: on these the file may be damaged silently."""


def require_local_disk(folder: Path) -> None:
    """Raises StoreUnusable where the folder is on a network file system."""
    kind = find_file_system(folder)
    if kind in NETWORK:
        raise StoreUnusable(
            f"{folder} is on a network file system ({kind}), where a run's state is not safe",
            remedy="name a workspace on a local disk with --workspace; copy the run's folder when the run has ended",
        )


def find_file_system(folder: Path) -> str:
    """The type of the file system that holds the folder, which need not exist yet; empty where it is not known."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    path, best, kind = folder.absolute().resolve(), -1, ""
    for line in lines:
        fields, _, described = line.partition(" - ")
        point = Path(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields.split(" ")[4]))
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), described.split(" ")[0]
    return kind
