"""Operator requests to a live run, turned into flags and transitions that the cell loop acts on."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator

from results.records.count import format_count
from results.records.events import CellChanged, CellState
from results.records.layout import RunLayout, append_rows
from results.records.plan import CellPlan
from results.records.skipped_cells import SkippedCell
from state import operator_requests
from state.model import RequestView, RunView
from state.store import RunStore

SKIPPED = "skipped by the operator"
"""The reason of a skip that was asked for without one."""


class Steering:
    """Answers each open request of a run once and holds what still has to happen."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._skips: dict[str, str] = {}
        self.paused = False
        self.pause_reason = ""
        self.stopping = False
        self.stopping_now = False
        self.stop_reason = ""

    def stop_now(self, reason: str) -> None:
        """Stop as soon as possible, cutting the cell that runs (a signal reached the run process)."""
        self.stopping = self.stopping_now = True
        self.stop_reason = reason

    def skipped(self, cell: CellPlan) -> str:
        """The reason the running cell is to be skipped with; empty = it is not."""
        return self._skips.get(cell.cell, "")

    def answer_requests(self, view: RunView, running: CellPlan | None = None) -> None:
        """Act on every open request. `running` is the cell under way, if any."""
        for request in operator_requests.pending(self._store):
            try:
                accepted, detail = self._act_on(request, view, running)
            except OSError as error:
                if error.errno == errno.ENOSPC:  # the run stops for it, as for any other file
                    raise
                accepted, detail = False, f"it cannot be recorded: {error}"
            operator_requests.answer(self._store, request.request, accepted, detail)

    def _act_on(self, request: RequestView, view: RunView, running: CellPlan | None) -> tuple[bool, str]:
        """Whether it is accepted, and when it is done or why it is not."""
        match request.action:
            case "pause":
                self.paused, self.pause_reason = True, request.reason or "paused by the operator"
                return True, "after the running cell" if running else "now"
            case "resume":
                was_paused, self.paused = self.paused, False
                return (True, "going on") if was_paused else (False, "the run is not paused")
            case "stop" | "stop_now":
                return self._stop_run(request, running)
            case "skip":
                return self._skip_cells(request, view, running)
            case "retry":
                return self._retry_cells(request, view)
        return False, f"unknown action {request.action!r}"

    def _stop_run(self, request: RequestView, running: CellPlan | None) -> tuple[bool, str]:
        self.stopping = True
        self.stopping_now = self.stopping_now or request.action == "stop_now"
        self.stop_reason = request.reason or "stopped by the operator"
        return True, "after the running cell" if running and not self.stopping_now else "now"

    def _skip_cells(self, request: RequestView, view: RunView, running: CellPlan | None) -> tuple[bool, str]:
        pending, cut = skip_cells(self._store, view, request.target, request.reason, running)
        self._skips |= dict.fromkeys(cut, request.reason or SKIPPED)
        count = len(pending) + len(cut)
        if not count:
            return False, f"no cell is pending or running in {request.target}"
        return True, f"{format_count(count, 'cell', 'cells')} skipped"

    def _retry_cells(self, request: RequestView, view: RunView) -> tuple[bool, str]:
        count = retry_cells(self._store, view, request.target)
        if not count:
            return False, f"no cell has failed in {request.target}" if request.target else "no cell has failed"
        return True, f"{format_count(count, 'cell', 'cells')} pending again"


def skip_cells(
    store: RunStore, view: RunView, target: str, reason: str, running: CellPlan | None = None
) -> tuple[list[str], list[str]]:
    """Skip the pending cells that a target names; returns them, and `running`, still to be cut, where it is named too.

    A file of the run's folder has them too, so that the report names them without the state file. `reason`: the
    operator's; empty = none was given. Raises OSError.
    """
    named = list(_list_matching(view, target))
    pending = [plan.cell for plan in named if view.cells[plan.cell].state is CellState.PENDING]
    cut = [running.cell] if running is not None and running in named else []
    rows = [SkippedCell(time.time(), cell, reason) for cell in (*pending, *cut)]
    append_rows(RunLayout(store.folder).skipped_cells, rows)
    skipped = [CellChanged(cell, CellState.SKIPPED, view.cells[cell].attempt, reason or SKIPPED) for cell in pending]
    store.append(*skipped)
    return pending, cut


def retry_cells(store: RunStore, view: RunView, target: str) -> int:
    """Put failed cells back to pending, and with a failed pre-flight the cells it had kept from running.

    Returns how many. Those that were skipped are so no more in the run's folder either. Raises OSError.
    """
    gates = {
        p.config for p in view.plan.cells if p.kind == "preflight" and view.cells[p.cell].state is CellState.FAILED
    }
    named = [view.cells[plan.cell] for plan in _list_matching(view, target)]
    held_back = [cell for cell in named if cell.state is CellState.SKIPPED and cell.plan.config in gates]
    retried = [cell for cell in named if cell.state is CellState.FAILED or cell in held_back]
    withdrawn = [SkippedCell(time.time(), cell.cell, withdrawn=True) for cell in held_back]
    append_rows(RunLayout(store.folder).skipped_cells, withdrawn)
    reason = "retry asked for by the operator"
    store.append(*(CellChanged(cell.cell, CellState.PENDING, cell.attempt, reason) for cell in retried))
    return len(retried)


def _list_matching(view: RunView, target: str) -> Iterator[CellPlan]:
    """The cells a target names: `cell:ID`, `config:NAME`, `stage:ID`, or empty for all."""
    sort, _, name = target.partition(":")
    for plan in view.plan.cells:
        named = {"cell": plan.cell, "config": plan.config, "stage": plan.stage}.get(sort)
        if not target or named == name:
            yield plan
