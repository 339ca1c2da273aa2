"""What is left of a run when its process is killed, its disk fills up or its folder is copied from under it."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from results.records.events import (
    CellChanged,
    CellProgressed,
    CellState,
    InstanceChanged,
    InstanceSampled,
    InstanceState,
    Noted,
    StageChanged,
    StageState,
)
from state.errors import DiskFull, StateError, StoreUnusable
from state.schema import MIGRATIONS
from state.store import STATE_FILE, RunStore
from tests.examples import examples
from tests.state.plans import CELLS, a_run

pytestmark = pytest.mark.fault
FORK = multiprocessing.get_context("fork")
CELL = CELLS[0].cell


def in_child(work: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 - whatever the work returns
    """The work's result, or the error it raised, from a process of its own."""
    receiver, sender = FORK.Pipe(duplex=False)

    def body() -> None:
        try:
            sender.send(work(*args))
        except StateError as error:
            sender.send((type(error).__name__, str(error), error.remedy))

    process = FORK.Process(target=body, daemon=True)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join(60)


def _append_for_ever(folder: Path, answers: Connection) -> None:
    """Pairs of notes, cell attempts and instances, as fast as it goes; each pair is one transaction."""
    with RunStore.open(folder) as store:
        attempt = store.list_cell_rows()[0].attempt
        if store.list_cell_rows()[0].state is CellState.RUNNING:
            store.append(CellChanged(CELL, CellState.PENDING, attempt, "interrupted"))
        for number in itertools.count():
            name = f"plain-{os.getpid()}-{number}"
            recorded = store.append(Noted("info", "pair", name), Noted("info", "pair", name))
            attempt += 1
            store.append(
                CellChanged(CELL, CellState.RUNNING, attempt),
                InstanceChanged(name, "plain", InstanceState.STARTING, pid=number),
            )
            store.append(InstanceSampled(instance=name, cell=CELL, sent=number), CellProgressed(CELL, 0.5))
            store.append(
                CellChanged(CELL, CellState.PENDING, attempt, "again"),
                InstanceChanged(name, "plain", InstanceState.GONE),
            )
            answers.send(recorded[-1].seq)


def _pairs(store: RunStore) -> list[str]:
    return [r.event.text for r in store.events() if isinstance(r.event, Noted) and r.event.subject == "pair"]


def _is_paired(notes: list[str]) -> bool:
    return len(notes) % 2 == 0 and notes[::2] == notes[1::2]


