"""EAR driven by real counters and bindings, in any order of events: how often a session migrates, and where to."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from results.records.decisions import Decision, InstanceLoad, RoutedRequest
from results.routing.migrations import count_pending_at, find_migrations
from runners.router.cluster import Cluster, CounterReservation, Member
from runners.router.policies.ear import EAR
from runners.router.sessions.bindings import Bindings
from tests.examples import examples
from tests.runners.router.logs import simulate
from tests.runners.router.views import is_idle

COOLDOWN_S = 10.0
HOT_TOKENS = 300
CAPACITY = 2000
SESSIONS = ("s0", "s1")


@dataclass
class Flight:
    """A request on its way or being served."""

    request: RoutedRequest
    decision: Decision
    reservation: CounterReservation
    moves: int
    """Migrations of its session that were served before its pick."""
    served: bool = False


class Life(RuleBasedStateMachine):
    """Requests arrive, are served, fail and end; instances go away and come back; time passes."""

    affinity = True

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.bindings = Bindings()
        members = [Member(name, kv_capacity_tokens=CAPACITY) for name in ("a", "b", "c")]
        self.cluster = Cluster(members, lambda: self.now, self.bindings)
        self.policy = EAR(hot_tokens=HOT_TOKENS, cooldown_s=COOLDOWN_S, affinity=self.affinity)
        self.flying: list[Flight] = []
        self.steady = True
        """No instance has been away."""
        self.migrated_s: dict[str, list[float]] = defaultdict(list)

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), arrived=st.booleans())
    def transfer_ends(self, data: st.DataObject, arrived: bool) -> None:
        """At any moment, maybe after the first byte, maybe again."""
        data.draw(st.sampled_from(self.flying)).reservation.end_transfer(arrived=arrived)

    @rule(seconds=st.sampled_from((0.0, 0.5, 3.0, 10.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(session=st.sampled_from(SESSIONS), tokens=st.integers(50, 900), tried=st.sampled_from(("", "", "", "b")))
    def send(self, session: str, tokens: int, tried: str) -> None:
        bindings = self.bindings
        request = RoutedRequest(
            "r", session, bindings.count_arrival(session, self.now), tokens, 50, 16, {bindings.find_owner(session): 16},
            bindings.find_owner(session),
            bindings.since_migration_s(session, self.now), tried=(tried,) if tried else (),
            moving_to=bindings.moving_to(session),
        )  # fmt: skip
        view = self.cluster.take_view()
        decision = self.policy.decide(request, view)
        if not decision.instance:
            return
        if decision.migrate_from:
            self.check(request, decision, {load.instance: load for load in view.instances})
        self.flying.append(
            Flight(request, decision, self.cluster.reserve_counters(decision, request), len(self.migrated_s[session]))
        )

    @rule(instance=st.sampled_from("abc"), tokens=st.sampled_from((150, 310, 800, 1200)))
    def load(self, instance: str, tokens: int) -> None:
        """A request of another client."""
        request = RoutedRequest("other", "", 0, tokens, 50, 16, {})
        decision = Decision("other", instance, "other", binds=False)
        self.flying.append(Flight(request, decision, self.cluster.reserve_counters(decision, request), 0))

    def check(self, request: RoutedRequest, decision: Decision, seen: dict[str, InstanceLoad]) -> None:
        """Section 4.3: never from one that is not hot, never to a busier or too small one, never from the dead."""
        source, target = seen[decision.migrate_from], seen[decision.instance]
        assert decision.migrate_from == request.owner
        assert decision.binds
        assert source.available
        assert decision.migrate_from not in request.tried
        assert source.pending_prefill_tokens > HOT_TOKENS
        assert target.pending_prefill_tokens < source.pending_prefill_tokens
        assert target.free_kv_tokens is not None
        assert target.free_kv_tokens >= request.input_tokens
        under_way = [one for one in self.flying if one.request.session == request.session and not one.served]
        assert not any(one.decision.migrate_from for one in under_way), "one migration of a session at a time"

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def first_byte(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.flying))
        if one.served:
            return
        one.served = True
        one.reservation.end_prefill()
        if not one.decision.binds:
            return
        session, migrates = one.request.session, bool(one.decision.migrate_from)
        before = self.bindings.find_owner(session)
        self.bindings.commit_binding(session, one.decision.instance, self.now, migrates=migrates)
        if migrates:
            self.migrated_s[session].append(self.now)
            assert self.bindings.find_owner(session) == one.decision.instance, "whatever is still open elsewhere"
        elif self.affinity and self.steady and not one.request.tried and one.moves < len(self.migrated_s[session]):
            # (one that found an instance failing is bound where it was served in the end)
            assert self.bindings.find_owner(session) == before, "what was picked before a migration does not undo it"

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """Served to its end, or failed before its first byte."""
        one = data.draw(st.sampled_from(self.flying))
        self.flying.remove(one)
        one.reservation.end()

    @rule(instance=st.sampled_from("abc"), up=st.sampled_from((True, True, True, False)))
    def turn(self, instance: str, up: bool) -> None:
        self.steady = self.steady and up
        self.cluster.set_available(instance, up, "" if up else "down")

    @invariant()
    def never_twice_within_the_cooldown(self) -> None:
        for moves in self.migrated_s.values():
            assert all(later - earlier >= COOLDOWN_S for earlier, later in pairwise(moves))
            assert len(moves) <= self.now / COOLDOWN_S + 1

    def teardown(self) -> None:
        for one in self.flying:
            one.reservation.end()
        assert is_idle(self.cluster.take_view().instances)
        assert not any(self.bindings.moving_to(session) for session in SESSIONS)


class LifeWithoutAffinity(Life):
    """The same for the migration-only ablation."""

    affinity = False


Life.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
LifeWithoutAffinity.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=40, deadline=None)
TestLife = Life.TestCase
TestLifeWithoutAffinity = LifeWithoutAffinity.TestCase


def test_the_microbenchmark_agrees_with_the_policy_about_its_log() -> None:
    records = simulate("ear", turns=8)
    measured = find_migrations(records, hot_tokens=150, cooldown_s=5.0)
    assert measured.thrash_rate.value == 0.0
    assert measured.asked == sum(record.decision.reason == "migrated" for record in records) > 5
    held = Counter(record.decision.reason for record in records)
    assert measured.refused == {
        gate: held[reason]
        for gate, reason in (("cooldown", "hot_cooldown"), ("one_at_a_time", "hot_moving"), ("target", "hot_no_target"))
        if held[reason]
    }
    assert all((count_pending_at(event.pick, event.pick.decision.migrate_from) or 0) > 150 for event in measured.events)


def test_a_session_whose_instance_stays_hot_migrates_once_in_a_cooldown() -> None:
    """Every instance has become hot whenever a turn comes: the case in which only the cooldown stands between."""
    life = Life()
    for _ in range(60):
        owner = life.bindings.find_owner("s0")
        if owner:  # its neighbors make it hot, and only it
            pending = {one.instance: one.pending_prefill_tokens for one in life.cluster.take_view().instances}
            if pending[owner] <= HOT_TOKENS:
                life.load(owner, 310)
        life.send("s0", 60, "")
        one = life.flying[-1]
        one.served = True
        one.reservation.end_prefill()
        life.bindings.commit_binding("s0", one.decision.instance, life.now, migrates=bool(one.decision.migrate_from))
        if one.decision.migrate_from:
            life.migrated_s["s0"].append(life.now)
            for held in [other for other in life.flying if other is not one]:
                held.reservation.end()
                life.flying.remove(held)
        one.reservation.end()
        life.flying.remove(one)
        life.now += 1.0
    life.never_twice_within_the_cooldown()
    assert Counter(len(moves) for moves in life.migrated_s.values()) == {6: 1}, "60 s, one at each 10 s"
    life.teardown()
