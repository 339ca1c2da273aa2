"""A step in the migration of one session, declared once: the router's tick, the journal and the console hold it.

The router stamps a step with its own clock, the journal with the wall clock and the cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["started", "done", "failed", "refused"]


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """What happened to the migration."""

    migration: str
    """Id of the request that migrates: the same in all steps of one migration."""
    session: str
    """As in the request's `x-session-id`."""
    turn: int
    """Counts the session's requests, from 0."""
    source: str
    """The instance that holds the session's KV."""
    target: str
    """The instance it moves to; empty = refused before one was chosen."""
    phase: Phase
    """`done`: served at the target. `failed`: not served there. `refused`: its instance is hot and it stays."""
    reason: str = ""
    """With `done`: `transferred`, `recomputed` or `unneeded`; with `started` and `refused`: the policy's reason."""
    text: str = ""
    """More on it, in words: the gate that failed, why KV was not moved."""
    external_tokens: int | None = None
    """Tokens that the target took from the transfer; None = not known."""
    bytes: int | None = None
    """Transferred; None = not known."""
    transfer_s: float | None = None
    """From the router's beginning to the KV at the target; None = no KV was transferred."""


@dataclass(frozen=True, slots=True)
class TickMigration(MigrationStep):
    """A step since the router's last tick."""

    t_ns: int = 0
    """`time.perf_counter_ns()` of the router."""
