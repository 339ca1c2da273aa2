"""A run's journal and its logs, cut at every byte or damaged: the rows before, or an error that names the file."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.records.decisions import DecisionRecord
from results.records.events import Noted
from runners.router.decision_log import read_log
from state.errors import StateError
from state.events import Recorded
from state.store import STATE_FILE, RunStore
from tests.examples import examples
from tests.fuzz.mutations import mutated
from tests.runners.router.test_ledger import make_record
from tests.state.plans import a_run

LINES = [msgspec.json.encode(make_record(seq)) + b"\n" for seq in range(4)]
LOG = b"".join(LINES)
WHOLE = [LOG[:end].rstrip() + tail for end in itertools.accumulate(map(len, LINES)) for tail in (b"", b"\n")]
"""Cuts between two records; the last line feed may be lost."""


def test_a_decision_log_cut_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    for cut in range(len(LOG) + 1):
        path.write_bytes(LOG[:cut])
        read = read_log(path, "d")
        whole = LOG[:cut].count(b"\n")
        assert [record.seq for record in read.records][:whole] == list(range(whole))
        assert len(read.records) <= whole + 1  # a last line that lacks its line feed alone is whole
        lost = not read.records or LOG[:cut] not in WHOLE
        assert bool(read.gaps) == lost


@given(mutated([LOG]))
@settings(max_examples=examples(200))
def test_a_damaged_decision_log(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.jsonl"
    path.write_bytes(text)
    read = read_log(path, "d")
    assert all(isinstance(record, DecisionRecord) for record in read.records)
    assert read.records or read.gaps


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("run")
    a_run(folder).close()
    return (folder / STATE_FILE).read_bytes()


@given(data=st.data())
@settings(max_examples=examples(100))
def test_a_journal_that_is_cut_or_damaged(
    data: st.DataObject, journal: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = bytearray(journal[: data.draw(st.integers(0, len(journal)))] if data.draw(st.booleans()) else journal)
    for _ in range(data.draw(st.integers(0, 3)) if text else 0):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + 4] = data.draw(st.binary(min_size=4, max_size=4))
    folder = tmp_path_factory.getbasetemp() / "damaged_run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / STATE_FILE).write_bytes(bytes(text))
    for read_only in (True, False):
        try:
            with RunStore.open(folder, read_only=read_only) as store:
                store.view()
                store.find_problems()
                store.list_cell_rows()
                store.run_row()
        except StateError as error:
            assert STATE_FILE in str(error) or str(folder) in str(error)
            assert error.remedy


@pytest.mark.parametrize("change", ["cell = 'another'", "state = 'nonsense'", "summary = '{'", "summary = x'ff'"])
def test_a_damaged_row_of_a_cell_is_named_with_its_file(change: str, journal: bytes, tmp_path: Path) -> None:
    """The fuzz found the first: a byte of the plan's name of the cell."""
    path = tmp_path / STATE_FILE
    path.write_bytes(journal)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE cells SET {change} WHERE ordinal = 1")
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('inode', ?)", (str(path.stat().st_ino),))
        connection.commit()
    with RunStore.open(tmp_path) as store:
        with pytest.raises(StateError, match="is damaged: the row of cell") as refused:
            store.list_cell_rows()
        assert str(path) in str(refused.value)
        assert refused.value.remedy
        assert "is damaged: the row of cell" in store.find_problems()[0]


@dataclass(frozen=True, slots=True)
class Logged:
    """A run's file and its write-ahead log while the run goes on, the file after it, and its events: the plan, then
    pairs."""

    file: bytes
    log: bytes
    closed: bytes
    events: tuple[Recorded, ...]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    folder = tmp_path_factory.mktemp("logged")
    with a_run(folder) as store:
        for number in range(6):
            note = Noted("info", "run", f"note {number}")
            store.append(note, note)
        file, log = ((folder / name).read_bytes() for name in (STATE_FILE, f"{STATE_FILE}-wal"))
        events = tuple(store.events())
    return Logged(file, log, (folder / STATE_FILE).read_bytes(), events)


PAGE, HEADER, FRAME = 4096, 32, 24
"""Bytes of a page, and of the heads of the log and of each of its frames, which hold a page each."""
NEAR, STRIDE = 2, 509
"""Of the short form: the cuts around an edge, and every how many bytes between."""


def cuts_near(edges: Sequence[int], size: int) -> list[int]:
    """Around the edges of heads and pages, and every STRIDE-th byte between."""
    near = {cut for edge in edges for cut in range(edge - NEAR, edge + NEAR + 1)}
    return sorted(cut for cut in near | set(range(0, size, STRIDE)) | {size} if 0 <= cut <= size)


def edges_of(log: bytes) -> list[int]:
    """Where heads and pages of a write-ahead log begin and end."""
    frames = range(HEADER, len(log) + 1, FRAME + PAGE)
    return [0, *frames, *(frame + FRAME for frame in frames)]


def check_cut_log(logged: Logged, cut: int, folder: Path, *, goes_on: bool) -> None:
    """What is left are the transactions before the cut; `goes_on`: so does the run (each such check waits for the
    disk)."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / STATE_FILE).write_bytes(logged.file)
    (folder / f"{STATE_FILE}-wal").write_bytes(logged.log[:cut])
    for read_only in (True, False):
        with RunStore.open(folder, read_only=read_only) as store:
            left = tuple(store.events())
            assert left == logged.events[: len(left)]
            assert len(left) % 2 == 1, "a pair is one transaction"
            assert (len(left) == len(logged.events)) >= (cut == len(logged.log))
            assert store.find_problems() == ()
            assert store.view().last_seq == len(left)
    if goes_on:
        with RunStore.open(folder) as store:
            store.append(Noted("info", "run", "goes on"))
            assert store.find_problems() == ()


def check_cut_file(logged: Logged, cut: int, folder: Path) -> None:
    """Everything is left, where the cut took nothing but zeros, or the file is refused by its name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / STATE_FILE).write_bytes(logged.closed[:cut])
    for read_only in (True, False):
        try:
            with RunStore.open(folder, read_only=read_only) as store:
                whole = tuple(store.events()) == logged.events and store.find_problems() == ()
        except StateError as error:
            assert STATE_FILE in str(error)
            assert error.remedy
        else:
            assert whole, f"cut at {cut}"
            assert not logged.closed[cut:].strip(b"\0"), f"cut at {cut}"


def test_a_write_ahead_log_that_is_cut_loses_whole_transactions_at_its_end(logged: Logged, tmp_path: Path) -> None:
    """Near the heads of its frames; `make test-long` cuts it at every byte."""
    for cut in cuts_near(edges_of(logged.log), len(logged.log)):
        check_cut_log(logged, cut, tmp_path / "cut", goes_on=True)


def test_a_state_file_that_is_cut_is_whole_or_refused(logged: Logged, tmp_path: Path) -> None:
    """Near the edges of its pages; `make test-long` cuts it at every byte."""
    size = len(logged.closed)
    for cut in cuts_near(range(0, size + 1, PAGE), size):
        check_cut_file(logged, cut, tmp_path / "cut")


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_write_ahead_log_cut_at_every_byte(logged: Logged, tmp_path: Path) -> None:
    edges = set(edges_of(logged.log))
    for cut in range(len(logged.log) + 1):
        check_cut_log(logged, cut, tmp_path / "cut", goes_on=cut in edges)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_state_file_cut_at_every_byte(logged: Logged, tmp_path: Path) -> None:
    for cut in range(len(logged.closed) + 1):
        check_cut_file(logged, cut, tmp_path / "cut")
