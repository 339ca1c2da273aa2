"""One run's durable truth: the append-only journal and the current rows, in one SQLite file of the run's folder."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from results.records.errors import DAMAGED_JSON
from results.records.events import Event, RunPlanned, RunState
from results.records.layout import sync_folder
from results.records.plan import RunPlan
from state.errors import IllegalTransition, StateError, StoreUnusable
from state.events import LIVE_KINDS, Recorded, decode, encode, name_wire_kind
from state.file_system import require_local_disk
from state.model import EMPTY, CellView, InstanceRow, RequestView, RunRow, RunView, StageRow
from state.run import INSTANCE_ENDED
from state.sqlite import begin_log, check_schema, explain_errors, open_reader, open_writer, write_empty
from state.sqlite_tables import Tables
from state.view import fold

_Row = TypeVar("_Row")
STATE_FILE = "state.sqlite"
_AT_REST = (RunState.INTERRUPTED, RunState.DONE, RunState.FAILED)
_PAGE = 2_000
"""Events read at a time, so that a reader never holds up the checkpoint of the writer's log for long."""


class Transaction:
    """Events and rows that are committed together, or not at all."""

    def __init__(self, connection: sqlite3.Connection, tables: Tables, clock: Callable[[], float]) -> None:
        self.connection = connection
        self.tables = tables
        self._clock = clock

    def append(self, *events: Event) -> tuple[Recorded, ...]:
        """Write the events and the rows they change. Raises IllegalTransition for a forbidden change."""
        last = self.connection.execute("SELECT seq, t_unix_s FROM journal ORDER BY seq DESC LIMIT 1").fetchone()
        seq, previous_t_unix_s = last or (0, 0.0)
        recorded = []
        for event in events:
            seq += 1
            kind, body = name_wire_kind(event), encode(event)
            entry = Recorded(seq, self._clock(), time.perf_counter_ns(), _read_back(kind, body))
            self.connection.execute(
                "INSERT INTO journal (seq, t_unix_s, t_mono_ns, kind, body) VALUES (?, ?, ?, ?, ?)",
                (seq, entry.t_unix_s, entry.t_mono_ns, kind, body.decode()),
            )
            self.tables.apply(entry, previous_t_unix_s)
            recorded.append(entry)
            previous_t_unix_s = entry.t_unix_s
        return tuple(recorded)


def _read_back(kind: str, body: bytes) -> Event:
    """The event as every reader will see it: one that cannot be read back must not get into the journal."""
    try:
        return decode(kind, body)
    except DAMAGED_JSON as error:
        message = f"a {kind} event that cannot be read back: {error}"
        raise IllegalTransition(message, remedy="give every field a value of its type (NaN is null)") from error


