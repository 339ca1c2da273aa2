"""The events that each second of a router appends to the journal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from results.records.events import Event, InstanceSampled, MigrationChanged, RoutedLine, RoutedLoad, RouterSampled
from results.records.live import LiveLatency
from results.records.migrations import TickMigration
from results.records.plan import CellPlan
from runners.campaign.engine_group import Member
from runners.experiments.routing.watch import EngineFacts, Watch, make_routed_line, migration_changed, router_sampled
from runners.load.replay_messages import AnsweredBy, ReplayTick
from runners.router.messages import RouterTick, TickInstance, TickPick
from runners.samplers.engine import MetricsSampler
from state.routing import fold_sample_into_routing

MEMBERS = tuple(
    Member(name, "both", cast(object, SimpleNamespace(name=engine, alive=lambda: True)), Path(name), None)  # type: ignore[arg-type]
    for name, engine in (("e0", "plain-5"), ("e1", "plain-6"))
)
S = 1_000_000_000
LATENCY = LiveLatency(0.1, 0.2, 0.01, 0.02)


def sampled(second: int, picks: tuple[int, ...]) -> RouterSampled:
    loads = (
        TickInstance("e0", True, "", 2, 300, 900, 4, 7),
        TickInstance("e1", False, "no answer", 0, 0, 0, 1, 3),
    )
    latest = tuple(TickPick(n * S, f"r-{n}", "s", "e0", "affinity") for n in picks)
    tick = RouterTick(second * S, "lmetric", loads, 5, {"affinity": 10}, latest, 0, 0)
    facts = {member.name: EngineFacts(member.role, member.engine.name) for member in MEMBERS}
    lines = tuple(make_routed_line(pick, 1_000.0 + pick.t_ns / S) for pick in latest)
    return router_sampled("trials/lmetric/t0", tick, facts, LATENCY, lines)


def test_the_journal_knows_the_router_s_counters_and_the_run_s_engines() -> None:
    assert sampled(3, (2,)) == RouterSampled(
        "trials/lmetric/t0",
        "lmetric",
        (
            RoutedLoad("e0", True, "", 2, 300, 900, 4, 7, engine="plain-5"),
            RoutedLoad("e1", False, "no answer", 0, 0, 0, 1, 3, engine="plain-6"),
        ),
        5,
        {"affinity": 10},
        (RoutedLine(1_002.0, "r-2", "s", "e0", "affinity"),),
        latency=LATENCY,
    )


def test_a_pick_that_two_ticks_tell_is_one_decision() -> None:
    first = fold_sample_into_routing(None, sampled(3, (1, 2)), 1_003.0, 1)
    second = fold_sample_into_routing(first, sampled(4, (1, 2, 3)), 1_004.0, 1)
    assert [line.request for line in second.lines] == ["r-1", "r-2", "r-3"]


def moved(phase: str, **more: object) -> TickMigration:
    return TickMigration("r-1", "s", 3, "e0", "e1", phase, t_ns=2 * S, **more)  # type: ignore[arg-type]


def test_every_step_of_a_migration_is_told_when_it_happened() -> None:
    done = moved("done", reason="transferred", external_tokens=640, bytes=327_680, transfer_s=0.02)
    assert migration_changed("trials/EAR/t0", done, 1_002.0) == MigrationChanged(
        "r-1",
        "s",
        3,
        "e0",
        "e1",
        "done",
        "transferred",
        "",
        640,
        327_680,
        0.02,
        cell="trials/EAR/t0",
        t_unix_s=1_002.0,
    )


def test_migrations_come_before_the_second_they_fell_in(tmp_path: Path) -> None:
    appended: list[Event] = []
    cell = CellPlan("trials/EAR/t0", "trials", "replay", "mooncake_both", "EAR", {}, 1.0)
    tick = RouterTick(3 * S, "ear", (), 1, {}, (), 0, 0, (moved("started"), moved("failed", reason="gone")))
    with Watch(
        cell, MEMBERS, {}, tmp_path / "engines.jsonl", lambda *events: appended.extend(events), asyncio.Event()
    ) as w:
        w.note_router_tick(tick)
    assert [getattr(event, "phase", event.kind) for event in appended] == ["started", "failed", "router_sampled"]


def test_an_engine_is_told_with_what_the_client_saw_of_it(tmp_path: Path) -> None:
    appended: list[Event] = []
    cell = CellPlan("trials/EAR/t0", "trials", "replay", "plain", "EAR", {}, 1.0)
    tick = ReplayTick(
        t_ns=1, elapsed_s=1.0, phase="replay", fraction=0.5, turns=4, sent=2, completed=1, failed=0, inflight=1,
        inflight_sessions=1, waiting_sessions=0, sessions_done=0, sessions=2, pending_prefill_tokens=0,
        instances=(AnsweredBy(0.1, 0.2, 0.3, instance="e0"),),
    )  # fmt: skip
    gauges = SimpleNamespace(latest=SimpleNamespace(running=1.0, waiting=0.0, kv_usage=0.1))
    samplers = {member.name: cast(MetricsSampler, gauges) for member in MEMBERS}
    with Watch(
        cell, MEMBERS, samplers, tmp_path / "engines.jsonl", lambda *events: appended.extend(events), asyncio.Event()
    ) as w:
        w.note_replay_tick(tick)
    sampled = {event.instance: event for event in appended if isinstance(event, InstanceSampled)}
    assert (sampled["plain-5"].ttft_p50_s, sampled["plain-5"].ttft_p90_s) == (0.1, 0.2)
    assert (sampled["plain-5"].tpot_p50_s, sampled["plain-5"].tpot_p90_s) == (0.3, None)
    assert sampled["plain-6"].ttft_p50_s is None
