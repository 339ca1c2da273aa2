"""Operator requests to a live run, turned into flags and transitions that the cell loop acts on."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from results.records.events import CellChanged, CellState
from results.records.layout import RunLayout
from results.records.plan import CellPlan
from results.records.skipped_cells import SkippedCell
from state import operator_requests
from state.model import RequestView, RunView
from state.store import RunStore


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
        reason = request.reason or "skipped by the operator"
        events = tuple(skip_pending(view, request.target, reason))
        cut = [running.cell] if running is not None and running in list_matching(view, request.target) else []
        record_skips(self._store.folder, [*(event.cell for event in events), *cut], request.reason)
        self._store.append(*events)
        self._skips |= dict.fromkeys(cut, reason)
        count = len(events) + len(cut)
        return (count > 0), f"{count} cells skipped" if count else f"no cell is pending or running in {request.target}"

    def _retry_cells(self, request: RequestView, view: RunView) -> tuple[bool, str]:
        events = tuple(retry_failed(view, request.target))
        if not events:
            return False, f"no cell has failed in {request.target}" if request.target else "no cell has failed"
        withdraw_skips(self._store.folder, view, events)
        self._store.append(*events)
        return True, f"{len(events)} cells pending again"


def list_matching(view: RunView, target: str) -> Iterator[CellPlan]:
    """The cells a target names: `cell:ID`, `config:NAME`, `stage:ID`, or empty for all."""
    sort, _, name = target.partition(":")
    for plan in view.plan.cells:
        named = {"cell": plan.cell, "config": plan.config, "stage": plan.stage}.get(sort)
        if not target or named == name:
            yield plan


def record_skips(folder: Path, cells: Sequence[str], reason: str) -> None:
    """Add them to the run's folder, so that the report names them without the state file. Raises OSError.

    `reason`: the operator's; empty = none was given.
    """
    _add_rows(folder, [SkippedCell(time.time(), cell, reason) for cell in cells])


def withdraw_skips(folder: Path, view: RunView, retries: Sequence[CellChanged]) -> None:
    """Record that those of `retries` which were skipped are skipped no more. Raises OSError."""
    cells = [event.cell for event in retries if view.cells[event.cell].state is CellState.SKIPPED]
    _add_rows(folder, [SkippedCell(time.time(), cell, withdrawn=True) for cell in cells])


def _add_rows(folder: Path, rows: Sequence[SkippedCell]) -> None:
    if rows:
        with RunLayout(folder).skipped_cells.open("ab") as file:
            file.write(msgspec.json.Encoder().encode_lines(rows))


def skip_pending(view: RunView, target: str, reason: str) -> Iterator[CellChanged]:
    """What skips the pending cells that a target names."""
    for plan in list_matching(view, target):
        if view.cells[plan.cell].state is CellState.PENDING:
            yield CellChanged(plan.cell, CellState.SKIPPED, view.cells[plan.cell].attempt, reason)


def retry_failed(view: RunView, target: str) -> Iterator[CellChanged]:
    """What puts failed cells back to pending, and with a failed pre-flight the cells it had kept from running."""
    gates = {
        p.config for p in view.plan.cells if p.kind == "preflight" and view.cells[p.cell].state is CellState.FAILED
    }
    for plan in list_matching(view, target):
        cell = view.cells[plan.cell]
        held_back = cell.state is CellState.SKIPPED and plan.config in gates
        if cell.state is CellState.FAILED or held_back:
            yield CellChanged(plan.cell, CellState.PENDING, cell.attempt, "retry asked for by the operator")
