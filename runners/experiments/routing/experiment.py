"""`routing`: which policy wins? Every policy replays one trace on fresh engines, in paired, interleaved trials.

specs/routing_log #8 and specs/ear sections 3 and 5. Stages: trace and pre-flight, trials, interference, analysis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from results.records.events import CellProgressed
from results.records.layout import write_atomic
from results.records.plan import CellPlan
from results.records.rows import decode_rows
from results.records.samples import InterferenceRecord
from results.routing.write import write_results
from results.statistics.estimates import convert_to_floats, percentile
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.experiments.patched_cells import PatchedCells, RunCell
from runners.experiments.routing.artifacts import adopt_cell
from runners.experiments.routing.cell import replay_cell
from runners.experiments.routing.grid import Grid
from runners.experiments.routing.interference import InterferenceSpec, measure_interference
from runners.experiments.routing.plan import explain_no_trace, needs_patches
from runners.experiments.routing.simulation import SimulatedCells
from runners.experiments.routing.trace import require_trace, run_trace_cell
from state.model import RunView

_encode_lines = msgspec.json.Encoder().encode_lines


class Routing(PatchedCells):
    removal = "the patches are removed"

    def __init__(self, grid: Grid, context: RunContext) -> None:
        self._grid = grid
        self._simulated = SimulatedCells(grid, context)
        self.ahead = self._simulated.ahead if grid.simulation is not None else None
        kinds: Mapping[str, RunCell] = {
            "trace": lambda cell, attempt: run_trace_cell(grid, context),
            "patches": self._apply_patches,
            "replay": self._run_replay,
            "interference": self._run_interference,
        }
        super().__init__(context, write_results, kinds)

    def explain_skip(self, cell: CellPlan, view: RunView) -> str:
        """Nothing is measured with a config that failed its pre-flight, nor replayed without a trace."""
        return (explain_no_trace(view) if cell.kind == "replay" else "") or super().explain_skip(cell, view)

    def adopt(self, cell: CellPlan) -> CellOutcome | None:
        """The outcome of a replay whose artifacts are all whole, or of an interference cell that has its rows."""
        if cell.kind == "replay":
            return adopt_cell(cell, self._context)
        if cell.kind == "interference" and self._name_rows_file(cell).is_file():
            self._gather_interference()
            rows = decode_rows(self._name_rows_file(cell).read_bytes(), InterferenceRecord)
            return CellOutcome(_make_interference_headline(rows))
        return None

    def _needs_patches(self, config: str) -> bool:
        engine = self._context.profile.engine
        return self._grid.simulation is None and needs_patches(self._context.configs[config], engine.kind)

    async def release(self, reason: str) -> None:
        """Stop the current engine, and the cells that are simulated ahead."""
        await self._simulated.ahead.stop()
        await super().release(reason)

    async def _run_replay(self, cell: CellPlan, attempt: int) -> CellOutcome:
        if self._grid.simulation is not None:
            return await self._simulated.run_cell(cell, attempt)
        assert cell.config is not None
        await self._ensure_patches(cell.config)
        trace = require_trace(self._context.layout.trace_of(cell.params.get("trace", "")))
        return await replay_cell(cell, attempt, self._grid, trace, self._context)

    async def _run_interference(self, cell: CellPlan, attempt: int) -> CellOutcome:
        assert cell.config is not None
        await self._ensure_patches(cell.config)
        context, params = self._context, cell.params
        instance = await context.slot.get(cell.config, f"{cell.stage}/{attempt}")
        model = context.profile.model
        spec = InterferenceSpec(
            url=instance.url,
            model=model.served_name,
            prefill_tokens=params["prefill_tokens"],
            decodes=params["decodes"],
            decode_prompt_tokens=params["decode_prompt_tokens"],
            decode_tokens=context.profile.engine.max_model_len - params["decode_prompt_tokens"],
            settle_s=params["settle_s"],
            repeats=params["repeats"],
            seed=params["load_seed"] + attempt,  # an engine that has seen a prompt would answer from its cache
            vocab_low=model.vocab_low,
            vocab_high=model.vocab_high,
        )

        def repeated(number: int) -> None:
            context.emit(CellProgressed(cell.cell, (number + 1) / spec.repeats))

        rows = await measure_interference(spec, instance.name, repeated)
        await asyncio.to_thread(write_atomic, self._name_rows_file(cell), _encode_lines(rows))
        await asyncio.to_thread(self._gather_interference)
        return CellOutcome(_make_interference_headline(rows))

    def _name_rows_file(self, cell: CellPlan) -> Path:
        """The file of a cell's rows: written whole, so that it is the cell's commit mark."""
        return self._context.layout.name_interference_part(cell.params["prefill_tokens"])

    def _gather_interference(self) -> None:
        """Write `results/interference.jsonl` from the cells' own files."""
        layout = self._context.layout
        write_atomic(layout.interference, b"".join(path.read_bytes() for path in layout.list_interference_parts()))


def _make_interference_headline(rows: tuple[InterferenceRecord, ...]) -> dict[str, Any]:
    """Medians over the repeats."""
    names = ("itl_before_s", "itl_during_s", "worst_gap_during_s", "prefill_ttft_s")
    return {name: percentile(convert_to_floats(getattr(row, name) for row in rows), 0.5).value for name in names}
