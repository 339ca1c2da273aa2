"""The panels of a run: each draws its part of a picture, and only while it can be seen."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from console.feed import Picture, now_of
from console.glyphs import UNICODE, Glyphs
from console.rows import events, instances, stages
from console.series import Series, points, window_text
from console.widgets.histogram import Histogram
from console.widgets.plot import Plot
from console.widgets.table import Table
from state.events import InstanceSampled, RoutedLatency
from state.view import InstanceView


@dataclass(frozen=True, slots=True)
class Look:
    """How the operator wants to see things."""

    window_s: float | None = 300.0
    follow: bool = True
    glyphs: Glyphs = UNICODE
    marker: str = "braille"
    folded: frozenset[str] = field(default_factory=frozenset)
    """Stages whose cells are hidden."""


class Panel(Vertical):
    """A titled part of the screen."""

    TITLE = ""

    def __init__(self, look: Look, *content: Widget, id: str) -> None:
        super().__init__(*content, id=id, classes="panel")
        self.look = look
        self.border_title = self.TITLE

    @abstractmethod
    def show(self, picture: Picture) -> None:
        """Draw what changed. mypy sees to it that every panel does; Textual's metaclass leaves no room for ABCMeta."""

    @property
    def table(self) -> Table | None:
        """The table inside, where there is one (it can be filtered and followed)."""
        return None

    def filter(self, text: str) -> None:
        """Filter the table and say so in the border."""
        if self.table is not None:
            self.table.filter(text)
            self.border_subtitle = f"filter: {text}  (esc clears)" if text else ""

    def focus_content(self) -> None:
        """Give the focus, at once, to what can be moved in; where there is nothing, to nothing."""
        self.screen.set_focus(self.table)


class StagesPanel(Panel):
    """The stage tree: stages with progress, their cells with state and headline numbers."""

    TITLE = "1 Stages"

    def __init__(self, look: Look, *, id: str) -> None:
        self._table = Table(empty="no plan yet")
        super().__init__(look, self._table, id=id)

    @property
    def table(self) -> Table:
        return self._table

    def show(self, picture: Picture) -> None:
        columns = stages.stage_columns(self.table.room, picture.view.plan.experiment)
        self.table.show(columns, stages.stage_rows(picture, self.look.folded, self.look.glyphs, columns))
        running = picture.view.current_cells
        if self.look.follow and running:
            self.table.move_to(f"cell:{running[0].cell}")


class InstancesPanel(Panel):
    """Every instance with its newest numbers."""

    TITLE = "2 Instances"

    def __init__(self, look: Look, *, id: str) -> None:
        self._table = Table(empty="no instance has been launched yet")
        super().__init__(look, self._table, id=id)

    @property
    def table(self) -> Table:
        return self._table

    def show(self, picture: Picture) -> None:
        columns = instances.instance_columns(self.table.room)
        self.table.show(columns, instances.instance_rows(picture, self.look.glyphs, columns))


class PlotBox(Vertical):
    """A plot with its title, unit and time window in the border."""

    def __init__(self, title: str) -> None:
        self.plot = Plot(empty="no sample in this time window")
        super().__init__(self.plot, classes="panel")
        self.border_title = title


class LatencyPanel(Panel):
    """TTFT and TPOT over time: p90 of every instance, or p50 and p90 of one."""

    def __init__(self, look: Look, *, id: str, only: str | None = None) -> None:
        which = "p50, p90" if only else "p90"
        key = "" if only else "3 "
        self._ttft = PlotBox(f"{key}TTFT {which}, ms")
        self._tpot = PlotBox(f"{key}TPOT {which}, ms per token")
        super().__init__(look, Horizontal(self._ttft, self._tpot), id=id)
        self.only = only
        self.remove_class("panel")

    def show(self, picture: Picture) -> None:
        view = picture.view
        shown = [i for i in view.instances.values() if self.only in (None, i.instance)]
        end = float(int(now_of(picture)) + 1)
        earliest = view.started_unix_s or view.created_unix_s
        if self.only and shown:
            earliest, end = shown[0].started_unix_s, min(end, (shown[0].ended_unix_s or end) + 1)
        start = earliest if self.look.window_s is None else max(end - self.look.window_s, earliest)
        for name, box in (("ttft", self._ttft), ("tpot", self._tpot)):
            if box.border_subtitle != window_text(self.look.window_s):  # setting it draws the box again
                box.border_subtitle = window_text(self.look.window_s)
            box.plot.marker = self.look.marker
            of_each = [line for i in shown for line in self._lines(picture, i, name, start)]
            box.plot.show([*self._overall(picture, name, start), *of_each], start, end)

    def _overall(self, picture: Picture, name: str, start: float) -> list[Series]:
        """Where a router stands before the instances, what the client saw of all of them."""
        if self.only or picture.view.routing is None:
            return []
        return [Series("all", "bold", _line(picture.view.routing.latencies, f"{name}_p90_s", start))]

    def _lines(self, picture: Picture, instance: InstanceView, name: str, start: float) -> list[Series]:
        history = picture.history(instance.instance)
        tone = instances.tone_of(picture.view, instance)
        which = [(f"{name}_p90_s", instance.instance, tone)]
        if self.only:
            which = [(f"{name}_p50_s", "p50", "dim"), (f"{name}_p90_s", "p90", tone)]
        return [Series(label, color, _line(history, field_name, start)) for field_name, label, color in which]


def _line(
    history: tuple[tuple[float, InstanceSampled | RoutedLatency], ...], name: str, start: float
) -> tuple[tuple[float, float], ...]:
    def milliseconds(sample: InstanceSampled | RoutedLatency) -> float | None:
        value: float | None = getattr(sample, name)
        return None if value is None else value * 1e3

    return points(history, milliseconds, start)


class StepsPanel(Panel):
    """Step-duration histograms."""

    TITLE = "4 Steps, share per bucket"

    def __init__(self, look: Look, *, id: str, only: str | None = None) -> None:
        self._histogram = Histogram(empty="no step timing yet", glyphs=look.glyphs)
        super().__init__(look, self._histogram, id=id)
        self.only = only

    def show(self, picture: Picture) -> None:
        shown = [i for i in instances.ordered(picture.view) if self.only in (None, i.instance)]
        self._histogram.show(instances.counts(picture.view, shown))


class EventsPanel(Panel):
    """The feed."""

    TITLE = "5 Events"

    def __init__(self, look: Look, *, id: str, about: frozenset[str] = frozenset()) -> None:
        self._table = Table(empty="nothing has happened yet")
        super().__init__(look, self._table, id=id)
        self.about = about

    @property
    def table(self) -> Table:
        return self._table

    def show(self, picture: Picture) -> None:
        table = self.table
        width = table.room
        table.show(events.event_columns(width), events.event_rows(picture.view, self.look.glyphs, width, self.about))
        if self.look.follow:
            table.go_to_end()