class RunStore:
    """The state file of one run. Safe to use from several threads; several processes may have it open and write."""

    def __init__(
        self,
        folder: Path,
        connection: sqlite3.Connection,
        *,
        read_only: bool,
        clock: Callable[[], float],
        copy: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.folder = folder
        self.path = folder / STATE_FILE
        self.read_only = read_only
        self.fence: Callable[[sqlite3.Connection], None] | None = None
        """Called at the start of every transaction; raises where this process may no longer write."""
        self._connection = connection
        self._clock = clock
        self._copy = copy
        self._lock = threading.RLock()
        self._planned: RunPlanned | None = None
        self._tables = Tables(connection, lambda: self.plan)

    @classmethod
    def create(
        cls, folder: Path, run: str, plan: RunPlan, tracon_version: str, *, clock: Callable[[], float] = time.time
    ) -> RunStore:
        """Create a run's file atomically, with its plan as event 1.

        Raises StoreUnusable where the folder holds a run already or cannot be written.
        """
        require_local_disk(folder)
        path = folder / STATE_FILE
        partial = path.with_name(f".{STATE_FILE}.partial")
        try:
            taken = path.exists()
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(f"{partial.name}*"):
                leftover.unlink()
        except OSError as error:
            remedy = "name a workspace that this user can write, with --workspace"
            raise StoreUnusable(f"{folder} cannot be written: {error.strerror}", remedy=remedy) from error
        if taken:
            remedy = f"`tracon resume {folder.name}` continues it; a new run needs a new folder"
            raise StoreUnusable(f"{folder} holds a run already", remedy=remedy)
        with explain_errors(path):
            connection = write_empty(partial)
            try:
                first = cls(folder, connection, read_only=False, clock=clock)
                first.append(RunPlanned(run, plan, tracon_version))
                first._write_inode(partial)
                begin_log(connection)
            finally:
                connection.close()
        partial.rename(path)
        sync_folder(folder)
        return cls.open(folder, clock=clock)

    @classmethod
    def open(cls, folder: Path, *, read_only: bool = False, clock: Callable[[], float] = time.time) -> RunStore:
        """The run of a folder. Raises StoreUnusable where there is none, or none that this Tracon can use."""
        path = folder / STATE_FILE
        try:
            missing = not path.is_file()
        except OSError as error:
            remedy = "make the folder readable for this user"
            raise StoreUnusable(f"{folder} cannot be read: {error.strerror}", remedy=remedy) from error
        if missing:
            remedy = "name the folder of a run; `tracon list` shows them"
            raise StoreUnusable(f"{folder} holds no run ({STATE_FILE} is missing)", remedy=remedy)
        with explain_errors(path):
            connection, copy = open_reader(path) if read_only else (open_writer(path), None)
            store = cls(folder, connection, read_only=read_only, clock=clock, copy=copy)
            try:
                check_schema(connection, path, read_only=read_only)
                store._check_copy()
                _ = store.plan
            except BaseException:
                store.close()
                raise
            return store

    def _check_copy(self) -> None:
        """Refuse an inconsistent copy, made while the run was writing.

        The file stores its own inode, so a copy is recognized. Such a copy may hold an old part and a new one that do
        not fit together, although each is intact by itself.
        """
        inode = str(self.path.stat().st_ino)
        if self.read("SELECT value FROM meta WHERE key = 'inode'") == [(inode,)]:
            return
        wal = self.path.with_name(f"{STATE_FILE}-wal")
        logged = wal.exists() and wal.stat().st_size > 0
        if logged or self.read("SELECT state FROM run") not in [[(state,)] for state in _AT_REST]:
            faults = self.find_problems()
            if faults:
                remedy = "copy the folder again when the run is paused or has ended"
                raise StoreUnusable(f"{self.path} is a copy that does not fit together: {faults[0]}", remedy=remedy)
        if not self.read_only:
            self._write_inode(self.path)

    def _write_inode(self, path: Path) -> None:
        with self.transaction() as transaction:
            inode = str(path.stat().st_ino)
            transaction.connection.execute("INSERT OR REPLACE INTO meta VALUES ('inode', ?)", (inode,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. May be called twice."""
        with self._lock:
            self._connection.close()
            if self._copy is not None:
                self._copy.cleanup()

    @property
    def run(self) -> str:
        """The run's id."""
        return self._read_first().run

    @property
    def plan(self) -> RunPlan:
        return self._read_first().plan

    def _read_first(self) -> RunPlanned:
        if self._planned is None:
            first = next(self.events(limit=1), None)
            if first is None or not isinstance(first.event, RunPlanned):
                remedy = "remove the folder; nothing was measured in it"
                raise StoreUnusable(f"{self.path} holds no plan", remedy=remedy)
            self._planned = first.event
        return self._planned

    @contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[Transaction]:
        """Commit everything written inside the block at its end, or nothing.

        `durable=False` returns before the data is on disk: it survives the death of every process, but a power loss may
        lose the last seconds. Raises DiskFull or StoreUnusable where it cannot be written.
        """
        if self.read_only:
            raise StoreUnusable(f"{self.path} was opened for reading only", remedy="open it for writing")
        with self._lock, explain_errors(self.path):
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if self.fence is not None:
                    self.fence(self._connection)
                yield Transaction(self._connection, self._tables, self._clock)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def append(self, *events: Event) -> tuple[Recorded, ...]:
        """Write the events in one transaction and return them as readers will see them.

        Raises IllegalTransition where one is forbidden (then none is written), DiskFull or StoreUnusable where the
        file cannot take them. Live numbers alone do not wait for the disk.
        """
        if not events:
            return ()
        with self.transaction(durable=not all(isinstance(event, LIVE_KINDS) for event in events)) as transaction:
            return transaction.append(*events)

    def events(self, after: int = 0, limit: int | None = None) -> Iterator[Recorded]:
        """The journal from the event behind `after` on, in order. Raises StoreUnusable where it is damaged."""
        left = limit
        while left is None or left > 0:
            page = self._read_page(after, _PAGE if left is None else min(left, _PAGE))
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].seq
            left = None if left is None else left - len(page)

    def _read_page(self, after: int, limit: int) -> list[Recorded]:
        sql = "SELECT seq, t_unix_s, t_mono_ns, kind, body FROM journal WHERE seq > ? ORDER BY seq LIMIT ?"
        with self._lock, explain_errors(self.path):
            rows = self._connection.execute(sql, (after, limit)).fetchall()
        page = []
        for expected, (seq, t_unix_s, t_mono_ns, kind, body) in enumerate(rows, after + 1):
            try:
                event = decode(kind, body)
            except DAMAGED_JSON as error:
                raise self._make_damage_error(seq, str(error)) from error
            if seq != expected:
                raise self._make_damage_error(expected, "it is missing")
            page.append(Recorded(seq, t_unix_s, t_mono_ns, event))
        return page

    def _make_damage_error(self, seq: int, what: str) -> StoreUnusable:
        remedy = "copy the run folder again if it is a copy; artifacts under results/ can still be analyzed"
        return StoreUnusable(f"{self.path} is damaged at event {seq}: {what}", remedy=remedy)

    def view(self) -> RunView:
        """The view folded from the whole journal."""
        return reduce(fold, self.events(), EMPTY)

    def find_problems(self) -> tuple[str, ...]:
        """What is wrong with the file, one line each; empty when the journal is whole and every row equals its fold.

        Reads the whole file as it is at one moment.
        """
        try:
            with self.snapshot():
                messages = (str(row[0]) for row in self.read("PRAGMA integrity_check(3)"))
                broken = [" ".join(text.split()) for text in messages if text != "ok"]
                return (*broken, *self._list_differences(self.view()))
        except StateError as error:
            return (str(error),)

    def _list_differences(self, view: RunView) -> Iterator[str]:
        pairs: tuple[tuple[str, object, object], ...] = (
            ("run", self.run_row(), view.row),
            ("stages", self.stage_rows(), tuple(_pick_part(stage, StageRow) for stage in view.stages)),
            ("cells", self.list_cell_rows(), tuple(view.cells.values())),
            (
                "instances",
                self.instance_rows(ended=True),
                tuple(_pick_part(instance, InstanceRow) for instance in view.instances.values()),
            ),
            ("requests", self.list_request_rows(), tuple(view.requests.values())),
        )
        for name, rows, folded in pairs:
            if rows != folded:
                yield f"the rows of {name} differ from the journal"

    def run_row(self) -> RunRow:
        """How the run stands, without folding."""
        with self._lock, explain_errors(self.path):
            return self._tables.run()

    def stage_rows(self) -> tuple[StageRow, ...]:
        """All stages in the plan's order, without folding."""
        with self._lock, explain_errors(self.path):
            return self._tables.stages()

    def list_cell_rows(self) -> tuple[CellView, ...]:
        """All cells in the plan's order, without folding."""
        with self._lock, explain_errors(self.path):
            return self._tables.cells()

    def instance_rows(self, *, ended: bool = False) -> tuple[InstanceRow, ...]:
        """Instances whose processes may be there; with `ended`, all there ever were."""
        with self._lock, explain_errors(self.path):
            rows = self._tables.instances()
        return rows if ended else tuple(row for row in rows if row.state not in INSTANCE_ENDED)

    def list_request_rows(self) -> tuple[RequestView, ...]:
        """All operator requests, answered or not, in the order they came."""
        with self._lock, explain_errors(self.path):
            return self._tables.requests()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside the block is of one moment, whatever is written meanwhile."""
        with self._lock, explain_errors(self.path):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def read(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        """The rows of one SELECT, for readers of single columns."""
        with self._lock, explain_errors(self.path):
            return self._connection.execute(sql, values).fetchall()


def _pick_part(view: object, kind: type[_Row]) -> _Row:
    """What a view has of a row's fields."""
    return msgspec.convert(view, kind, from_attributes=True)
