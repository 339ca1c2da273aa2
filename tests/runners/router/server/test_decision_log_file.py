"""The decision log's file: who may read it, what a full disk does to it, and that it may be emptied under way."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest

from results.records.decisions import DecisionRecord
from runners.router.decision_log import read_log
from runners.router.server.log import RecordFile
from tests.runners.router.routers import until
from tests.runners.router.test_ledger import make_record


async def test_only_its_user_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    await RecordFile(str(path)).close()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    await RecordFile(str(path)).close()
    assert path.stat().st_mode & 0o777 == 0o600, "a file that was there"


async def test_a_pipe_keeps_its_mode(tmp_path: Path) -> None:
    """So does a device: a log to /dev/null must not close it to other users."""
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o622)
    path.chmod(0o622)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    await RecordFile(str(path)).close()
    os.close(reader)
    assert path.stat().st_mode & 0o777 == 0o622


async def test_a_torn_write_costs_its_own_records_and_no_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "d.jsonl"
    log = RecordFile(str(path))
    room = [len(msgspec.json.encode(make_record(0))) + 30]  # the first record and part of the second

    def write_while_there_is_room(file: int, data: bytes | memoryview) -> int:
        if not room:
            return real_write(file, data)
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = real_write(file, bytes(data)[: room[0]])
        room[0] -= written
        return written

    real_write = os.write
    monkeypatch.setattr("runners.router.server.log.os.write", write_while_there_is_room)
    for seq in range(3):
        log.append_record(make_record(seq))
    await until(lambda: log.lost == 2)
    assert log.error == "No space left on device"
    room.clear()
    for seq in range(3, 5):
        log.append_record(make_record(seq))
    await log.close()
    read = read_log(path, "d")
    assert [record.seq for record in read.records] == [0, 3, 4]
    assert log.lost == 2


async def test_it_may_be_emptied_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    log = RecordFile(str(path))
    log.append_record(make_record(0))
    await until(lambda: path.stat().st_size > 0)
    os.truncate(path, 0)
    log.append_record(make_record(1))
    await log.close()
    assert [record.seq for record in msgspec.json.Decoder(DecisionRecord).decode_lines(path.read_bytes())] == [1]


async def test_a_want_of_memory_costs_one_batch_and_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: RecordFile, lines: bytes) -> None:
        raise MemoryError

    path = tmp_path / "d.jsonl"
    log = RecordFile(str(path))
    with monkeypatch.context() as short:
        short.setattr(RecordFile, "_write_lines", refuse)
        for seq in range(2):
            log.append_record(make_record(seq))
        await until(lambda: log.lost == 2)
    assert (log.error, log.backlog_bytes) == ("out of memory", 0)
    log.append_record(make_record(2))
    await log.close()
    log.append_record(make_record(3))
    assert [record.seq for record in read_log(path, "d").records] == [2]


async def test_a_disk_that_is_too_slow_costs_records_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, goes_on = tmp_path / "d.jsonl", threading.Event()
    real_write, record_bytes = os.write, len(msgspec.json.encode(make_record(0)))

    def write_late(file: int, data: bytes | memoryview) -> int:
        if file == log._file:
            goes_on.wait(30.0)
        return real_write(file, data)

    monkeypatch.setattr("runners.router.server.log.os.write", write_late)
    monkeypatch.setattr("runners.router.server.log.BACKLOG_LIMIT_BYTES", 10 * record_bytes)
    log = RecordFile(str(path))
    for seq in range(100):
        log.append_record(make_record(seq))
        log.flush_records()
    assert 10 * record_bytes < log.backlog_bytes <= 12 * record_bytes
    stored = 100 - log.lost
    assert stored in (10, 11)
    goes_on.set()
    await until(lambda: log.backlog_bytes == 0)
    log.append_record(make_record(100))
    await log.close()
    assert [record.seq for record in read_log(path, "d").records] == [*range(stored), 100]
    assert log.lost == 100 - stored


async def test_a_router_that_can_start_no_thread_still_writes_every_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory was short when the router started: its log stayed empty for as long as it lived."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    path = tmp_path / "d.jsonl"
    log = RecordFile(str(path))
    with monkeypatch.context() as short:
        short.setattr("threading.Thread.start", refuse)
        for seq in range(2):
            log.append_record(make_record(seq))
            await until(lambda: path.read_bytes().count(b"\n") == seq + 1)  # noqa: B023  # awaited here
    log.append_record(make_record(2))
    await log.close()
    assert [record.seq for record in read_log(path, "d").records] == [0, 1, 2]
    assert log.lost == 0
