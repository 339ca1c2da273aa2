"""0 is for a run whose every cell is done; a degraded cell is done, and named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from results.records.events import CellState, RunState
from results.records.plan import CellPlan, StagePlan
from runners.campaign.exit_code import exit_code, list_shortfalls
from runners.campaign.experiment import NOT_NEEDED, NOT_POSSIBLE
from runners.campaign.plan import freeze_plan
from runners.errors import ExitCode
from state.model import EMPTY, CellView, RunView

GATE = CellPlan("preflight/plain", "preflight", "preflight", "plain", "plain", {}, 1.0)
OTHER_GATE = CellPlan("preflight/nixl_both", "preflight", "preflight", "nixl_both", "nixl_both", {}, 1.0)
LOAD = CellPlan("phase-a/plain/r1", "phase-a", "load", "plain", "1 req/s", {"rate_per_s": 1.0}, 1.0)
RATES = CellPlan("reference/rates", "reference", "reference", None, "ref_safe and ref_load", {}, 1.0)
PRIME = CellPlan(
    "phase-b-prime/plain/8x8", "phase-b", "load", "plain", "8 x 8 at ref_load", {"rate": "ref_load"}, 1.0
)  # fmt: skip


def view_with(
    *others: CellView, state: RunState = RunState.DONE, plans: tuple[CellPlan, ...] = (GATE, LOAD, RATES, PRIME)
) -> RunView:
    """A run whose cells are done, but for these."""
    stages = [StagePlan(name, name) for name in ("preflight", "phase-a", "reference", "phase-b")]
    plan = freeze_plan(
        experiment="connector-tax", profile="p", preset="q", configs=["plain", "nixl_both"], seed=1, stages=stages,
        cells=plans, inputs={},
    )  # fmt: skip
    cells = {cell.cell: CellView(cell.cell, cell, CellState.DONE, 1) for cell in plans}
    cells |= {view.cell: view for view in others}
    return replace(EMPTY, plan=plan, cells=cells, row=replace(EMPTY.row, state=state))


def ended(plan: CellPlan, state: CellState, reason: str = "", degraded: str = "") -> CellView:
    return CellView(plan.cell, plan, state, 1, reason, degraded=degraded)


@pytest.mark.parametrize(
    ("view", "code", "named"),
    [
        (view_with(), ExitCode.DONE, ()),
        (
            view_with(ended(LOAD, CellState.DONE, degraded="the client fell behind")),
            ExitCode.DONE,
            ("phase-a/plain/r1: degraded: the client fell behind",),
        ),
        (
            view_with(ended(LOAD, CellState.SKIPPED, "asked")),
            ExitCode.CELLS_FAILED,
            ("phase-a/plain/r1: skipped: asked",),
        ),
        (view_with(ended(PRIME, CellState.SKIPPED, f"{NOT_NEEDED}it would repeat another")), ExitCode.DONE, ()),
        (view_with(ended(PRIME, CellState.SKIPPED, "the same: it would repeat that cell")), ExitCode.DONE, ()),
        (
            view_with(ended(PRIME, CellState.SKIPPED, "asked")),
            ExitCode.CELLS_FAILED,
            ("phase-b-prime/plain/8x8: skipped: asked",),
        ),
        (
            view_with(ended(LOAD, CellState.FAILED, "died"), state=RunState.FAILED),
            ExitCode.CELLS_FAILED,
            ("phase-a/plain/r1: failed: died",),
        ),
        (
            view_with(ended(GATE, CellState.FAILED, "no"), state=RunState.FAILED),
            ExitCode.GATE_FAILED,
            ("preflight/plain: failed: no",),
        ),
        (view_with(state=RunState.INTERRUPTED), ExitCode.INTERRUPTED, ()),
        (
            view_with(ended(GATE, CellState.SKIPPED, f"{NOT_POSSIBLE}one GPU")),
            ExitCode.CELLS_FAILED,
            ("preflight/plain: skipped: not possible on this host: one GPU",),
        ),
        pytest.param(
            view_with(ended(OTHER_GATE, CellState.SKIPPED, f"{NOT_POSSIBLE}one GPU"), plans=(GATE, OTHER_GATE)),
            ExitCode.DONE,
            ("preflight/nixl_both: skipped: not possible on this host: one GPU",),
            id="a config for which the host has no room is named, and the others decide",
        ),
    ],
)
def test_the_code_of_a_run(view: RunView, code: ExitCode, named: tuple[str, ...]) -> None:
    assert exit_code(view) == code
    assert list_shortfalls(view) == named
