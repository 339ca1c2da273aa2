"""Writes of this process that do not wait for the disk.

What a process has written outlives it without `fsync`, and no test takes the power away: the wait shows nothing, and
takes a good part of the time of tests that write many small files.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

SYNCHRONOUS = frozenset({"PRAGMA synchronous = FULL", "PRAGMA synchronous = NORMAL"})
"""As the store of a run asks for it."""
_synchronize = os.fsync


class _Connection(sqlite3.Connection):
    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:  # noqa: ANN401  # as sqlite3 has it
        return super().execute("PRAGMA synchronous = OFF" if sql in SYNCHRONOUS else sql, parameters)


def _accept(descriptor: int) -> None:
    """As `fsync`, which fails on what is no file on a disk."""
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        _synchronize(descriptor)


@contextmanager
def no_wait_for_the_disk() -> Iterator[None]:
    connect = partial(sqlite3.connect, factory=_Connection)
    with patch.object(os, "fsync", _accept), patch.object(sqlite3, "connect", connect):
        yield
