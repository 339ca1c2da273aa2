"""Why an attempt at an instance failed."""

from __future__ import annotations

from dataclasses import dataclass

REFUSALS = (429, 503)
"""Statuses by which an instance does not admit a request."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, as health, counters and records see it."""

    kind: str
    """`connect`, `closed`, `timeout`, `stall`, `status`, `event` (an error event in its stream), `protocol`, `refused`,
    `down`, or `own` (this machine)."""
    text: str
    dead: bool = False
    """No connection could be made: enough to stop sending there."""
    gone: bool = False
    """The connection was refused: nothing listens there, and what its process held is lost."""
    status: int | None = None
