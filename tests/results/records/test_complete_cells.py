"""A cell's artifacts are complete, or a file is missing or damaged; one that cannot be read now is neither."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from results.capacity.read import read_points
from results.records.layout import is_complete, sha256, write_indented_json


@pytest.fixture
def record(tmp_path: Path) -> Path:
    (tmp_path / "metrics.jsonl").write_bytes(b"{}\n")
    path = tmp_path / "cell.json"
    write_indented_json(path, {"cell": "c", "checksums": {"metrics.jsonl": sha256(tmp_path / "metrics.jsonl")}})
    return path


def test_a_file_that_does_not_exist_is_not_complete(record: Path) -> None:
    assert is_complete(record, "c")
    assert not is_complete(record / "below" / "cell.json", "c"), "a folder of its path is a file"
    metrics = record.with_name("metrics.jsonl")
    metrics.unlink()
    assert not is_complete(record, "c")
    metrics.mkdir()
    assert not is_complete(record, "c")
    record.unlink()
    assert not is_complete(record, "c")


@pytest.mark.parametrize("name", ["cell.json", "metrics.jsonl"])
def test_a_file_that_cannot_be_opened_is_named(record: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    opened = Path.open

    def open_(path: Path, *arguments: object, **options: object) -> object:
        if path.name == name:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return opened(path, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", open_)
    with pytest.raises(OSError, match=f"Too many open files: '.*{name}'"):
        is_complete(record, "c")


def test_a_file_that_cannot_be_read_is_named(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))  # what `read` raises names no file

    monkeypatch.setattr(hashlib, "file_digest", fail)
    with pytest.raises(OSError, match=r"Input/output error: '.*metrics\.jsonl'"):
        is_complete(record, "c")


def test_a_folder_of_points_that_cannot_be_listed_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_points(tmp_path / "none") == {}

    def fail(path: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, fail)
    with pytest.raises(PermissionError):
        read_points(tmp_path)
