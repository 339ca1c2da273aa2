"""Files that appear whole: of several writers, and of one that fails."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from results.records.layout import open_atomically, write_atomic


def test_two_writers_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with open_atomically(path) as first:
        first.write(b"first" * 100)
        with open_atomically(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first" * 100
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, b"before")
    with pytest.raises(ValueError, match="closed file"), open_atomically(path) as file:
        file.close()
    assert path.read_bytes() == b"before"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    synced, replaced = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        done.append("fsync")
        synced(descriptor)

    def replace(path: Path, target: Path) -> Path:
        done.append("replace")
        return replaced(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    write_atomic(tmp_path / "a.json", b"whole")
    assert done == ["fsync", "replace", "fsync"], "the folder too"
