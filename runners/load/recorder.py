"""Appends records to a JSONL file away from the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from runners.load.messages import LoadError


class Recorder:
    """Collects records and writes them in batches, one at a time.

    Raises LoadError from `flush` or `close` when the file cannot be written (a full disk).
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._batch: list[Any] = []
        self._writing: asyncio.Future[None] | None = None
        self._failure: OSError | None = None
        """Error of the first write that failed. It may have left a part of a line: nothing may follow it."""
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="records")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise _make_write_error(path, error) from error
        self.add: Callable[[Any], None] = self._batch.append

    def flush(self) -> None:
        """Start to write the batch; never waits. While the last write is in progress, the batch keeps growing."""
        if self._writing is not None:
            if not self._writing.done():
                return
            self._note_outcome(self._writing)
        if self._batch:
            self._writing = asyncio.get_running_loop().run_in_executor(
                self._thread, self._write_batch, self._take_batch()
            )

    async def close(self) -> None:
        """Write what is left, flush it to the disk, and close the file."""
        try:
            if self._writing is not None:
                await asyncio.wait((self._writing,))
                self._note_outcome(self._writing)
            loop = asyncio.get_running_loop()
            last = loop.run_in_executor(self._thread, self._finish_batch, self._take_batch())
            await asyncio.wait((last,))
            self._note_outcome(last)
        finally:
            self._thread.shutdown(wait=False)
            self._file.close()

    def _take_batch(self) -> list[Any]:
        batch = self._batch[:]
        self._batch.clear()  # in place: `add` is bound to this list
        return batch

    def _write_batch(self, batch: list[Any]) -> None:
        if self._failure is not None:
            raise self._failure
        data = memoryview(msgspec.json.Encoder().encode_lines(batch))
        try:
            while data:
                data = data[self._file.write(data) or 0 :]
        except OSError as error:
            self._failure = error
            raise

    def _finish_batch(self, batch: list[Any]) -> None:
        self._write_batch(batch)
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            if error.errno not in _NOT_SYNCABLE:
                raise

    def _note_outcome(self, written: asyncio.Future[None]) -> None:
        self._writing = None
        error = written.exception()
        if isinstance(error, OSError):
            raise _make_write_error(self._path, error) from error
        if error is not None:
            raise error


_NOT_SYNCABLE = frozenset({22, 95})  # EINVAL, EOPNOTSUPP: a pipe or a device, not a file on a disk


def _make_write_error(path: Path, error: OSError) -> LoadError:
    return LoadError(
        f"cannot write {path}: {error.strerror}", remedy="Free space on that disk or choose another workspace."
    )
