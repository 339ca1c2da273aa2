"""Decision logs as a router would have written them: a policy over simulated sessions with real counters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from results.records.decisions import ClusterView, Decision, DecisionRecord, RoutedOutcome, RoutedRequest
from runners.router.cluster import Cluster, CounterReservation, Member
from runners.router.policies import make_policy
from runners.router.prefix_index import PrefixIndex, count_cached_by_instance, make_block_keys
from runners.router.sessions.bindings import Bindings

NEEDED: Mapping[str, Mapping[str, object]] = {"ear": {"hot_tokens": 150, "cooldown_s": 5.0}}
"""Parameters without a default, so chosen that they matter in `simulate`."""


class Sent(NamedTuple):
    """A request on its way."""

    request: RoutedRequest
    view: ClusterView
    decision: Decision
    reservation: CounterReservation


class PolicyRouter:
    """A policy with real counters, bindings and prefix indexes: what the server does, without a network."""

    def __init__(self, policy: str, instances: int, capacity: int | None = None, **parameters: object) -> None:
        names = [f"e{number}" for number in range(instances)]
        self.now = 0.0
        self.bindings = Bindings()
        members = [Member(name, kv_capacity_tokens=capacity) for name in names]
        self.cluster = Cluster(members, lambda: 0.0, self.bindings)
        self.indexes = {name: PrefixIndex(16) for name in names}
        self.policy = make_policy(policy, {**NEEDED.get(policy, {}), **parameters})

    def send(self, session: str, prompt: list[int], name: str = "r") -> Sent:
        keys, bindings = make_block_keys(prompt, 16), self.bindings
        cached = count_cached_by_instance(self.indexes, keys, len(prompt))
        turn, owner = bindings.count_arrival(session, self.now), bindings.find_owner(session)
        since_s, moving_to = bindings.since_migration_s(session, self.now), bindings.moving_to(session)
        request = RoutedRequest(
            name, session, turn, len(prompt), 32, 16, cached, owner, since_s, moving_to=moving_to
        )  # fmt: skip
        view = self.cluster.take_view()
        decision = self.policy.decide(request, view)
        self.indexes[decision.instance].insert_keys(keys)
        return Sent(request, view, decision, self.cluster.reserve_counters(decision, request))

    def finish(self, sent: Sent) -> None:
        decision = sent.decision
        sent.reservation.end_prefill()
        if decision.binds:
            migrates = bool(decision.migrate_from)
            self.bindings.commit_binding(sent.request.session, decision.instance, self.now, migrates=migrates)
        sent.reservation.end()


def simulate(
    policy: str, *, sessions: int = 10, turns: int = 4, in_flight: int = 5, **parameters: object
) -> list[DecisionRecord]:
    """Records of `sessions` x `turns` requests over three instances, one a second, `in_flight` at a time."""
    router = PolicyRouter(policy, 3, 50_000, **parameters)
    records: list[DecisionRecord] = []
    flying: list[Sent] = []
    for turn, number in itertools.product(range(turns), range(sessions)):
        router.now = float(len(records))
        if len(flying) >= in_flight:
            router.finish(flying.pop(0))
        prompt = [number] * (64 + 160 * turn + 32 * number)
        sent = router.send(f"s{number}", prompt, f"r{len(records):04d}")
        flying.append(sent)
        held = sent.request.cached_tokens[sent.decision.instance]
        migration = "recomputed" if sent.decision.migrate_from else ""
        outcome = RoutedOutcome("ok", 200, 0.1, 0.5, len(prompt), held, 32, migration=migration)
        seq = len(records)
        records.append(DecisionRecord(seq, seq * 10**9, 20.0, sent.request, sent.view, sent.decision, outcome))
    return records


def write_log(path: Path, records: Sequence[DecisionRecord]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return path
