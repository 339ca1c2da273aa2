"""The cells of a simulated run: the router and replay of a live cell before engines that are a model.

A cell is a process of its own; as many run at once as there are cores, ahead of their turn in the journal.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from results.records.decisions import Role
from results.records.events import CellProgressed, RoutedLine, RoutedLoad, RouterSampled
from results.records.layout import TrialLayout
from results.records.live import LiveLatency
from results.records.plan import CellPlan
from results.records.samples import CounterSpan, PromptCounters
from results.records.turns import RoutedEngine
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.errors import CellFailed, CellSkipped
from runners.experiments.cells_ahead import CellsAhead
from runners.experiments.first_error import first_error
from runners.experiments.routing.artifacts import Replayed, adopt_cell, publish_cell, why_degraded
from runners.experiments.routing.engine_model import read_model, shape_model
from runners.experiments.routing.grid import Grid
from runners.experiments.routing.specs import make_replay_spec, make_router_spec
from runners.experiments.routing.trace import require_trace
from runners.experiments.routing.variations import vary_engine
from runners.experiments.routing.watch import migration_changed
from runners.router.spec import InstanceSpec, KvEndpoint
from runners.simulator.places import Simulations, open_simulations
from runners.simulator.spec import SimulationSpec, SimulationTick

ZERO = PromptCounters(0.0, 0.0)


class SimulatedCells:
    """Simulates the cells of one run, each once."""

    def __init__(self, grid: Grid, context: RunContext) -> None:
        self._grid = grid
        self._context = context
        self._ahead = CellsAhead(context, "replay", self._simulate, self._adopt, lambda: self._simulations.count_room())
        self.run_cell = self._ahead.run_cell

    @cached_property
    def _simulations(self) -> Simulations:
        """Opened by the first cell: a run that only reports needs no cluster."""
        assert self._grid.simulation is not None
        return open_simulations(self._grid.simulation.place)

    async def stop(self) -> None:
        """End what runs ahead."""
        await self._ahead.stop()

    def _adopt(self, cell: CellPlan) -> CellOutcome | None:
        return adopt_cell(cell, self._context)

    async def _simulate(self, cell: CellPlan, attempt: int) -> CellOutcome:
        if cell.params["parameters"].get("prewarm_tokens"):
            raise CellSkipped("pre-warming is not simulated")
        context, folder = self._context, self._context.attempt_folder(cell, attempt)
        written = TrialLayout(folder)
        path = context.layout.trace_of(cell.params.get("trace", ""), cell.params["trace_number"])
        trace = await asyncio.to_thread(require_trace, path)
        spec = make_simulation_spec(cell, self._grid, path, trace.block_tokens, folder, context)
        ended = await self._simulations.run(spec, written.router_spec, lambda tick: self._emit_tick(cell, spec, tick))
        if not ended.replay.completed:
            raise CellFailed(
                f"{ended.replay.failed} of {ended.replay.sent} turns failed and none was completed; "
                f"the first error was: {first_error(written.metrics)}"
            )
        spans = {name: CounterSpan(ZERO, counters) for name, counters in ended.counters.items()}
        engines = tuple(_describe_engine(spec, one, spans[one.instance]) for one in spec.router.instances)
        replayed = Replayed(ended.replay, ended.router, engines, spans)
        summary = await asyncio.to_thread(publish_cell, cell, attempt, self._grid, trace, replayed, folder, context)
        return CellOutcome(summary, why_degraded(ended.replay))

    def _emit_tick(self, cell: CellPlan, spec: SimulationSpec, tick: SimulationTick) -> None:
        """What runs ahead is not in the journal yet."""
        if cell.cell != self._ahead.turn:
            return
        replay, router = tick.replay, tick.router
        roles = {one.instance: one.role for one in spec.router.instances}
        unix_of_ns = time.time() - router.t_ns / 1e9
        note = f"{replay.completed} turns, {replay.elapsed_s:.0f} simulated s"
        self._context.emit(
            *(migration_changed(cell.cell, move, unix_of_ns) for move in router.migrations),
            RouterSampled(
                cell=cell.cell,
                policy=router.policy,
                instances=tuple(RoutedLoad(**asdict(load), role=roles[load.instance]) for load in router.instances),
                sessions=router.sessions,
                decisions=router.decisions,
                latest=tuple(
                    RoutedLine(unix_of_ns + pick.t_ns / 1e9, pick.request, pick.session, pick.instance, pick.reason)
                    for pick in router.latest
                ),
                latency=LiveLatency(replay.ttft_p50_s, replay.ttft_p90_s, replay.tpot_p50_s, replay.tpot_p90_s),
            ),
            CellProgressed(cell.cell, replay.fraction, note),
        )


def make_simulation_spec(
    cell: CellPlan, grid: Grid, trace: Path, block_tokens: int, folder: Path, context: RunContext
) -> SimulationSpec:
    """`folder`: of the attempt."""
    assert grid.simulation is not None
    engine, roles = vary_engine(read_model(grid), cell.params.get("variation", "")), cell.params["roles"]
    link = engine.link if cell.params["moves_kv"] else None
    endpoint = None if link is None else KvEndpoint("nixl", kv_bytes_per_token=link.kv_bytes_per_token)
    size = cell.params.get("kv_cache_memory_bytes")
    models = {f"e{place}": shape_model(grid, engine, role, size) for place, role in enumerate(roles)}
    instances = [
        _make_instance(name, role, models[name].kv_capacity_tokens, block_tokens, endpoint)
        for name, role in zip(models, roles, strict=True)
    ]
    return SimulationSpec(
        router=make_router_spec(cell, grid, instances, folder),
        replay=make_replay_spec(cell, grid, context.profile.model, "http://simulated", trace, block_tokens, folder),
        models=models,
        link=link,
        samples_path=str(TrialLayout(folder).engines),
        step_noise=grid.simulation.step_noise,
    )


def _make_instance(
    name: str, role: Role, capacity: int, block_tokens: int, endpoint: KvEndpoint | None
) -> InstanceSpec:
    return InstanceSpec(
        instance=name,
        url=f"http://{name}",
        role=role,
        kv_capacity_tokens=capacity,
        block_tokens=block_tokens,
        transfer=endpoint,
    )


def _describe_engine(spec: SimulationSpec, instance: InstanceSpec, span: CounterSpan) -> RoutedEngine:
    return RoutedEngine(
        instance=instance.instance,
        role=instance.role,
        url=instance.url,
        pid=None,
        started_by="simulated",
        block_tokens=instance.block_tokens,
        kv_capacity_tokens=instance.kv_capacity_tokens,
        prompt_tokens=span.gained("prompt_tokens"),
        cached_tokens=span.gained("cached_tokens"),
        prompt_tokens_by_source=span.gained_by_source(),
    )
