"""The Lifecycle panel: the latest requests as a waterfall of phases, bandwidth, and the cost of disaggregation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from textual import on
from textual.containers import Horizontal, Vertical

from console import format as say
from console.feed import Picture
from console.glossary import Entry
from console.panels.panel import Fact, Look, Opening, Panel, PanelKind, Place
from console.rows.waterfall import (
    choose_waterfall_columns,
    find_phase,
    format_share,
    key_requests,
    list_latest_requests,
    list_phases,
    make_waterfall_rows,
)
from console.widgets.lines import Lines
from console.widgets.rate_plot import RatePlot
from console.widgets.section_bar import SectionBar
from console.widgets.table import Cell, Column, Row, Span, Table, cell
from results.records.events import RESIDUAL_BELOW, CellState
from results.records.named_number import digits
from results.report.chart import Chart, Line, Point
from results.report.terms import term
from state.lifecycle import (
    LifecycleView,
    MeasuredRequest,
    Overhead,
    find_worst_residual,
    list_bandwidths,
    list_counted,
    list_overheads,
)
from state.model import RunView

SECTIONS: Mapping[str, str] = {"requests": "Requests", "bandwidth": "Bandwidth", "overhead": "Overhead"}
TOGETHER = (100, 26)
"""Columns and lines from which all three are seen at once."""
LEGEND_LEAST = 12
"""Lines under which the legend is left out."""
LOWER = 12
"""Lines of bandwidth and overhead beneath the waterfall."""
PHASE_SOURCE = "stamps of router, both engines and client on one clock"
_LONG = "as long as the transfer: the bytes are not what takes time"
_PHASES_WATCHED = {
    "routing": "", "queue": "", "prefill": "", "handshake": _LONG, "transfer": "", "signal": "", "promotion": _LONG,
    "first token": "", "decode": "cut (») where it is longer than the slowest time to first token shown",
}  # fmt: skip
"""The phases in their order, with what is worth a second look."""


def is_disaggregated(view: RunView) -> bool:
    """The run breaks requests down into phases."""
    return view.lifecycle is not None or any(cell.kind == "lifecycle" for cell in view.plan.cells)


def explain_absence(picture: Picture) -> str:
    """The text in place of requests."""
    return "no request of this run has been broken down" + (" yet" if picture.live else "")


def describe_requests(picture: Picture, view: LifecycleView) -> Cell:
    """Cells, requests that count, discarded ones, the worst residual, warm-ups."""
    cells = picture.view.cells.values()
    stages = {each.plan.stage for each in cells if each.cell in view.cells}
    planned = [each for each in cells if each.plan.stage in stages]
    done = sum(each.state is CellState.DONE for each in planned)
    sums = {name: sum(getattr(each, name) for each in view.cells.values())
            for name in ("counted", "warmups", "discarded")}  # fmt: skip
    parts: list[Span] = [(f"{done} of {len(planned)} cells", "bold"), (f"  {sums['counted']} requests", "")]
    parts.append((f"  {sums['discarded']} discarded", "warn" if sums["discarded"] else "dim"))
    worst = find_worst_residual(view)
    if worst is not None:
        parts.append((f"  residual ≤ {digits(worst * 100)} %", "warn" if worst >= RESIDUAL_BELOW else "dim"))
    return (*parts, (f"  {sums['warmups']} warm-up", "dim"))


def list_request_facts(request: MeasuredRequest) -> list[Fact]:
    event = request.event
    size = f"C {event.context_tokens}, N {event.new_tokens}, O {event.output_tokens} tokens"
    facts = [
        ("time", say.moment(request.t_unix_s)),
        ("cell", event.cell),
        ("size", f"{size}; repetition {event.repetition}"),
        ("counts", f"no: {event.discarded}" if event.discarded else "no: a warm-up" if event.warmup else "yes"),
        *(
            (find_phase(name, index).label, f"{digits(ms)} ms")
            for index, (name, ms) in enumerate(event.phases_ms.items())
        ),
    ]
    speed = f"{say.data(event.bytes)} at {digits(event.bandwidth_gbps)} Gbit/s"
    facts.append(("whole transfer", f"{digits(event.transfer_ms)} ms: {speed}"))
    combined = f"; on one combined instance {digits(event.colo_ttft_ms)} ms" if event.colo_ttft_ms else ""
    plain = f"; on one without a connector {digits(event.plain_ttft_ms)} ms" if event.plain_ttft_ms else ""
    left = f", residual {format_share(event.residual_share)} %" if event.phases_ms else ""
    facts.append(("TTFT", f"{digits(event.ttft_ms)} ms{combined}{plain}"))
    facts.append(("E2E", f"{digits(event.e2e_ms)} ms{left}"))
    return facts + [(name, f"not measured: {why}") for name, why in event.gaps.items()]


# -- over all requests ------------------------------------------------------------------------------------------


def make_bandwidth_chart(view: LifecycleView) -> Chart:
    """Bandwidth of the write over the megabytes moved: median, least and most."""
    points = tuple(
        Point(float(f"{each.bytes / 1e6:.3g}"), each.median_gbps, each.low_gbps, each.high_gbps)
        for each in list_bandwidths(view)
    )
    lines = (Line("write, median and range", points),) if points else ()
    return Chart("Bandwidth", "MB moved", "Gbit/s over MB moved", lines)


def choose_overhead_columns(view: LifecycleView, width: int) -> tuple[Column, ...]:
    """C, then a column per N, as many as fit."""
    sizes = sorted({each.new_tokens for each in list_overheads(view)})
    room = max(1, (width - 8) // 9)
    return (
        Column("context", "C", 7, "tok"),
        *(Column(f"{size}", f"N {say.tokens(size)}", 8, "ms") for size in sizes[:room]),
    )


def make_overhead_rows(view: LifecycleView, shown: tuple[Column, ...]) -> tuple[Row, ...]:
    """A row per C: TTFT with disaggregation minus TTFT combined; below 0 it pays."""
    known = {(each.context_tokens, each.new_tokens): each for each in list_overheads(view)}
    made = []
    for context in sorted({size[0] for size in known}):
        cells = [cell(say.tokens(context), "bold")]
        for column in shown[1:]:
            cells.append(_make_overhead_cell(known.get((context, int(column.key)))))
        made.append(Row(f"{context}", tuple(cells)))
    return tuple(made)


def _make_overhead_cell(overhead: Overhead | None) -> Cell:
    if overhead is None:
        return cell("")
    ms = overhead.overhead_ms
    return cell(f"{'+' if ms > 0 else ''}{digits(ms)}", "warn" if ms > 0 else "good")


def make_overhead_note(view: LifecycleView) -> str:
    """How to read it, and where it pays so far."""
    known = list_overheads(view)
    if not known:
        some = any(True for _ in list_counted(view))
        return "no size was measured both disaggregated and combined" + (" yet" if some else "")
    pays = sum(each.overhead_ms <= 0 for each in known)
    where = "nowhere" if not pays else "everywhere" if pays == len(known) else f"at {pays} of {len(known)} sizes"
    single = "" if all(each.both_orders for each in known) else ", in part by pairs of one order"
    return f"TTFT disaggregated minus combined, ms, means of pairs; disaggregation is faster {where} so far{single}"


# -- the panel ----------------------------------------------------------------------------------------------------


class LifecyclePanel(Panel):
    GROWS = True
    DEFAULT_CSS = """
    LifecyclePanel {
        #lifecycle-head { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
        #lifecycle-legend { height: auto; }
        #lifecycle-lower Vertical { width: 1fr; height: 1fr; padding: 0 0 0 1; }
        #lifecycle-note { height: auto; }
    }
    """

    def __init__(self, look: Look, run_folder: Path, *, id: str) -> None:
        self._bar = SectionBar()
        self._head = Lines(id="lifecycle-head")
        self._legend = Lines(id="lifecycle-legend")
        self._requests = Table(empty="no request has been broken down yet")
        self._plot = RatePlot(empty="no write is measured yet")
        self._note = Lines(id="lifecycle-note")
        self.overheads = Table(empty="")
        self._cost = Vertical(self._note, self.overheads)
        self._lower = Horizontal(self._plot, self._cost, id="lifecycle-lower")
        content = (self._bar, self._head, self._legend, self._requests, self._lower)
        super().__init__(look, run_folder, *content, id=id)
        self.section = "requests"
        self._view: LifecycleView | None = None

    @property
    def table(self) -> Table:
        return self.overheads if self.section == "overhead" and not self._fits_together else self._requests

    @property
    def _fits_together(self) -> bool:
        width, height = self.content_region.size
        return width >= TOGETHER[0] and height >= TOGETHER[1]

    def focus_content(self) -> None:
        self.screen.set_focus(None if self.section == "bandwidth" and not self._fits_together else self.table)

    def step(self, by: int) -> None:
        """Open the next or the previous section."""
        names = list(SECTIONS)
        self.section = names[(names.index(self.section) + by) % len(names)]

    @on(SectionBar.Picked)
    def picked(self, event: SectionBar.Picked) -> None:
        event.stop()
        self.section = event.section
        self._draw_sections()
        self.focus_content()

    def open_row(self, table: Table, key: str, picture: Picture) -> Opening | None:
        view = picture.view.lifecycle
        request = None if view is None or table is self.overheads else dict(key_requests(view.requests)).get(key)
        return None if request is None else Opening("Request", list_request_facts(request))

    def follows_after(self, table: Table, *, at_end: bool) -> bool | None:
        return None if table is self.overheads else super().follows_after(table, at_end=at_end)

    def show(self, picture: Picture) -> None:
        self._view = picture.view.lifecycle
        if self._view is None:
            self._head.show_lines(((explain_absence(picture), "dim"),))
        else:
            self._head.show_lines(describe_requests(picture, self._view))
        self._draw_sections()

    def _draw_sections(self) -> None:
        width, height = self.content_region.size
        view, together = self._view, self._fits_together
        waterfall = together or self.section == "requests"
        self._bar.display = view is not None and not together and height >= LEGEND_LEAST
        self._legend.display = view is not None and waterfall and height >= LEGEND_LEAST
        self._requests.display = view is not None and waterfall
        self._lower.display = view is not None and (together or self.section != "requests")
        self._plot.display = together or self.section == "bandwidth"
        self._cost.display = together or self.section == "overhead"
        self._lower.styles.height = LOWER if together else "1fr"
        if view is None or not width:
            return
        self._bar.show(self.section, SECTIONS)
        if waterfall:
            self._show_requests(view, width)
        if self._plot.display:
            self._plot.marker = self.look.marker
            self._plot.show_chart(make_bandwidth_chart(view), lambda _: "series-1")
        if self._cost.display:
            room = width // 2 if together else width
            columns = choose_overhead_columns(view, room - 1)
            self._note.show_lines(((make_overhead_note(view), "dim"),))
            self.overheads.show(columns, make_overhead_rows(view, columns))

    def _show_requests(self, view: LifecycleView, width: int) -> None:
        requests = list_latest_requests(view)
        self._legend.show_lines(*list_phases(requests, self.look.marker, width))
        columns = choose_waterfall_columns(width - 1)
        made = make_waterfall_rows(requests, columns, width - 1, self.look.glyphs, self.look.marker)
        self._requests.show(columns, made)
        if self.look.follow:
            self._requests.go_to_end()


PANEL = PanelKind(
    "lifecycle",
    "9",
    "Lifecycle",
    "requests broken down into phases: a waterfall, bandwidth, the overhead over one combined instance",
    LifecyclePanel,
    Place.OWN,
    applies=is_disaggregated,
    large=True,
    steps_through="section",
    entries=(
        Entry("C, N, O", term("C, N, O"), "plan"),
        *(Entry(name, term(f"{name} phase"), PHASE_SOURCE, watch) for name, watch in _PHASES_WATCHED.items()),
        Entry("move", term("move"), "both engines"),
        Entry("write", term("write bandwidth"), "transfer probe inside the engine"),
        Entry(
            "residual",
            term("residual"),
            "the record",
            "above 5 %: a stamp is missing or wrong, or the way from client to router is long",
        ),
        Entry(
            "overhead",
            term("disaggregation overhead"),
            "requests measured so far: the mean of the pairs; with both orders, the mean of the two orders' means",
        ),
        Entry("w, ✗", term("warm-up"), "the record; ✗ marks a discarded request"),
    ),
)
