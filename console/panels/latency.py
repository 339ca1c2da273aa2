"""The Latency panel: TTFT and TPOT over time."""

from __future__ import annotations

from pathlib import Path

from textual.containers import Horizontal, Vertical

from console.feed import Picture, find_now
from console.panels.panel import Look, Panel, PanelKind, Place
from console.rows.instances import tone_of
from console.series import Series, format_window, list_measured_points
from console.widgets.plot import Plot
from results.records.events import InstanceSampled
from results.records.live import LiveLatency
from state.model import InstanceView


class PlotBox(Vertical):
    """A plot with its title, unit and time window in the border."""

    def __init__(self, title: str) -> None:
        self.plot = Plot(empty="no sample in this time window")
        super().__init__(self.plot, classes="panel")
        self.border_title = title


class LatencyPanel(Panel):
    """TTFT and TPOT over time: p90 of every instance, or p50 and p90 of one."""

    DRAW_EVERY_S = 0.95

    def __init__(self, look: Look, run_folder: Path, *, id: str, only: str | None = None) -> None:
        which = "p50, p90" if only else "p90"
        key = "" if only else f"{PANEL.key} "
        self._ttft = PlotBox(f"{key}TTFT {which}, ms")
        self._tpot = PlotBox(f"{key}TPOT {which}, ms per token")
        super().__init__(look, run_folder, Horizontal(self._ttft, self._tpot), id=id)
        self.only = only
        self.remove_class("panel")

    def show(self, picture: Picture) -> None:
        view = picture.view
        shown = [i for i in view.instances.values() if self.only in (None, i.instance)]
        end = float(int(find_now(picture)) + 1)
        earliest = view.row.started_unix_s or view.row.created_unix_s
        if self.only and shown:
            earliest, end = shown[0].started_unix_s, min(end, (shown[0].ended_unix_s or end) + 1)
        start = earliest if self.look.window_s is None else max(end - self.look.window_s, earliest)
        for name, box in (("ttft", self._ttft), ("tpot", self._tpot)):
            if box.border_subtitle != format_window(self.look.window_s):  # setting it draws the box again
                box.border_subtitle = format_window(self.look.window_s)
            box.plot.marker = self.look.marker
            of_each = [line for i in shown for line in self._make_instance_series(picture, i, name, start)]
            box.plot.show(
                [*of_each, *self._make_overall_series(picture, name, start)], start, end
            )  # the legend's first

    def _make_overall_series(self, picture: Picture, name: str, start: float) -> list[Series]:
        """Behind a router: what the client measured over all instances."""
        if self.only or picture.view.routing is None:
            return []
        return [Series("all", "bold", _make_series(picture.view.routing.latencies, f"{name}_p90_s", start))]

    def _make_instance_series(self, picture: Picture, instance: InstanceView, name: str, start: float) -> list[Series]:
        history = picture.history(instance.instance)
        tone = tone_of(picture.view, instance)
        which = [(f"{name}_p90_s", instance.instance, tone)]
        if self.only:
            which = [(f"{name}_p50_s", "p50", "dim"), (f"{name}_p90_s", "p90", tone)]
        return [Series(label, color, _make_series(history, field_name, start)) for field_name, label, color in which]


def _make_series(
    history: tuple[tuple[float, InstanceSampled | LiveLatency], ...], name: str, start: float
) -> tuple[tuple[float, float], ...]:
    def milliseconds(sample: InstanceSampled | LiveLatency) -> float | None:
        value: float | None = getattr(sample, name)
        return None if value is None else value * 1e3

    return list_measured_points(history, milliseconds, start)


PANEL = PanelKind("latency", "3", "Latency", "TTFT and TPOT over time", LatencyPanel, Place.RIGHT)
