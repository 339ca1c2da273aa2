"""`capacity`: the fewest simulated instances with which each policy meets a latency objective."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import msgspec
import numpy as np

from results.capacity.read import read_points
from results.capacity.search import Assessed, Size, assess, trace_path
from results.capacity.write import write_results
from results.measures.turns import Turns, read_turns
from results.records.events import CellProgressed
from results.records.layout import TrialLayout, write_indented_json
from results.records.plan import CellPlan
from results.records.points import PointRecord
from runners.campaign.context import RunContext
from runners.campaign.experiment import NOT_NEEDED, CellOutcome
from runners.errors import CellSkipped
from runners.experiments.capacity.plan import CapacityGrid
from runners.experiments.cells_ahead import CellsAhead
from runners.experiments.routing.engine_model import describe_engine_file, read_models
from runners.experiments.routing.grid import make_slug
from runners.experiments.routing.plan import can_move, explain_no_trace, make_cell_params
from runners.experiments.routing.simulation import make_simulation_spec
from runners.experiments.routing.trace import require_trace, run_trace_cell
from runners.simulator.messages import SimulationTick
from state.model import RunView

OVER = f"{NOT_NEEDED}the search is over"
_POINT = msgspec.json.Decoder(PointRecord)


class Capacity:
    """Runs the cells of one run."""

    def __init__(self, grid: CapacityGrid, context: RunContext) -> None:
        self._grid = grid
        self._context = context
        self._policies = {grid.routing.label(policy): policy for policy in grid.routing.policies}
        config = context.configs[grid.routing.config]
        self._models = read_models(grid.routing)
        self._moves_kv = can_move(config, context.profile.engine.kind) and self._models[""].link is not None
        self._paths: dict[str, tuple[tuple[Size, ...], Size | None]] = {}
        """By label, as of `trace_path`; dropped when a further point is measured."""
        self._paths_lock = threading.Lock()
        """`adopt` runs in threads: none may store a path that it traced before the newest point."""
        assert grid.routing.simulation is not None
        backend = grid.routing.simulation.backend
        self.ahead = CellsAhead(context, "point", backend, self._simulate, self.adopt, self._is_ready)

    def explain_skip(self, cell: CellPlan, view: RunView) -> str:
        """Skips points without a trace, and points that the search does not need."""
        if cell.kind != "point":
            return ""
        if why := explain_no_trace(view):
            return why
        if self._is_ready(cell):
            return ""
        _, wanted = self._trace_path(cell.params["label"])
        return OVER if wanted is None else f"a point of {wanted.phrase} failed: the search cannot continue"

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        if cell.kind == "trace":
            return await run_trace_cell(self._grid.routing, self._context)
        if cell.kind == "analysis":
            await self.finish()
            return CellOutcome()
        return await self.ahead.run_cell(cell, attempt)

    def adopt(self, cell: CellPlan) -> CellOutcome | None:
        """The outcome of a point that is whole on disk; else None."""
        size = self._find_size(cell) if cell.kind == "point" else None
        if size is None:
            return None
        path = self._name_point_path(cell, size)
        return _describe_point(_POINT.decode(path.read_bytes())) if path.is_file() else None

    async def finish(self) -> None:
        await asyncio.to_thread(write_results, self._context.layout.root)

    async def release(self, reason: str) -> None:
        await self.ahead.stop()

    def _is_ready(self, cell: CellPlan) -> bool:
        return self._find_size(cell) is not None

    def _find_size(self, cell: CellPlan) -> Size | None:
        """Which size the cell simulates; None = the points before it are not all there, or the search is over."""
        visited, wanted = self._trace_path(cell.params["label"])
        sizes = visited if wanted is None else (*visited, wanted)
        step = cell.params["step"]
        return sizes[step] if step < len(sizes) else None

    def _trace_path(self, label: str) -> tuple[tuple[Size, ...], Size | None]:
        with self._paths_lock:
            if label not in self._paths:
                self._paths[label] = trace_path(self._grid.search(self._policies[label]), self._assess_points(label))
            return self._paths[label]

    def _assess_points(self, label: str) -> Mapping[Size, Assessed]:
        """Outcomes of the sizes whose traces have all been simulated."""
        points = read_points(self._context.layout.points / make_slug(label))
        return {
            size: assess(self._grid.limits, [one.values for one in rows], [one.completed / one.turns for one in rows])
            for size, rows in points.items()
            if len(rows) == self._grid.routing.trials
        }

    def _name_point_path(self, cell: CellPlan, size: Size) -> Path:
        return self._context.layout.point(make_slug(cell.params["label"]), size.text, cell.trial)

    async def _simulate(self, cell: CellPlan, attempt: int) -> CellOutcome:
        size, context = self._find_size(cell), self._context
        if size is None:
            raise CellSkipped(OVER)
        grid = msgspec.structs.replace(self._grid.routing, instances=size.instances)
        policy = msgspec.structs.replace(self._policies[cell.params["label"]], prefill_instances=size.prefill_instances)
        seed = context.store.plan.seed
        sized = replace(cell, params=make_cell_params(grid, policy, seed, cell.trial, 0, self._moves_kv))
        folder = context.attempt_folder(cell, attempt)
        path = context.layout.trace_of(sized.params.get("trace", ""), sized.params["trace_number"])
        trace = await asyncio.to_thread(require_trace, path)
        spec = make_simulation_spec(sized, grid, self._models, path, trace.block_tokens, folder, context)
        spec = replace(spec, router=replace(spec.router, decisions_path=""))  # no number needs the log

        def show(tick: SimulationTick) -> None:
            if cell.cell == self.ahead.turn:
                note = f"{size.phrase}, {tick.replay.completed} turns"
                context.emit(CellProgressed(cell.cell, tick.replay.fraction, note))

        begin_s = perf_counter()
        await self.ahead.simulations.run(spec, TrialLayout(folder).simulation_spec, show)
        turns, _ = await asyncio.to_thread(read_turns, TrialLayout(folder).metrics, 0)
        assert turns is not None
        point = PointRecord(
            label=cell.params["label"],
            instances=size.instances,
            prefill_instances=size.prefill_instances,
            trial=cell.trial,
            trace_sha256=trace.sha256,
            turns=trace.requests,
            completed=int(turns.completed.sum()),
            values={
                limit.name: find_percentile(turns, limit.metric, limit.percent, trace.requests)
                for limit in self._grid.limits
            },
            simulated=describe_engine_file(self._models[""]),
            simulation_s=perf_counter() - begin_s,
        )
        write_indented_json(self._name_point_path(cell, size), point)
        with self._paths_lock:
            self._paths.pop(point.label, None)
        shutil.rmtree(folder)  # a search has many points, and its answer needs these numbers alone
        return _describe_point(point)


def find_percentile(turns: Turns, metric: str, percent: int, planned: int) -> float | None:
    """Over all turns of the trace, in seconds; None where it falls on a turn that was not completed: never served."""
    values = turns.series(f"{metric}_s")[turns.completed]
    unserved = np.full(planned - int(turns.completed.sum()), np.inf)
    values = np.concatenate((values[np.isfinite(values)], unserved))
    if not values.size:
        return None
    with np.errstate(invalid="ignore"):
        value = float(np.quantile(values, percent / 100))
    return value if np.isfinite(value) else None


def _describe_point(point: PointRecord) -> CellOutcome:
    counts = {"instances": point.instances, "turns": point.turns, "completed": point.completed}
    pools = {"prefill_instances": point.prefill_instances} if point.prefill_instances else {}
    return CellOutcome({**counts, **pools, **{f"{name}_s": value for name, value in point.values.items()}})
