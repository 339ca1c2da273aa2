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

PLANS = (
    CellPlan("preflight/plain", "preflight", "preflight", "plain", "plain", {}, 1.0),
    CellPlan("phase-a/plain/r1", "phase-a", "load", "plain", "1 req/s", {"rate_per_s": 1.0}, 1.0),
    CellPlan("reference/rates", "reference", "reference", None, "ref_safe and ref_load", {}, 1.0),
    CellPlan("phase-b-prime/plain/8x8", "phase-b", "load", "plain", "8 x 8 at ref_load", {"rate": "ref_load"}, 1.0),
)


def view_with(state: RunState = RunState.DONE, **changed: CellView) -> RunView:
    stages = [StagePlan(name, name) for name in ("preflight", "phase-a", "reference", "phase-b")]
    plan = freeze_plan(
        experiment="connector-tax", profile="p", preset="q", configs=["plain"], seed=1, stages=stages, cells=PLANS,
        inputs={},
    )  # fmt: skip
    cells = {cell.cell: CellView(cell.cell, cell, CellState.DONE, 1) for cell in PLANS}
    for stage, cell in changed.items():
        cells[next(name for name in cells if name.startswith(stage.replace("_", "-") + "/"))] = cell
    return replace(EMPTY, plan=plan, cells=cells, row=replace(EMPTY.row, state=state))


TWO = (PLANS[0], CellPlan("preflight/nixl_both", "preflight", "preflight", "nixl_both", "nixl_both", {}, 1.0))


def ended(number: int, state: CellState, **more: object) -> CellView:
    return CellView(PLANS[number].cell, PLANS[number], state, 1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("view", "code", "named"),
    [
        (view_with(), ExitCode.DONE, ()),
        (
            view_with(phase_a=ended(1, CellState.DONE, degraded="the client fell behind")),
            ExitCode.DONE,
            ("phase-a/plain/r1: degraded: the client fell behind",),
        ),
        (
            view_with(phase_a=ended(1, CellState.SKIPPED, reason="asked")),
            ExitCode.CELLS_FAILED,
            ("phase-a/plain/r1: skipped: asked",),
        ),
        (
            view_with(phase_b_prime=ended(3, CellState.SKIPPED, reason=f"{NOT_NEEDED}it would repeat another")),
            ExitCode.DONE,
            (),
        ),
        (
            view_with(phase_b_prime=ended(3, CellState.SKIPPED, reason="the same: it would repeat that cell")),
            ExitCode.DONE,
            (),
        ),
        (
            view_with(phase_b_prime=ended(3, CellState.SKIPPED, reason="asked")),
            ExitCode.CELLS_FAILED,
            ("phase-b-prime/plain/8x8: skipped: asked",),
        ),
        (
            view_with(RunState.FAILED, phase_a=ended(1, CellState.FAILED, reason="died")),
            ExitCode.CELLS_FAILED,
            ("phase-a/plain/r1: failed: died",),
        ),
        (
            view_with(RunState.FAILED, preflight=ended(0, CellState.FAILED, reason="no")),
            ExitCode.GATE_FAILED,
            ("preflight/plain: failed: no",),
        ),
        (view_with(RunState.INTERRUPTED), ExitCode.INTERRUPTED, ()),
        (
            view_with(preflight=ended(0, CellState.SKIPPED, reason=f"{NOT_POSSIBLE}one GPU")),
            ExitCode.CELLS_FAILED,
            ("preflight/plain: skipped: not possible on this host: one GPU",),
        ),
    ],
)
def test_the_code_of_a_run(view: RunView, code: ExitCode, named: tuple[str, ...]) -> None:
    assert exit_code(view) == code
    assert list_shortfalls(view) == named


def test_a_config_for_which_the_host_has_no_room_is_named_and_the_others_decide() -> None:
    stages = [StagePlan("preflight", "preflight")]
    plan = freeze_plan(
        experiment="connector-tax", profile="p", preset="q", configs=["plain", "nixl_both"], seed=1, stages=stages,
        cells=TWO, inputs={},
    )  # fmt: skip
    cells = {
        TWO[0].cell: CellView(TWO[0].cell, TWO[0], CellState.DONE, 1),
        TWO[1].cell: CellView(TWO[1].cell, TWO[1], CellState.SKIPPED, 1, reason=f"{NOT_POSSIBLE}one GPU"),
    }
    view = replace(EMPTY, plan=plan, cells=cells, row=replace(EMPTY.row, state=RunState.DONE))
    assert exit_code(view) == ExitCode.DONE
    assert list_shortfalls(view) == ("preflight/nixl_both: skipped: not possible on this host: one GPU",)
