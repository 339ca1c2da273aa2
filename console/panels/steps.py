"""The Steps panel: step-duration histograms of every instance."""

from __future__ import annotations

from pathlib import Path

from console.feed import Picture
from console.glossary import Entry
from console.panels.panel import Look, Panel, PanelKind, Place
from console.rows.instances import order_instances, tone_of
from console.widgets.histogram import Counts, Histogram
from results.report.terms import term
from state.model import InstanceView, RunView

HEADING = "Steps, share per bucket"


def count_steps(view: RunView, instances: list[InstanceView]) -> tuple[Counts, ...]:
    """The step histograms of these instances."""
    return tuple(
        Counts(i.instance, tone_of(view, i), i.step_counts_total) for i in instances if sum(i.step_counts_total)
    )


class StepsPanel(Panel):
    """All instances, or `only` one."""

    def __init__(self, look: Look, run_folder: Path, *, id: str, only: str | None = None) -> None:
        self._histogram = Histogram(empty="no step timing yet", glyphs=look.glyphs)
        super().__init__(look, run_folder, self._histogram, id=id)
        self.only = only

    def show(self, picture: Picture) -> None:
        shown = [i for i in order_instances(picture.view) if self.only in (None, i.instance)]
        self._histogram.show(count_steps(picture.view, shown))


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
