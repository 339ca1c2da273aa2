"""Bindings that several router processes share through Redis; what a router knows of them itself is its working copy.

The table in Redis is the truth, session by session. A router reads a session's row before it picks (`ask`), which
also counts the turn; it compares and sets when it commits; it claims a session before it migrates it. Where Redis is
away or slow the working copy decides, and what it decided is told when Redis is back: of two versions of a row the
higher one holds. Refusals, and requests that have not been served yet, are each router's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from uuid import uuid4

from runners.router.binding_rules import BindingRules
from runners.router.bindings import Bindings, Row
from runners.router.metrics import Counts
from runners.router.redis_link import RedisLink
from runners.router.redis_rows import Hint, Place, TableRow, request, row

REBALANCED_AT_ONCE = 500
"""Sessions moved by one call of a script: Redis does nothing else meanwhile."""
OWED_KEPT = 1000
"""Lost instances that Redis is still to be told of; of one that is forgotten the table keeps bindings to nobody."""
NOWHERE = Place(0, 0, 0)


class Seen(NamedTuple):
    """What a pick saw of its session; its commit holds only while that is still so."""

    version: int
    instance: str


class SharedRow(Row):
    """One session's row in the working copy."""

    __slots__ = ("elsewhere", "elsewhere_until_s", "epoch", "life")

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere = ""
        """Where another router moves it to."""
        self.elsewhere_until_s = 0.0
        self.epoch = 0
        """Of its instance, when it was bound."""
        self.life = ""
        """Of the table that the epoch is of."""


class Claim:
    """The right to migrate a session, which one request of one router has at a time."""

    __slots__ = ("_bindings", "_then", "held", "instance", "seen", "session", "token")

    def __init__(
        self, bindings: SharedBindings, session: str, instance: str, seen: Seen, then: Callable[[bool], None]
    ) -> None:
        self.session = session
        self.instance = instance
        self.seen = seen
        self.token = uuid4().hex
        self.held = False
        """Redis may keep it: it was given, and nothing has ended it since."""
        self._bindings = bindings
        self._then: Callable[[bool], None] | None = then

    def abandon(self) -> None:
        """The answer is not waited for any longer."""
        self._then = None

    def release(self) -> None:
        """The request has ended. Where it was served, its commit has ended the claim."""
        self._then = None
        self._bindings.give_up(self)

    def answered(self, granted: bool) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(granted)


