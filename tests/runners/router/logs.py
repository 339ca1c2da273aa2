"""Decision logs as a router would have written them: a policy over simulated sessions with real counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from results.records.decisions import DecisionRecord, RoutedOutcome, RoutedRequest
from runners.router.policies import make_policy
from runners.router.prefix_index import PrefixIndex, block_keys, cached_tokens
from runners.router.sessions.bindings import Bindings
from runners.router.view import Cluster, CounterReservation, Member

NEEDED: Mapping[str, Mapping[str, object]] = {"ear": {"hot_tokens": 150, "cooldown_s": 5.0}}
"""Parameters without a default, so chosen that they matter in `simulate`."""


def simulate(
    policy: str, *, sessions: int = 10, turns: int = 4, in_flight: int = 5, **parameters: object
) -> list[DecisionRecord]:
    """Records of `sessions` x `turns` requests over three instances, one a second, `in_flight` at a time."""
    names = ("e0", "e1", "e2")
    bindings, made = Bindings(), make_policy(policy, {**NEEDED.get(policy, {}), **parameters})
    cluster = Cluster([Member(name, kv_capacity_tokens=50_000) for name in names], lambda: 0.0, bindings)
    indexes = {name: PrefixIndex(16) for name in names}
    records: list[DecisionRecord] = []
    open_: list[tuple[DecisionRecord, CounterReservation]] = []

    def finish() -> None:
        record, reservation = open_.pop(0)
        reservation.end_prefill()
        if record.decision.binds:
            migrates = bool(record.decision.migrate_from)
            bindings.commit(record.request.session, record.decision.instance, float(len(records)), migrates=migrates)
        reservation.end()

    for turn in range(turns):
        for number in range(sessions):
            if len(open_) >= in_flight:
                finish()
            session, prompt = f"s{number}", [number] * (64 + 160 * turn + 32 * number)
            keys = block_keys(prompt, 16)
            cached = {name: cached_tokens(index, keys, len(prompt)) for name, index in indexes.items()}
            request = RoutedRequest(
                f"r{len(records):04d}",
                session,
                turn,
                len(prompt),
                32,
                16,
                cached,
                bindings.owner(session),
                bindings.since_migration_s(session, float(len(records))),
                moving_to=bindings.moving_to(session),
            )
            seen = cluster.view()
            decision = made.decide(request, seen)
            indexes[decision.instance].insert(keys)
            migration = "recomputed" if decision.migrate_from else ""
            held = cached[decision.instance]
            outcome = RoutedOutcome("ok", 200, 0.1, 0.5, len(prompt), held, 32, migration=migration)
            record = DecisionRecord(len(records), len(records) * 10**9, 20.0, request, seen, decision, outcome)
            records.append(record)
            open_.append((record, cluster.reserve(decision, request)))
    return records


def write_log(path: Path, records: Sequence[DecisionRecord]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    return path
