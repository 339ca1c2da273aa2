"""The router of a cell: what it knows of each instance, what it decided last and why, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from console import format as say
from console.feed import Picture, now_of
from console.findings import ROUTING
from console.glyphs import Glyphs
from console.rows.instances import STALE_S, tone_of
from console.themes import SERIES
from console.widgets.table import Cell, Column, Row, Span, cell
from state.events import RoutedLine, RoutedLoad
from state.routing import AlarmKind, LoadSample, RoutingView, alarms
from state.run import CellState
from state.view import RunView

WIDE = 110
"""Columns from which the load table shows the past minute too, and a decision its request."""
PAST_S = 60.0
"""The past that the bars are scaled to and the small curves show."""
WARNINGS = 3
"""Lines of what is wrong; further ones are counted."""
NO_WORK = "_"
"""A second without pending prefill in the small curve; a second that was not sampled is blank."""


def is_current(picture: Picture, routing: RoutingView) -> bool:
    """The router's numbers are of this moment."""
    return picture.live and _is_running(picture, routing) and _age_s(picture, routing) <= STALE_S


def _is_running(picture: Picture, routing: RoutingView) -> bool:
    found = picture.view.cells.get(routing.cell)
    return found is not None and found.state is CellState.RUNNING and found.attempt == routing.attempt


def _age_s(picture: Picture, routing: RoutingView) -> float:
    return max(0.0, now_of(picture) - routing.latest_unix_s)


def alarms_now(picture: Picture) -> tuple[str, ...]:
    """The alarms of the router that works now; none of a past one."""
    routing = picture.view.routing
    return routing.alarms if routing is not None and is_current(picture, routing) else ()


# -- head -----------------------------------------------------------------------------------------------------------


def nothing(picture: Picture) -> str:
    """What stands in place of a router."""
    if picture.view.plan.experiment == ROUTING:
        return "no cell has been routed yet"
    return "no request of this run goes through a router"


def head(picture: Picture, routing: RoutingView) -> Cell:
    """Policy, cell, and how much of it there is."""
    picks, current = sum(routing.latest.decisions.values()), is_current(picture, routing)
    return (
        (f"{routing.policy}   ", "bold"),
        _as_of(picture, routing),
        (f"   {picks} picks   {routing.latest.sessions} sessions bound", ""),
        (f"   TTFT p90 {say.ms(routing.latest.latency.ttft_p90_s)} ms", "" if current else "dim"),
        (f"   {routing.cell}", "dim"),
    )


def _as_of(picture: Picture, routing: RoutingView) -> Span:
    if is_current(picture, routing):
        return say.clock(routing.latest_unix_s), "dim"
    if picture.live and _is_running(picture, routing):
        return f"no word from the router for {say.age(_age_s(picture, routing))}", "warn"
    return f"as of {say.clock(routing.latest_unix_s)}", "dim"


def warnings(picture: Picture, routing: RoutingView, glyphs: Glyphs) -> tuple[Cell, ...]:
    """What is wrong now, a line each, at most `WARNINGS` of them."""
    if not is_current(picture, routing):
        return ()
    out = [load for load in routing.latest.instances if not load.available]
    lines = [cell(f"{glyphs.sign('warning')} {alarm}", "warn") for alarm in routing.alarms]
    lines += [cell(f"{glyphs.sign('failed')} {load.instance} is not picked: {load.why}", "bad") for load in out]
    if len(lines) > WARNINGS:
        lines[WARNINGS - 1 :] = [cell(f"and {len(lines) - WARNINGS + 1} more", "warn")]
    return tuple(lines)


# -- instances ------------------------------------------------------------------------------------------------------


def timed(picture: Picture, routing: RoutingView) -> bool:
    """The client says which instance its answers came from."""
    return any(_ttft_s(picture, load) is not None for load in routing.latest.instances)


def _ttft_s(picture: Picture, load: RoutedLoad) -> float | None:
    """TTFT p90 of an instance in the last seconds, as the client saw it; None = nothing to measure it by."""
    known = picture.view.instances.get(engine_of(load))
    return None if known is None or known.latest is None else known.latest.ttft_p90_s


