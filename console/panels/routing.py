"""The Routing panel: instances as the router sees them, its decisions with their reasons, and alarms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from textual.containers import Horizontal

from console import format as say
from console.feed import Picture
from console.glossary import Entry
from console.glyphs import Glyphs
from console.panels.panel import Fact, Look, Opening, Panel, PanelKind, Place
from console.rows.instance_loads import has_ttft, load_columns, load_detail, load_rows
from console.rows.instances import choose_routed_tone
from console.rows.routing import (
    compute_age_s,
    explain_absence,
    is_current,
    is_routed,
    is_running,
    name_engine,
    name_place,
)
from console.widgets.lines import Lines
from console.widgets.table import Cell, Column, Row, Span, Table, cell, flow_entries
from results.records.events import RoutedLine
from results.report.terms import term
from state.routing import RoutingView

REASONS = 40
"""Columns of the reasons beside the decisions."""
LOADS_LEAST = 7
"""Lines the instances get before decisions get any."""
DECISIONS_LEAST = 4
"""Lines under which decisions are not shown."""
DECISIONS_RESERVED = 7
"""Lines reserved for decisions where there are many instances."""
WIDE = 110
"""Columns from which a decision shows its request, and reasons are beside the decisions, else on a line above them."""
WARNINGS = 3
"""Lines of warnings; further ones are counted."""


# -- head -----------------------------------------------------------------------------------------------------------


def describe_router(picture: Picture, routing: RoutingView, width: int) -> tuple[Cell, ...]:
    """Policy, cell, age of the numbers, picks, sessions, TTFT, on as many lines as they need."""
    picks, current = sum(routing.latest.decisions.values()), is_current(picture, routing)
    entries: tuple[Cell, ...] = (
        ((f"{routing.policy}   ", "bold"), (f"{routing.cell}   ", "dim")),
        (_show_time(picture, routing), ("   ", "")),
        ((f"{picks} picks   {routing.latest.sessions} sessions bound   ", ""),),
        ((f"TTFT p90 {say.ms(routing.latest.latency.ttft_p90_s)} ms", "" if current else "dim"),),
    )
    return flow_entries(entries, width)


def _show_time(picture: Picture, routing: RoutingView) -> Span:
    if is_current(picture, routing):
        return say.clock(routing.latest_unix_s), "dim"
    if picture.live and is_running(picture, routing):
        return f"no sample from the router for {say.age(compute_age_s(picture, routing))}", "warn"
    return f"as of {say.clock(routing.latest_unix_s)}", "dim"


def list_warnings(picture: Picture, routing: RoutingView, glyphs: Glyphs) -> tuple[Cell, ...]:
    """Alarms and instances that are not picked, a line each, at most `WARNINGS`."""
    if not is_current(picture, routing):
        return ()
    out = [load for load in routing.latest.instances if not load.available]
    lines = [cell(f"{glyphs.sign('warning')} {alarm}", "warn") for alarm in routing.alarms]
    lines += [cell(f"{glyphs.sign('failed')} {load.instance} is not picked: {load.why}", "bad") for load in out]
    if len(lines) > WARNINGS:
        lines[WARNINGS - 1 :] = [cell(f"and {len(lines) - WARNINGS + 1} more", "warn")]
    return tuple(lines)


# -- decisions ------------------------------------------------------------------------------------------------------

REASON_COLUMNS = (
    Column("reason", "decided by", 14, left=True, flex=True),
    Column("picks", "picks", 6),
    Column("share", "%", 3),
    Column("bar", "", 8, left=True),
)


def _count_reasons(routing: RoutingView) -> list[tuple[str, int, float]]:
    """Reason, picks and 0..1 of all, the most frequent first."""
    total = sum(routing.latest.decisions.values())
    by_picks = sorted(routing.latest.decisions.items(), key=lambda item: (-item[1], item[0]))
    return [(reason, picks, picks / total if total else 0.0) for reason, picks in by_picks]


def make_reason_rows(routing: RoutingView, glyphs: Glyphs) -> tuple[Row, ...]:
    """Decisions by reason as a table."""
    rows = []
    for reason, picks, share in _count_reasons(routing):
        full, empty = say.bar(share, REASON_COLUMNS[-1].width, glyphs.full, glyphs.empty)
        bar: Cell = ((full, "live"), (empty, "faint"))
        rows.append(Row(reason, (cell(reason), cell(str(picks)), cell(say.percent(share)), bar)))
    return tuple(rows)


def make_reason_line(routing: RoutingView) -> Cell:
    """Decisions by reason on one line."""
    parts = (((f"  {reason} ", ""), (f"{picks}, {say.percent(share)} %", "dim")) for reason, picks, share in
             _count_reasons(routing))  # fmt: skip
    return (("decided by", "bold"), *(span for spans in parts for span in spans))


def choose_decision_columns(width: int) -> tuple[Column, ...]:
    request = (Column("request", "request", 16, left=True, flex=True),) if width >= WIDE else ()
    return (
        Column("time", "time", 8, left=True),
        Column("session", "session", 16, left=True, flex=True),
        Column("instance", "instance", 16, left=True),
        Column("reason", "reason", 22, left=True),
        *request,
    )


def make_decision_rows(picture: Picture, routing: RoutingView, columns: tuple[Column, ...]) -> tuple[Row, ...]:
    """The decisions that the view holds, oldest first."""
    colors = {load.instance: choose_routed_tone(picture.view, name_engine(load), index)
              for index, load in enumerate(routing.latest.instances)}  # fmt: skip
    rows = []
    for key, line in _key_lines(routing):
        cells = {
            "time": cell(say.clock(line.t_unix_s), "dim"),
            "session": cell(line.session or "no session", "" if line.session else "dim"),
            "instance": cell(line.instance, colors.get(line.instance, "")) if line.instance else cell("nowhere", "bad"),
            "reason": cell(line.reason),
            "request": cell(line.request, "dim"),
        }
        rows.append(Row(key, tuple(cells[column.key] for column in columns), also=line.request))
    return tuple(rows)


def _key_lines(routing: RoutingView) -> Iterator[tuple[str, RoutedLine]]:
    for line in routing.lines:
        yield f"{line.t_unix_s!r} {line.request} {line.instance} {line.reason}", line


def find_decision_line(routing: RoutingView, key: str) -> RoutedLine | None:
    """The decision of a row; None where the view has dropped it."""
    return dict(_key_lines(routing)).get(key)


def list_decision_facts(routing: RoutingView, line: RoutedLine) -> list[Fact]:
    """A decision as label and text."""
    return [
        ("time", say.moment(line.t_unix_s)),
        ("request", line.request),
        ("session", line.session or "the request names none"),
        ("instance", line.instance or "nowhere"),
        ("reason", line.reason),
        ("policy", routing.policy),
        ("cell", routing.cell),
    ]


# -- the panel ----------------------------------------------------------------------------------------------------


class RoutingPanel(Panel):
    """The router of the cell that runs, or ran last."""

    GROWS = True
    DEFAULT_CSS = """
    RoutingPanel {
        #routing-head { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
        #routing-warnings { height: auto; text-wrap: nowrap; text-overflow: ellipsis; }
        #routing-reason-line { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
        #routing-lower { height: 1fr; }
        #routing-reasons { width: 40; }
    }
    """

    def __init__(self, look: Look, run_folder: Path, *, id: str) -> None:
        self._head = Lines(id="routing-head")
        self._warnings = Lines(id="routing-warnings")
        self.loads = Table()
        self._reason_line = Lines(id="routing-reason-line")
        self._decisions = Table(empty="no decision yet")
        self._reasons = Table(empty="no decision yet", id="routing-reasons")
        self._reasons.can_focus = False
        self._lower = Horizontal(self._decisions, self._reasons, id="routing-lower")
        content = (self._head, self._warnings, self.loads, self._reason_line, self._lower)
        super().__init__(look, run_folder, *content, id=id)

    @property
    def table(self) -> Table:
        return self._decisions

    def focus_content(self) -> None:
        self.screen.set_focus(self._decisions if self._lower.display else self.loads)

    def show(self, picture: Picture) -> None:
        routing = picture.view.routing
        width, height = self.content_region.size
        if not width:
            return
        self.loads.display = routing is not None
        if routing is None:
            self._head.show_lines(((explain_absence(picture), "dim"),))
            self._warnings.display = self._reason_line.display = self._lower.display = False
            return
        lines = list_warnings(picture, routing, self.look.glyphs)
        head = describe_router(picture, routing, width)
        self._head.show_lines(*head)
        self._warnings.show_lines(*lines)
        self._warnings.display = bool(lines)
        self._divide_room(height - len(head) - len(lines), len(routing.latest.instances) + 2, width >= WIDE)
        columns = load_columns(width - 1, has_ttft(picture, routing))
        self.loads.show(columns, load_rows(picture, routing, self.look.glyphs, columns))
        self._reason_line.show_lines(make_reason_line(routing))
        if self._lower.display:
            self._show_decisions(picture, routing, width)

    def _divide_room(self, room: int, wanted: int, beside: bool) -> None:
        """Give the instances their lines, and what is left to reasons and decisions."""
        lines = min(wanted, max(room - DECISIONS_RESERVED, min(room, LOADS_LEAST)))
        left = room - lines
        decisions = left - (0 if beside else 1) >= DECISIONS_LEAST
        ours = self.has_focus_within
        self._lower.display = decisions
        self._reasons.display = beside
        self._reason_line.display = left > 0 and not (beside and decisions)
        self.loads.styles.height = lines if decisions else "1fr"
        if ours and not self._lower.display:
            self.focus_content()

    def _show_decisions(self, picture: Picture, routing: RoutingView, width: int) -> None:
        columns = choose_decision_columns(width - 1 - (REASONS if self._reasons.display else 0))
        self._decisions.show(columns, make_decision_rows(picture, routing, columns))
        self._reasons.show(REASON_COLUMNS, make_reason_rows(routing, self.look.glyphs))
        if self.look.follow:
            self._decisions.go_to_end()

    def open_row(self, table: Table, key: str, picture: Picture) -> Opening | None:
        routing = picture.view.routing
        if routing is None:
            return None
        return _open_load(picture, routing, key) if table is self.loads else _open_decision(picture, routing, key)


def _open_load(picture: Picture, routing: RoutingView, instance: str) -> Opening:
    """The instance's own screen where the run launched it; what the router knows of it where it did not."""
    engines = {load.instance: name_engine(load) for load in routing.latest.instances}
    engine = engines.get(instance, instance)
    if engine in picture.view.instances:
        return Opening(instance=engine)
    return Opening(instance, load_detail(routing, instance))