class SharedBindings(Bindings):
    """The table of sessions as one of several routers sees it; `names`: the instances that it counts sessions of."""

    row = SharedRow

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
        self._link = RedisLink(rules, counts, self._connected)
        self._life = ""
        self._life_to_be = uuid4().hex
        self._places: dict[str, Place] = {}
        self._claims: dict[str, Claim] = {}
        self._owed: dict[str, Place] = {}
        """Instances lost while Redis was away: it has to hear of it before anything else."""

    async def start(self) -> None:
        """Connect, or go on without."""
        await self._link.start()

    async def close(self) -> None:
        for claim in tuple(self._claims.values()):
            claim.release()
        await self._link.close()

    @property
    def shared(self) -> bool:
        """Redis is there."""
        return self._link.up

    def active(self, instance: str) -> int:
        """Sessions that live there now, of all routers; those on their way, of this one."""
        if not self._link.up or instance not in self._places:
            return super().active(instance)
        return self._places[instance].active + self._coming[instance]

    def assigned(self, instance: str) -> int:
        if not self._link.up or instance not in self._places:
            return super().assigned(instance)
        return self._places[instance].assigned + self._coming[instance]

    def moving_to(self, session: str) -> str:
        kept = self._row(session)
        if kept is None:
            return ""
        return kept.moving_to or (kept.elsewhere if self._clock() < kept.elsewhere_until_s else "")

    def seen(self, session: str) -> Seen:
        """What a pick sees of the session now."""
        kept = self._sessions.get(session)
        return Seen(kept.version, kept.instance) if kept else Seen(0, "")

    def ask(self, session: str, then: Callable[[int], None]) -> None:
        """Count a request of the session and see where it lives. `then` gets its turn, once; at once without Redis."""
        if not self._link.prompt:
            self._counts.binding_failures["away"] += 1
            then(self.arrive(session, self._clock()))
            return
        waiting = [then]

        def answered(found: TableRow | None) -> None:
            if found is not None:
                self._take(session, found)
            if waiting:
                waiting.pop()(found.turns - 1 if found is not None else self.arrive(session, self._clock()))

        self._call("arrive", session, self._hint(session), answered)

    def claim(self, session: str, instance: str, seen: Seen, then: Callable[[bool], None]) -> Claim | None:
        """Ask for the right to migrate the session to `instance`; `then` hears whether it is given, once.

        None = nobody can be asked: it is given. A claim lasts until it is released, which has to happen.
        """
        if not self._link.prompt:
            self._counts.binding_failures["away"] += 1
            return None
        made = Claim(self, session, instance, seen, then)
        self._claims[made.token] = made
        self._renew(made)
        return made

    def give_up(self, claim: Claim) -> None:
        """The session may be migrated by others."""
        asked = self._claims.pop(claim.token, None) is not None
        held, claim.held = claim.held, False
        if asked or held:  # no longer renewed where the session was bound elsewhere, and kept all the same
            self._call("unclaim", claim.session, (claim.token,), self._taker(claim.session))

    def commit_seen(
        self, session: str, instance: str, now: float, seen: Seen, *, migrates: bool = False, claim: Claim | None = None
    ) -> None:
        """`commit`, unless the session has been bound elsewhere since the pick saw it."""
        kept = self._row(session)
        if kept is not None and kept.version != seen.version and kept.instance != instance:
            kept.rejects.pop(instance, None)
            self._counts.binding_failures["refused"] += 1
            return
        before = kept.version if kept is not None else 0
        super().commit(session, instance, now, migrates=migrates)
        kept = self._row(session)
        assert kept is not None
        if kept.version == before:
            return
        self._moved_place(kept, seen.instance, instance)
        token = ""
        if claim is not None:
            token, claim.held = claim.token, False
            self._claims.pop(token, None)

        def answered(found: TableRow | None) -> None:
            if found is None:
                return
            self._take(session, found, anyhow=not found.granted)
            if not found.granted:
                self._counts.binding_failures["refused"] += 1

        self._call("commit", session, (instance, seen.version, seen.instance, migrates, token), answered)

    def release_instance(self, instance: str) -> tuple[str, ...]:
        gone = super().release_instance(instance)
        known = self._places.get(instance, NOWHERE)
        if self._link.up:
            self._lose(instance, known)
        else:
            self._owe(instance, known)
        return gone

    def rebalance(self, instance: str, among: Sequence[str]) -> tuple[str, ...]:
        """As in memory; with Redis every router hears where a session was moved to when its next request comes."""
        if not self._link.up:
            return super().rebalance(instance, among)
        names = tuple(sorted({*among, instance}))

        def answered(found: TableRow | None) -> None:
            if found is not None:
                self._places.update(found.places)
                if not found.granted:
                    self._call("rebalance", "", (instance, names, REBALANCED_AT_ONCE), answered)

        self._call("rebalance", "", (instance, names, REBALANCED_AT_ONCE), answered)
        return ()

    def look(self) -> None:
        """Once a second: how many sessions each instance has; claims are renewed, removed instances forgotten."""
        for gone in self._places.keys() - set(self._names()):
            del self._places[gone]
        if self._link.prompt:
            self._call("look", "", (), self._placed)
            for claim in tuple(self._claims.values()):
                self._renew(claim)

    # the table
    def _call(
        self, operation: str, session: str, values: tuple[object, ...], answered: Callable[[TableRow | None], None]
    ) -> None:
        names = self._names()
        rules = self._rules
        argument = request(rules.prefix, self.ttl_s, names, self._life_to_be, *values)
        key = f"{rules.prefix}s:{session}".encode("utf-8", "surrogatepass")
        self._link.call(
            operation, key, argument, lambda answer: answered(None if answer is None else row(answer, names))
        )

    def _connected(self) -> None:
        owed, self._owed = self._owed, {}
        for instance, known in owed.items():
            self._lose(instance, known)
        self._call("look", "", (), self._placed)

    def _lose(self, instance: str, known: Place) -> None:
        def answered(found: TableRow | None) -> None:
            if found is None:
                self._owe(instance, known)
            else:
                self._placed(found)

        self._call("lose", "", (instance, known.epoch, self._life), answered)

    def _owe(self, instance: str, known: Place) -> None:
        self._owed[instance] = known
        if len(self._owed) > OWED_KEPT:
            del self._owed[next(iter(self._owed))]

    def _renew(self, claim: Claim) -> None:
        def answered(found: TableRow | None) -> None:
            if found is None:
                claim.answered(True)
                return
            if not found.granted and self._claims.pop(claim.token, None) is not None:
                self._counts.binding_failures["refused"] += 1
                self._take(claim.session, found, anyhow=True)
            claim.held = claim.held or (found.granted and claim.token in self._claims)
            claim.answered(found.granted)

        claim_us = round(self._rules.claim_s * 1e6)
        values = (claim.instance, claim.seen.version, claim.seen.instance, claim.token, claim_us)
        self._call("claim", claim.session, values, answered)

    # the working copy
    def _row(self, session: str) -> SharedRow | None:
        kept = self._sessions.get(session)
        assert kept is None or isinstance(kept, SharedRow)
        return kept

    def _hint(self, session: str) -> Hint:
        kept = self._row(session)
        if kept is None:
            return Hint()
        since_s = None if kept.migrated_s is None else self._clock() - kept.migrated_s
        since_us = -1 if since_s is None else round(since_s * 1e6)
        return Hint(kept.instance, kept.version, kept.epoch, kept.life, since_us, kept.turns)

    def _taker(self, session: str) -> Callable[[TableRow | None], None]:
        def answered(found: TableRow | None) -> None:
            if found is not None:
                self._take(session, found)

        return answered

    def _take(self, session: str, found: TableRow, *, anyhow: bool = False) -> None:
        """Bring the working copy in line with the table; `anyhow`: also where it thought to know better."""
        self._placed(found)
        now = self._clock()
        kept = self._touch(session, now)
        assert isinstance(kept, SharedRow)
        kept.turns = max(kept.turns, found.turns)
        own = found.moving_by in self._claims
        kept.elsewhere = "" if own else found.moving_to
        kept.elsewhere_until_s = now + found.moving_left_s
        if found.version < kept.version and not anyhow:
            return  # what this router has decided is on its way there
        kept.migrated_s = None if found.since_migration_s is None else now - found.since_migration_s
        if found.instance != kept.instance:
            if found.instance:
                if kept.home != found.instance:
                    self._leave(kept)
                self._bind(kept, found.instance)
            else:
                kept.instance = ""
                self._settle(kept)
        kept.version, kept.life = found.version, found.life
        kept.epoch = found.places.get(found.instance, NOWHERE).epoch

    def _placed(self, found: TableRow | None) -> None:
        if found is not None:
            self._life = found.life
            self._places.update(found.places)

    def _moved_place(self, kept: SharedRow, source: str, target: str) -> None:
        """Count a session where it was just bound, until the table says so."""
        kept.life, kept.epoch = self._life, self._places.get(target, NOWHERE).epoch
        for name, more in ((source, -1), (target, 1)):
            place = self._places.get(name)
            if place is not None:
                self._places[name] = Place(max(0, place.active + more), place.assigned + (more > 0), place.epoch)
