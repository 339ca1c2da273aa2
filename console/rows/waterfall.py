"""Requests broken down into phases, drawn as a waterfall: a line each, with a legend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from console import format as say
from console.glyphs import Glyphs
from console.themes import SERIES
from console.widgets.table import Cell, Column, Row, Span, cell, flow_entries
from results.records.events import RESIDUAL_BELOW, LifecycleMeasured
from results.records.named_number import NOT_MEASURED, digits
from state.lifecycle import LifecycleView, MeasuredRequest

SHOWN = 120
"""Requests that the waterfall shows: the latest."""
LAST = "d_decode"
"""The phase that may go on beyond the right edge: it grows with the output, and would make the others too small."""
ROOM = 1.15
"""The waterfall's full width, in times to first token of the slowest request it shows."""
BLOCK, GOES_ON = "█", "»"


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase's label and look."""

    label: str
    tone: str
    letter: str
    """Stands for it where there is no color."""


PHASES: Mapping[str, Phase] = {
    "routing": Phase("routing", "faint", "r"),
    "p_queue": Phase("queue", "series-5", "q"),
    "p_prefill": Phase("prefill", "series-0", "p"),
    "zmq_handshake": Phase("handshake", "series-4", "h"),
    "metadata_wait": Phase("wait for D", "dim", "m"),
    "zmq_after_metadata": Phase("prepare", "series-4", "h"),
    "rdma_transfer": Phase("transfer", "series-1", "t"),
    "transfer_signal": Phase("signal", "series-7", "s"),
    "d_promotion": Phase("promotion", "series-3", "o"),
    "d_first_token": Phase("first token", "series-6", "f"),
    "d_decode": Phase("decode", "series-2", "d"),
}
"""By the names of the records, in the order they pass; `metadata_wait` and `zmq_after_metadata` are the handshake in
its two parts."""


def find_phase(name: str, index: int) -> Phase:
    """A phase by its name; an unknown one gets the tone of its position in the request."""
    return PHASES.get(name) or Phase(name.replace("_", " "), f"series-{index % SERIES}", name[:1] or "?")


def list_latest_requests(view: LifecycleView) -> tuple[MeasuredRequest, ...]:
    """The requests that the waterfall shows."""
    return view.requests[-SHOWN:]


def list_phases(requests: Sequence[MeasuredRequest], marker: str, width: int) -> tuple[Cell, ...]:
    """Every phase that occurs, with its median over those that count, on as many lines as it needs."""
    values_by_phase: dict[str, list[float]] = {}
    for request in requests:
        for name, ms in request.event.phases_ms.items():
            values_by_phase.setdefault(name, []).extend([ms] if ms is not None and request.counts else [])
    entries = []
    for index, (name, values) in enumerate(values_by_phase.items()):
        each = find_phase(name, index)
        middle = digits(median(values)) if values else NOT_MEASURED
        sign = each.letter if marker == "letters" else BLOCK
        entries.append(((f"{sign} ", each.tone), (f"{each.label} ", ""), (f"{middle}  ", "dim")))
    return flow_entries([cell("median ms  ", "dim"), *entries] if entries else [], width)


def choose_waterfall_columns(width: int) -> tuple[Column, ...]:
    wide = (Column("time", "time", 8, left=True),) if width >= 100 else ()
    more = (Column("gbps", "write", 6, "Gbit/s"), Column("residual", "resid", 5, "%")) if width >= 100 else ()
    return (
        *wide,
        Column("mark", "", 1, left=True),
        Column("context", "C", 5, "tok"),
        Column("new", "N", 5, "tok"),
        Column("output", "O", 4, "tok"),
        Column("repetition", "rep", 3),
        Column("phases", "from arrival on", 20, left=True, flex=True),
        Column("transfer", "move", 5, "ms"),
        Column("ttft", "TTFT", 5, "ms"),
        Column("e2e", "E2E", 5, "ms"),
        *more,
    )


def measure_span_ms(requests: Iterable[MeasuredRequest]) -> float:
    """What the waterfall's full width stands for."""
    return ROOM * max((_sum_before_last_ms(each.event) for each in requests), default=0.0)