def load_columns(width: int, timed: bool = False) -> tuple[Column, ...]:
    """`timed`: with the instances' TTFT, for which the bars give way where it is narrow."""
    wide = width >= WIDE
    ttft = (Column("ttft", "TTFT", 4, "p90"),) if timed else ()
    short = timed and not wide
    bar = Column("bar", "pending" if short else "pending prefill", 10 if short else 15, left=True)
    past = (Column("past", "last minute", 28, left=True),) if wide else ()
    return (
        Column("name", "instance", 12, left=True, flex=True),
        Column("state", "state", 24 if wide else 18, left=True),
        Column("requests", "BS", 4, "req"),
        Column("pending", "PP", 5, "tok"),
        bar,
        *past,
        *ttft,
        Column("ongoing", "OT", 5, "tok"),
        Column("sessions", "sess", 4, "now"),
        Column("share", "picks", 5, "%"),
    )


def load_rows(picture: Picture, routing: RoutingView, glyphs: Glyphs, columns: tuple[Column, ...]) -> tuple[Row, ...]:
    """A row per instance, in the router's order."""
    end = routing.latest_unix_s
    past = [sample for sample in routing.history if sample[0] > end - PAST_S]
    top = max((load.pending_prefill_tokens for _, loads in past for load in loads), default=0)
    marks = {alarm.instance: alarm.kind for alarm in alarms(routing.history)}
    current = is_current(picture, routing)
    tone = "" if current else "dim"
    shares = routing.shares
    rows = []
    for place, load in enumerate(routing.latest.instances):
        mark = marks.get(load.instance)
        color = _color(picture, place, load)
        cells = {
            "name": cell(load.instance, color),
            "state": _state(load, mark, glyphs) if current else cell(_state(load, mark, glyphs)[0][0], "dim"),
            "requests": cell(say.whole(load.num_requests), tone),
            "pending": cell(say.tokens(load.pending_prefill_tokens), tone),
            "bar": _bar(load, top, "warn" if current and mark is AlarmKind.HOT else tone or color, glyphs, columns),
            "past": cell(_curve(past, load.instance, end, top, glyphs, columns), tone or color),
            "ttft": cell(say.short_ms(_ttft_s(picture, load)), tone),
            "ongoing": cell(say.tokens(load.ongoing_tokens), tone),
            "sessions": cell(say.whole(load.sessions), tone),
            "share": cell(say.percent(shares[load.instance]), tone),
        }
        rows.append(Row(load.instance, tuple(cells[column.key] for column in columns)))
    return tuple(rows)


def engine_of(load: RoutedLoad) -> str:
    """What the rest of the run calls this instance."""
    return load.engine or load.instance


def _color(picture: Picture, place: int, load: RoutedLoad) -> str:
    known = picture.view.instances.get(engine_of(load))
    return f"series-{place % SERIES}" if known is None else tone_of(picture.view, known)


def _state(load: RoutedLoad, mark: AlarmKind | None, glyphs: Glyphs) -> Cell:
    if not load.available:
        return cell(f"{glyphs.sign('failed')} {load.why or 'not picked'}", "bad")
    if mark is not None:
        return cell(f"{glyphs.sign('warning')} {mark}", "warn")
    return cell(f"{glyphs.sign('ready')} available", "good")


def _width(columns: tuple[Column, ...], key: str) -> int:
    return next((column.width for column in columns if column.key == key), 0)


def _bar(load: RoutedLoad, top: int, tone: str, glyphs: Glyphs, columns: tuple[Column, ...]) -> Cell:
    """Pending prefill against the most that any instance had in the past minute."""
    fraction = load.pending_prefill_tokens / top if top else 0.0
    full, empty = say.bar(fraction, _width(columns, "bar"), glyphs.full, glyphs.empty)
    return ((full, tone), (empty, "faint"))


def _curve(
    past: list[LoadSample], instance: str, end: float, top: int, glyphs: Glyphs, columns: tuple[Column, ...]
) -> str:
    """The highest pending prefill of each part of the past minute, to the scale of the bars."""
    places = _width(columns, "past")
    highest: dict[int, int] = {}
    for t_unix_s, loads in past if places else ():
        place = places - 1 - int((end - t_unix_s) / PAST_S * places)
        for load in loads:
            if load.instance == instance:
                highest[place] = max(highest.get(place, 0), load.pending_prefill_tokens)
    return "".join(_level(highest.get(place), top, glyphs) for place in range(places))


def _level(tokens: int | None, top: int, glyphs: Glyphs) -> str:
    if tokens is None:
        return " "
    return glyphs.rise[max(1, round(8 * tokens / top))] if tokens else NO_WORK


