"""Session bindings: each session's owner, turns, last migration and refusals.

The table is in memory, bounded in sessions and in time. A binding is committed when the instance has served the
session, not when the request is sent; before the first commit the owner is the instance that the request was sent to.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

_NONE: Mapping[str, int] = {}


class BindingVersion(NamedTuple):
    """A session's binding at a pick; a commit succeeds only if it has not changed since."""

    version: int
    instance: str


@dataclass(eq=False, slots=True)
class MigrationClaim:
    """The right to migrate a session. Where routers share bindings, one request of one router has it at a time."""

    session: str
    instance: str
    binding: BindingVersion
    then: Callable[[bool], None] | None
    give_up: Callable[[MigrationClaim], None]
    token: str = field(default_factory=lambda: uuid4().hex)
    held: bool = False
    """It was granted and is still recorded in the shared table."""

    def stop_waiting(self) -> None:
        """Stop waiting for the answer."""
        self.then = None

    def release_right(self) -> None:
        """Give the claim up at the end of its request. If that was served, its commit has already ended the claim."""
        self.then = None
        self.give_up(self)

    def end_wait(self, granted: bool) -> None:
        then, self.then = self.then, None
        if then is not None:
            then(granted)


@dataclass(eq=False, slots=True)
class Row:
    """One session's row."""

    instance: str = ""
    """Committed owner."""
    home: str = ""
    """The instance it counts for: the committed owner, else the one that its request was sent to."""
    coming: bool = False
    """`home` is not committed yet."""
    migrated_s: float | None = None
    moving_to: str = ""
    """Target of a migrating request until that has been served or has ended; empty = none."""
    open: dict[str, int] = field(default_factory=dict)
    """Open binding requests, by instance."""
    stale: dict[str, int] = field(default_factory=dict)
    """Those that were open elsewhere when a rebalance or a migration moved it: their commits must not undo the move."""
    rejects: dict[str, int] = field(default_factory=dict)
    turns: int = 0
    used_s: float = 0.0
    version: int = 0
    """Incremented whenever it is bound to another instance."""