def _sum_before_last_ms(event: LifecycleMeasured) -> float:
    known = [ms for name, ms in event.phases_ms.items() if ms is not None and name != LAST]
    return sum(max(0.0, ms) for ms in known) if known else event.ttft_ms or 0.0


def make_waterfall_rows(
    requests: Sequence[MeasuredRequest], shown: tuple[Column, ...], width: int, glyphs: Glyphs, marker: str
) -> tuple[Row, ...]:
    """A line per request, oldest first."""
    fixed = sum(column.width + 1 for column in shown if column.key != "phases")
    room, full_ms = max(1, width - fixed), measure_span_ms(requests)
    made = []
    for key, request in key_requests(requests):
        event = request.event
        tone = "" if request.counts else "dim"
        cells = {
            "time": cell(say.clock(request.t_unix_s), "dim"),
            "mark": _mark_cell(request, glyphs),
            "context": cell(say.tokens(event.context_tokens), tone),
            "new": cell(say.tokens(event.new_tokens), tone),
            "output": cell(say.whole(event.output_tokens), tone),
            "repetition": cell(str(event.repetition), "dim"),
            "phases": _bar_cell(request, room, full_ms, marker),
            "transfer": cell(digits(event.transfer_ms), tone),
            "ttft": cell(digits(event.ttft_ms), tone),
            "e2e": cell(digits(event.e2e_ms), tone),
            "gbps": cell(digits(event.bandwidth_gbps), tone),
            "residual": cell(format_share(event.residual_share), _choose_residual_tone(event, tone)),
        }
        made.append(
            Row(key, tuple(cells[column.key] for column in shown), also=f"{event.cell} {_describe_request(request)}")
        )
    return tuple(made)


def format_share(share: float | None) -> str:
    return NOT_MEASURED if share is None else digits(share * 100)


def _choose_residual_tone(event: LifecycleMeasured, tone: str) -> str:
    return "warn" if event.residual_share is not None and event.residual_share >= RESIDUAL_BELOW else tone


def _describe_request(request: MeasuredRequest) -> str:
    event = request.event
    words = ("discarded" if event.discarded else "", "warm-up" if event.warmup else "")
    return " ".join(word for word in words if word)


def _mark_cell(request: MeasuredRequest, glyphs: Glyphs) -> Cell:
    if request.event.discarded:
        return cell(glyphs.sign("failed"), "bad")
    return cell("w" if request.event.warmup else "", "dim")


def _bar_cell(request: MeasuredRequest, room: int, full_ms: float, marker: str) -> Cell:
    """The phases one after the other. A phase that was not measured takes no room; `»` marks a bar that is cut."""
    event = request.event
    known = [(index, name, max(0.0, ms)) for index, (name, ms) in enumerate(event.phases_ms.items()) if ms is not None]
    if not known or full_ms <= 0:
        return cell(event.discarded or "no phase was measured", "dim")
    shares = (min(sum_ms / full_ms, 2.0) for sum_ms in accumulate(ms for _, _, ms in known))  # may be infinite
    ends = [round(share * room) for share in shares]
    spans: list[Span] = []
    for (index, name, _), begin, end in zip(known, (0, *ends), ends, strict=False):
        each = find_phase(name, index)
        sign = each.letter if marker == "letters" else BLOCK
        spans.append((sign * (min(end, room) - min(begin, room)), each.tone))
    if ends[-1] > room:
        last, tone = next((text, tone) for text, tone in reversed(spans) if text)
        index = max(index for index, (text, _) in enumerate(spans) if text)
        spans[index] = (last[:-1], tone)
        spans.insert(index + 1, (GOES_ON, tone))
    return tuple(span for span in spans if span[0])


def key_requests(requests: Iterable[MeasuredRequest]) -> list[tuple[str, MeasuredRequest]]:
    """The requests with keys that stay the same while older ones fall out."""
    return [(f"{each.event.cell} {each.event.repetition} {each.t_unix_s!r}", each) for each in requests]
