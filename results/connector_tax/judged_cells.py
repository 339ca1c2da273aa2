"""Which cells verdicts rest on: those of the confirm stage at every load that it has measured, else the sweep's own.

The confirm stage measures loads of the sweep again. A confirmed cell stands for each of them: for Phase A at a
reference rate, for Phase B at ref_safe, for B' at ref_load.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from results.measures.saturation import ReferenceRates
from results.measures.summary import CellSummary, Shape

CONFIRM = "C"
"""The phase of the confirm stage's cells."""


def choose_cells(
    cells: Sequence[CellSummary], rates: ReferenceRates, planned: Collection[str]
) -> tuple[CellSummary, ...]:
    """Confirmed cells under the phases whose loads they measured, and the sweep's at loads that none has measured.

    `planned`: the shapes of Phase B in the plan, as `512x32`.
    """
    confirmed = [cell for cell in cells if cell.phase == CONFIRM]
    if not confirmed:
        return tuple(cells)
    swept = next((cell.shape for cell in cells if cell.phase == "A"), None)
    shapes = {*planned, *(str(cell.shape) for cell in cells if cell.phase == "B")}
    chosen = [replace(cell, phase=phase) for cell in confirmed for phase in _list_phases(cell, rates, swept, shapes)]
    loads = {(cell.phase, cell.rate_per_s, cell.shape) for cell in chosen}
    judged = (rates.ref_safe_per_s, rates.ref_load_per_s)
    waiting = (
        cell
        for cell in cells
        if cell.phase in ("B", "Bp") or (cell.phase == "A" and any(_is_at(cell, rate) for rate in judged))
    )
    return (*chosen, *(cell for cell in waiting if (cell.phase, cell.rate_per_s, cell.shape) not in loads))


def _list_phases(
    cell: CellSummary, rates: ReferenceRates, swept: Shape | None, shapes: Collection[str]
) -> Iterator[str]:
    """swept: Phase A's shape; shapes: those of Phase B."""
    safe, loaded = (_is_at(cell, rate) for rate in (rates.ref_safe_per_s, rates.ref_load_per_s))
    if cell.shape == swept and (safe or loaded):
        yield "A"
    if safe and str(cell.shape) in shapes:
        yield "B"
    if loaded and not safe and cell.shape != swept:
        yield "Bp"


def _is_at(cell: CellSummary, rate_per_s: float | None) -> bool:
    return rate_per_s is not None and math.isclose(cell.rate_per_s, rate_per_s, rel_tol=1e-6)
