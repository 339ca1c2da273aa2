"""Exchanges in any order of events, transfers included: each ends once, each transfer hears its end, nothing leaks."""

from __future__ import annotations

from typing import ClassVar, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from results.decisions import ClusterView, Decision, RoutedRequest
from runners.router.bindings import Bindings
from runners.router.dispatch import Asked, Dispatcher
from runners.router.health import Health
from runners.router.ledger import End, Ledger, Pick
from runners.router.link import Answer, Failure
from runners.router.metrics import Counts
from runners.router.prefix_index import PrefixIndex
from runners.router.proxy import Exchange
from runners.router.response import Client
from runners.router.spec import HealthRules, Limits
from runners.router.traffic import Traffic
from runners.router.transfer import Movement, Transfers
from runners.router.upstream import Pool, Target
from runners.router.view import Cluster, Member, idle
from tests.runners.router.fake_transfers import FakeMovement, FakeTransfers

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
    """Keeps what is sent until somebody answers."""

    def __init__(self, name: str) -> None:
        self.target = Target(name, 1, name, name, "", tls=False)
        self.open: list[Exchange] = []

    def send(self, caller: Exchange, payload: tuple[bytes, ...]) -> None:
        assert caller not in self.open, "one request of an exchange at a time"
        self.open.append(caller)

    def cancel(self, caller: Exchange) -> None:
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

    def done(self, *, keep: bool) -> None:
        self.ends += 1

    def abort(self) -> None:
        self.ends += 1

    def refuse(self, status: int, message: str, kind: str, headers: bytes = b"") -> None:
        assert not self.left
        self.ends += 1


class Notes:
    """The ledger without a clock."""

    keeps_records = True

    def __init__(self) -> None:
        self.picks: list[Pick] = []
        self.ends: list[End] = []

    def picked(self, pick: Pick) -> None:
        self.picks.append(pick)

    def ended(self, end: End) -> None:
        self.ends.append(end)

    def migrated(self, pick: Pick, t_first_ns: int, movement: Movement | None) -> None:
        assert pick.decision.migrate_from


