"""Proxied requests in any order of events, transfers included: each ends once, its transfer learns of it, no leaks."""

from __future__ import annotations

from typing import ClassVar, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from results.records.decisions import ClusterView, Decision, RoutedRequest
from results.records.router_spec import HealthRules, Limits
from runners.router.cluster import Cluster, Member
from runners.router.counts import Counts
from runners.router.dispatch import Dispatcher, Request
from runners.router.facts import ClientMessage
from runners.router.failure import Failure
from runners.router.health import Health
from runners.router.instances.upstream import Answer, Pool
from runners.router.ledger import Ledger, PendingOutcome, Pick
from runners.router.prefix_index import PrefixIndex
from runners.router.server.front import ClientConnection
from runners.router.server.proxy import ProxiedRequest
from runners.router.sessions.bindings import Bindings
from runners.router.traffic import Traffic
from runners.router.transfer.movement import Movement
from runners.simulator.clock import SimulatedClock
from runners.target import Target
from tests.examples import examples
from tests.runners.router.fake_transfers import FakeMovement, FakeTransfers
from tests.runners.router.views import is_idle

NAMES = ("a", "b", "c")
BLOCK = 4
KINDS = ("plain", "migrate", "pools")


class Choosing:
    """Sends a request as its id says: plain, with a migration, or through pools."""

    name: ClassVar[str] = "choosing"
    source: ClassVar[str] = "test"

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        up = [load.instance for load in cluster.instances if load.available and load.instance not in request.tried]
        kind, _, number = request.request.partition("-")
        if not up:
            return Decision("choosing", "", "no_instance", binds=False)
        target = up[int(number) % len(up)]
        others = [name for name in up if name != target]
        if kind == "pools" and others:
            return Decision("choosing", target, "pools", prefill=others[0], binds=False)
        if kind == "migrate":
            source = request.owner if request.owner not in ("", target) else next(iter(others), "")
            return Decision("choosing", target, "migrated", migrate_from=source)
        return Decision("choosing", target, "plain")


class FakePool:
    """Stores what is sent until it is answered."""

    def __init__(self, name: str) -> None:
        self.target = Target(name, 1, name, name, "", tls=False)
        self.open: list[ProxiedRequest] = []

    def make_post(self, path: bytes, headers: bytes, body: bytes) -> tuple[bytes, ...]:
        return (body,)

    def send_request(self, caller: ProxiedRequest, payload: tuple[bytes, ...]) -> None:
        assert caller not in self.open, "one attempt of a request at a time"
        self.open.append(caller)

    def cancel_request(self, caller: ProxiedRequest) -> None:
        if caller in self.open:
            self.open.remove(caller)


class FakeClient:
    """Counts how its request ended."""

    keep_alive = True

    def __init__(self) -> None:
        self.ends = 0
        self.left = False

    def write(self, data: bytes) -> None:
        assert not self.left

    def finish(self, *, keep: bool) -> None:
        self.ends += 1

    def abort(self) -> None:
        self.ends += 1

    def refuse(self, status: int, message: str, kind: str, headers: bytes = b"") -> None:
        assert not self.left
        self.ends += 1


class Notes:
    """The ledger without a clock."""

    stores_records = True

    def __init__(self) -> None:
        self.picks: list[Pick] = []
        self.outcomes: list[PendingOutcome] = []

    def add_pick(self, pick: Pick) -> None:
        self.picks.append(pick)

    def add_outcome(self, outcome: PendingOutcome) -> None:
        self.outcomes.append(outcome)

    def add_migration(self, pick: Pick, t_first_ns: int, movement: Movement | None) -> None:
        assert pick.decision.migrate_from


