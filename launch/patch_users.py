"""Names the runs and standalone engines that use the patches of an engine environment, by the locks they hold.

A use is a lock (flock) on a folder of the environment. The kernel lists locks with the process that took them; one of
another container has no process here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

_LOCKS = Path("/proc/locks")
UNKNOWN = "a run or a standalone engine"


@dataclass(frozen=True, slots=True)
class PatchUser:
    """A process that uses them."""

    pid: int
    text: str
    """`run 20260131-120000-routing-cpu-tiny (process 4711)`."""
    end: str
    """The command that ends it; empty = unknown."""


def list_users(folder: Path) -> list[PatchUser]:
    """Every process that holds a lock on the folder; empty where the kernel does not name one."""
    return [_describe_process(pid) for pid in sorted(_list_holders(folder))]


def _list_holders(folder: Path) -> set[int]:
    try:
        lines, at = _LOCKS.read_text().splitlines(), folder.stat()
    except OSError:  # a sandbox without that table
        return set()
    inode = f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}:{at.st_ino}"
    rows = [line.split() for line in lines]
    # number, FLOCK, ADVISORY, READ or WRITE, pid, inode, range; one that waits has `->` in the second place
    return {int(row[4]) for row in rows if len(row) > 5 and (row[1], row[5]) == ("FLOCK", inode) and int(row[4]) > 0}


def _describe_process(pid: int) -> PatchUser:
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        words = []
    folder, engine = _find_after(words, ("work",)), _find_after(words, ("engine", "hold"))
    if folder:
        return PatchUser(pid, f"run {Path(folder).name} (process {pid})", f"`tracon stop {folder}`")
    if engine:
        return PatchUser(pid, f"standalone engine {engine} (process {pid})", f"`tracon engine down {engine}`")
    return PatchUser(pid, f"process {pid}", "")


def _find_after(words: Sequence[str], command: Sequence[str]) -> str:
    """The first argument of this command of `python -m runners.cli`; empty where it is another program."""
    own = ["-m", "runners.cli", *command]
    for index in range(len(words) - len(own)):
        if words[index : index + len(own)] == own:
            return words[index + len(own)]
    return ""
