"""`pd-lifecycle` for the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runners.campaign.experiment import Experiment
from runners.experiments.pd_lifecycle.grid import EXPERIMENT, Grid
from runners.experiments.pd_lifecycle.plan import draft_plan

if TYPE_CHECKING:
    from results.records.plan import RunPlan
    from runners.campaign.context import RunContext
    from runners.experiments.pd_lifecycle.experiment import PdLifecycle
    from state.workspace import Workspace


def _make_cell_runner(grid: Grid, context: RunContext) -> PdLifecycle:
    from runners.experiments.pd_lifecycle.experiment import PdLifecycle  # it loads the analysis; a plan needs none

    return PdLifecycle(grid, context)


def _describe_precision(plan: RunPlan, workspace: Workspace) -> tuple[str, ...]:
    from runners.experiments.pd_lifecycle.precision import describe_precision  # it loads numpy; a run needs none

    return describe_precision(plan, workspace)


ENTRY = Experiment(
    name=EXPERIMENT,
    draft_plan=draft_plan,
    cell_runner=_make_cell_runner,
    describe_precision=_describe_precision,
    option_help={
        "configs": "for both engines, or given twice: the prefill engine's, then the decode engine's",
        "settings": "e.g. `new_tokens=[512,2048]`",
    },
)