def test_a_writer_killed_at_any_moment_leaves_a_whole_journal(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    a_run(folder).close()
    moments = random.Random(7)
    promised = 0
    for _ in range(examples(25)):
        receiver, sender = FORK.Pipe(duplex=False)
        writer = FORK.Process(target=_append_for_ever, args=(folder, sender), daemon=True)
        writer.start()
        assert receiver.poll(60)  # it writes
        time.sleep(moments.uniform(0, 0.03))
        writer.kill()
        writer.join()
        sender.close()
        with contextlib.suppress(EOFError):
            while receiver.poll():
                promised = receiver.recv()
        with RunStore.open(folder, read_only=True) as store:
            assert store.find_problems() == ()
            assert _is_paired(_pairs(store))
            assert store.view().last_seq >= promised
    with RunStore.open(folder) as store:
        store.append(Noted("info", "run", "goes on"))
        assert store.find_problems() == ()


def _append_pairs(folder: Path, name: str, count: int) -> None:
    with RunStore.open(folder) as store:
        for number in range(count):
            store.append(*[Noted("info", "pair", f"{name}-{number}")] * 2)


def test_two_processes_can_write_one_run(tmp_path: Path) -> None:
    folder, count = tmp_path / "run", examples(60)
    a_run(folder).close()
    writers = [FORK.Process(target=_append_pairs, args=(folder, name, count)) for name in ("one", "two")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    with RunStore.open(folder) as store:
        notes = _pairs(store)
        assert _is_paired(notes)
        assert sorted(notes[::2]) == sorted(f"{name}-{number}" for name in ("one", "two") for number in range(count))
        assert store.find_problems() == ()


def _fill(folder: Path, limit_bytes: int) -> str:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    with RunStore.open(folder) as store:
        _append_notes(store, 10_000)
    return "never full"


def _append_notes(store: RunStore, count: int) -> None:
    for _ in range(count):
        store.append(Noted("info", "run", "x" * 500))


@pytest.mark.parametrize("limit_bytes", [40_000, 150_000, 400_000])
def test_a_file_that_may_not_grow_ends_in_one_clear_error_and_loses_nothing(tmp_path: Path, limit_bytes: int) -> None:
    folder = tmp_path / "run"
    a_run(folder).close()
    name, message, remedy = in_child(_fill, folder, limit_bytes)
    assert name in ("StoreUnusable", "DiskFull")
    assert str(folder) in message
    assert "space" in remedy
    with RunStore.open(folder) as store:
        assert store.find_problems() == ()
        store.append(Noted("info", "run", "there is room again"))


def test_a_full_database_refuses_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with a_run(tmp_path / "run") as store:
        store.append(StageChanged("preflight", StageState.RUNNING))
        _let_grow(store, 2)
        with pytest.raises(DiskFull, match="no space left") as full:
            _append_notes(store, 200)
        assert "free some space" in full.value.remedy
        assert full.value.exit_code == 2
        assert store.find_problems() == ()
        before = store.view().last_seq
        _let_grow(store, 1_000_000)
        assert store.append(Noted("info", "run", "room"))[0].seq == before + 1


def _let_grow(store: RunStore, pages: int) -> None:
    with store.transaction() as transaction:
        ((used,),) = transaction.connection.execute("PRAGMA page_count").fetchall()
        transaction.connection.execute(f"PRAGMA max_page_count = {used + pages}")


@contextlib.contextmanager
def a_tiny_disk(folder: Path, size_kib: int) -> Iterator[Path]:
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="only root can mount a tiny disk")
def test_on_a_full_disk_the_run_can_be_read_and_resumed(tmp_path: Path) -> None:
    with a_tiny_disk(tmp_path / "disk", 400) as disk:
        (disk / "ballast").write_bytes(bytes(100_000))
        with a_run(disk / "run") as store:
            with pytest.raises(DiskFull):
                _append_notes(store, 2_000)
            with RunStore.open(disk / "run", read_only=True) as reader:
                last = reader.view().last_seq
                assert last > 10
            (disk / "ballast").unlink()
            assert store.append(Noted("info", "run", "room"))[0].seq == last + 1
            assert store.find_problems() == ()


@pytest.mark.skipif(shutil.which("mount") is None or os.geteuid() != 0, reason="only root can mount a tiny disk")
def test_a_run_that_finds_no_room_to_begin_leaves_no_half_run(tmp_path: Path) -> None:
    with a_tiny_disk(tmp_path / "disk", 24) as disk:
        with pytest.raises(DiskFull):
            a_run(disk / "run")
        assert not (disk / "run" / STATE_FILE).exists()


def test_a_damaged_file_is_named_with_the_remedy(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with a_run(folder) as store:
        store.append(*[Noted("info", "run", "x" * 500)] * 200)
    file = folder / STATE_FILE
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 30_000] = b"\xa5" * 30_000
    file.write_bytes(data)
    with pytest.raises(StoreUnusable, match="damaged") as damaged, RunStore.open(folder) as store:
        store.view()
    assert damaged.value.remedy
    assert str(file) in str(damaged.value)


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100])
def test_a_file_that_is_no_state_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / STATE_FILE).write_bytes(content)
    for read_only in (True, False):
        with pytest.raises(StoreUnusable, match=STATE_FILE) as refused:
            RunStore.open(tmp_path, read_only=read_only)
        assert refused.value.remedy
    assert (tmp_path / STATE_FILE).read_bytes()[:18] == content[:18]


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("CREATE VIEW cells AS WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n) SELECT i FROM n", "view"),
        ("CREATE TRIGGER forget AFTER INSERT ON journal BEGIN DELETE FROM journal; END", "trigger"),
    ],
    ids=["endless view", "trigger"],
)
def test_a_state_file_with_a_program_in_it_is_refused(statement: str, kind: str, tmp_path: Path) -> None:
    """A folder may come from anyone."""
    folder = tmp_path / "run"
    a_run(folder).close()
    with contextlib.closing(sqlite3.connect(folder / STATE_FILE)) as connection:
        connection.execute("ALTER TABLE cells RENAME TO before")
        connection.execute(statement)
        connection.commit()
    for read_only in (True, False):
        with pytest.raises(StoreUnusable, match=f"has the {kind} '") as refused:
            RunStore.open(folder, read_only=read_only)
        assert f"DROP {kind.upper()}" in refused.value.remedy


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="holds no run") as refused:
        RunStore.open(tmp_path)
    assert "tracon list" in refused.value.remedy


