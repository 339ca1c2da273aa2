"""Opening a run's SQLite file, and its errors in words an operator can act on."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from state.errors import DiskFull, StateError, StoreUnusable
from state.schema import MIGRATIONS

BUSY_TIMEOUT_S = 20.0
"""How long a writer waits for another one before it gives up."""
DAMAGED_REMEDY = (
    "copy the run folder again if it is a copy; else `sqlite3 state.sqlite .recover` saves what is readable"
)
_MAX_LOG_BYTES = 16 * 1024 * 1024


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turn what reading or writing `path` raises inside the block into a StoreUnusable with its remedy."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explain_error(path, error) from error
    except (UnicodeDecodeError, msgspec.ValidationError) as error:  # a quoted schema, or a row with another type
        raise StoreUnusable(f"{path} is damaged: {error}", remedy=DAMAGED_REMEDY) from error


def _explain_error(path: Path, error: sqlite3.Error) -> StateError:
    name = getattr(error, "sqlite_errorname", "") or ""
    text = str(error)
    if name.startswith("SQLITE_FULL"):
        remedy = f"free some space on the file system of {path.parent}, then `tracon resume {path.parent.name}`"
        return DiskFull(f"no space left for {path}: {text}", remedy=remedy)
    if name.startswith("SQLITE_IOERR"):
        remedy = f"check space, quota and health of that file system, then `tracon resume {path.parent.name}`"
        return StoreUnusable(f"{path} cannot be read or written: {text}", remedy=remedy)
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreUnusable(f"{path} is damaged: {text}", remedy=DAMAGED_REMEDY)
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        remedy = "try again; if it stays, look for a stopped process that has the file open (`fuser`)"
        return StoreUnusable(f"another process has been writing {path} for {BUSY_TIMEOUT_S:.0f} s", remedy=remedy)
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_CANTOPEN", "SQLITE_AUTH")):
        remedy = f"make {path.parent} and its files readable and writable for this user"
        return StoreUnusable(f"{path} cannot be opened: {text}", remedy=remedy)
    return StoreUnusable(f"{path} cannot be used: {text}", remedy="`tracon doctor` checks this machine")


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that may write; transactions are explicit."""
    connection = _connect_to(path, "rw")
    connection.execute(f"PRAGMA journal_size_limit = {_MAX_LOG_BYTES}")
    return connection


def open_reader(path: Path) -> tuple[sqlite3.Connection, tempfile.TemporaryDirectory[str] | None]:
    """A connection that only reads, beside a live writer or in a folder that cannot be written.

    Where SQLite cannot make its index of the write-ahead log (a read-only copy of a run), the file is opened as
    unchanging if it has no log, else a private copy of both is read: the returned folder, to be removed after use.
    """
    connection = _connect_to(path, "ro")
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return connection, None
    except sqlite3.OperationalError as error:
        connection.close()
        if not (error.sqlite_errorname or "").startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise
    wal = path.with_name(path.name + "-wal")
    if not wal.exists() or wal.stat().st_size == 0:
        return _connect_to(path, "ro", "&immutable=1"), None
    return _open_private_copy(path, wal)


def _open_private_copy(path: Path, wal: Path) -> tuple[sqlite3.Connection, tempfile.TemporaryDirectory[str]]:
    try:
        folder = tempfile.TemporaryDirectory(prefix="tracon-state-")
        copy = Path(folder.name) / path.name
        shutil.copyfile(path, copy)
        shutil.copyfile(wal, copy.with_name(wal.name))
    except OSError as error:
        remedy = "copy the run folder to where it may be written, and open it there"
        raise StoreUnusable(f"{path} cannot be read where it is: {error}", remedy=remedy) from error
    return _connect_to(copy, "rw"), folder


def _connect_to(path: Path, mode: str, more: str = "") -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}{more}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def write_empty(path: Path) -> sqlite3.Connection:
    """A connection to a new file in today's schema, without a write-ahead log: once closed it may be renamed."""
    connection = _connect_to(path, "rwc")
    try:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        _migrate_schema(connection, 0)
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def begin_log(connection: sqlite3.Connection) -> None:
    """Give the file, once and for all, a write-ahead log: readers and the writer never wait for each other."""
    connection.execute("PRAGMA journal_mode = WAL")


def check_schema(connection: sqlite3.Connection, path: Path, *, read_only: bool) -> None:
    """Bring the file to today's schema, or refuse one that a newer Tracon wrote.

    Raises StoreUnusable for a file of a newer schema, of an older one that may only be read, that holds no run, or that
    has a view or a trigger.
    """
    _refuse_programs(connection, path)
    version = _read_version(connection, path)
    if version > len(MIGRATIONS):
        remedy = "use the Tracon that wrote it, or a newer one"
        raise StoreUnusable(f"{path} has schema {version}; this Tracon knows up to {len(MIGRATIONS)}", remedy=remedy)
    if version == len(MIGRATIONS):
        return
    if read_only:
        remedy = "copy the folder to where it may be written, and open it there"
        raise StoreUnusable(f"{path} has schema {version} and must be brought to {len(MIGRATIONS)}", remedy=remedy)
    connection.execute("BEGIN IMMEDIATE")
    try:
        _migrate_schema(connection, _read_version(connection, path))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _refuse_programs(connection: sqlite3.Connection, path: Path) -> None:
    """Reading a view may run for ever, and a trigger may delete what is written: Tracon makes neither."""
    sql = "SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger')"
    row = connection.execute(sql).fetchone()
    if row is not None:
        kind, name = row
        remedy = f"drop it if it is yours (`DROP {kind.upper()}` in `sqlite3`), else get an unchanged copy of the run"
        raise StoreUnusable(f"{path} has the {kind} {name!r}, which Tracon did not make", remedy=remedy)


def _read_version(connection: sqlite3.Connection, path: Path) -> int:
    try:
        row = connection.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
        return int(row[0])
    except (sqlite3.OperationalError, TypeError, ValueError) as error:
        if isinstance(error, sqlite3.OperationalError) and "no such table" not in str(error):
            raise
        message = f"{path} is no state file of Tracon"
        raise StoreUnusable(message, remedy="name the folder of a run; `tracon list` shows them") from error


def _migrate_schema(connection: sqlite3.Connection, version: int) -> None:
    for step in MIGRATIONS[version:]:
        for statement in step:
            connection.execute(statement)
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('schema_version', ?)", (str(len(MIGRATIONS)),))
