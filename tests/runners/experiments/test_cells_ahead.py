"""Cells that are simulated ahead of their turn: what an earlier run process finished is adopted, read in a thread."""

from __future__ import annotations

import asyncio
import errno
import threading
from types import SimpleNamespace
from typing import Any, cast

from results.records.events import CellState
from results.records.plan import CellPlan
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.experiments.cells_ahead import Adopt, CellsAhead

CELLS = [CellPlan(f"c{number}", "s", "replay", None, "", {}, 1.0) for number in range(3)]
ADOPTED, SIMULATED = CellOutcome({"adopted": True}), CellOutcome({"adopted": False})


def cells_ahead(adopt: Adopt) -> tuple[CellsAhead, list[str]]:
    """All cells of a run that has room for all of them, and those that were simulated."""
    views = {cell.cell: SimpleNamespace(state=CellState.PENDING, attempt=0) for cell in CELLS}
    view = SimpleNamespace(plan=SimpleNamespace(cells=CELLS), cells=views)
    context = cast(RunContext, SimpleNamespace(store=SimpleNamespace(view=lambda: view)))
    simulated: list[str] = []

    async def simulate(cell: CellPlan, attempt: int) -> CellOutcome:
        simulated.append(cell.cell)
        return SIMULATED

    ahead = CellsAhead(context, "replay", "local", simulate, adopt)
    cast(Any, ahead).simulations = SimpleNamespace(count_room=lambda: len(CELLS))
    return ahead, simulated


async def test_what_is_finished_is_read_in_threads_and_not_simulated_again() -> None:
    threads: set[threading.Thread] = set()

    def adopt(cell: CellPlan) -> CellOutcome | None:
        threads.add(threading.current_thread())
        return ADOPTED if cell.cell == "c1" else None

    ahead, simulated = cells_ahead(adopt)
    outcomes = [await ahead.run_cell(cell, 1) for cell in CELLS]
    assert outcomes == [SIMULATED, ADOPTED, SIMULATED]
    assert sorted(simulated) == ["c0", "c2"]
    assert threading.main_thread() not in threads, "the event loop would stand still"


async def test_a_cell_whose_inputs_cannot_be_read_is_not_begun_ahead() -> None:
    def is_ready(cell: CellPlan) -> bool:
        raise OSError(errno.EMFILE, "Too many open files", "results")

    ahead, simulated = cells_ahead(lambda cell: None)
    ahead._is_ready = is_ready
    assert await ahead.run_cell(CELLS[0], 1) == SIMULATED
    assert simulated == ["c0"]


async def test_what_cannot_be_read_ahead_is_read_again_at_its_turn() -> None:
    is_short = True

    def adopt(cell: CellPlan) -> CellOutcome | None:
        if is_short and cell.cell == "c1":
            raise OSError(errno.EMFILE, "Too many open files", "cell.json")
        return ADOPTED if cell.cell == "c1" else None

    ahead, simulated = cells_ahead(adopt)
    await ahead.run_cell(CELLS[0], 1)
    await asyncio.sleep(0.1)
    is_short = False
    assert await ahead.run_cell(CELLS[1], 1) == ADOPTED
    assert "c1" not in simulated