def test_a_missing_event_is_found(tmp_path: Path) -> None:
    with a_run(tmp_path / "run") as store:
        store.append(*[Noted("info", "run", str(number)) for number in range(5)])
        with store.transaction() as transaction:
            transaction.connection.execute("DELETE FROM journal WHERE seq = 3")
        with pytest.raises(StoreUnusable, match="damaged at event 3"):
            store.view()
        assert store.find_problems() != ()


def test_a_file_of_a_newer_tracon_is_left_alone(tmp_path: Path) -> None:
    a_run(tmp_path / "run").close()
    _set_schema(tmp_path / "run", len(MIGRATIONS) + 1)
    for read_only in (True, False):
        with pytest.raises(StoreUnusable, match=f"schema {len(MIGRATIONS) + 1}") as refused:
            RunStore.open(tmp_path / "run", read_only=read_only)
        assert "newer" in refused.value.remedy


def test_a_file_of_an_older_tracon_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    a_run(folder).close()
    monkeypatch.setattr("state.sqlite.MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE of_tomorrow (x)",)))
    with pytest.raises(StoreUnusable, match="must be brought to"):
        RunStore.open(folder, read_only=True)
    for _ in range(2):
        with RunStore.open(folder) as store:
            assert store.read("SELECT * FROM of_tomorrow") == []
            assert store.find_problems() == ()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    a_run(folder).close()
    monkeypatch.setattr("state.sqlite.MIGRATIONS", (*MIGRATIONS, ("CREATE TABLE half (x)", "NONSENSE")))
    with pytest.raises(StoreUnusable):
        RunStore.open(folder)
    monkeypatch.undo()
    with RunStore.open(folder) as store:
        assert store.read("SELECT name FROM sqlite_master WHERE name = 'half'") == []


def _set_schema(folder: Path, version: int) -> None:
    connection = sqlite3.connect(folder / STATE_FILE)
    with contextlib.closing(connection), connection:
        connection.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (str(version),))


def test_a_copy_of_a_run_at_rest_opens_anywhere(tmp_path: Path) -> None:
    with a_run(tmp_path / "run") as store:
        store.append(StageChanged("preflight", StageState.RUNNING))
        view = store.view()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with RunStore.open(tmp_path / "copy", read_only=True) as reader:
        assert reader.view() == view
    with RunStore.open(tmp_path / "copy") as copy:
        copy.append(Noted("info", "run", "on its own"))
        assert copy.view().last_seq == view.last_seq + 1


def _write_much(folder: Path, answers: Connection) -> None:
    with RunStore.open(folder) as store:
        answers.send("ready")
        names = [f"plain-{each}" for each in range(10)]
        for _number in range(4_000):  # until it is killed: a writer that closes takes its log away from under a copy
            store.append(
                *[InstanceChanged(name, "plain", InstanceState.STARTING, reason="y" * 2_000) for name in names]
            )
            time.sleep(0.002)


COPIES = 10
"""Of one run: its journal grows all the time, and with it what it takes to read a copy."""


def test_a_copy_of_a_live_run_is_whole_or_refused(tmp_path: Path) -> None:
    """The writer turns its log over every few transactions, so that some copies are torn."""
    for number in range(examples(4)):
        folder = tmp_path / f"run-{number}"
        a_run(folder).close()
        receiver, sender = FORK.Pipe(duplex=False)
        writer = FORK.Process(target=_write_much, args=(folder, sender), daemon=True)
        writer.start()
        try:
            assert receiver.poll(60)
            for _ in range(COPIES):
                _copy_and_check(folder, tmp_path / "copy")
            assert writer.is_alive(), "every copy was one of a live run"
        finally:
            writer.kill()
            writer.join()
        shutil.rmtree(folder)


