"""Reports a running `routing` cell, live or simulated, as events; a live one also as a row per engine and second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from results.records.decisions import Role
from results.records.events import (
    CellProgressed,
    InstanceSampled,
    MigrationChanged,
    RoutedLine,
    RoutedLoad,
    RouterSampled,
)
from results.records.live import LiveLatency
from results.records.migrations import MigrationStep, TickMigration
from results.records.plan import CellPlan
from results.records.router_spec import InstanceSpec
from results.records.turns import EngineSample
from runners.campaign.engine_group import Member
from runners.errors import CellFailed
from runners.load.replay_messages import AnsweredBy, ReplayTick
from runners.router.messages import RouterTick, TickInstance, TickPick
from runners.samplers.engine import MetricsSampler
from runners.simulator.messages import SimulationTick


class EngineFacts(NamedTuple):
    """What a cell's events state of an engine, beside the router's name of it."""

    role: Role
    engine: str
    """Its name in the run, e.g. `e0-17`; empty = it is not an instance of the run."""


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
        self._facts = {member.name: EngineFacts(member.role, member.engine.name) for member in members}
        self._samplers = samplers
        self._path = path
        self._emit = emit
        self._cut = cut
        self._routed: Mapping[str, TickInstance] = {}
        self._latency = LiveLatency()
        self._unix_of_ns = time.time() - time.perf_counter_ns() / 1e9
        """Taken once: a pick that several ticks report has one time."""

    def __enter__(self) -> Self:
        self._file = self._path.open("wb", buffering=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def note_router_tick(self, tick: RouterTick) -> None:
        """The router's second, and what became of migrations in it."""
        self._routed = {load.instance: load for load in tick.instances}
        cell, begin_s = self._cell.cell, self._unix_of_ns
        moves = (migration_changed(cell, move, begin_s + move.t_ns / 1e9) for move in tick.migrations)
        lines = tuple(make_routed_line(pick, begin_s + pick.t_ns / 1e9) for pick in tick.latest)
        self._emit(*moves, router_sampled(cell, tick, self._facts, self._latency, lines))

    def note_replay_tick(self, tick: ReplayTick) -> None:
        """The replay's second: the engines are sampled with it."""
        self._latency = LiveLatency(tick.ttft_p50_s, tick.ttft_p90_s, tick.tpot_p50_s, tick.tpot_p90_s)
        t_ns = time.perf_counter_ns()
        samples = [self._take_sample(member, t_ns) for member in self._members]
        self._file.write(msgspec.json.Encoder().encode_lines(samples))
        events = make_instances_sampled(self._cell.cell, samples, tick, self._facts)
        note = f"{tick.completed} turns, {tick.inflight_sessions} sessions in flight"
        self._emit(*events, CellProgressed(self._cell.cell, tick.fraction, note))
        if not all(member.engine.alive() for member in self._members):
            self._cut.set()  # what follows would not measure the policy

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


class SimulatedWatch:
    """Fed by the ticks of a simulation. Its times are the host's, as far apart as the pace has them."""

    def __init__(
        self,
        cell: str,
        instances: Sequence[InstanceSpec],
        emit: Callable[..., None],
        names: Mapping[str, str] | None = None,
        pace: float = 0.0,
    ) -> None:
        """`names`: of the run's instances, by the router's; None = they are not instances of the run."""
        self._cell = cell
        self._emit = emit
        self._names = names
        self._pace = pace
        self._facts = {one.instance: EngineFacts(one.role, (names or {}).get(one.instance, "")) for one in instances}
        self._lines: dict[TickPick, RoutedLine] = {}

    def show(self, tick: SimulationTick) -> None:
        """What the tick reports, in the journal."""
        cell, replay, router = self._cell, tick.replay, tick.router
        now_s, now_ns, speed = time.time(), router.t_ns, self._pace or 1.0

        def unix_s(t_ns: int) -> float:
            return now_s - (now_ns - t_ns) / 1e9 / speed

        # a pick that several ticks list keeps its first time: it is one decision
        self._lines = {
            pick: self._lines.get(pick) or make_routed_line(pick, unix_s(pick.t_ns)) for pick in router.latest
        }
        latency = LiveLatency(replay.ttft_p50_s, replay.ttft_p90_s, replay.tpot_p50_s, replay.tpot_p90_s)
        sampled = make_instances_sampled(cell, tick.engines, replay, self._facts) if self._names else ()
        note = f"{replay.completed} turns, {replay.elapsed_s:.0f} simulated s"
        self._emit(
            *(migration_changed(cell, move, unix_s(move.t_ns)) for move in router.migrations),
            router_sampled(cell, router, self._facts, latency, tuple(self._lines.values())),
            *sampled,
            CellProgressed(cell, replay.fraction, note),
        )


def make_instances_sampled(
    cell: str, samples: Sequence[EngineSample], tick: ReplayTick, facts: Mapping[str, EngineFacts]
) -> Iterator[InstanceSampled]:
    """Each engine's second as the journal keeps it, with what the client saw of it."""
    answered = {each.instance: each for each in tick.instances}
    for sample in samples:
        client = answered.get(sample.instance, AnsweredBy(instance=sample.instance))
        yield InstanceSampled(
            instance=facts[sample.instance].engine,
            cell=cell,
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


def router_sampled(
    cell: str,
    tick: RouterTick,
    facts: Mapping[str, EngineFacts],
    latency: LiveLatency,
    lines: tuple[RoutedLine, ...],
) -> RouterSampled:
    """A router's tick as the journal keeps it, with what the client saw last. `lines`: its latest picks."""
    return RouterSampled(
        cell=cell,
        policy=tick.policy,
        instances=tuple(
            RoutedLoad(**asdict(load), role=facts[load.instance].role, engine=facts[load.instance].engine)
            for load in tick.instances
        ),
        sessions=tick.sessions,
        decisions=tick.decisions,
        latest=lines,
        latency=latency,
    )


def make_routed_line(pick: TickPick, t_unix_s: float) -> RoutedLine:
    """A pick as the journal keeps it."""
    return RoutedLine(t_unix_s, pick.request, pick.session, pick.instance, pick.reason)


def migration_changed(cell: str, move: TickMigration, t_unix_s: float) -> MigrationChanged:
    """A step of a migration as the journal keeps it."""
    step = {one.name: getattr(move, one.name) for one in fields(MigrationStep)}
    return MigrationChanged(**step, cell=cell, t_unix_s=t_unix_s)
