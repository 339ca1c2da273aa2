"""Runs simulated cells ahead of their turn, in the order of the plan, as many at once as there is room for.

The cell loop takes a cell that ended ahead when it ends. What no journal has yet is adopted by a later run process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from results.records.events import CellState
from results.records.plan import CellPlan
from runners.campaign.adoption import ArtifactsUnread, adopt_if_complete
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.simulator.backends import Simulations, open_simulations

Simulate = Callable[[CellPlan, int], Awaitable[CellOutcome]]
"""One attempt at a cell, to its published artifacts."""
Adopt = Callable[[CellPlan], CellOutcome | None]


class CellsAhead:
    """Runs the cells of one kind, each once."""

    def __init__(
        self,
        context: RunContext,
        kind: str,
        backend: str,
        simulate: Simulate,
        adopt: Adopt,
        is_ready: Callable[[CellPlan], bool] = lambda cell: True,
    ) -> None:
        """`backend`: as `open_simulations` takes it. `is_ready`: whether what the cell depends on is known."""
        self._context = context
        self._kind = kind
        self._backend = backend
        self._simulate = simulate
        self._adopt = adopt
        self._is_ready = is_ready
        self._simulations: Simulations | None = None
        """None = no cell has begun."""
        self._tasks: dict[str, asyncio.Task[CellOutcome]] = {}
        """Those that run, or have ended and were not taken yet."""
        self._ahead: list[tuple[CellPlan, int]] = []
        """Not begun yet, with their next attempts."""
        self.turn = ""
        """The cell that the journal has running."""

    @property
    def simulations(self) -> Simulations:
        """Opened by the first cell: a run that only reports needs no cluster."""
        if self._simulations is None:
            self._simulations = open_simulations(self._backend)
        return self._simulations

    async def run_cell(self, cell: CellPlan, attempt: int) -> CellOutcome:
        """The cell's outcome, perhaps of an attempt that ran ahead. Raises CellFailed, CellSkipped or RunnerError."""
        self._drop_unread(cell.cell)
        if cell.cell not in self._tasks:
            self._ahead = self._list_ahead(cell)
            self._begin(cell, attempt)
        self._fill_room()
        self.turn = cell.cell
        task = self._tasks[cell.cell]
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,))
            raise
        finally:
            self.turn = ""
            self._tasks.pop(cell.cell, None)

    def _drop_unread(self, cell: str) -> None:
        """What could not be read ahead may be readable at its turn."""
        task = self._tasks.get(cell)
        if task is not None and _is_unread(task):
            del self._tasks[cell]

    def take_ended(self, cell: CellPlan) -> Awaitable[CellOutcome] | None:
        """As of `RunsAhead`."""
        task = self._tasks.get(cell.cell)
        if task is None or not task.done() or task.cancelled() or _is_unread(task):
            return None
        return self._tasks.pop(cell.cell)

    def end_skipped(self, cell: CellPlan) -> None:
        """As of `RunsAhead`."""
        self._ahead = [pair for pair in self._ahead if pair[0].cell != cell.cell]
        task = self._tasks.get(cell.cell)
        if task is not None and not task.cancelling():  # a second cancellation kills its process
            task.cancel()

    async def stop(self) -> None:
        """End what runs ahead, and the processes that wait for more."""
        tasks, self._tasks, self._ahead = tuple(self._tasks.values()), {}, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._simulations is not None:
            await self._simulations.close()

    def _list_ahead(self, first: CellPlan) -> list[tuple[CellPlan, int]]:
        """Cells that are still to be begun, in the order of the plan, with their next attempts."""
        view = self._context.store.view()
        pending = (cell for cell in view.plan.cells if view.cells[cell.cell].state is CellState.PENDING)
        return [
            (cell, view.cells[cell.cell].attempt + 1)
            for cell in pending
            if cell.kind == self._kind and cell.cell != first.cell and cell.cell not in self._tasks
        ]

    def _fill_room(self) -> None:
        if not self._ahead:
            return
        running = sum(not task.done() for task in self._tasks.values())
        room = self.simulations.count_room()
        for pair in tuple(self._ahead):
            if running >= room:
                return
            cell, attempt = pair
            if not self._is_known_ready(cell):
                continue
            self._ahead.remove(pair)
            self._begin(cell, attempt)
            running += 1

    def _is_known_ready(self, cell: CellPlan) -> bool:
        """A cell whose inputs cannot be read now waits for its turn, at which the run says why."""
        try:
            return self._is_ready(cell)
        except OSError:
            return False

    def _begin(self, cell: CellPlan, attempt: int) -> None:
        task = asyncio.ensure_future(self._adopt_or_simulate(cell, attempt))
        task.add_done_callback(lambda ended: self._note_end(cell, ended))
        self._tasks[cell.cell] = task

    def _note_end(self, cell: CellPlan, ended: asyncio.Task[CellOutcome]) -> None:
        if ended.cancelled():
            self._tasks.pop(cell.cell, None)
            if cell.cell == self.turn:  # the run may stop
                return
        self._drop_unread(cell.cell)
        self._fill_room()

    async def _adopt_or_simulate(self, cell: CellPlan, attempt: int) -> CellOutcome:
        """A cell that an earlier run process finished ahead of its turn is not simulated again."""
        return await adopt_if_complete(self._adopt, cell) or await self._simulate(cell, attempt)


def _is_unread(task: asyncio.Task[CellOutcome]) -> bool:
    return task.done() and not task.cancelled() and isinstance(task.exception(), ArtifactsUnread)
