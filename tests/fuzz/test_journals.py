"""A run's journal and its logs, cut at every byte or damaged: the rows before, or an error that names the file."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import sqlite3
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
                store.cell_rows()
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
            store.cell_rows()
        assert str(path) in str(refused.value)
        assert refused.value.remedy
        assert "is damaged: the row of cell" in store.find_problems()[0]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, tuple[Recorded, ...]]:
    """A run's file and its write-ahead log while the run goes on, and its events: the plan, then pairs."""
    folder = tmp_path_factory.mktemp("logged")
    with a_run(folder) as store:
        for number in range(6):
            note = Noted("info", "run", f"note {number}")
            store.append(note, note)
        log = folder / f"{STATE_FILE}-wal"
        return (folder / STATE_FILE).read_bytes(), log.read_bytes(), tuple(store.events())


@given(data=st.data())
@settings(max_examples=examples(60))
def test_a_write_ahead_log_cut_at_any_byte_loses_whole_transactions_at_its_end(
    data: st.DataObject,
    logged: tuple[bytes, bytes, tuple[Recorded, ...]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    file, log, events = logged
    cut = data.draw(st.integers(0, len(log)))
    folder = tmp_path_factory.getbasetemp() / "cut_log"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / STATE_FILE).write_bytes(file)
    (folder / f"{STATE_FILE}-wal").write_bytes(log[:cut])
    for read_only in (True, False):
        with RunStore.open(folder, read_only=read_only) as store:
            left = tuple(store.events())
            assert left == events[: len(left)]
            assert len(left) % 2 == 1, "a pair is one transaction"
            assert (len(left) == len(events)) >= (cut == len(log))
            assert store.find_problems() == ()
            assert store.view().last_seq == len(left)
    with RunStore.open(folder) as store:
        store.append(Noted("info", "run", "goes on"))
        assert store.find_problems() == ()
