"""The instances of a router as rows: state, load terms now and in the past minute, share of the picks."""

from __future__ import annotations

from console import format as say
from console.feed import Picture
from console.glyphs import Glyphs
from console.rows.instances import choose_routed_tone
from console.rows.routing import is_current, name_engine
from console.widgets.table import Cell, Column, Row, cell
from results.records.events import RoutedLoad
from results.report.terms import term
from state.routing import AlarmKind, LoadSample, RoutingView, find_alarms

WIDE = 110
"""Columns from which the table shows the past minute too."""
PAST_S = 60.0
"""The past that the bars are scaled to and the small curves show."""
POOLS = ("prefill", "decode")
"""Roles that the table names; `both` goes without saying."""
NO_WORK = "_"
"""A second without pending prefill in the small curve; a second that was not sampled is blank."""


def has_ttft(picture: Picture, routing: RoutingView) -> bool:
    """The client reports which instance each answer came from."""
    return any(_find_ttft_s(picture, load) is not None for load in routing.latest.instances)


def _find_ttft_s(picture: Picture, load: RoutedLoad) -> float | None:
    """TTFT p90 of an instance in the last seconds, as the client saw it; None = nothing to measure it by."""
    known = picture.view.instances.get(name_engine(load))
    return None if known is None or known.latest is None else known.latest.ttft_p90_s


def load_columns(width: int, timed: bool = False) -> tuple[Column, ...]:
    """`timed`: with the instances' TTFT, for which the bars give way where it is narrow."""
    wide = width >= WIDE
    ttft = (Column("ttft", "TTFT", 4, "p90"),) if timed else ()
    short = timed and not wide
    bar = Column("bar", "pending" if short else "pending prefill", 10 if short else 15, left=True)
    past = (Column("past", "last minute", 23 if timed else 28, left=True),) if wide else ()
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
    marks = {alarm.instance: alarm.kind for alarm in find_alarms(routing.history)}
    current = is_current(picture, routing)
    tone = "" if current else "dim"
    shares = routing.shares
    rows = []
    for index, load in enumerate(routing.latest.instances):
        mark = marks.get(load.instance)
        color = choose_routed_tone(picture.view, name_engine(load), index)
        cells = {
            "name": ((load.instance, color), (f" {load.role}" if load.role in POOLS else "", "dim")),
            "state": _make_state_cell(load, mark, glyphs)
            if current
            else cell(_make_state_cell(load, mark, glyphs)[0][0], "dim"),
            "requests": cell(say.whole(load.num_requests), tone),
            "pending": cell(say.tokens(load.pending_prefill_tokens), tone),
            "bar": _bar_cell(
                load, top, "warn" if current and mark is AlarmKind.HOT else tone or color, glyphs, columns
            ),
            "past": cell(_draw_curve(past, load.instance, end, top, glyphs, columns), tone or color),
            "ttft": cell(say.short_ms(_find_ttft_s(picture, load)), tone),
            "ongoing": cell(say.tokens(load.ongoing_tokens), tone),
            "sessions": cell(say.whole(load.sessions), tone),
            "share": cell(say.percent(shares[load.instance]), tone),
        }
        rows.append(Row(load.instance, tuple(cells[column.key] for column in columns)))
    return tuple(rows)


def _make_state_cell(load: RoutedLoad, mark: AlarmKind | None, glyphs: Glyphs) -> Cell:
    if not load.available:
        return cell(f"{glyphs.sign('failed')} {load.why or 'not picked'}", "bad")
    if mark is not None:
        return cell(f"{glyphs.sign('warning')} {mark}", "warn")
    return cell(f"{glyphs.sign('ready')} available", "good")


def _find_column_width(columns: tuple[Column, ...], key: str) -> int:
    return next((column.width for column in columns if column.key == key), 0)


def _bar_cell(load: RoutedLoad, top: int, tone: str, glyphs: Glyphs, columns: tuple[Column, ...]) -> Cell:
    """Pending prefill against the most that any instance had in the past minute."""
    fraction = load.pending_prefill_tokens / top if top else 0.0
    full, empty = say.bar(fraction, _find_column_width(columns, "bar"), glyphs.full, glyphs.empty)
    return ((full, tone), (empty, "faint"))


def _draw_curve(
    past: list[LoadSample], instance: str, end: float, top: int, glyphs: Glyphs, columns: tuple[Column, ...]
) -> str:
    """The highest pending prefill of each part of the past minute, to the scale of the bars."""
    width = _find_column_width(columns, "past")
    highest: dict[int, int] = {}
    for t_unix_s, loads in past if width else ():
        position = width - 1 - int((end - t_unix_s) / PAST_S * width)
        for load in loads:
            if load.instance == instance:
                highest[position] = max(highest.get(position, 0), load.pending_prefill_tokens)
    return "".join(_draw_level(highest.get(position), top, glyphs) for position in range(width))


def _draw_level(tokens: int | None, top: int, glyphs: Glyphs) -> str:
    if tokens is None:
        return " "
    return glyphs.rise[max(1, round(8 * tokens / top))] if tokens else NO_WORK


def load_detail(routing: RoutingView, instance: str) -> list[tuple[str, str]]:
    """What the router knows of an instance, as label and text."""
    load = next((each for each in routing.latest.instances if each.instance == instance), None)
    if load is None:
        return [("instance", "the router has removed it")]
    return [
        ("state", "available" if load.available else f"not picked: {load.why}"),
        ("role", load.role),
        ("BS", _explain_number(f"{load.num_requests}", "router requests")),
        ("PP", _explain_number(f"{load.pending_prefill_tokens}", "pending prefill tokens")),
        ("OT", _explain_number(f"{load.ongoing_tokens}", "ongoing tokens")),
        ("sessions", _explain_number(f"{load.sessions}", "bound sessions")),
        ("picks", _explain_number(f"{say.whole(load.picks)}, {say.percent(routing.shares[instance])} %", "pick share")),
    ]


def _explain_number(number: str, name: str) -> str:
    """A number with what its term means."""
    return f"{number}: {term(name).meaning}"
