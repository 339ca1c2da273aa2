"""Records reach their file whole, or the measurement fails."""

from __future__ import annotations

import asyncio
import errno
from io import FileIO
from pathlib import Path

import pytest

from runners.load.messages import LoadError
from runners.load.recorder import Recorder


class _FullOnce:
    """A file on a disk that is full for one write, which leaves the begin of a line."""

    def __init__(self, file: FileIO) -> None:
        self._file, self._is_full = file, True

    def write(self, data: memoryview) -> int:
        if self._is_full:
            self._is_full = False
            self._file.write(data[:3])
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


async def test_nothing_follows_a_line_that_a_full_disk_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder = Recorder(path)
    recorder._file = _FullOnce(recorder._file)  # type: ignore[assignment]
    recorder.add({"a": 1})
    recorder.flush()
    await asyncio.sleep(0.05)
    recorder.add({"b": 2})
    with pytest.raises(LoadError, match="No space left"):
        recorder.flush()
    with pytest.raises(LoadError, match="No space left"):  # the disk has room again
        await recorder.close()
    assert path.read_bytes() == b'{"a'