class Bindings:
    """Session -> instance. Times are seconds of the caller's monotonic clock; an empty session id is never stored.

    `max_sessions`: beyond it the least recently used session is dropped. `ttl_s`: a session unused for longer is
    dropped at the next `commit_binding`, `count_arrival` or `expire_sessions`.
    """

    row_type: type[Row] = Row
    is_shared = False
    """Routers share these bindings: a request looks up its session before its pick."""

    def __init__(self, max_sessions: int = 100_000, ttl_s: float = 14_400.0) -> None:
        self.max_sessions = max_sessions
        self.ttl_s = ttl_s
        self._sessions: OrderedDict[str, Row] = OrderedDict()
        self._active: Counter[str] = Counter()
        self._coming: Counter[str] = Counter()
        self._committed: Counter[str] = Counter()
        self._recounted: set[str] = set()

    def __len__(self) -> int:
        """Sessions known."""
        return len(self._sessions)

    def find_owner(self, session: str) -> str:
        """The instance that holds the session's KV, or that its first request was sent to; empty = none."""
        row = self._sessions.get(session)
        return row.home if row else ""

    def since_migration_s(self, session: str, now: float) -> float | None:
        """Seconds since its last committed migration; None = never. Other rebinds do not count."""
        row = self._sessions.get(session)
        return None if row is None or row.migrated_s is None else now - row.migrated_s

    def moving_to(self, session: str) -> str:
        """The target of the session's migrating request; empty = none."""
        row = self._sessions.get(session)
        return row.moving_to if row else ""

    def find_refusals(self, session: str) -> Mapping[str, int]:
        """Refusals of this session in a row, by instance."""
        row = self._sessions.get(session)
        return dict(row.rejects) if row and row.rejects else _NONE

    def count_active(self, instance: str) -> int:
        """Sessions bound to it now, including those whose first request is open."""
        return self._active.get(instance, 0)

    def count_assigned(self, instance: str) -> int:
        """Sessions ever bound to it, including those whose first request is open."""
        return self._committed.get(instance, 0) + self._coming.get(instance, 0)

    def take_recounted(self) -> Collection[str]:
        """The instances whose counts may have changed since the last call."""
        if not self._recounted:
            return ()
        recounted, self._recounted = self._recounted, set()
        return recounted

    def count_arrival(self, session: str, now: float) -> int:
        """Count a request of the session; returns its turn, 0-based. 0 for the empty session."""
        if not session:
            return 0
        row = self._touch_row(session, now)
        row.turns += 1
        return row.turns - 1

    def expect_binding(self, session: str, instance: str, *, migrates: bool = False) -> None:
        """A request that will bind the session is being sent to `instance`; one `drop_expected` must follow.

        `migrates`: it moves the session away from its owner; `moving_to` shows that until it is served.
        """
        row = self._sessions.get(session)
        if row is None:
            if not session:
                return
            row = self._sessions[session] = self.row_type()
        row.open[instance] = row.open.get(instance, 0) + 1
        if migrates:
            row.moving_to = instance
        self._settle_row(row)

    def drop_expected(self, session: str, instance: str, *, migrates: bool = False) -> None:
        """That request has ended, with any outcome; `migrates` as in `expect_binding`."""
        row = self._sessions.get(session)
        if row is None or instance not in row.open:
            return  # the session was dropped meanwhile
        row.open[instance] -= 1
        if not row.open[instance]:
            del row.open[instance]
        if migrates and row.moving_to == instance:
            row.moving_to = ""
        if instance in row.stale:
            row.stale[instance] -= 1
            if not row.stale[instance]:
                del row.stale[instance]
        self._settle_row(row)

    def commit_binding(self, session: str, instance: str, now: float, *, migrates: bool = False) -> None:
        """`instance` has served the session: bind it there and reset its refusals by `instance`.

        `migrates`: this ends a migration. A request that was open when a rebalance or a migration moved its session
        does not move it back.
        """
        if not session:
            return
        row = self._touch_row(session, now)
        row.rejects.pop(instance, None)
        if migrates:
            row.moving_to, row.migrated_s = "", now
            self._mark_stale(row, instance)
        elif instance in row.stale:
            return
        self._bind_row(row, instance)

    def find_version(self, session: str) -> BindingVersion | None:
        """The session's binding now, for a later commit; None = no other router can change it meanwhile."""
        return None

    def ask_arrival(self, session: str, now: float, then: Callable[[int], None]) -> None:
        """`count_arrival`; `then` receives the turn once: immediately here, later if routers share bindings."""
        then(self.count_arrival(session, now))

    def claim_migration(
        self, session: str, instance: str, binding: BindingVersion, then: Callable[[bool], None]
    ) -> MigrationClaim | None:
        """Claim the right to migrate the session to `instance`; `then` receives once whether it is granted.

        None = no other router can be asked, so no claim is needed. The caller must release the claim.
        """
        return None

    def commit_version(
        self,
        session: str,
        instance: str,
        now: float,
        binding: BindingVersion | None,
        *,
        migrates: bool = False,
        claim: MigrationClaim | None = None,
    ) -> None:
        """`commit_binding`, unless the session has been bound elsewhere since `binding` was read."""
        self.commit_binding(session, instance, now, migrates=migrates)

    def count_refusal(self, session: str, instance: str) -> None:
        """`instance` refused to admit the session (429 or 503)."""
        row = self._sessions.get(session)
        if row is not None:
            row.rejects[instance] = row.rejects.get(instance, 0) + 1

    def clear_refusals(self, session: str, instance: str) -> None:
        """`instance` admitted the session: reset its refusals in a row."""
        row = self._sessions.get(session)
        if row is not None:
            row.rejects.pop(instance, None)

    def release_session(self, session: str) -> None:
        """Unbind the session; its turns and its last migration stay."""
        row = self._sessions.get(session)
        if row is not None:
            row.instance = ""
            self._settle_row(row)

    def release_instance(self, instance: str) -> tuple[str, ...]:
        """The instance's KV is lost: unbind its sessions and return them."""
        sessions = tuple(self._list_bound((instance,))[instance])
        for session in sessions:
            self.release_session(session)
        return sessions

    def rebalance_sessions(self, instance: str, among: Sequence[str]) -> tuple[str, ...]:
        """Move sessions to a recovered instance, up to its even share of those bound to `among`. Returns them.

        They come from the instances with the most sessions, least recently used first. A moved session's KV is not at
        the new owner, so its next turn is prefilled in full; without this a recovered instance would stay empty.
        """
        names = sorted({*among, instance})
        share = sum(self._active[name] for name in names) // len(names)
        bound = {name: sessions[::-1] for name, sessions in self._list_bound(names).items() if name != instance}
        moved: list[str] = []
        while self._active[instance] < share:
            giving = [name for name, sessions in bound.items() if sessions and self._active[name] > share]
            if not giving:
                break
            session = bound[max(giving, key=self._active.__getitem__)].pop()
            row = self._sessions[session]
            self._mark_stale(row, instance)
            self._bind_row(row, instance)
            moved.append(session)
        return tuple(moved)

    def expire_sessions(self, now: float) -> int:
        """Drop sessions unused for longer than `ttl_s`, except those with open requests; returns their number."""
        count = 0
        for session, row in self._list_expired(now):
            if not row.open:
                self._forget_session(session)
                count += 1
        return count

    def _list_expired(self, now: float) -> Sequence[tuple[str, Row]]:
        oldest = []
        for session, row in self._sessions.items():
            if now - row.used_s <= self.ttl_s:
                break
            oldest.append((session, row))
        return oldest

    def _list_bound(self, instances: Sequence[str]) -> dict[str, list[str]]:
        """The sessions bound to each, least recently used first; the whole table is read once."""
        bound: dict[str, list[str]] = {instance: [] for instance in instances}
        for session, row in self._sessions.items():
            if row.instance in bound:
                bound[row.instance].append(session)
        return bound

    def _touch_row(self, session: str, now: float) -> Row:
        row = self._sessions.get(session)
        if row is None:
            self.expire_sessions(now)
            while len(self._sessions) >= self.max_sessions:
                self._forget_session(next(iter(self._sessions)))
            row = self._sessions[session] = self.row_type()
        else:
            self._sessions.move_to_end(session)
        row.used_s = now
        return row

    def _mark_stale(self, row: Row, target: str) -> None:
        """Mark the requests open anywhere but at its new owner as stale: their commits must not move it back."""
        row.stale = {instance: count for instance, count in row.open.items() if instance != target}

    def _bind_row(self, row: Row, instance: str) -> None:
        if row.instance == instance:
            return
        row.instance = instance
        row.version += 1
        self._committed[instance] += 1
        self._recounted.add(instance)
        self._settle_row(row)

    def _settle_row(self, row: Row) -> None:
        """Update the session's home and the counts of the instances."""
        home, coming = row.instance or next(iter(row.open), ""), not row.instance
        if home == row.home and coming == row.coming:
            return
        self._uncount_row(row)
        row.home, row.coming = home, coming
        if home:
            self._active[home] += 1
            self._coming[home] += coming
            self._recounted.add(home)

    def _uncount_row(self, row: Row) -> None:
        if row.home:
            self._active[row.home] -= 1
            self._coming[row.home] -= row.coming
            self._recounted.add(row.home)

    def _forget_session(self, session: str) -> None:
        self._uncount_row(self._sessions.pop(session))
