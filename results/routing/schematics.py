"""The schematics of specs/ear: why the system's speed sets its own load (f3), and the parts of EAR (f5).

Drawings with the run's numbers in them; their lengths are no scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pandas as pd

from results.report.figure import Figure
from results.report.ink import sheet
from results.report.marks import write_note
from results.routing.analyze import RoutingAnalysis
from results.routing.figure_kinds import FigureData, FigureKind
from results.routing.specification import EAR, FULL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

HUMAN_S = 30.0
"""The specification's example of a reader's pause (2.3)."""
TURNS_DRAWN = 3
SYSTEM, PAUSE, INSTANCE, ROUTER = "system", "pause", "instance", "router"
_BUSY, _IDLE = "#4d4d4d", "#e3e3e3"


def collect_coupling_schematic(analysis: RoutingAnalysis) -> FigureData | str:
    """f3: the service and think time of the policy with the fastest turns."""
    known = [row for row in analysis.couplings if row.service_s.value is not None and row.think_s.value is not None]
    if not known:
        return "no policy has a service time"
    row = min(known, key=lambda one: one.service_s.value or 0.0)
    rows = [
        {"timeline": timeline, "kind": kind, "seconds": seconds}
        for timeline, pause_s in (("chatbot", HUMAN_S), ("agentic", row.think_s.value))
        for kind, seconds in ((SYSTEM, row.service_s.value), (PAUSE, pause_s))
    ]
    caption = (
        f"A turn of {row.label} in this run, then what comes before the next one: {HUMAN_S:g} s of reading with a "
        "chatbot (the specification's example), a tool's answer with an agent. With a chatbot the reader's clock sets "
        "when turns arrive; with an agent the system's own speed does: slower turns keep sessions longer, more "
        "sessions make turns slower. Not to scale."
    )
    return FigureData(pd.DataFrame(rows), caption)


def draw_coupling_schematic(figure: Figure) -> Drawing:
    """Two timelines, and the loop beside them."""
    drawing = sheet(9.5, 3.2, figure.title)
    lines, loop = drawing.subplots(1, 2, width_ratios=(3, 1))
    for axes in (lines, loop):
        axes.set_axis_off()
    seconds = figure.table.set_index(["timeline", "kind"])["seconds"]
    for height, timeline, pause_length in ((1.0, "chatbot", 2.2), (0.0, "agentic", 0.25)):
        _draw_timeline(lines, height, pause_length)
        served, pause = (float(seconds[timeline, kind]) for kind in (SYSTEM, PAUSE))
        text = f"{timeline}: {served:.2g} s in the system, {pause:.2g} s until the next turn"
        lines.text(0, height + 0.48, text, fontsize=8, va="bottom")
    lines.set_xlim(-0.1, TURNS_DRAWN * 3.3)
    lines.set_ylim(-0.3, 1.9)
    for y, text in ((0.85, "slower turns (W)"), (0.5, "sessions stay longer (L)"), (0.15, "more compete for KV")):
        _draw_box(loop, 0.5, y, text)
    for y in (0.75, 0.4):
        _draw_arrow(loop, (0.5, y), (0.5, y - 0.15))
    loop.annotate("", (0.86, 0.85), (0.86, 0.15), arrowprops={"arrowstyle": "->", "connectionstyle": "arc3,rad=0.5"})
    loop.set_xlim(0, 1.2)
    loop.set_ylim(0, 1)
    return drawing


def _draw_timeline(axes: Axes, height: float, pause_length: float) -> None:
    left = 0.0
    for _ in range(TURNS_DRAWN):
        axes.barh(height, 1.0, left=left, height=0.35, color=_BUSY)
        axes.barh(height, pause_length, left=left + 1.0, height=0.35, color=_IDLE)
        left += 1.0 + pause_length


def collect_architecture(analysis: RoutingAnalysis) -> FigureData | str:
    """f5: the thresholds and instances of EAR as this run had it."""
    label = next((row.label for row in analysis.ablation if row.name == FULL and row.label), "")
    label = label or next((one for one in analysis.labels if analysis.policies[one] == EAR), "")
    cell = next((cell for cell in analysis.cells if cell.label == label), None)
    if cell is None:
        return "EAR was not run"
    rows: list[dict[str, object]] = [
        {
            "kind": ROUTER,
            "name": label,
            "hot_tokens": cell.parameters.get("hot_tokens"),
            "cooldown_s": cell.parameters.get("cooldown_s"),
        }
    ]
    rows += [{"kind": INSTANCE, "name": one.instance} for one in cell.instances]
    caption = (
        "The router keeps the instance of each session. Solid: a turn goes to its session's instance. Dashed: where "
        "that has more than hot_tokens prompt tokens pending, and the session has not moved for cooldown_s, the turn "
        "goes to the instance with the fewest pending among those with fewer and with room for its context, and its KV "
        "moves there."
    )
    return FigureData(pd.DataFrame(rows), caption)


def draw_architecture(figure: Figure) -> Drawing:
    """The router above its instances; the first one is the session's, the last the target."""
    drawing = sheet(7.5, 3.4, figure.title)
    axes = drawing.subplots()
    axes.set_axis_off()
    table = figure.table
    router = table[table["kind"] == ROUTER].iloc[0]
    names = list(table[table["kind"] == INSTANCE]["name"])
    thresholds = f"hot_tokens = {router['hot_tokens']:g}, cooldown_s = {router['cooldown_s']:g}"
    _draw_box(axes, 0.5, 0.85, f"router: session -> instance, pending tokens per instance\n{thresholds}")
    centers = [(index + 0.5) / len(names) for index in range(len(names))]
    for center, name in zip(centers, names, strict=True):
        _draw_box(axes, center, 0.15, f"{name}\nprefill and decode")
    _draw_arrow(axes, (0.45, 0.76), (centers[0], 0.25), "a turn: its session's instance  ", side="right")
    if len(names) > 1:
        _draw_arrow(axes, (0.55, 0.76), (centers[-1], 0.25), "  where that is hot: the least busy", "left", dashed=True)
        _draw_arrow(axes, (centers[0], 0.03), (centers[-1], 0.03), "the session's KV", dashed=True)
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.05, 1)
    return drawing


def _draw_box(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=8, bbox={"boxstyle": "round", "facecolor": "white"})


def _draw_arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str = "",
    side: Literal["left", "center", "right"] = "center",
    *,
    dashed: bool = False,
) -> None:
    """With its text at the middle; `side`: where the text is aligned to it."""
    style = {"arrowstyle": "->", "linestyle": "--" if dashed else "-"}
    axes.annotate("", end, start, arrowprops=style)
    middle = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    write_note(axes, text, middle, (0, 4), ha=side)


COUPLING = FigureKind(12, "3", "Dispatch coupling, a schematic", collect_coupling_schematic, draw_coupling_schematic)
ARCHITECTURE = FigureKind(13, "5", "EAR and the way of a request", collect_architecture, draw_architecture)