def load_detail(routing: RoutingView, instance: str) -> list[tuple[str, str]]:
    """What the router knows of an instance, as label and text."""
    load = next((each for each in routing.latest.instances if each.instance == instance), None)
    if load is None:
        return [("instance", "the router no longer has it")]
    return [
        ("state", "available" if load.available else f"not picked: {load.why}"),
        ("role", load.role),
        ("BS", f"{load.num_requests} requests that have not ended"),
        ("PP", f"{load.pending_prefill_tokens} uncached prompt tokens before their first token"),
        ("OT", f"{load.ongoing_tokens} prompt tokens of requests that have not ended"),
        ("sessions", f"{load.sessions} bound now"),
        ("picks", f"{say.whole(load.picks)}, {say.percent(routing.shares[instance])} %"),
    ]


# -- decisions ------------------------------------------------------------------------------------------------------

_CELL_PARTS = 3
"""A cell that replays is named stage/policy/trial."""
REASON_COLUMNS = (
    Column("reason", "decided by", 14, left=True, flex=True),
    Column("picks", "picks", 6),
    Column("share", "%", 3),
    Column("bar", "", 8, left=True),
)


def _reasons(routing: RoutingView) -> list[tuple[str, int, float]]:
    """Reason, picks and 0..1 of all, the most frequent first."""
    total = sum(routing.latest.decisions.values())
    found = sorted(routing.latest.decisions.items(), key=lambda item: (-item[1], item[0]))
    return [(reason, picks, picks / total if total else 0.0) for reason, picks in found]


def reason_rows(routing: RoutingView, glyphs: Glyphs) -> tuple[Row, ...]:
    """Decisions by reason as a table."""
    rows = []
    for reason, picks, share in _reasons(routing):
        full, empty = say.bar(share, REASON_COLUMNS[-1].width, glyphs.full, glyphs.empty)
        bar: Cell = ((full, "live"), (empty, "faint"))
        rows.append(Row(reason, (cell(reason), cell(str(picks)), cell(say.percent(share)), bar)))
    return tuple(rows)


def reason_line(routing: RoutingView) -> Cell:
    """Decisions by reason on one line."""
    found = (((f"  {reason} ", ""), (f"{picks}, {say.percent(share)} %", "dim")) for reason, picks, share in
             _reasons(routing))  # fmt: skip
    return (("decided by", "bold"), *(span for spans in found for span in spans))


def decision_columns(width: int) -> tuple[Column, ...]:
    request = (Column("request", "request", 16, left=True, flex=True),) if width >= WIDE else ()
    return (
        Column("time", "time", 8, left=True),
        Column("session", "session", 16, left=True, flex=True),
        Column("instance", "instance", 16, left=True),
        Column("reason", "reason", 22, left=True),
        *request,
    )


def decision_rows(picture: Picture, routing: RoutingView, columns: tuple[Column, ...]) -> tuple[Row, ...]:
    """The decisions that are kept, oldest first."""
    colors = {load.instance: _color(picture, place, load) for place, load in
              enumerate(routing.latest.instances)}  # fmt: skip
    rows = []
    for key, line in _keyed(routing):
        cells = {
            "time": cell(say.clock(line.t_unix_s), "dim"),
            "session": cell(line.session or "no session", "" if line.session else "dim"),
            "instance": cell(line.instance, colors.get(line.instance, "")) if line.instance else cell("nowhere", "bad"),
            "reason": cell(line.reason),
            "request": cell(line.request, "dim"),
        }
        rows.append(Row(key, tuple(cells[column.key] for column in columns), also=line.request))
    return tuple(rows)


def _keyed(routing: RoutingView) -> Iterator[tuple[str, RoutedLine]]:
    for line in routing.lines:
        yield f"{line.t_unix_s!r} {line.request} {line.instance} {line.reason}", line


def decision_of(routing: RoutingView, key: str) -> RoutedLine | None:
    """The decision of a row; None where it is no longer kept."""
    return dict(_keyed(routing)).get(key)


def place_of(view: RunView, cell: str) -> str:
    """Where the decisions of a routed cell lie below the run's results, as `tracon why --cell` finds it."""
    found = view.cells.get(cell)
    parts = [] if found is None else found.cell.split("/")
    return f"{parts[1]}/trial_{found.plan.trial}" if found is not None and len(parts) == _CELL_PARTS else ""


def decision_detail(routing: RoutingView, line: RoutedLine) -> list[tuple[str, str]]:
    """A decision as label and text."""
    return [
        ("time", say.moment(line.t_unix_s)),
        ("request", line.request),
        ("session", line.session or "it came without one"),
        ("instance", line.instance or "nowhere"),
        ("reason", line.reason),
        ("policy", routing.policy),
        ("cell", routing.cell),
    ]