class Life(RuleBasedStateMachine):
    """Requests come, their transfers end or are given up, instances answer, fail, go and come, clients leave."""

    def __init__(self) -> None:
        super().__init__()
        self.bindings, self.counts, self.notes = Bindings(), Counts(), Notes()
        members = [Member(name, kv_capacity_tokens=10_000, block_tokens=BLOCK) for name in NAMES]
        self.cluster = Cluster(members, lambda: 0.0, self.bindings)
        self.pools = {name: FakePool(name) for name in NAMES}
        self.driver = SimulatedClock()
        health = Health(self.cluster, HealthRules(), self.driver, lambda *_: None, lambda _: None, lambda _: None)
        self.fake = FakeTransfers()
        indexes = {name: PrefixIndex(BLOCK) for name in NAMES}
        dispatcher = Dispatcher(
            Choosing(), self.cluster, self.bindings, indexes, cast(Ledger, self.notes), self.counts, BLOCK, self.driver
        )
        self.traffic = Traffic(dispatcher, health, self.counts, Limits(first_byte_s=10.0), self.fake)
        self.clients: dict[ProxiedRequest, FakeClient] = {}
        self.answered: set[ProxiedRequest] = set()

    @rule(kind=st.sampled_from(KINDS), session=st.sampled_from(("", "s", "t")), blocks=st.integers(0, 6))
    def send(self, kind: str, session: str, blocks: int) -> None:
        client = FakeClient()
        name = f"{kind}-{len(self.clients)}"
        turn = self.traffic.dispatcher.count_arrival(session)
        request = Request(name, session, turn, tuple(range(blocks)), blocks * BLOCK + 1, 16)
        message = ClientMessage(b"/v1/completions", b"", b'{"prompt": [1]}')
        proxied = ProxiedRequest(
            self.traffic, cast(dict[str, Pool], self.pools), cast(ClientConnection, client), request, message
        )
        self.clients[proxied] = client
        proxied.start_request()

    @precondition(lambda self: any(not one.over for one in self.fake.movements))
    @rule(data=st.data(), status=st.sampled_from(("transferred", "transferred", "failed", "refused")))
    def transfer_ends(self, data: st.DataObject, status: str) -> None:
        data.draw(st.sampled_from([one for one in self.fake.movements if not one.over])).finish(status)  # type: ignore[arg-type]

    @precondition(lambda self: self.at_instances())
    @rule(data=st.data(), status=st.sampled_from((200, 200, 200, 404, 429, 500, 503)))
    def answer(self, data: st.DataObject, status: int) -> None:
        """A head, and with it the first bytes of the body."""
        proxied = data.draw(st.sampled_from(self.at_instances()))
        if proxied in self.answered:
            return
        pool = self.pools[proxied.instance]
        answer = Answer(status, (), {}, chunked=True, sized=False, events=True)
        pool.open.remove(proxied)
        if proxied.receive_head(answer):
            pool.open.append(proxied)
            self.answered.add(proxied)
            proxied.receive_body(b"5\r\ndata:\r\n")

    @precondition(lambda self: self.at_instances())
    @rule(data=st.data(), kind=st.sampled_from(("ends", "closed", "stall", "connect")))
    def link_ends(self, data: st.DataObject, kind: str) -> None:
        proxied = data.draw(st.sampled_from(self.at_instances()))
        self.pools[proxied.instance].open.remove(proxied)
        answered = proxied in self.answered
        self.answered.discard(proxied)
        if kind == "ends" and answered:
            proxied.end_response(proven=True)
        else:
            proxied.fail_request(Failure(kind, kind))

    @precondition(lambda self: self.open())
    @rule(data=st.data(), what=st.sampled_from(("leave", "cut", "elsewhere", "timeout", "forgo")))
    def from_outside(self, data: st.DataObject, what: str) -> None:
        proxied = data.draw(st.sampled_from(self.open()))
        if what == "timeout" and (proxied in self.answered or proxied in self.traffic.moving):
            return
        if what == "forgo":
            if proxied in self.traffic.moving:
                proxied.give_up_transfer("too slow")
            return
        self.answered.discard(proxied)
        if what == "leave":
            self.clients[proxied].left = True
            proxied.abandon_request()
        elif what == "timeout":
            proxied.fail_attempt(Failure("timeout", "too slow"))
        else:
            proxied.cut_request("as asked", elsewhere=what == "elsewhere")

    @rule(instance=st.sampled_from(NAMES))
    def goes_or_comes(self, instance: str) -> None:
        load = next(load for load in self.cluster.take_view().instances if load.instance == instance)
        self.cluster.set_available(instance, not load.available, "gone")
        if not load.available:
            return
        for proxied in tuple(self.pools[instance].open):
            if proxied in self.answered:
                self.answered.discard(proxied)
                self.pools[instance].open.remove(proxied)
                proxied.fail_request(Failure("closed", "gone"))
        self.traffic.lose_instance(instance, "gone")

    @rule(seconds=st.sampled_from((0.0, 1e9)))
    def time_passes(self, seconds: float) -> None:
        self.traffic.sweep_waiting(self.at_s() + seconds)
        self.answered -= {proxied for proxied in self.answered if proxied not in self.traffic.streaming}

    def at_s(self) -> float:
        return max((proxied.t_dispatch_s for proxied in self.open()), default=0.0)

    def open(self) -> list[ProxiedRequest]:
        traffic = self.traffic
        return [cast(ProxiedRequest, one) for one in (*traffic.moving, *traffic.waiting, *traffic.streaming)]

    def at_instances(self) -> list[ProxiedRequest]:
        return [proxied for pool in self.pools.values() for proxied in pool.open]

    @invariant()
    def each_request_is_in_one_place_or_has_ended_once(self) -> None:
        traffic, open_ = self.traffic, self.open()
        assert len(open_) == len(set(open_))
        assert {*traffic.waiting, *traffic.streaming} == set(self.at_instances())
        for proxied, client in self.clients.items():
            assert client.ends == (0 if proxied in open_ or client.left else 1)

    @invariant()
    def transfers_belong_to_requests_that_wait_for_them(self) -> None:
        assert sum(not one.over for one in self.fake.movements) == len(self.traffic.moving)
        assert sum(one.open for one in self.fake.movements) <= len(self.traffic.waiting)

    @invariant()
    def counters_are_those_of_what_is_open(self) -> None:
        loads = self.cluster.take_view().instances
        for load in loads:
            assert min(load.pending_prefill_tokens, load.ongoing_tokens, load.ongoing_decode_tokens) >= 0
            own = sum(proxied.instance == load.instance for proxied in self.open())
            lent = sum(one.transfer.source == load.instance for one in self.prefilling())
            assert load.num_requests == own + lent
        assert self.open() or is_idle(loads)

    def prefilling(self) -> list[FakeMovement]:
        return [one for one in self.fake.movements if not one.over and one.transfer.purpose == "handover"]

    @invariant()
    def every_pick_has_ended_once_or_is_open(self) -> None:
        ended = [outcome.pick.seq for outcome in self.notes.outcomes]
        assert len(ended) == len(set(ended))
        assert len(ended) + len(self.open()) == len(self.notes.picks)
        for outcome in self.notes.outcomes:
            if outcome.movement is not None:
                assert outcome.movement.over
                assert not outcome.movement.open

    def teardown(self) -> None:
        for proxied in self.open():
            self.clients[proxied].left = True
            proxied.abandon_request()
        self.counters_are_those_of_what_is_open()
        self.every_pick_has_ended_once_or_is_open()
        assert not any(self.bindings.moving_to(session) for session in ("s", "t"))
        assert all(one.over and not one.open for one in self.fake.movements)


Life.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
