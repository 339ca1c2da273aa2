"""The wire form of the events that results/records/events.py declares: what the journal holds of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import msgspec

from results.records.events import (
    EVENTS,
    CellProgressed,
    Event,
    GpusSampled,
    InstanceSampled,
    RouterSampled,
    RunPlanned,
)
from results.records.plan import upgrade_plan


@dataclass(frozen=True, slots=True)
class Unknown(Event):
    """An event of a newer version: kept, shown, and never an error."""

    kind: ClassVar[str] = "unknown"
    wire_kind: str
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event as the journal holds it."""

    seq: int
    """1, 2, 3 ... without a gap."""
    t_unix_s: float
    t_mono_ns: int
    """`time.perf_counter_ns()` of the writer: durations inside one process's span only."""
    event: Event


KINDS: Mapping[str, type[Event]] = {kind.kind: kind for kind in EVENTS}
LIVE_KINDS: tuple[type[Event], ...] = (InstanceSampled, RouterSampled, GpusSampled, CellProgressed)
"""Numbers that come once a second: they change no state, make no feed line, and do not wait for the disk."""


def name_wire_kind(event: Event) -> str:
    """The event's `kind` in the journal."""
    return event.wire_kind if isinstance(event, Unknown) else event.kind


def encode(event: Event) -> bytes:
    """The event's body as JSON, without its kind.

    In text that is not valid Unicode (an engine's last lines may hold any byte), `?` replaces what cannot be encoded.
    """
    body = event.body if isinstance(event, Unknown) else event
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return msgspec.json.encode(_make_writable(msgspec.to_builtins(body)))


def _make_writable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_make_writable(key): _make_writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_make_writable(item) for item in value]
    return value


def decode(kind: str, body: bytes | str) -> Event:
    """The event of a wire kind and body; a kind this version does not know becomes `Unknown`."""
    cls = KINDS.get(kind)
    if cls is None:
        return Unknown(wire_kind=kind, body=msgspec.json.decode(body))
    event = msgspec.json.decode(body, type=cls)
    return replace(event, plan=upgrade_plan(event.plan)) if isinstance(event, RunPlanned) else event
