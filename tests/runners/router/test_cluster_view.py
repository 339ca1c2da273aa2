"""A view is what a rebuilt one would be, whatever has happened since the last."""

from __future__ import annotations

import random

import pytest

from results.records.decisions import ClusterView, Decision
from runners.router.cluster import Cluster, CounterReservation, Member
from runners.router.sessions.bindings import Bindings
from tests.runners.router.views import ask

NAMES = ("a", "b", "c", "d")


def rebuild_view(cluster: Cluster) -> ClusterView:
    for counters in cluster._counters.values():
        counters.load = None
    return cluster.take_view()


class Walk:
    """Random steps of one cluster with its bindings."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.now = 0.0
        self.bindings = Bindings(max_sessions=3, ttl_s=40.0)
        members = [Member(name, name, kv_capacity_tokens=10_000, block_tokens=16) for name in NAMES]
        self.cluster = Cluster(members, lambda: self.now, self.bindings)
        self.open: list[CounterReservation] = []

    def step(self) -> None:
        self.now += self.source.choice((0.0, 0.3, 5.0))
        pick = self.source.choice((self.reserve, self.reserve, self.go_on, self.go_on, self.bind, self.operate))
        pick()

    def reserve(self) -> None:
        names = [member.instance for member in self.cluster.members]
        target, other = self.source.choice(names), self.source.choice(names)
        kind = self.source.choice(("plain", "prefill", "migrate")) if other != target else "plain"
        decision = Decision(
            "walk", target, "walk",
            prefill=other if kind == "prefill" else "",
            migrate_from=other if kind == "migrate" else "",
            binds=self.source.random() < 0.7,
        )  # fmt: skip
        request = ask(self.source.randrange(2000), {other: 500}, session=self.source.choice(("", "s", "t", "u", "v")))
        self.open.append(self.cluster.reserve_counters(decision, request))

    def go_on(self) -> None:
        if not self.open:
            return
        held = self.source.choice(self.open)
        how = self.source.choice(("arrived", "lost", "first", "end"))
        if how == "end":
            held.end()
            self.open.remove(held)
        elif how == "first":
            held.end_prefill()
        else:
            held.end_transfer(arrived=how == "arrived")

    def bind(self) -> None:
        session, instance = self.source.choice(("s", "t", "u", "v")), self.source.choice(NAMES)
        how = self.source.choice(("commit", "arrive", "release", "expire", "lose"))
        if how == "commit":
            self.bindings.commit_binding(session, instance, self.now, migrates=self.source.random() < 0.3)
        elif how == "arrive":
            self.bindings.count_arrival(session, self.now)
        elif how == "release":
            self.bindings.release_session(session)
        elif how == "expire":
            self.bindings.expire_sessions(self.now)
        else:
            self.bindings.release_instance(instance)

    def operate(self) -> None:
        known = [member.instance for member in self.cluster.members]
        name = self.source.choice(known)
        how = self.source.choice(("up", "down", "pause", "drain", "resume", "capacity", "remove", "add"))
        if how in ("up", "down"):
            self.cluster.set_available(name, how == "up", "down")
        elif how == "pause":
            self.cluster.pause_instance(name, self.source.choice((0.0, 0.5, 8.0)))
        elif how == "drain":
            self.cluster.drain_instance(name)
        elif how == "resume" and self.cluster._counters[name].draining:
            self.cluster.add_member(Member(name, name))
        elif how == "capacity":
            self.cluster.set_capacity(name, self.source.choice((None, 5000, 20_000)))
        elif how == "remove" and len(known) > 2:
            self.cluster.remove_instance(name)
        elif how == "add":
            for missing in set(NAMES) - set(known):
                self.cluster.add_member(Member(missing, missing))


@pytest.mark.parametrize("seed", range(30))
def test_a_view_is_what_a_rebuilt_one_would_be(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(150):
        walk.step()
        seen = walk.cluster.take_view()
        assert seen == rebuild_view(walk.cluster)
        assert [load.instance for load in seen.instances] == sorted(load.instance for load in seen.instances)


def test_what_has_not_changed_is_the_same_object_in_the_next_view() -> None:
    cluster = Cluster([Member("a"), Member("b")], lambda: 0.0)
    before = cluster.take_view().instances
    cluster.reserve_counters(Decision("test", "b", "test", binds=False), ask())
    after = cluster.take_view().instances
    assert after[0] is before[0]
    assert after[1] is not before[1]
