"""What is seen of a running `routing` cell: events, a row per engine and second, and whether all engines still live."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from results.records.events import (
    CellProgressed,
    Event,
    InstanceSampled,
    MigrationChanged,
    RoutedLine,
    RoutedLoad,
    RouterSampled,
)
from results.records.live import LiveLatency
from results.records.migrations import MigrationStep, TickMigration
from results.records.plan import CellPlan
from results.records.turns import EngineSample
from runners.campaign.engine_group import Member
from runners.errors import CellFailed
from runners.load.replay_spec import AnsweredBy, ReplayTick
from runners.router.spec import RouterTick, TickInstance
from runners.samplers.engine import MetricsSampler


class Watch:
    """Fed by the ticks of router and replay; cuts the replay when an engine has died."""

    def __init__(
        self,
        cell: CellPlan,
        members: Sequence[Member],
        samplers: Mapping[str, MetricsSampler],
        path: Path,
        emit: Callable[..., None],
        cut: asyncio.Event,
    ) -> None:
        self._cell = cell
        self._members = tuple(members)
        self._samplers = samplers
        self._path = path
        self._emit = emit
        self._cut = cut
        self._routed: Mapping[str, TickInstance] = {}
        self._latency = LiveLatency()
        self._unix_of_ns = time.time() - time.perf_counter_ns() / 1e9
        """Taken once: a pick that several ticks tell has one time."""

    def __enter__(self) -> Self:
        self._file = self._path.open("wb", buffering=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def router_tick(self, tick: RouterTick) -> None:
        """The router's second, and what became of migrations in it."""
        self._routed = {load.instance: load for load in tick.instances}
        moves = (migration_changed(self._cell.cell, move, self._unix_of_ns) for move in tick.migrations)
        self._emit(*moves, router_sampled(self._cell.cell, tick, self._members, self._latency, self._unix_of_ns))

    def replay_tick(self, tick: ReplayTick) -> None:
        """The replay's second: the engines are sampled with it."""
        self._latency = LiveLatency(tick.ttft_p50_s, tick.ttft_p90_s, tick.tpot_p50_s, tick.tpot_p90_s)
        t_ns = time.perf_counter_ns()
        samples = [self._take_sample(member, t_ns) for member in self._members]
        self._file.write(msgspec.json.Encoder().encode_lines(samples))
        answered = {each.instance: each for each in tick.instances}
        seen = [answered.get(member.name, AnsweredBy(instance=member.name)) for member in self._members]
        events: list[Event] = [
            InstanceSampled(
                instance=member.engine.name,
                cell=self._cell.cell,
                ttft_p50_s=client.ttft_p50_s,
                ttft_p90_s=client.ttft_p90_s,
                tpot_p50_s=client.tpot_p50_s,
                tpot_p90_s=client.tpot_p90_s,
                running=sample.running,
                waiting=sample.waiting,
                kv_usage=sample.kv_usage,
                pending_prefill_tokens=sample.pending_prefill_tokens,
                inflight=sample.num_requests or 0,
            )
            for member, sample, client in zip(self._members, samples, seen, strict=True)
        ]
        self._emit(*events, CellProgressed(self._cell.cell, tick.fraction, _progress_note(tick)))
        if not all(member.engine.alive() for member in self._members):
            self._cut.set()  # what is measured from here on is not the policy

    async def require_engines(self) -> None:
        """Raises CellFailed that explains the death of an engine."""
        for member in self._members:
            if died := await member.engine.explain_death():
                raise CellFailed(f"{member.name} {died}")

    def _take_sample(self, member: Member, t_ns: int) -> EngineSample:
        gauges, routed = self._samplers[member.name].latest, self._routed.get(member.name)
        return EngineSample(
            t_ns=t_ns,
            instance=member.name,
            running=gauges.running,
            waiting=gauges.waiting,
            kv_usage=gauges.kv_usage,
            pending_prefill_tokens=None if routed is None else routed.pending_prefill_tokens,
            num_requests=None if routed is None else routed.num_requests,
        )


def router_sampled(
    cell: str, tick: RouterTick, members: Sequence[Member], latency: LiveLatency, unix_of_ns: float
) -> RouterSampled:
    """A router's tick as the journal keeps it, with what the client saw last."""
    known = {member.name: member for member in members}
    return RouterSampled(
        cell=cell,
        policy=tick.policy,
        instances=tuple(
            RoutedLoad(**asdict(load), role=known[load.instance].role, engine=known[load.instance].engine.name)
            for load in tick.instances
        ),
        sessions=tick.sessions,
        decisions=tick.decisions,
        latest=tuple(
            RoutedLine(unix_of_ns + pick.t_ns / 1e9, pick.request, pick.session, pick.instance, pick.reason)
            for pick in tick.latest
        ),
        latency=latency,
    )


def migration_changed(cell: str, move: TickMigration, unix_of_ns: float) -> MigrationChanged:
    """A step of a migration as the journal keeps it."""
    step = {one.name: getattr(move, one.name) for one in fields(MigrationStep)}
    return MigrationChanged(**step, cell=cell, t_unix_s=unix_of_ns + move.t_ns / 1e9)


def _progress_note(tick: ReplayTick) -> str:
    return f"{tick.completed} turns, {tick.inflight_sessions} sessions in flight"
