"""`pd-lifecycle`: one request under prefill/decode disaggregation, taken apart into its phases.

specs/pd_lifecycle. One request at a time goes through the router to a prefill and a decode engine, over a grid of what
both caches hold, what is new, and how long the answer is. Stages: pre-flight and transfer probe, sweep, analysis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from launch.errors import LaunchError
from launch.patching import PatchUse
from results.lifecycle.analysis import analyse_lifecycle
from results.lifecycle.record import LifecycleLayout
from runners.campaign import Outcome
from runners.context import RunContext
from runners.errors import CellFailed, RunnerError
from runners.experiments.gates import counterpart_of, preflight, why_gated
from runners.experiments.pd_lifecycle_artifacts import adopted, keep_failure, put_in_place
from runners.experiments.pd_lifecycle_bench import Bench, BenchSlot
from runners.experiments.pd_lifecycle_caches import NotEmptied
from runners.experiments.pd_lifecycle_cell import LifecycleCell, Measurements
from runners.experiments.pd_lifecycle_grid import EXPERIMENT, Grid
from runners.experiments.pd_lifecycle_link import find_link, write_link
from runners.experiments.pd_lifecycle_plan import PROBE_CELL, shape_of
from state.events import Noted
from state.run import CellPlan, CellState
from state.view import RunView


class PdLifecycle:
    """Runs the cells of one `pd-lifecycle` run."""

    name = EXPERIMENT

    def __init__(self, grid: Grid, context: RunContext) -> None:
        self._grid = grid
        self._context = context
        self._patches = PatchUse(context.engine)
        self._slot = BenchSlot(grid, context)
        self._cells: dict[str, Callable[[CellPlan, int], Awaitable[Outcome]]] = {
            "probe": self._apply_probe,
            "preflight": self._preflight,
            "link": self._link,
            "lifecycle": self._measure,
            "revert": self._revert_probe,
            "analysis": self._analyse,
        }

    def why_skip(self, cell: CellPlan, view: RunView) -> str:
        """Cells beyond the engines' context, and all of them where a config or the probe did not pass."""
        if cell.kind not in ("preflight", "lifecycle"):
            return ""
        probe = view.cells.get(PROBE_CELL)
        if probe is not None and probe.state is CellState.FAILED:
            return f"the probes could not be applied: {probe.reason}"
        if cell.kind == "preflight":
            return ""
        gates = (why_gated(replace(cell, config=config), view) for config in self._grid.configs)
        return str(cell.params["why_not"]) or next((why for why in gates if why), "")

    async def run_cell(self, cell: CellPlan, attempt: int) -> Outcome:
        """Run the cell by its kind."""
        return await self._cells[cell.kind](cell, attempt)

    def adopt(self, cell: CellPlan) -> Outcome | None:
        """A cell of the sweep with its commit mark in place, and every file that it names whole."""
        return adopted(cell, self._context) if cell.kind == "lifecycle" else None

    async def finish(self) -> None:
        """Remove the probes and analyse again: cells were added after both had been done."""
        await asyncio.to_thread(self._patches.revert)
        await asyncio.to_thread(analyse_lifecycle, self._context.layout.root)

    async def release(self, reason: str) -> None:
        """Stop the engines at hand, and the router before them."""
        await self._slot.release()
        await self._context.slot.release(reason)

    async def _apply_probe(self, cell: CellPlan, attempt: int) -> Outcome:
        """Without the probes nothing between the router and the client is stamped, and a CPU engine cannot transfer."""
        status = await asyncio.to_thread(self._patches.apply)
        return Outcome({"version": status.version, "reason": status.reason})

    async def _revert_probe(self, cell: CellPlan, attempt: int) -> Outcome:
        await self.release("the probes are removed")
        status = await asyncio.to_thread(self._patches.revert)
        return Outcome({"applied": status.applied, "reason": status.reason})

    async def _preflight(self, cell: CellPlan, attempt: int) -> Outcome:
        assert cell.config is not None
        await asyncio.to_thread(self._patches.apply)
        return await preflight(cell, attempt, self._context, counterpart_of(self._context, cell.config))

    async def _link(self, cell: CellPlan, attempt: int) -> Outcome:
        link = await asyncio.to_thread(find_link, self._grid, self._context.profile)
        write_link(LifecycleLayout(self._context.layout.root).folder / "link.json", link)
        return Outcome({"gbps": link.gbps, "from": link.known_from, "reason": link.reason})

    async def _measure(self, cell: CellPlan, attempt: int) -> Outcome:
        context, found = self._context, Measurements()
        try:
            bench = await self._bench(cell)
            folder = context.attempt_folder(cell, attempt)
            lifecycle = LifecycleCell(cell, attempt, self._grid, bench, folder, context.emit, found)
            await lifecycle.run(context.profile.model.served_name)
        except (CellFailed, LaunchError, RunnerError) as error:
            await asyncio.to_thread(keep_failure, cell, attempt, str(error), found, context)
            raise
        return await asyncio.to_thread(put_in_place, cell, attempt, self._grid, bench, found, folder, context)

    async def _bench(self, cell: CellPlan) -> Bench:
        """The bench at hand with caches that hold the cell's C already, or nothing; else a fresh one."""
        # The probes may have been removed since they were applied: by this run's analysis before a retry.
        await asyncio.to_thread(self._patches.apply)
        bench = await self._slot.get(cell)
        if not bench.caches.used or bench.caches.seeded(shape_of(cell).prior_context):
            return bench
        if self._grid.evict == "reset":
            try:
                await bench.caches.empty()
            except NotEmptied as error:
                self._context.emit(Noted("warning", cell.cell, f"{error}: fresh engines take their place"))
            else:
                return bench
        await self._slot.release()
        return await self._slot.get(cell)

    async def _analyse(self, cell: CellPlan, attempt: int) -> Outcome:
        analysis = await asyncio.to_thread(analyse_lifecycle, self._context.layout.root)
        return Outcome({"records": len(analysis.records), "gaps": len(analysis.gaps)})
