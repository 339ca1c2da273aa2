"""Which process runs a run: one row that names the run process, and the takeover from a dead one.

A run process holds the lease while it works and renews its heartbeat every `HEARTBEAT_S`. On its own host a holder is
judged by its process (pid, start, boot), however long it has been silent; from another host by its heartbeat.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import Literal, Self

import msgspec

from results.records.events import RunTaken
from state.errors import LeaseHeld, LeaseLost
from state.file_system import require_local_disk
from state.process_identity import ProcessIdentity, can_see, identify_this_process, is_alive
from state.sqlite import explain_errors
from state.store import RunStore

HEARTBEAT_S = 5.0
"""How often a run process renews its lease."""
STALE_S = 60.0
"""A holder on another host that has been silent for this long counts as dead."""

_COLUMNS = (*(f.name for f in fields(ProcessIdentity)), "acquired_unix_s", "heartbeat_unix_s")
_MINE = "pid = ? AND process_start = ? AND boot_id = ? AND host = ?"


@dataclass(frozen=True, slots=True)
class LeaseState:
    """What a reader can say about the run process."""

    state: Literal["live", "dead", "none"]
    pid: int | None = None
    host: str = ""
    age_s: float | None = None
    """Seconds since its last heartbeat."""
    heartbeat_unix_s: float | None = None

    @property
    def live(self) -> bool:
        return self.state == "live"


@dataclass(slots=True)
class Lease:
    """This process's right to run the run. As a context manager it is released at the end."""

    store: RunStore
    holder: ProcessIdentity
    clock: Callable[[], float]

    def heartbeat(self) -> None:
        """Record that this process lives. Raises LeaseLost where another one has taken over."""
        with self.store.transaction(durable=False) as transaction:
            self.require_holder(transaction.connection)
            sql = f"UPDATE lease SET heartbeat_unix_s = ? WHERE {_MINE}"
            transaction.connection.execute(sql, (self.clock(), *self._make_holder_key()))

    def require_holder(self, connection: sqlite3.Connection) -> None:
        """Raises LeaseLost where another process has taken over. Every write of the holder begins with it."""
        if connection.execute(f"SELECT 1 FROM lease WHERE {_MINE}", self._make_holder_key()).fetchone() is None:
            message = f"process {self.holder.pid} no longer runs {self.store.run}: another one took it over"
            raise LeaseLost(message, remedy=f"`tracon status {self.store.run}` names the process that runs it")

    def release(self) -> None:
        """Release the run. Does nothing where another process holds the lease by now."""
        self.store.fence = None
        with self.store.transaction() as transaction:
            transaction.connection.execute(f"DELETE FROM lease WHERE {_MINE}", self._make_holder_key())

    def _make_holder_key(self) -> tuple[int, float, str, str]:
        return self.holder.pid, self.holder.process_start, self.holder.boot_id, self.holder.host

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def acquire(store: RunStore, *, clock: Callable[[], float] = time.time) -> Lease:
    """Take the run for this process, from a dead holder too.

    Judging the holder, replacing it and recording the takeover are one transaction: of two processes that try, one
    succeeds. From then on nothing is written through `store` once another process has taken over, even where the clocks
    of two hosts made this one look dead. Raises StoreUnusable on a network file system, LeaseHeld where a live process
    holds it, this one included.
    """
    require_local_disk(store.folder)
    me = identify_this_process()
    with store.transaction() as transaction:
        row = transaction.connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM lease").fetchone()
        before = _judge_holder(row, clock())
        if before.live:
            raise _refuse_held(store.run, before)
        if before.state == "dead":
            transaction.append(_takeover_event(me, before))
        values = (1, *astuple(me), clock(), clock())
        sql = f"INSERT OR REPLACE INTO lease (id, {', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(values))})"
        transaction.connection.execute(sql, values)
    lease = Lease(store, me, clock)
    store.fence = lease.require_holder
    return lease


def _takeover_event(me: ProcessIdentity, before: LeaseState) -> RunTaken:
    assert before.pid is not None
    assert before.heartbeat_unix_s is not None
    return RunTaken(me.pid, me.host, before.pid, before.host, before.heartbeat_unix_s)


def _refuse_held(run: str, lease: LeaseState) -> LeaseHeld:
    where = f"process {lease.pid} on {lease.host} (last heartbeat {lease.age_s:.0f} s ago)"
    remedy = f"`tracon stop {run}` ends it; `tracon console {run}` watches it"
    return LeaseHeld(f"{run} is being run by {where}", remedy=remedy)


def read_lease_state(store: RunStore, now_unix_s: float | None = None) -> LeaseState:
    """Whether a process runs the run now."""
    rows = store.read(f"SELECT {', '.join(_COLUMNS)} FROM lease")
    with explain_errors(store.path):
        return _judge_holder(rows[0] if rows else None, time.time() if now_unix_s is None else now_unix_s)


def _judge_holder(row: tuple[object, ...] | None, now_unix_s: float) -> LeaseState:
    if row is None:
        return LeaseState("none")
    stated = dict(zip(_COLUMNS, row, strict=True))
    heartbeat_unix_s = msgspec.convert(stated.pop("heartbeat_unix_s"), float)
    holder = msgspec.convert(stated, ProcessIdentity)
    age_s = max(0.0, now_unix_s - heartbeat_unix_s)
    alive = is_alive(holder) if can_see(holder) else age_s < STALE_S
    return LeaseState("live" if alive else "dead", holder.pid, holder.host, age_s, heartbeat_unix_s)
