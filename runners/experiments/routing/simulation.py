"""The cells of a simulated run: the router and replay of a live cell before engines that are a model.

As many processes as there are cores simulate one cell after another, and the journal takes each when it ends. A run
with a pace simulates one cell at a time, and its instances are in the journal as those of a live run are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from results.records.events import SIMULATED, InstanceChanged, InstanceState
from results.records.layout import TrialLayout
from results.records.plan import CellPlan
from results.records.router_spec import InstanceSpec, KvEndpoint
from results.records.samples import CounterSpan, PromptCounters
from results.records.simulation_spec import SimulationSpec
from results.records.turns import TraceRecord
from runners.campaign.adoption import adopt_if_complete
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.experiments.cells_ahead import CellsAhead
from runners.experiments.routing.artifacts import Replayed, adopt_cell, describe_engine, publish_cell
from runners.experiments.routing.engine_model import describe_engine_file, find_model, read_models, shape_model
from runners.experiments.routing.grid import Grid
from runners.experiments.routing.specs import make_replay_spec, make_router_spec
from runners.experiments.routing.trace import require_trace
from runners.experiments.routing.variations import vary_engine
from runners.experiments.routing.watch import SimulatedWatch
from runners.simulator.backends import LOCAL, LocalSimulations
from runners.simulator.engine_file import EngineFile
from runners.simulator.messages import SimulationOutcome, SimulationTick

ZERO = PromptCounters(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Task:
    """One simulation to run."""

    trace: TraceRecord
    spec: SimulationSpec
    layout: TrialLayout
    """What it writes, in the attempt's folder."""


class SimulatedCells:
    """Simulates the cells of one run, each once."""

    def __init__(self, grid: Grid, context: RunContext) -> None:
        self._grid = grid
        self._context = context
        self._models = read_models(grid)
        backend = LOCAL if grid.simulation is None else grid.simulation.backend
        self.ahead = CellsAhead(context, "replay", backend, self._simulate_ahead, self._adopt)

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        """Its outcome, maybe of an attempt that ran ahead. Raises CellFailed or RunnerError.

        Paced, no cell runs ahead of its turn: the console shows the one whose turn it is.
        """
        if not self._pace:
            return await self.ahead.run_cell(cell, attempt)
        return await adopt_if_complete(self._adopt, cell) or await self._simulate_paced(cell, attempt)

    @cached_property
    def _pace(self) -> float:
        """Simulated seconds per second; 0 = as fast as the host can."""
        return self._context.store.view().pace

    def _adopt(self, cell: CellPlan) -> CellOutcome | None:
        return adopt_cell(cell, self._context)

    async def _simulate_ahead(self, cell: CellPlan, attempt: int) -> CellOutcome:
        task = await self._prepare_task(cell, attempt)
        watch = SimulatedWatch(cell.cell, task.spec.router.instances, self._context.emit)

        def show(tick: SimulationTick) -> None:
            if cell.cell == self.ahead.turn:  # what runs ahead is not in the journal yet
                watch.show(tick)

        ended = await self.ahead.simulations.run(task.spec, task.layout.simulation_spec, show)
        return await self._publish(cell, attempt, task, ended)

    async def _simulate_paced(self, cell: CellPlan, attempt: int) -> CellOutcome:
        task = await self._prepare_task(cell, attempt)
        simulations = LocalSimulations()
        with self._announce_instances(cell, task.spec.router.instances) as names:
            watch = SimulatedWatch(cell.cell, task.spec.router.instances, self._context.emit, names, self._pace)
            try:
                ended = await simulations.run(task.spec, task.layout.simulation_spec, watch.show, self._pace)
            finally:
                await simulations.close()
        return await self._publish(cell, attempt, task, ended)

    @contextmanager
    def _announce_instances(self, cell: CellPlan, instances: Sequence[InstanceSpec]) -> Iterator[Mapping[str, str]]:
        """Instances of the run while the cell is simulated; gives their names by the router's, as of real engines."""
        assert cell.config is not None
        config, number, emit = cell.config, self._context.launcher.take_number, self._context.emit
        names = {one.instance: f"{one.instance}-{number(config)}" for one in instances}
        for state in (InstanceState.STARTING, InstanceState.READY):
            emit(*(InstanceChanged(name, config, state, started_by=SIMULATED) for name in names.values()))
        try:
            yield names
        finally:
            gone, reason = InstanceState.GONE, "its simulation has ended"
            emit(*(InstanceChanged(name, config, gone, reason=reason) for name in names.values()))

    async def _prepare_task(self, cell: CellPlan, attempt: int) -> _Task:
        context, folder = self._context, self._context.attempt_folder(cell, attempt)
        path = context.layout.trace_of(cell.params.get("trace", ""), cell.params["trace_number"])
        trace = await asyncio.to_thread(require_trace, path)
        spec = make_simulation_spec(cell, self._grid, self._models, path, trace.block_tokens, folder, context)
        return _Task(trace, spec, TrialLayout(folder))

    async def _publish(self, cell: CellPlan, attempt: int, task: _Task, ended: SimulationOutcome) -> CellOutcome:
        spans = {name: CounterSpan(ZERO, counters) for name, counters in ended.counters.items()}
        engines = tuple(describe_engine(one, spans[one.instance], SIMULATED) for one in task.spec.router.instances)
        model = describe_engine_file(find_model(self._models, cell.params.get("variation", "")))
        replayed = Replayed(ended.replay, ended.router, engines, spans, model)
        return await asyncio.to_thread(
            publish_cell, cell, attempt, self._grid, task.trace, replayed, task.layout.root, self._context
        )


def make_simulation_spec(
    cell: CellPlan,
    grid: Grid,
    engines: Mapping[str, EngineFile],
    trace: Path,
    block_tokens: int,
    folder: Path,
    context: RunContext,
) -> SimulationSpec:
    """`engines`: as `read_models` has them. `folder`: of the attempt."""
    assert grid.simulation is not None
    variation, roles = cell.params.get("variation", ""), cell.params["roles"]
    engine = vary_engine(find_model(engines, variation), variation)
    link = engine.link if cell.params["moves_kv"] else None
    endpoint = None if link is None else KvEndpoint("nixl", kv_bytes_per_token=link.kv_bytes_per_token)
    size = cell.params.get("kv_cache_memory_bytes")
    models = {f"e{index}": shape_model(grid, engine, role, size) for index, role in enumerate(roles)}
    instances = [
        InstanceSpec(name, f"http://{name}", role, model.kv_capacity_tokens, block_tokens, transfer=endpoint)
        for (name, model), role in zip(models.items(), roles, strict=True)
    ]
    router = make_router_spec(cell, grid, instances, folder)
    return SimulationSpec(
        router=router if grid.logs_decisions else replace(router, decisions_path=""),
        replay=make_replay_spec(cell, grid, context.profile.model, "http://simulated", trace, block_tokens, folder),
        models=models,
        link=link,
        samples_path=str(TrialLayout(folder).engines),
        step_noise=grid.simulation.step_noise,
        contention=grid.simulation.contention_share,
        router_latency_s=grid.simulation.router_s,
        prewarm_tokens=cell.params["parameters"].get("prewarm_tokens", 0),
        residuals=engine.residuals if grid.simulation.residual_noise is True else (),
    )
