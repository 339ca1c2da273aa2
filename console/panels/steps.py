"""The Steps panel: step-duration histograms of every instance."""

from __future__ import annotations

from pathlib import Path

from console.feed import Picture
from console.glossary import Entry
from console.panels.panel import Look, Panel, PanelKind, Place
from console.rows.instances import order_instances, tone_of
from console.widgets.histogram import Counts, Histogram
from results.records.errors import ResultsError
from results.records.events import CellState, RunState
from results.registry import find_results
from results.report.terms import term
from state.model import RunView

HEADING = "Steps, share per bucket"
TIMED = "step_timing_available"
"""In the summary of the cell that applies the step probe: whether engines report their steps."""


def explain_no_steps(view: RunView) -> str:
    """Why no step is shown: none so far, the step probe does not fit this vLLM, or the experiment never times steps."""
    so_far = "no step timing" if view.state in (RunState.DONE, RunState.FAILED) else "no step timing yet"
    for cell in view.cells.values():
        if TIMED in cell.summary:
            timed = cell.summary[TIMED]
            return f"{so_far}: no engine has reported a step" if timed else f"no step timing: {cell.summary['reason']}"
    if view.cells and not _times_steps(view.plan.experiment):
        return f"a {view.plan.experiment} run does not time engine steps"
    probe = next((cell for cell in view.cells.values() if cell.plan.kind == "probe"), None)
    if probe is None or probe.state in (CellState.PENDING, CellState.RUNNING):
        return f"{so_far}: the step probe is not applied"
    return f"no step timing: {probe.reason}"


def _times_steps(experiment: str) -> bool:
    """False of an unknown experiment. A probe alone is no sign: those of others time transfers."""
    try:
        return find_results(experiment).times_steps
    except ResultsError:
        return False


class StepsPanel(Panel):
    """All instances, or `only` one."""

    def __init__(self, look: Look, run_folder: Path, *, id: str, only: str | None = None) -> None:
        self._histogram = Histogram(glyphs=look.glyphs)
        super().__init__(look, run_folder, self._histogram, id=id)
        self.only = only

    def show(self, picture: Picture) -> None:
        view = picture.view
        shown = [each for each in order_instances(view) if self.only in (None, each.instance)]
        counts = [Counts(each.instance, tone_of(view, each), each.step_counts_total) for each in shown]
        self._histogram.show(counts, empty=explain_no_steps(view))


PANEL = PanelKind(
    "steps",
    "4",
    "Steps",
    "engine step durations per instance",
    StepsPanel,
    Place.OWN,
    heading=HEADING,
    entries=(
        Entry(
            "step histogram",
            term("step histogram"),
            "step probe inside the engine; the axis gives the buckets' upper edges",
        ),
    ),
)
