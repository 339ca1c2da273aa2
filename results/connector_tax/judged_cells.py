"""Which cells verdicts rest on: those of the confirm stage at every load that it measured, else those of the sweep.

The confirm stage measures Phase A's shape at the reference rates again, and the shapes of Phase B and B'. A confirmed
cell counts in each phase whose load it measured: A at a reference rate, B at ref_safe or the shape's own rate, B' at
ref_load. A run without that stage, or of an older version, has cells of Phase B and B' in its sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from results.connector_tax.summary import CellSummary, is_at_rate
from results.records.phase_names import CONFIRM
from results.records.reference_rates import ReferenceRates


def choose_cells(
    cells: Sequence[CellSummary],
    rates: ReferenceRates,
    planned: Mapping[str, float | None],
    planned_sweep: str = "",
) -> tuple[CellSummary, ...]:
    """Confirmed cells under the phases whose loads they measured, and cells of the sweep at the other loads.

    `planned`: the shapes of Phase B in the plan, as `512x32`, each with its own rate or None. `planned_sweep`: that of
    Phase A, for a run with fixed rates whose sweep was skipped.
    """
    confirmed = [cell for cell in cells if cell.phase == CONFIRM]
    if not confirmed:
        return tuple(cells)
    swept = next((str(cell.shape) for cell in cells if cell.phase == "A"), planned_sweep)
    shapes = planned or {str(cell.shape): None for cell in cells if cell.phase == "B"}
    chosen = [replace(cell, phase=phase) for cell in confirmed for phase in _list_phases(cell, rates, swept, shapes)]
    loads = {(cell.phase, cell.rate_per_s, cell.shape) for cell in chosen}
    judged = (rates.ref_safe_per_s, rates.ref_load_per_s)
    swept_cells = (
        cell
        for cell in cells
        if cell.phase in ("B", "Bp")
        or (cell.phase == "A" and any(is_at_rate(cell.rate_per_s, rate) for rate in judged))
    )
    return (*chosen, *(cell for cell in swept_cells if (cell.phase, cell.rate_per_s, cell.shape) not in loads))


def _list_phases(
    cell: CellSummary, rates: ReferenceRates, swept: str, shapes: Mapping[str, float | None]
) -> Iterator[str]:
    """swept: Phase A's shape; shapes: those of Phase B, with their own rates."""
    if shapes.get(str(cell.shape)) is not None:
        yield "B"
        return
    safe, loaded = (is_at_rate(cell.rate_per_s, rate) for rate in (rates.ref_safe_per_s, rates.ref_load_per_s))
    if str(cell.shape) == swept and (safe or loaded):
        yield "A"
    if safe and str(cell.shape) in shapes:
        yield "B"
    if loaded and not safe and str(cell.shape) != swept:
        yield "Bp"
