"""Two routers and one real Redis, in any order of events: one owner, no move undone, no migration in a cooldown."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from runners.router.sessions.bindings import BindingVersion, MigrationClaim
from tests.examples import examples
from tests.runners.router.sessions.shared import NAMES, Watched, sharing
from tests.servers.redis_server import RedisServer

SESSIONS = ("s0", "s1")
ROUTERS = st.sampled_from((0, 1))


@dataclass(eq=False)
class Flight:
    """A request of a router, from its question on; where a policy would send it is known beforehand."""

    router: int
    session: str
    instance: str
    binding: BindingVersion
    may_migrate: bool = False
    claim: MigrationClaim | None = None
    granted: bool | None = None
    """None = not answered, or not asked."""


class Life(RuleBasedStateMachine):
    """The cooldown has no end here: a session migrates once at most. Nothing waits for Redis but where it says so."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.server.client().flushall()
        self.stack = sharing(self.server.url)
        self.routers: list[Watched] = self.runner.run(self.stack.__aenter__())
        self.asked: list[Flight] = []
        self.flying: list[Flight] = []

    def teardown(self) -> None:
        self.settle()
        for flight in tuple(self.flying):
            self._end(flight)
        self.settle()
        self.runner.run(self.stack.__aexit__(None, None, None))
        self.runner.close()

    @rule(router=ROUTERS, session=st.sampled_from(SESSIONS), instance=st.sampled_from(NAMES))
    def whole(self, router: int, session: str, instance: str) -> None:
        """A request that is served before anything else happens."""
        self.ask(router, session, instance)
        self._pick(self.asked[-1])
        self._serve(self.flying[-1])

    @rule(router=ROUTERS, session=st.sampled_from(SESSIONS), instance=st.sampled_from(NAMES))
    def ask(self, router: int, session: str, instance: str) -> None:
        """What is answered here is what the pick goes by, whatever the other router does before it."""
        bindings = self.routers[router]
        self.runner.run(bindings.turn(session))
        seen, since_s = bindings.find_version(session), bindings.since_migration_s(session, monotonic())
        may = seen.instance not in ("", instance) and since_s is None and not bindings.moving_to(session)
        self.asked.append(Flight(router, session, instance, seen, may_migrate=may))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def pick(self, data: st.DataObject) -> None:
        self._pick(data.draw(st.sampled_from(self.asked)))

    def _pick(self, flight: Flight) -> None:
        """A policy that migrates whatever it may, to any instance; where it may not, it leaves without its KV."""
        bindings, session, instance = self.routers[flight.router], flight.session, flight.instance
        self.asked.remove(flight)
        self.flying.append(flight)
        bindings.expect_binding(session, instance, migrates=flight.may_migrate)
        if not flight.may_migrate:
            return

        async def claim() -> None:
            def answered(granted: bool) -> None:
                flight.granted = granted

            flight.claim = bindings.claim_migration(session, instance, flight.binding, answered)

        self.runner.run(claim())

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def serve(self, data: st.DataObject) -> None:
        """The first byte, as late as it likes."""
        self._serve(data.draw(st.sampled_from(self.flying)))

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        self._end(data.draw(st.sampled_from(self.flying)))

    @rule(
        router=ROUTERS, session=st.sampled_from(SESSIONS), instance=st.sampled_from(NAMES), other=st.sampled_from(NAMES)
    )
    def overtaken(self, router: int, session: str, instance: str, other: str) -> None:
        """The other router serves the session between this one's question and its commit."""
        self.ask(router, session, instance)
        mine = self.asked[-1]
        self.whole(1 - router, session, other)
        self._pick(mine)
        self._serve(mine)

    @rule(router=ROUTERS, session=st.sampled_from(SESSIONS), instance=st.sampled_from(NAMES))
    def nothing_came_of_it(self, router: int, session: str, instance: str) -> None:
        self.ask(router, session, instance)
        mine = self.asked[-1]
        self._pick(mine)
        self.settle()
        self._end(mine)

    @rule(session=st.sampled_from(SESSIONS), instance=st.sampled_from(NAMES), other=st.sampled_from(NAMES))
    def race(self, session: str, instance: str, other: str) -> None:
        """Both ask before either picks."""
        self.ask(0, session, instance)
        self.ask(1, session, other)
        self._pick(self.asked[-1])
        self._pick(self.asked[-1])
        self.settle()

    @rule(router=ROUTERS, instance=st.sampled_from(NAMES))
    def lose(self, router: int, instance: str) -> None:
        """Its sessions have no owner, at either router."""
        self.settle()
        self._do(self.routers[router].release_instance, instance)
        self.settle()
        for session in SESSIONS:
            self.runner.run(self.routers[1 - router].turn(session))
            assert self.routers[1 - router].find_owner(session) != instance or self._coming(
                1 - router, session, instance
            )

    @rule(router=ROUTERS, instance=st.sampled_from(NAMES))
    def come_back(self, router: int, instance: str) -> None:
        self._do(self.routers[router].rebalance_sessions, instance, NAMES)

    @rule(router=ROUTERS)
    def second(self, router: int) -> None:
        self._do(self.routers[router].refresh_table)

    @rule()
    def settle(self) -> None:
        for router in self.routers:
            self.runner.run(router.settled())
        moving = Counter(flight.session for flight in self.flying if flight.granted)
        assert all(count == 1 for count in moving.values()), "a session on its way to two instances"

    @rule()
    def agree(self) -> None:
        """Whenever nothing is on its way, all say the same, and it is what Redis keeps."""
        self.settle()
        for router in self.routers:
            for session in SESSIONS:
                self.runner.run(router.turn(session))
        for session in SESSIONS:
            one, other = (router.find_version(session) for router in self.routers)
            assert one == other
            if not any(flight.session == session and flight.may_migrate for flight in self.flying):
                assert [router.moving_to(session) for router in self.routers] == ["", ""], "a claim without a holder"
        homes = Counter(self.routers[0].find_version(session).instance for session in SESSIONS)
        for router in self.routers:
            assert [router._instances[name].active for name in NAMES] == [homes[name] for name in NAMES]
            assert sum(one.assigned for one in router._instances.values()) >= sum(
                count for name, count in homes.items() if name
            )
        made = [commit for router in self.routers for commit in router.made]
        assert all(after == seen + 1 for _, seen, after, _ in made), "a commit undid what its pick had not seen"
        migrated = Counter(session for session, _, _, migrates in made if migrates)
        assert all(count == 1 for count in migrated.values()), "a migration within the cooldown of another"

    def _coming(self, router: int, session: str, instance: str) -> bool:
        wanted = (router, session, instance)
        return any((flight.router, flight.session, flight.instance) == wanted for flight in self.flying)

    def _serve(self, flight: Flight) -> None:
        if flight.claim is not None and flight.granted is None:
            self.settle()
        if flight.claim is None or flight.granted:
            self._do(self.routers[flight.router].serve, flight.session, flight.instance, flight.binding, flight.claim)
        self._end(flight)

    def _end(self, flight: Flight) -> None:
        self.flying.remove(flight)
        bindings = self.routers[flight.router]
        self._do(bindings.drop_expected, flight.session, flight.instance, migrates=flight.may_migrate)
        if flight.claim is not None:
            self._do(flight.claim.release_right)

    def _do(self, what: object, *values: object, **named: object) -> None:
        """In a running loop, which is not waited for: Redis learns of it some time later."""

        async def now() -> None:
            assert callable(what)
            what(*values, **named)

        self.runner.run(now())


def test_two_routers_agree_whatever_happens(tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server:
        Life.server = server
        state_machine = Life.TestCase
        state_machine.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
        state_machine("runTest").runTest()
