"""Why an attempt at an instance failed."""

from __future__ import annotations

from dataclasses import dataclass

REFUSALS = (429, 503)
"""Statuses with which an instance refuses to admit a request."""


def blames_request(status: int) -> bool:
    """Whether the request itself is at fault: a 4xx, or a 501 from an engine whose model lacks that API."""
    return 400 <= status < 500 or status == 501


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, as health, counters and records see it."""

    kind: str
    """`connect`, `closed`, `timeout`, `stall`, `status`, `event` (an error event in its stream), `protocol`, `refused`,
    `down`, or `own` (this machine)."""
    text: str
    dead: bool = False
    """No connection could be made: this alone opens the breaker."""
    gone: bool = False
    """The connection was refused: no process listens there, and its KV cache is lost."""
    status: int | None = None
