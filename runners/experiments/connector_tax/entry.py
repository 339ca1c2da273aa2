"""`connector-tax` for the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runners.campaign.experiment import Experiment
from runners.experiments.connector_tax.grid import EXPERIMENT, Grid
from runners.experiments.connector_tax.plan import draft_plan

if TYPE_CHECKING:
    from results.records.plan import RunPlan
    from runners.campaign.context import RunContext
    from runners.experiments.connector_tax.experiment import ConnectorTax
    from state.workspace import Workspace


def _make_cell_runner(grid: Grid, context: RunContext) -> ConnectorTax:
    from runners.experiments.connector_tax.experiment import ConnectorTax  # it loads the analysis; a plan needs none

    return ConnectorTax(grid, context)


def _describe_precision(plan: RunPlan, workspace: Workspace) -> tuple[str, ...]:
    from runners.experiments.connector_tax.precision import describe_precision  # it loads numpy; a run needs none

    return describe_precision(plan, workspace)


ENTRY = Experiment(
    name=EXPERIMENT,
    draft_plan=draft_plan,
    cell_runner=_make_cell_runner,
    describe_precision=_describe_precision,
    option_help={"configs": "only these (repeatable), `plain` among them", "settings": "e.g. `min_completed=100`"},
)