def _copy_and_check(folder: Path, copy: Path) -> None:
    with contextlib.suppress(shutil.Error):  # the log's files may vanish on the way, as under cp -r
        shutil.copytree(folder, copy)
    with contextlib.suppress(StoreUnusable), RunStore.open(copy, read_only=True) as store:
        assert store.find_problems() == ()
    shutil.rmtree(copy)


def test_a_copy_whose_parts_do_not_fit_is_refused(tmp_path: Path) -> None:
    """Rows of one moment, a journal of another: each whole for itself."""
    folder = tmp_path / "run"
    with a_run(folder) as store:
        store.append(StageChanged("preflight", StageState.RUNNING))
        with store.transaction() as transaction:
            transaction.connection.execute("UPDATE stages SET state = 'pending'")
    with RunStore.open(folder, read_only=True) as original:
        assert original.view().last_seq == 2
    shutil.copytree(folder, tmp_path / "copy")
    with pytest.raises(StoreUnusable, match="does not fit together") as refused:
        RunStore.open(tmp_path / "copy", read_only=True)
    assert "copy the folder again" in refused.value.remedy


def _as_stranger(work: Callable[[Path], Any], folder: Path) -> Any:  # noqa: ANN401 - whatever the work returns
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    return work(folder)


def _read(folder: Path) -> int:
    with RunStore.open(folder, read_only=True) as store:
        return store.view().last_seq


def _write(folder: Path) -> int:
    with RunStore.open(folder) as store:
        return store.append(Noted("info", "run", "x"))[-1].seq


@pytest.fixture
def locked() -> Iterator[Path]:
    """A folder that everyone may enter; `_lock` makes what is in it unwritable for `_as_stranger`."""
    folder = Path(tempfile.mkdtemp(prefix="tracon-test-"))
    folder.chmod(0o755)
    yield folder
    for path in folder.iterdir():
        path.chmod(0o755)
    shutil.rmtree(folder)


def _lock(folder: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)


def _without_index(folder: Path, copy: Path) -> None:
    """What `rsync` or `cp` may leave of a run: the file and its log, not the shared index of the log."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*-shm"))


def test_a_read_only_folder_can_be_read_and_says_why_it_cannot_be_written(locked: Path) -> None:
    with a_run(locked / "live") as store:
        store.append(StageChanged("preflight", StageState.RUNNING))
        shutil.copytree(locked / "live", locked / "with-log")
        _without_index(locked / "live", locked / "without-index")
    shutil.copytree(locked / "live", locked / "at-rest")
    for name in ("with-log", "without-index", "at-rest"):
        _lock(locked / name)
        assert in_child(_as_stranger, _read, locked / name) == 2, name
        error, message, remedy = in_child(_as_stranger, _write, locked / name)
        assert (error, name in message) == ("StoreUnusable", True)
        assert "writable" in remedy


def test_another_user_can_watch_a_live_run(locked: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with a_run(locked / "live") as store:
        store.append(StageChanged("preflight", StageState.RUNNING))
        assert in_child(_as_stranger, _read, locked / "live") == 2
        assert in_child(_as_stranger, _write, locked / "live")[0] == "StoreUnusable"
        store.append(Noted("info", "run", "undisturbed"))
        assert store.find_problems() == ()


def test_a_run_cannot_begin_where_nothing_can_be_written(locked: Path) -> None:
    (locked / "space").mkdir()
    _lock(locked / "space")
    error, message, remedy = in_child(_as_stranger, _begin, locked / "space" / "run")
    assert (error, "space" in message) == ("StoreUnusable", True)
    assert "--workspace" in remedy


def _begin(folder: Path) -> None:
    a_run(folder)


def test_a_held_up_writer_says_what_it_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("state.sqlite.BUSY_TIMEOUT_S", 0.05)
    with (
        a_run(tmp_path / "run") as one,
        RunStore.open(tmp_path / "run") as two,
        one.transaction(),
        pytest.raises(StoreUnusable, match="another process") as busy,
    ):
        two.append(Noted("info", "run", "x"))
    assert busy.value.remedy
