"""Bindings that several router processes share through Redis; each router has a working copy.

The table in Redis is authoritative, per session. A router reads the session's row before a pick (`ask_arrival`), which
also counts the turn; it commits by compare-and-set; it claims a session before it migrates it. While Redis is away or
slow, the working copy decides, and its decisions are sent when Redis is back: of two versions of a row the higher one
wins. Refusals and requests not served yet are local to each router.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from results.records.router_spec import BindingRules
from runners.router.counts import Counts
from runners.router.sessions.bindings import Bindings, BindingVersion, MigrationClaim, Row
from runners.router.sessions.redis_link import RedisLink
from runners.router.sessions.redis_rows import Hint, TableInstance, TableRow, make_script_argument, read_row

REBALANCED_AT_ONCE = 500
"""Sessions moved by one script call, during which Redis is blocked."""
PENDING_LOSSES = 1000
"""Lost instances waiting to be reported to Redis; the oldest beyond it is dropped, and its bindings stay."""
NOWHERE = TableInstance(0, 0, 0)


@dataclass(eq=False, slots=True)
class SharedRow(Row):
    """One session's row in the working copy."""

    elsewhere: str = ""
    """The target that another router moves it to."""
    elsewhere_until_s: float = 0.0
    epoch: int = 0
    """Epoch of its instance when it was bound."""
    life: str = ""
    """Name of the table that the epoch belongs to."""


