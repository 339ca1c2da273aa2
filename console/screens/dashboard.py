"""The panels of a run: which are seen, where they stand, and the keys that open them.

A dashboard where there is room, else one panel at a time.
"""

from __future__ import annotations

from pathlib import Path

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from console import actions
from console.findings import LIFECYCLE, ROUTING
from console.screens.steering import SteeringScreen
from console.widgets.header import RunHeader
from console.widgets.lifecycle import LifecyclePanel
from console.widgets.migrations import MigrationsPanel
from console.widgets.panels import (
    EventsPanel,
    InstancesPanel,
    LatencyPanel,
    Panel,
    StagesPanel,
    StepsPanel,
)
from console.widgets.results import ResultsPanel
from console.widgets.routing import RoutingPanel

DASHBOARD_SIZE = (108, 32)
"""Columns and rows from which the dashboard fits."""
SHARED = frozenset({"stages", "instances", "latency", "events"})
"""What every dashboard shows; beside it steps, or what shows the router or the requests taken apart."""


class DashboardScreen(SteeringScreen):
    """A run's panels, before anything is drawn in them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._zoomed = False
        self._arranged_for: tuple[object, ...] = ()
        """What of the run the panels were last arranged for."""
        self._current = "stages"
        self._panels: dict[str, Panel] = {}
        self._groups: dict[Widget, frozenset[str]] = {}
        """What stands around panels, and is hidden when all of them are."""
        self._header = RunHeader()
        self._tabs = Static(id="tabs")

    def compose(self) -> ComposeResult:
        look = self.tracon.look
        stages, instances = StagesPanel(look, id="stages"), InstancesPanel(look, id="instances")
        latency, steps = LatencyPanel(look, id="latency"), StepsPanel(look, id="steps")
        events, results = EventsPanel(look, id="events"), ResultsPanel(look, self._folder, id="results")
        routing, migrations = RoutingPanel(look, id="routing"), MigrationsPanel(look, id="migrations")
        lifecycle = LifecyclePanel(look, id="lifecycle")
        made: tuple[Panel, ...] = (
            stages, instances, latency, steps, events, results, routing, migrations, lifecycle
        )  # fmt: skip
        self._panels = dict(zip(actions.PANELS, made, strict=True))
        self._header = RunHeader(glyphs=look.glyphs)
        right = Vertical(instances, latency, id="right")
        upper, lower = Horizontal(stages, right, id="upper"), Horizontal(steps, routing, lifecycle, events, id="lower")
        self._groups = {
            right: frozenset({"instances", "latency"}),
            upper: frozenset({"stages", "instances", "latency"}),
            lower: frozenset({"steps", "routing", "lifecycle", "events"}),
        }
        yield self._header
        yield self._tabs
        yield Vertical(upper, lower, results, migrations, id="body")
        yield from self.compose_foot()

    def panel(self, name: str) -> Panel:
        return self._panels[name]

    @property
    def results(self) -> ResultsPanel:
        """The panel of that name."""
        return self.query_one(ResultsPanel)

    @property
    def routing(self) -> RoutingPanel:
        """The panel of that name."""
        return self.query_one(RoutingPanel)

    @property
    def migrations(self) -> MigrationsPanel:
        """The panel of that name."""
        return self.query_one(MigrationsPanel)

    @property
    def lifecycle(self) -> LifecyclePanel:
        """The panel of that name."""
        return self.query_one(LifecyclePanel)

    def redraw(self) -> None:
        """Draw what is seen, after a change of what or how to draw."""

    # -- arranging ----------------------------------------------------------------------------------------------

    @property
    def dashboard(self) -> bool:
        """Several panels at once."""
        width, height = self.size
        return not self._zoomed and width >= DASHBOARD_SIZE[0] and height >= DASHBOARD_SIZE[1]

    @property
    def routed(self) -> bool:
        """The run sends requests through a router."""
        view = self.picture.view
        return view.routing is not None or view.plan.experiment == ROUTING

    @property
    def taken_apart(self) -> bool:
        """The run takes requests apart."""
        view = self.picture.view
        return view.lifecycle is not None or view.plan.experiment == LIFECYCLE

    def on_dashboard(self, name: str) -> bool:
        """The dashboard shows this panel."""
        return name in SHARED or name == self._own_panel

    @property
    def _own_panel(self) -> str:
        """What the dashboard shows of this experiment alone."""
        return "lifecycle" if self.taken_apart else "routing" if self.routed else "steps"

    def _has(self, name: str) -> bool:
        """The run has, or may come to have, something to show on this panel."""
        has = {"routing": self.routed, "migrations": self.routed, "lifecycle": self.taken_apart}
        return has.get(name, True)

    def is_seen(self, name: str) -> bool:
        """The panel is seen in the present mode."""
        return self.on_dashboard(name) if self.dashboard else name == self._current

    def on_resize(self) -> None:
        self.lay_out()
        self.redraw()

    def lay_out(self) -> None:
        """Show the panels of the present mode."""
        dashboard = self.dashboard
        self._arranged_for = (self._own_panel, self.routed, self.taken_apart)
        self.set_class(dashboard, "dashboard")
        self.set_class(not dashboard, "tabbed")
        for name in ("routing", "lifecycle"):
            self.set_class(self._own_panel == name, f"of-{name}")
        for name in actions.PANELS:
            self.panel(name).display = self.is_seen(name)
        shown = {name for name in actions.PANELS if self.is_seen(name)}
        for group, names in self._groups.items():
            group.display = bool(shown & names)
        self._tabs.update(self._tab_line())
        self.size_instances()

    def lay_out_anew(self) -> None:
        """Arrange again where the run turned out to have a router or requests taken apart, or none."""
        if self._arranged_for != (self._own_panel, self.routed, self.taken_apart):
            self.lay_out()

    def size_instances(self) -> None:
        """On the dashboard the instance table takes the lines it needs, within bounds."""
        lines = min(11, max(6, len(self.picture.view.instances) + 4))
        self.panel("instances").styles.height = lines if self.dashboard else "1fr"

    def _tab_line(self) -> Text:
        """The panels that have something to show, as far apart as there is room; only numbers where there is little."""
        shown = [(f"{number} {actions.BY_ID[name].label}", name) for number, name in enumerate(actions.PANELS, 1)
                 if self._has(name) or name == self._current]  # fmt: skip
        room = self.size.width - sum(len(label) for label, _ in shown)
        if room < len(shown) - 1:
            shown = [(label if name == self._current else label[:1], name) for label, name in shown]
        pad, gap = (" ", " ") if room >= 3 * len(shown) else (" ", "") if room >= 2 * len(shown) else ("", " ")
        text = Text(no_wrap=True)
        for label, name in shown:
            text.append(f"{pad}{label}{pad}", style="bold reverse" if name == self._current else "dim")
            text.append(gap)
        return text

    # -- opening ------------------------------------------------------------------------------------------------

    def open_panel(self, name: str) -> None:
        """Show this panel, alone where the dashboard has no place for it, and give it the focus."""
        if self.dashboard and not self.on_dashboard(name):
            self._zoomed = True
        self._current = name
        self.lay_out()
        self.refresh_bindings()
        self.panel(name).focus_content()
        self.redraw()

    def focused_panel(self) -> str:
        """The panel that keys go to."""
        return next((name for name in actions.PANELS if self.panel(name).has_focus_within), self._current)

    def close_zoom(self) -> bool:
        """Go back to all panels; False where that is how they stand."""
        if not self._zoomed:
            return False
        self._zoomed = False
        self.open_panel(self._current if self.on_dashboard(self._current) else "stages")
        return True

    def action_stages(self) -> None:
        self.open_panel("stages")

    def action_instances(self) -> None:
        self.open_panel("instances")

    def action_latency(self) -> None:
        self.open_panel("latency")

    def action_steps(self) -> None:
        self.open_panel("steps")

    def action_events(self) -> None:
        self.open_panel("events")

    def action_results(self) -> None:
        self.open_panel("results")

    def action_routing(self) -> None:
        self.open_panel("routing")

    def action_migrations(self) -> None:
        self.open_panel("migrations")

    def action_lifecycle(self) -> None:
        self.open_panel("lifecycle")

    def action_zoom(self) -> None:
        self._current = self.focused_panel()
        if not self.close_zoom():
            self._zoomed = True
            self.open_panel(self._current)
