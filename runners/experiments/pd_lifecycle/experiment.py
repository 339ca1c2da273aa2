"""`pd-lifecycle`: breaks a request under prefill/decode disaggregation down into its phases.

specs/pd_lifecycle. One request at a time goes through the router to a prefill and a decode engine, over a grid of prior
context, new tokens and output length. Stages: pre-flight and transfer probe, sweep, analysis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from launch.errors import HostObstacle, LaunchError
from results.pd_lifecycle.write import write_results
from results.records.errors import SpecError
from results.records.events import CellState, Noted
from results.records.layout import LifecycleLayout, write_indented_json
from results.records.plan import CellPlan
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.errors import CellFailed, RunnerError
from runners.experiments.gates import explain_gated
from runners.experiments.patched_cells import PatchedCells, RunCell
from runners.experiments.pd_lifecycle.artifacts import adopt_cell, publish_cell, write_failure
from runners.experiments.pd_lifecycle.bench import Bench, BenchSlot
from runners.experiments.pd_lifecycle.caches import NotEmptied
from runners.experiments.pd_lifecycle.cell import LifecycleCell, Measurements
from runners.experiments.pd_lifecycle.grid import PROBE_CELL, Grid, read_shape
from runners.experiments.pd_lifecycle.link_bandwidth import find_link, read_transport
from state.model import RunView


class PdLifecycle(PatchedCells):
    removal = "the probes are removed"
    analyzed = "records"

    def __init__(self, grid: Grid, context: RunContext) -> None:
        self._grid = grid
        self._slot = BenchSlot(grid, context)
        kinds: Mapping[str, RunCell] = {
            "probe": self._apply_patches,
            "link": self._record_link,
            "lifecycle": self._measure_cell,
        }
        super().__init__(context, write_results, kinds)

    def explain_skip(self, cell: CellPlan, view: RunView) -> str:
        """Skips cells beyond the engines' context, and all cells after a failed config or probe."""
        if cell.kind not in ("preflight", "lifecycle"):
            return ""
        probe = view.cells.get(PROBE_CELL)
        if probe is not None and probe.state is CellState.FAILED:
            return f"the probes could not be applied: {probe.reason}"
        if cell.kind == "preflight":
            return ""
        gates = (explain_gated(replace(cell, config=config), view) for config in self._grid.all_configs)
        return str(cell.params["why_not"]) or next((why for why in gates if why), "")

    def adopt(self, cell: CellPlan) -> CellOutcome | None:
        """Adopt a cell of the sweep whose commit mark and files are complete."""
        return adopt_cell(cell, self._context) if cell.kind == "lifecycle" else None

    async def release(self, reason: str) -> None:
        await self._slot.release()
        await super().release(reason)

    async def _record_link(self, cell: CellPlan, attempt: int) -> CellOutcome:
        link = await asyncio.to_thread(find_link, self._grid, self._context.profile)
        transport = read_transport(self._context.launcher.find_config_layout(self._grid.decode_config))
        link = msgspec.structs.replace(link, transport=transport)
        write_indented_json(LifecycleLayout(self._context.layout.root).link, link)
        return CellOutcome({"gbps": link.gbps, "from": link.known_from, "reason": link.reason})

    async def _measure_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        context, measurements = self._context, Measurements()
        try:
            bench = await self._prepare_bench(cell)
            folder = context.attempt_folder(cell, attempt)
            lifecycle = LifecycleCell(cell, attempt, self._grid, bench, folder, context.emit, measurements)
            await lifecycle.run(context.profile.model.served_name)
        except HostObstacle:  # it interrupts the run: the cell has not failed
            raise
        except (CellFailed, LaunchError, RunnerError, SpecError) as error:
            await asyncio.to_thread(write_failure, cell, attempt, str(error), measurements, context)
            raise
        return await asyncio.to_thread(publish_cell, cell, attempt, self._grid, bench, measurements, folder, context)

    async def _prepare_bench(self, cell: CellPlan) -> Bench:
        """The current bench, with caches that are empty or hold the cell's C; else a fresh one."""
        await self._ensure_patches(self._grid.decode_config)
        bench = await self._slot.get_bench(cell)  # of the cell's trial
        if not bench.caches.used or bench.caches.is_seeded_with(read_shape(cell).prior_context):
            return bench
        if self._grid.evict == "reset":
            try:
                await bench.caches.empty()
            except NotEmptied as error:
                self._context.emit(Noted("warning", cell.cell, f"{error}: fresh engines replace them"))
            else:
                return bench
        await self._slot.release()
        return await self._slot.get_bench(cell)
