"""`routing` for the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runners.campaign.experiment import Experiment
from runners.experiments.routing.grid import EXPERIMENT, Grid
from runners.experiments.routing.plan import draft_plan

if TYPE_CHECKING:
    from results.records.plan import RunPlan
    from runners.campaign.context import RunContext
    from runners.experiments.routing.experiment import Routing
    from state.workspace import Workspace


def _make_cell_runner(grid: Grid, context: RunContext) -> Routing:
    from runners.experiments.routing.experiment import Routing  # it loads the analysis; a plan needs none

    return Routing(grid, context)


def _describe_precision(plan: RunPlan, workspace: Workspace) -> tuple[str, ...]:
    from runners.experiments.routing.precision import describe_precision  # it loads numpy; a run needs none

    return describe_precision(plan, workspace)


ENTRY = Experiment(
    name=EXPERIMENT,
    draft_plan=draft_plan,
    cell_runner=_make_cell_runner,
    describe_precision=_describe_precision,
    option_help={
        "configs": "for all engines",
        "policies": "compare only these (repeatable)",
        "settings": "e.g. `trace.sessions=50` or `unified.overload_factor=1.3`",
        "simulated": "with the plan, records, report and figures of a real run",
        "engine": "by default the preset's, else `h20-qwen3-coder-30b-a3b-roofline`",
        "on": "the cells of a simulated run",
        "instances": "in each cell",
        "trace": "scaled and cut as the preset states",
    },
)