def _open_decision(picture: Picture, routing: RoutingView, key: str) -> Opening | None:
    line = find_decision_line(routing, key)
    if line is None:
        return None
    values = {"request": line.request, "place": name_place(picture.view, routing.cell)}
    return Opening("Decision", list_decision_facts(routing, line), "every candidate, weighed", values)


PANEL = PanelKind(
    "routing",
    "7",
    "Routing",
    "instances with their load terms, where sessions are bound, decisions by reason, the latest ones, alarms",
    RoutingPanel,
    Place.OWN,
    applies=is_routed,
    large=True,
    command=("tracon", "why", "{run}", "{request}", "--cell", "{place}"),
    entries=(
        Entry(
            "BS (7)",
            term("router requests"),
            "router's own counter, read once a second",
            "far above the others': look at the reasons of the latest decisions",
        ),
        Entry(
            "PP (7)",
            term("pending prefill tokens"),
            "router's own counter, read once a second; a full bar is the most of any instance in the past minute",
            "hot: more than 3 times the mean of the others for 5 s, from at least 2 requests",
        ),
        Entry("OT (7)", term("ongoing tokens"), "router's own counter, read once a second"),
        Entry(
            "sess (7)",
            term("bound sessions"),
            "router's bindings",
            "never rebalanced: it came back 10 s ago or more, has had no request since, and the others are loaded",
        ),
        Entry(
            "picks (7)",
            term("pick share"),
            "router's own counter; of the decisions listed, where the router does not count by instance",
            "cold: no pick and no request for 10 s while the others held 2 requests each",
        ),
        Entry(
            "TTFT p90 (7)",
            term("TTFT"),
            "load client's own stamps, answers of the last 5 s; the router names the instance",
            "far above the others': the instance is hot, or slow",
        ),
    ),
)