class Life(RuleBasedStateMachine):
    """Requests come, their transfers end or are given up, instances answer, fail, go and come, clients leave."""

    def __init__(self) -> None:
        super().__init__()
        self.bindings, self.counts, self.notes = Bindings(), Counts(), Notes()
        members = [Member(name, kv_capacity_tokens=10_000, block_tokens=BLOCK) for name in NAMES]
        self.cluster = Cluster(members, lambda: 0.0, self.bindings)
        self.pools = {name: FakePool(name) for name in NAMES}
        pools = cast(dict[str, Pool], self.pools)
        health = Health(self.cluster, pools, HealthRules(), lambda *_: None, lambda _: None)
        self.fake = FakeTransfers()
        indexes = {name: PrefixIndex(BLOCK) for name in NAMES}
        dispatcher = Dispatcher(
            Choosing(), self.cluster, self.bindings, indexes, cast(Ledger, self.notes), self.counts, BLOCK, lambda: 0.0
        )
        transfers = cast(Transfers, self.fake)
        self.traffic = Traffic(dispatcher, pools, health, self.counts, Limits(first_byte_s=10.0), transfers)
        self.clients: dict[Exchange, FakeClient] = {}
        self.answered: set[Exchange] = set()

    @rule(kind=st.sampled_from(KINDS), session=st.sampled_from(("", "s", "t")), blocks=st.integers(0, 6))
    def send(self, kind: str, session: str, blocks: int) -> None:
        client = FakeClient()
        name = f"{kind}-{len(self.clients)}"
        turn = self.traffic.dispatcher.arrived(session)
        asked = Asked(name, session, turn, tuple(range(blocks)), blocks * BLOCK + 1, 16)
        exchange = Exchange(self.traffic, cast(Client, client), asked, b"/v1/completions", b"", b'{"prompt": [1]}')
        self.clients[exchange] = client
        exchange.begin()

    @precondition(lambda self: any(not one.over for one in self.fake.asked))
    @rule(data=st.data(), status=st.sampled_from(("transferred", "transferred", "failed", "refused")))
    def transfer_ends(self, data: st.DataObject, status: str) -> None:
        data.draw(st.sampled_from([one for one in self.fake.asked if not one.over])).finish(status)  # type: ignore[arg-type]

    @precondition(lambda self: self.at_instances())
    @rule(data=st.data(), status=st.sampled_from((200, 200, 200, 404, 429, 500, 503)))
    def answer(self, data: st.DataObject, status: int) -> None:
        """A head, and with it the first bytes of the body."""
        exchange = data.draw(st.sampled_from(self.at_instances()))
        if exchange in self.answered:
            return
        pool = self.pools[exchange.instance]
        answer = Answer(status, (), chunked=True, sized=False, events=True)
        pool.open.remove(exchange)
        if exchange.answered(answer):
            pool.open.append(exchange)
            self.answered.add(exchange)
            exchange.body(b"5\r\ndata:\r\n")

    @precondition(lambda self: self.at_instances())
    @rule(data=st.data(), kind=st.sampled_from(("ends", "closed", "stall", "connect")))
    def link_ends(self, data: st.DataObject, kind: str) -> None:
        exchange = data.draw(st.sampled_from(self.at_instances()))
        self.pools[exchange.instance].open.remove(exchange)
        answered = exchange in self.answered
        self.answered.discard(exchange)
        if kind == "ends" and answered:
            exchange.finished(proven=True)
        else:
            exchange.failed(Failure(kind, kind))

    @precondition(lambda self: self.open())
    @rule(data=st.data(), what=st.sampled_from(("leave", "cut", "elsewhere", "timeout", "forgo")))
    def from_outside(self, data: st.DataObject, what: str) -> None:
        exchange = data.draw(st.sampled_from(self.open()))
        if what == "timeout" and (exchange in self.answered or exchange in self.traffic.moving):
            return
        if what == "forgo":
            if exchange in self.traffic.moving:
                exchange.forgo("too slow")
            return
        self.answered.discard(exchange)
        if what == "leave":
            self.clients[exchange].left = True
            exchange.abandon()
        elif what == "timeout":
            exchange.give_up_on(Failure("timeout", "too slow"))
        else:
            exchange.cut("told so", elsewhere=what == "elsewhere")

    @rule(instance=st.sampled_from(NAMES))
    def goes_or_comes(self, instance: str) -> None:
        load = next(load for load in self.cluster.view().instances if load.instance == instance)
        self.cluster.set_available(instance, not load.available, "gone")
        if not load.available:
            return
        for exchange in tuple(self.pools[instance].open):
            if exchange in self.answered:
                self.answered.discard(exchange)
                self.pools[instance].open.remove(exchange)
                exchange.failed(Failure("closed", "gone"))
        self.traffic.lost(instance, "gone")

    @rule(seconds=st.sampled_from((0.0, 1e9)))
    def time_passes(self, seconds: float) -> None:
        self.traffic.sweep_waiting(self.at_s() + seconds)
        self.answered -= {exchange for exchange in self.answered if exchange not in self.traffic.streaming}

    def at_s(self) -> float:
        return max((exchange.t_dispatch_s for exchange in self.open()), default=0.0)

    def open(self) -> list[Exchange]:
        return [*self.traffic.moving, *self.traffic.waiting, *self.traffic.streaming]

    def at_instances(self) -> list[Exchange]:
        return [exchange for pool in self.pools.values() for exchange in pool.open]

    @invariant()
    def each_request_is_in_one_place_or_has_ended_once(self) -> None:
        traffic, open_ = self.traffic, self.open()
        assert len(open_) == len(set(open_))
        assert {*traffic.waiting, *traffic.streaming} == set(self.at_instances())
        for exchange, client in self.clients.items():
            assert client.ends == (0 if exchange in open_ or client.left else 1)

    @invariant()
    def transfers_belong_to_requests_that_wait_for_them(self) -> None:
        assert sum(not one.over for one in self.fake.asked) == len(self.traffic.moving)
        assert sum(one.open for one in self.fake.asked) <= len(self.traffic.waiting)

    @invariant()
    def counters_are_those_of_what_is_open(self) -> None:
        loads = self.cluster.view().instances
        for load in loads:
            assert min(load.pending_prefill_tokens, load.ongoing_tokens, load.ongoing_decode_tokens) >= 0
            own = sum(exchange.instance == load.instance for exchange in self.open())
            lent = sum(one.transfer.source == load.instance for one in self.prefilling())
            assert load.num_requests == own + lent
        assert self.open() or idle(loads)

    def prefilling(self) -> list[FakeMovement]:
        return [one for one in self.fake.asked if not one.over and one.transfer.purpose == "handover"]

    @invariant()
    def every_pick_has_ended_once_or_is_open(self) -> None:
        ended = [end.pick.seq for end in self.notes.ends]
        assert len(ended) == len(set(ended))
        assert len(ended) + len(self.open()) == len(self.notes.picks)
        for end in self.notes.ends:
            if end.movement is not None:
                assert end.movement.over
                assert not end.movement.open

    def teardown(self) -> None:
        for exchange in self.open():
            self.clients[exchange].left = True
            exchange.abandon()
        self.counters_are_those_of_what_is_open()
        self.every_pick_has_ended_once_or_is_open()
        assert not any(self.bindings.moving_to(session) for session in ("s", "t"))
        assert all(one.over and not one.open for one in self.fake.asked)


Life.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
