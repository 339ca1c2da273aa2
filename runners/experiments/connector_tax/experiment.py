"""`connector-tax`: what a KV connector costs, measured on one instance under an open-loop load.

Barrier stages (specs/connector_tax, "Re-run script"): pre-flight and probe, rate sweep, reference rates, shape sweep,
probe removal and analysis. The confirm stage, which the specification does not have, comes before the last one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import msgspec

from launch.errors import LaunchError
from results.connector_tax.saturation import choose_reference_rates, fix_rates, reference_rates
from results.connector_tax.write import write_results
from results.records.errors import ArtifactError
from results.records.events import Noted
from results.records.layout import write_atomic
from results.records.plan import CellPlan
from results.records.reference_rates import REF_LOAD, REF_SAFE, ReferenceRates
from runners.campaign.context import RunContext
from runners.campaign.experiment import NOT_NEEDED, CellOutcome
from runners.errors import CellSkipped
from runners.experiments.connector_tax.artifacts import adopt_cell
from runners.experiments.connector_tax.cell import measure_load
from runners.experiments.connector_tax.grid import Grid
from runners.experiments.connector_tax.sustainable import list_overloads
from runners.experiments.patched_cells import PatchedCells, RunCell


class ConnectorTax(PatchedCells):
    removal = "the probe is removed"

    def __init__(self, grid: Grid, context: RunContext) -> None:
        self._grid = grid
        kinds: Mapping[str, RunCell] = {
            "probe": self._apply_patches,
            "load": self._load,
            "reference": self._choose_reference,
        }
        super().__init__(context, write_results, kinds)

    def adopt(self, cell: CellPlan) -> CellOutcome | None:
        return adopt_cell(cell, self._context) if cell.kind == "load" else None

    async def _apply_patches(self, cell: CellPlan, attempt: int) -> CellOutcome:
        """Without the probe the run falls back to client-side numbers; that is recorded, not fatal."""
        try:
            status = await asyncio.to_thread(self._patches.apply)
        except LaunchError as error:
            self._context.emit(Noted("warning", cell.cell, f"no step timing: {error}"))
            return CellOutcome({"step_timing_available": False, "reason": str(error)})
        return CellOutcome(
            {"step_timing_available": status.applied, "version": status.version, "reason": status.reason}
        )

    async def _ensure_patches(self, config: str) -> None:
        with contextlib.suppress(LaunchError):  # the probe cell has recorded why it cannot be applied
            await super()._ensure_patches(config)

    async def _load(self, cell: CellPlan, attempt: int) -> CellOutcome:
        assert cell.config is not None
        rate_per_s = self._rate(cell)
        await self._ensure_patches(cell.config)
        return await measure_load(cell, attempt, rate_per_s, self._context)

    def _rate(self, cell: CellPlan) -> float:
        """The cell's own rate, or the reference rate it names.

        Raises CellSkipped where Phase A gave no such rate, or ref_load would only repeat ref_safe.
        """
        if "rate_per_s" in cell.params:
            return float(cell.params["rate_per_s"])
        rates = self._read_rates()
        if cell.params["rate"] == REF_LOAD and rates.ref_load_per_s == rates.ref_safe_per_s:
            same = f"ref_load equals ref_safe ({rates.ref_safe_per_s} req/s)"
            raise CellSkipped(f"{NOT_NEEDED}{same}: it would repeat that cell")
        rate = rates.ref_safe_per_s if cell.params["rate"] == REF_SAFE else rates.ref_load_per_s
        if rate is None:
            raise CellSkipped(f"no {cell.params['rate']}: {rates.explain_rate(cell.params['rate'])}")
        return rate

    def _read_rates(self) -> ReferenceRates:
        """Those of the reference stage; where it was skipped or failed, or its file is damaged, those that the plan
        fixes. Raises ArtifactError where the file is damaged and the plan fixes none."""
        try:
            return ReferenceRates.from_json(self._context.layout.reference_rates.read_bytes())
        except FileNotFoundError as error:
            if not self._grid.fixed_rates:
                raise CellSkipped("there are no reference rates: that stage was skipped or failed") from error
        except ArtifactError:
            if not self._grid.fixed_rates:
                raise
        return fix_rates(reference_rates(()), self._grid.fixed_rates)

    async def _choose_reference(self, cell: CellPlan, attempt: int) -> CellOutcome:
        thresholds = msgspec.structs.asdict(self._grid.saturation)
        rates = await asyncio.to_thread(choose_reference_rates, self._context.layout.root, thresholds)
        if self._grid.fixed_rates:
            rates = fix_rates(rates, self._grid.fixed_rates)
        write_atomic(self._context.layout.reference_rates, rates.to_json())
        overloads = await asyncio.to_thread(list_overloads, self._context.layout.root, self._grid, rates)
        self._context.emit(*(Noted("warning", cell.cell, text) for text in overloads))
        return CellOutcome({"ref_safe_per_s": rates.ref_safe_per_s, "ref_load_per_s": rates.ref_load_per_s})
