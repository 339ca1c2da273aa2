"""The panels of a run: which are seen, where they are, and the keys that open them.

A dashboard where there is room, else one panel at a time. All of it follows the registered panels.
"""

from __future__ import annotations

from pathlib import Path

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingsMap
from textual.containers import Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Static

from console import keys
from console.panels.panel import Panel, PanelKind, Place
from console.panels.registry import list_panel_kinds
from console.screens.steering import SteeringScreen
from console.widgets.header import RunHeader

DASHBOARD_SIZE = (108, 32)
"""Columns and rows from which the dashboard fits."""


class DashboardScreen(SteeringScreen):
    """A run's panels, before anything is drawn in them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._kinds = {kind.name: kind for kind in list_panel_kinds()}
        self._bindings = BindingsMap.merge([self._bindings, BindingsMap(keys.make_panel_bindings())])
        self._zoomed = False
        self._arranged_for: tuple[str, ...] = ()
        """The panels that applied to the run when they were last arranged."""
        self._current = next(iter(self._kinds))
        self._panels: dict[str, Panel] = {}
        self._groups: dict[Widget, frozenset[Place]] = {}
        """What is around panels, with their places; it is hidden when all of them are."""
        self._header = RunHeader()
        self._tabs = Static(id="tabs")

    def compose(self) -> ComposeResult:
        look = self.tracon.look
        self._panels = {name: kind.make(look, self._folder) for name, kind in self._kinds.items()}
        self._header = RunHeader(glyphs=look.glyphs)
        right = Vertical(*self._list_panels_at(Place.RIGHT), id="right")
        upper = Horizontal(*self._list_panels_at(Place.LEFT), right, id="upper")
        lower = Horizontal(*self._list_panels_at(Place.OWN), *self._list_panels_at(Place.LOWER), id="lower")
        self._groups = {
            right: frozenset({Place.RIGHT}),
            upper: frozenset({Place.LEFT, Place.RIGHT}),
            lower: frozenset({Place.OWN, Place.LOWER}),
        }
        yield self._header
        yield self._tabs
        yield Vertical(upper, lower, *self._list_panels_at(Place.ALONE), id="body")
        yield from self.compose_foot()

    def _list_panels_at(self, place: Place) -> list[Panel]:
        return [self._panels[name] for name, kind in self._kinds.items() if kind.place is place]

    def panel(self, name: str) -> Panel:
        return self._panels[name]

    def find_panel_around(self, widget: Widget) -> Panel:
        return next(each for each in widget.ancestors if isinstance(each, Panel))

    # -- arranging ----------------------------------------------------------------------------------------------

    @property
    def dashboard(self) -> bool:
        """Several panels at once."""
        width, height = self.size
        return not self._zoomed and width >= DASHBOARD_SIZE[0] and height >= DASHBOARD_SIZE[1]

    def _list_applying_kinds(self) -> tuple[PanelKind, ...]:
        """The panels that the run has, or may get, something to show on."""
        return tuple(kind for kind in self._kinds.values() if kind.applies(self.picture.view))

    def on_dashboard(self, name: str) -> bool:
        """The dashboard shows this panel."""
        kind = self._kinds[name]
        if kind.place is Place.OWN:
            return kind is self._find_own_panel()
        return kind.place is not Place.ALONE

    def _find_own_panel(self) -> PanelKind | None:
        return next((kind for kind in reversed(self._list_applying_kinds()) if kind.place is Place.OWN), None)

    def is_seen(self, name: str) -> bool:
        """The panel is seen in the present mode."""
        return self.on_dashboard(name) if self.dashboard else name == self._current

    def on_resize(self) -> None:
        self.lay_out()
        self.redraw()

    def lay_out(self) -> None:
        """Show the panels of the present mode."""
        dashboard, own = self.dashboard, self._find_own_panel()
        self._arranged_for = tuple(kind.name for kind in self._list_applying_kinds())
        self.set_class(dashboard, "dashboard")
        self.set_class(not dashboard, "tabbed")
        self.set_class(own is not None and own.large, "of-large")
        places = {self._kinds[name].place for name in self._kinds if self.is_seen(name)}
        for name, panel in self._panels.items():
            panel.display = self.is_seen(name)
        for group, around in self._groups.items():
            group.display = bool(places & around)
        self._tabs.update(self._tab_line())
        self.size_panels()

    def lay_out_again(self) -> None:
        """Arrange again where other panels apply to the run now: it has got a router, for instance."""
        if self._arranged_for != tuple(kind.name for kind in self._list_applying_kinds()):
            self.lay_out()

    def size_panels(self) -> None:
        """On the dashboard some panels take the lines they need instead of a share."""
        for name, panel in self._panels.items():
            if self._kinds[name].place is Place.RIGHT:
                lines = panel.count_wanted_lines(self.picture.view)
                panel.styles.height = lines if self.dashboard and lines is not None else "1fr"

    def _tab_line(self) -> Text:
        """The panels that have something to show, as far apart as there is room; only keys where there is little."""
        applying = self._list_applying_kinds()
        shown = [(f"{kind.key} {kind.title}", name) for name, kind in self._kinds.items()
                 if kind in applying or name == self._current]  # fmt: skip
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

    def find_focused_panel(self) -> str:
        """The panel that keys go to."""
        return next((name for name, panel in self._panels.items() if panel.has_focus_within), self._current)

    def close_zoom(self) -> bool:
        """Go back to all panels; False where that is how they are."""
        if not self._zoomed:
            return False
        self._zoomed = False
        self.open_panel(self._current if self.on_dashboard(self._current) else next(iter(self._kinds)))
        return True

    def action_open_panel(self, name: str) -> None:
        self.open_panel(name)

    def action_zoom(self) -> None:
        self._current = self.find_focused_panel()
        if not self.close_zoom():
            self._zoomed = True
            self.open_panel(self._current)
