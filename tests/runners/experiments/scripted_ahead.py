"""The scripted experiment with cells that run ahead of their turn, as simulated ones do.

Run as a program it is the run process of a fault test: `python -m tests.runners.experiments.scripted_ahead RUN_FOLDER`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from results.records.plan import CellPlan
from runners.campaign.cell_loop import CellLoop
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.experiments.cells_ahead import CellsAhead
from runners.simulator.backends import LOCAL
from state import lease as leases
from state.store import RunStore
from tests.runners.campaign.scripted import Scripted

ROOM = 4
LONGEST_S = 0.2


class Room:
    """Simulations without a process: the cells themselves are scripted."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.is_closed = False

    def count_room(self) -> int:
        return self._room

    async def close(self) -> None:
        self.is_closed = True


class ScriptedAhead(Scripted):
    """A held cell ends when its event is set; `ends` has what first attempts raise, or return."""

    def __init__(
        self, folder: Path, store: RunStore, room: int = ROOM, ends: Mapping[str, Exception | CellOutcome] | None = None
    ) -> None:
        super().__init__(folder)
        context = cast(RunContext, SimpleNamespace(store=store))
        self.ahead: CellsAhead = CellsAhead(context, "measure", LOCAL, self._simulate, self.adopt)
        cast(Any, self.ahead)._simulations = Room(room)
        self._ends = ends or {}
        self.held: dict[str, asyncio.Event] = {}
        self.seconds: Mapping[str, float] = {}
        """How long cells take that are not held."""
        self.begun: list[str] = []
        self.cut: list[str] = []

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        return await self.ahead.run_cell(cell, attempt)

    async def release(self, reason: str) -> None:
        await self.ahead.stop()
        await super().release(reason)

    async def _simulate(self, cell: CellPlan, attempt: int) -> CellOutcome:
        self.begun.append(cell.cell)
        try:
            await self._wait_for_end(cell.cell)
        except asyncio.CancelledError:
            self.cut.append(cell.cell)
            raise
        end = self._ends.get(cell.cell) if attempt == 1 else None
        if isinstance(end, Exception):
            self.held[cell.cell].clear()  # its next attempt is held again
            raise end
        return end or await super().run_cell(cell, attempt)

    async def _wait_for_end(self, cell: str) -> None:
        if cell in self.held:
            await self.held[cell].wait()
        await asyncio.sleep(self.seconds.get(cell, 0.0))


def work(folder: Path) -> int:
    """Be the run process; its cells end in another order each time."""
    with RunStore.open(folder) as store, leases.acquire(store) as lease:
        cells = ScriptedAhead(folder, store)
        cells.seconds = {cell.cell: random.uniform(0.0, LONGEST_S) for cell in store.plan.cells}
        return asyncio.run(CellLoop(store, lease, folder, cells).run())


if __name__ == "__main__":
    sys.exit(work(Path(sys.argv[1])))
