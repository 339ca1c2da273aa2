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


def _cell_runner(grid: Grid, context: RunContext) -> Routing:
    from runners.experiments.routing.experiment import Routing  # it loads the analysis; a plan needs none

    return Routing(grid, context)


def _describe_precision(plan: RunPlan, workspace: Workspace) -> tuple[str, ...]:
    from runners.experiments.routing.precision import describe_precision  # it loads numpy; a run needs none

    return describe_precision(plan, workspace)


ENTRY = Experiment(
    name=EXPERIMENT,
    draft_plan=draft_plan,
    cell_runner=_cell_runner,
    describe_precision=_describe_precision,
    option_help={
        "configs": "of all engines",
        "policies": "only these policies (repeatable), by name, label or Python file",
        "settings": "e.g. `trace.sessions=50` or `unified.overload_factor=1.3`",
        "simulated": "in the same plan, records, report and figures",
        "engine": "default with `--simulated`: `h20-qwen3-coder-30b-a3b-roofline`",
        "on": "with engines that are a model",
        "instances": "of each cell",
        "trace": "replay this trace file instead of the preset's",
    },
)
