"""The cells of a simulated run: the router and replay of a live cell before engines that are a model.

A cell is a process of its own. As many run at once as there are cores, in the order of the plan and ahead of their turn
in the journal: a cell that was finished ahead is adopted when its turn comes, also by a later run process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from results.records.decisions import Role
from results.records.events import CellProgressed, CellState, RoutedLine, RoutedLoad, RouterSampled
from results.records.layout import TrialLayout
from results.records.live import LiveLatency
from results.records.plan import CellPlan
from results.records.samples import CounterSpan, PromptCounters
from results.records.turns import RoutedEngine
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.errors import CellFailed, CellSkipped
from runners.experiments.requests import first_error
from runners.experiments.routing.artifacts import Replayed, adopt_trial, put_in_place, why_degraded
from runners.experiments.routing.engine_model import read_model, shape_model
from runners.experiments.routing.grid import Grid
from runners.experiments.routing.plan import count_cores
from runners.experiments.routing.specs import make_replay_spec, make_router_spec
from runners.experiments.routing.trace import require_trace
from runners.experiments.routing.watch import migration_changed
from runners.router.spec import InstanceSpec, KvEndpoint
from runners.simulator.process import run_simulation
from runners.simulator.spec import SimulationSpec, SimulationTick

ZERO = PromptCounters(0.0, 0.0)


class SimulatedCells:
    """Simulates the cells of one run, each once."""

    def __init__(self, grid: Grid, context: RunContext) -> None:
        self._grid = grid
        self._context = context
        self._cores = count_cores()
        self._tasks: dict[str, asyncio.Task[CellOutcome]] = {}
        """Those that run, or have ended and wait for their turn."""
        self._ahead: Iterator[tuple[CellPlan, int]] = iter(())
        self._turn = ""
        """The cell that the journal has running."""

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        """Its outcome, maybe of an attempt that ran ahead. Raises CellFailed, CellSkipped or RunnerError."""
        finished = await asyncio.to_thread(adopt_trial, self._context, cell)
        if cell.cell not in self._tasks:
            if finished is not None:
                return finished
            self._ahead = iter(self._list_ahead(cell))
            self._begin(cell, attempt)
        self._fill_cores()
        self._turn = cell.cell
        task = self._tasks.pop(cell.cell)
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        finally:
            self._turn = ""

    async def stop(self) -> None:
        """End what runs ahead."""
        tasks, self._tasks, self._ahead = tuple(self._tasks.values()), {}, iter(())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _list_ahead(self, first: CellPlan) -> list[tuple[CellPlan, int]]:
        """Cells that are still to be simulated, in the order of the plan, with their next attempts."""
        view = self._context.store.view()
        pending = (cell for cell in view.plan.cells if view.cells[cell.cell].state is CellState.PENDING)
        return [
            (cell, view.cells[cell.cell].attempt + 1)
            for cell in pending
            if cell.kind == "replay" and cell.cell != first.cell
        ]

    def _fill_cores(self) -> None:
        running = sum(not task.done() for task in self._tasks.values())
        while running < self._cores and (pair := next(self._ahead, None)) is not None:
            cell, attempt = pair
            if cell.cell not in self._tasks and adopt_trial(self._context, cell) is None:
                self._begin(cell, attempt)
                running += 1

    def _begin(self, cell: CellPlan, attempt: int) -> None:
        task = asyncio.create_task(self._simulate(cell, attempt))
        task.add_done_callback(lambda ended: None if ended.cancelled() else self._fill_cores())
        self._tasks[cell.cell] = task

    async def _simulate(self, cell: CellPlan, attempt: int) -> CellOutcome:
        if cell.params["parameters"].get("prewarm_tokens"):
            raise CellSkipped("pre-warming is not simulated")
        context, folder = self._context, self._context.attempt_folder(cell, attempt)
        written = TrialLayout(folder)
        path = context.layout.trace_of(cell.params.get("trace", ""), cell.params["trace_number"])
        trace = await asyncio.to_thread(require_trace, path)
        spec = make_simulation_spec(cell, self._grid, path, trace.block_tokens, folder, context)
        ended = await run_simulation(spec, written.router_spec, lambda tick: self._emit_tick(cell, spec, tick))
        if not ended.replay.completed:
            raise CellFailed(
                f"{ended.replay.failed} of {ended.replay.sent} turns failed and none was completed; "
                f"the first error was: {first_error(written.metrics)}"
            )
        spans = {name: CounterSpan(ZERO, counters) for name, counters in ended.counters.items()}
        engines = tuple(_describe_engine(spec, one, spans[one.instance]) for one in spec.router.instances)
        replayed = Replayed(ended.replay, ended.router, engines, spans)
        summary = await asyncio.to_thread(put_in_place, cell, attempt, self._grid, trace, replayed, folder, context)
        return CellOutcome(summary, why_degraded(ended.replay))

    def _emit_tick(self, cell: CellPlan, spec: SimulationSpec, tick: SimulationTick) -> None:
        """What runs ahead is not in the journal yet."""
        if cell.cell != self._turn:
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
    engine, roles = read_model(grid), cell.params["roles"]
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
