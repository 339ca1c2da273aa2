"""What earlier runs of a workspace measured, for the plan of the next one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from results.records.events import RunState
from results.records.plan import RunPlan
from state.workspace import RunEntry, Workspace

Measured = TypeVar("Measured")
FINISHED = (RunState.DONE, RunState.FAILED)
"""A failed run has an analysis of the cells that it measured."""
PLANNED_LAUNCHES = (3, 5, 10)
"""Numbers of launches for which a plan states the precision, beside its own."""


def find_newest(
    plan: RunPlan, workspace: Workspace, read_run: Callable[[RunEntry], Measured | None]
) -> Measured | None:
    """What the newest finished run of the plan's experiment and profile measured; None = no run measured it.

    read_run: returns None where a run did not measure it; then the run before it is read.
    """
    for run in workspace.runs():
        if (run.experiment, run.profile) == (plan.experiment, plan.profile) and run.state in FINISHED:
            measured = read_run(run)
            if measured is not None:
                return measured
    return None


def describe_no_sigma(workspace: Workspace, needed: str) -> str:
    """A sentence of the plan where no run has what sigma is computed from. needed: that, to follow `has`."""
    return (
        f"Sigma between launches is not known: no finished run of this profile in {workspace.root} has {needed}. "
        "The first such run measures it."
    )
