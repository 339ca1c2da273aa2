"""The exit code that a run's state stands for: 0 only where every cell is done.

A degraded cell is done: the client fell behind on a busy host, and the cell takes no part in comparisons. The commands
name it; the code stays 0.
"""

from __future__ import annotations

from results.records.events import CellState, RunState
from results.records.plan import CellPlan
from runners.campaign.experiment import NOT_NEEDED, NOT_POSSIBLE
from runners.errors import ExitCode
from state.model import RunView

GATES = frozenset({"preflight", "probe"})
"""Kinds of cells that decide whether others run."""
REPEATS = "it would repeat that cell"
"""Ends the reason of a cell that is not needed, as older versions wrote it."""


def exit_code(view: RunView) -> ExitCode:
    """The code of a run that no process works on."""
    if view.state not in (RunState.DONE, RunState.FAILED):
        return ExitCode.INTERRUPTED
    if any(view.cells[plan.cell].state is CellState.FAILED for plan in view.plan.cells if plan.kind in GATES):
        return ExitCode.GATE_FAILED
    return ExitCode.CELLS_FAILED if any(_is_missing(view, plan) for plan in view.plan.cells) else ExitCode.DONE


def list_shortfalls(view: RunView) -> tuple[str, ...]:
    """Cells that failed, were skipped or are degraded, each as `cell: state: why`, in the order of the plan."""
    texts = []
    for plan in view.plan.cells:
        cell = view.cells[plan.cell]
        if _is_missing(view, plan) or (plan.kind in GATES and cell.reason.startswith(NOT_POSSIBLE)):
            texts.append(f"{plan.cell}: {cell.state}: {cell.reason}")
        elif cell.state is CellState.DONE and cell.degraded:
            texts.append(f"{plan.cell}: degraded: {cell.degraded}")
    return tuple(texts)


def _is_missing(view: RunView, plan: CellPlan) -> bool:
    state = view.cells[plan.cell].state
    return state is CellState.FAILED or (state is CellState.SKIPPED and not _may_be_skipped(view, plan))


def _may_be_skipped(view: RunView, plan: CellPlan) -> bool:
    """Whether the run is complete without the cell: an earlier cell showed that it is not needed, or the host has no
    room for it and other configs were measured.
    """
    reason = view.cells[plan.cell].reason
    if reason.startswith(NOT_NEEDED) or reason.endswith(REPEATS):
        return True
    gates = [cell for cell in view.plan.cells if cell.kind == "preflight"]
    return reason.startswith(NOT_POSSIBLE) and any(view.cells[gate.cell].state is CellState.DONE for gate in gates)