class SharedBindings(Bindings):
    """One router's view of the shared table; `names`: the instances whose sessions it counts."""

    row_type = SharedRow
    is_shared = True

    def __init__(
        self,
        rules: BindingRules,
        counts: Counts,
        names: Callable[[], tuple[str, ...]],
        clock: Callable[[], float],
        max_sessions: int = 100_000,
        ttl_s: float = 14_400.0,
    ) -> None:
        super().__init__(max_sessions, ttl_s)
        self._rules = rules
        self._counts = counts
        self._names = names
        self._clock = clock
        self._link = RedisLink(rules, counts, self._report_losses)
        self._life = ""
        self._life_to_be = uuid4().hex
        self._instances: dict[str, TableInstance] = {}
        self._claims: dict[str, MigrationClaim] = {}
        self._pending_losses: dict[str, TableInstance] = {}
        """Instances lost while Redis was away, to be reported first when it is back."""

    async def start(self) -> None:
        """Try to connect; without Redis the working copy decides."""
        await self._link.start()

    async def close(self) -> None:
        for claim in tuple(self._claims.values()):
            claim.release_right()
        await self._link.close()

    @property
    def shared(self) -> bool:
        return self._link.up

    def count_active(self, instance: str) -> int:
        """Sessions bound to it now by all routers, plus this router's uncommitted ones."""
        if not self._link.up or instance not in self._instances:
            return super().count_active(instance)
        return self._instances[instance].active + self._coming[instance]

    def count_assigned(self, instance: str) -> int:
        if not self._link.up or instance not in self._instances:
            return super().count_assigned(instance)
        return self._instances[instance].assigned + self._coming[instance]

    def take_recounted(self) -> Collection[str]:
        """All instances: other routers change the counts too."""
        return self._names()

    def moving_to(self, session: str) -> str:
        row = self._find_row(session)
        if row is None:
            return ""
        return row.moving_to or (row.elsewhere if self._clock() < row.elsewhere_until_s else "")

    def find_version(self, session: str) -> BindingVersion:
        row = self._sessions.get(session)
        return BindingVersion(row.version, row.instance) if row else BindingVersion(0, "")

    def ask_arrival(self, session: str, now: float, then: Callable[[int], None]) -> None:
        """Count a request of the session and read its row; without Redis, `then` is called immediately."""
        if not self._link.prompt:
            self._counts.binding_failures["away"] += 1
            super().ask_arrival(session, now, then)
            return
        waiting = [then]

        def answered(table_row: TableRow) -> None:
            self._take_row(session, table_row)
            if waiting:
                waiting.pop()(table_row.turns - 1)

        def unanswered() -> None:
            if waiting:
                waiting.pop()(self.count_arrival(session, self._clock()))

        self._call_script("arrive", session, self._make_hint(session), answered, unanswered)

    def claim_migration(
        self, session: str, instance: str, binding: BindingVersion, then: Callable[[bool], None]
    ) -> MigrationClaim | None:
        """None = Redis is away, so the migration needs no claim."""
        if not self._link.prompt:
            self._counts.binding_failures["away"] += 1
            return None
        claim = MigrationClaim(session, instance, binding, then, self._give_up)
        self._claims[claim.token] = claim
        self._renew_claim(claim)
        return claim

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
        assert binding is not None
        row = self._find_row(session)
        if row is not None and row.version != binding.version and row.instance != instance:
            row.rejects.pop(instance, None)
            self._counts.binding_failures["refused"] += 1
            return
        before = row.version if row is not None else 0
        super().commit_binding(session, instance, now, migrates=migrates)
        row = self._find_row(session)
        assert row is not None
        if row.version == before:
            return
        self._count_move(row, binding.instance, instance)
        token = ""
        if claim is not None:
            token, claim.held = claim.token, False
            self._claims.pop(token, None)

        def answered(table_row: TableRow) -> None:
            self._take_row(session, table_row, anyhow=not table_row.granted)
            if not table_row.granted:
                self._counts.binding_failures["refused"] += 1

        self._call_script("commit", session, (instance, binding.version, binding.instance, migrates, token), answered)

    def release_instance(self, instance: str) -> tuple[str, ...]:
        gone = super().release_instance(instance)
        known = self._instances.get(instance, NOWHERE)
        if self._link.up:
            self._report_loss(instance, known)
        else:
            self._queue_loss(instance, known)
        return gone

    def rebalance_sessions(self, instance: str, among: Sequence[str]) -> tuple[str, ...]:
        """As in memory; with Redis every router learns a session's new owner at the session's next request."""
        if not self._link.up:
            return super().rebalance_sessions(instance, among)
        names = tuple(sorted({*among, instance}))

        def answered(table_row: TableRow) -> None:
            self._instances.update(table_row.instances)
            if not table_row.granted:
                self._call_script("rebalance", "", (instance, names, REBALANCED_AT_ONCE), answered)

        self._call_script("rebalance", "", (instance, names, REBALANCED_AT_ONCE), answered)
        return ()

    def refresh_table(self) -> None:
        """Once a second: read the session counts, renew claims, drop removed instances."""
        for gone in self._instances.keys() - set(self._names()):
            del self._instances[gone]
        if self._link.prompt:
            self._call_script("look", "", (), self._note_instances)
            for claim in tuple(self._claims.values()):
                self._renew_claim(claim)

    # the table
    def _call_script(
        self,
        operation: str,
        session: str,
        values: tuple[object, ...],
        answered: Callable[[TableRow], None],
        unanswered: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a script. `unanswered` is called when the wait ends without an answer, which may still come."""
        names = self._names()
        rules = self._rules
        argument = make_script_argument(rules.prefix, self.ttl_s, names, self._life_to_be, *values)
        key = f"{rules.prefix}s:{session}".encode("utf-8", "surrogatepass")

        def receive(answer: bytes | None) -> None:
            if answer is None:
                unanswered()
                return
            try:
                row = read_row(answer, names)
            except ValueError:
                self._counts.binding_failures["unreadable"] += 1
                unanswered()
            else:
                answered(row)

        self._link.call_script(operation, key, argument, receive)

    def _report_losses(self) -> None:
        losses, self._pending_losses = self._pending_losses, {}
        for instance, known in losses.items():
            self._report_loss(instance, known)
        self._call_script("look", "", (), self._note_instances)

    def _report_loss(self, instance: str, known: TableInstance) -> None:
        values = (instance, known.epoch, self._life)
        self._call_script("lose", "", values, self._note_instances, partial(self._queue_loss, instance, known))

    def _queue_loss(self, instance: str, known: TableInstance) -> None:
        self._pending_losses[instance] = known
        if len(self._pending_losses) > PENDING_LOSSES:
            del self._pending_losses[next(iter(self._pending_losses))]

    def _give_up(self, claim: MigrationClaim) -> None:
        """Let other routers migrate the session."""
        asked = self._claims.pop(claim.token, None) is not None
        held, claim.held = claim.held, False
        if asked or held:  # a claim is held but no longer renewed if the session was bound elsewhere
            self._call_script("unclaim", claim.session, (claim.token,), partial(self._take_row, claim.session))

    def _renew_claim(self, claim: MigrationClaim) -> None:
        def answered(table_row: TableRow) -> None:
            if not table_row.granted and self._claims.pop(claim.token, None) is not None:
                self._counts.binding_failures["refused"] += 1
                self._take_row(claim.session, table_row, anyhow=True)
            claim.held = claim.held or (table_row.granted and claim.token in self._claims)
            claim.end_wait(table_row.granted)

        claim_us = round(self._rules.claim_s * 1e6)
        values = (claim.instance, claim.binding.version, claim.binding.instance, claim.token, claim_us)
        self._call_script("claim", claim.session, values, answered, partial(claim.end_wait, True))

    # the working copy
    def _find_row(self, session: str) -> SharedRow | None:
        row = self._sessions.get(session)
        assert row is None or isinstance(row, SharedRow)
        return row

    def _make_hint(self, session: str) -> Hint:
        row = self._find_row(session)
        if row is None:
            return Hint()
        since_s = None if row.migrated_s is None else self._clock() - row.migrated_s
        since_us = -1 if since_s is None else round(since_s * 1e6)
        return Hint(row.instance, row.version, row.epoch, row.life, since_us, row.turns)

    def _take_row(self, session: str, table_row: TableRow, *, anyhow: bool = False) -> None:
        """Update the working copy from the table; `anyhow`: even if the copy has a higher version."""
        self._note_instances(table_row)
        now = self._clock()
        row = self._touch_row(session, now)
        assert isinstance(row, SharedRow)
        row.turns = max(row.turns, table_row.turns)
        own = table_row.moving_by in self._claims
        row.elsewhere = "" if own else table_row.moving_to
        row.elsewhere_until_s = now + table_row.moving_left_s
        if table_row.version < row.version and not anyhow:
            return  # this router's commit has not reached the table yet
        row.migrated_s = None if table_row.since_migration_s is None else now - table_row.since_migration_s
        if table_row.instance != row.instance:
            if table_row.instance:
                self._mark_stale(row, table_row.instance)
                self._bind_row(row, table_row.instance)
            else:
                row.instance = ""
                self._settle_row(row)
        row.version, row.life = table_row.version, table_row.life
        row.epoch = table_row.instances.get(table_row.instance, NOWHERE).epoch

    def _note_instances(self, table_row: TableRow) -> None:
        self._life = table_row.life
        self._instances.update(table_row.instances)

    def _count_move(self, row: SharedRow, source: str, target: str) -> None:
        """Count a session at its new owner until the table reports it."""
        row.life, row.epoch = self._life, self._instances.get(target, NOWHERE).epoch
        for name, more in ((source, -1), (target, 1)):
            known = self._instances.get(name)
            if known is not None:
                active, assigned = max(0, known.active + more), known.assigned + (more > 0)
                self._instances[name] = TableInstance(active, assigned, known.epoch)
