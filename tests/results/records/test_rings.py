"""A ring can be read while it is written, and a broken one says what is wrong with it."""

from __future__ import annotations

import struct
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patches.ring import Ring
from results.records.errors import RingError
from results.records.rings import MISSING, RingReader, list_ring_paths, read_ring_header
from tests.results.records.ring_file import RingFile, engine_rows


@pytest.fixture
def ring(tmp_path: Path) -> RingFile:
    return RingFile(tmp_path / "engine_step.engine.7.ring", "engine", 7, capacity=16)


def test_the_header_says_who_wrote_it_and_what_is_missing(tmp_path: Path) -> None:
    status = {"step_timing_available": False, "reason": "hook gone", "unavailable": {"exec_ns": "no hook"}}
    RingFile(tmp_path / "engine_step.worker.9.ring", "worker", 9, status=status)
    header = read_ring_header(tmp_path / "engine_step.worker.9.ring")
    assert (header.role, header.pid, header.capacity, header.columns) == ("worker", 9, 1 << 12, 16)
    assert (header.step_timing_available, header.reason) == (False, "hook gone")
    assert header.unavailable == {"exec_ns": "no hook"}
    assert header.index("step_id") == 1
    assert header.index("exec_ns") is None


def test_each_read_gives_what_came_since_the_last(ring: RingFile) -> None:
    rows = engine_rows(10)
    with RingReader(ring.path) as reader:
        assert len(reader.read_new()) == 0
        ring.put(rows[:4])
        assert reader.read_new()[:, 1].tolist() == [0, 1, 2, 3]
        ring.put(rows[4:])
        assert reader.read_new()[:, 1].tolist() == [4, 5, 6, 7, 8, 9]
        assert reader.lost == 0


def test_a_tail_begins_after_what_is_there(ring: RingFile) -> None:
    ring.put(engine_rows(5))
    with RingReader(ring.path, start="newest") as reader:
        assert len(reader.read_new()) == 0
        ring.put(engine_rows(2, first_step=5))
        assert reader.read_new()[:, 1].tolist() == [5, 6]


def test_a_record_that_was_not_finished_is_not_read(ring: RingFile) -> None:
    ring.put(engine_rows(3))
    ring.half_write(range(16))
    with RingReader(ring.path) as reader:
        assert reader.read_new()[:, 1].tolist() == [0, 1, 2]


def test_missing_columns_stay_missing(ring: RingFile) -> None:
    ring.put(engine_rows(1, build_meta_ns=MISSING))
    with RingReader(ring.path) as reader:
        row = reader.read_new()[0]
    assert row[3] == MISSING
    assert (row[13:] == MISSING).all()


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 16))
def test_every_record_is_read_once_or_counted_as_lost(batches: list[int], capacity: int) -> None:
    with TemporaryDirectory() as folder:
        ring = RingFile(Path(folder) / "engine_step.engine.1.ring", "engine", 1, capacity=capacity)
        seen: list[int] = []
        with RingReader(ring.path) as reader:
            for size in batches:
                ring.put(engine_rows(size, first_step=ring.count))
                seen += reader.read_new()[:, 1].tolist()
            assert len(seen) + reader.lost == ring.count
        assert seen == sorted(set(seen))


def test_what_is_overwritten_during_a_read_is_lost_not_wrong(ring: RingFile, monkeypatch: pytest.MonkeyPatch) -> None:
    ring.put(engine_rows(12))
    reader = RingReader(ring.path)
    read = reader._pread

    def slow(size: int, offset: int) -> bytes:
        data = read(size, offset)
        ring.put(engine_rows(8, first_step=ring.count))  # the writer laps the reader in between
        return data

    monkeypatch.setattr(reader, "_pread", slow)
    assert reader.read_new()[:, 1].tolist() == [5, 6, 7, 8, 9, 10, 11]
    assert reader.lost == 5
    reader.close()


def test_the_probe_and_the_reader_agree_on_the_format(tmp_path: Path) -> None:
    status = {"step_timing_available": True, "reason": None, "unavailable": {"get_finished_ns": "no connector"}}
    fields = ("t_ns", "step_id", "get_finished_ns")
    ring = Ring(str(tmp_path / "engine_step.jsonl"), "worker", fields, lambda: status, 8)
    ring.open()
    for step in range(11):
        ring.put((1000 + step, step, MISSING))
    (path,) = list_ring_paths(tmp_path, "worker")
    with RingReader(path) as reader:
        assert reader.header.unavailable == {"get_finished_ns": "no connector"}
        rows = reader.read_new()
        assert rows[:, 1].tolist() == [4, 5, 6, 7, 8, 9, 10]
        assert (rows[:, 2] == MISSING).all()
        assert reader.lost == 4
    ring.forget()


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize(
    ("offset", "data", "says"),
    [
        (0, b"NOTARING", "does not begin with"),
        (12, struct.pack("<I", 130), "broken header"),
        (16, struct.pack("<Q", 0), "broken header"),
        (64, b"}{", "no JSON"),
        (64, b'"', "no JSON"),
    ],
)
def test_a_damaged_header_is_an_error_that_says_what_is_wrong(
    ring: RingFile, offset: int, data: bytes, says: str
) -> None:
    _overwrite(ring.path, offset, data)
    with pytest.raises(RingError, match=says) as caught:
        RingReader(ring.path)
    assert ring.path.name in str(caught.value)
    assert caught.value.remedy


def test_a_file_cut_short_is_an_error_not_fewer_records(ring: RingFile) -> None:
    ring.put(engine_rows(10))
    with ring.path.open("r+b") as file:
        file.truncate(4096 + 5 * 128 + 17)
    with RingReader(ring.path) as reader, pytest.raises(RingError, match="cut short"):
        reader.read_new()
    with ring.path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(RingError, match="cut short"):
        RingReader(ring.path)


def test_a_missing_file_and_a_count_that_goes_back_are_errors(ring: RingFile, tmp_path: Path) -> None:
    with pytest.raises(RingError, match="cannot be read"):
        RingReader(tmp_path / "engine_step.engine.8.ring")
    ring.put(engine_rows(5))
    with RingReader(ring.path) as reader:
        reader.read_new()
        _overwrite(ring.path, 24, struct.pack("<Q", 2))
        with pytest.raises(RingError, match="went back"):
            reader.read_new()


def test_a_large_ring_is_read_in_pieces(tmp_path: Path) -> None:
    ring = RingFile(tmp_path / "engine_step.engine.1.ring", "engine", 1, capacity=1000)
    ring.put(engine_rows(2500))
    with RingReader(ring.path) as reader:
        pieces = list(reader.chunks(records=300))
    assert [len(piece) for piece in pieces] == [300, 300, 300, 99]
    assert np.concatenate(pieces)[:, 1].tolist() == list(range(1501, 2500))
