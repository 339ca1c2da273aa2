"""What a router reports to its parent: its ready line, its ticks and its outcome; and the spec that it reads.

All travel as JSON; times ending in `_ns` are `time.perf_counter_ns()`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from results.records.migrations import TickMigration
from results.records.router_spec import ROUTER_SPEC_VERSION, RouterSpec, upgrade_router_spec_from_1
from runners.child_process import ChildLine, read_spec
from runners.errors import RunnerError

LATEST = 20
"""Number of picks in a tick."""


class RouterError(RunnerError):
    """The router cannot start, or cannot carry out a request of its operator."""


@dataclass(frozen=True, slots=True)
class TickInstance:
    """The load of an instance, and whether it takes requests, when the tick was made."""

    instance: str
    available: bool
    why: str
    num_requests: int
    pending_prefill_tokens: int
    ongoing_tokens: int
    sessions: int
    picks: int = 0
    """Since the router started."""


@dataclass(frozen=True, slots=True)
class TickPick:
    """One of the latest picks."""

    t_ns: int
    request: str
    session: str
    instance: str
    reason: str


@dataclass(frozen=True, slots=True)
class RouterTick:
    """One second of a running router. Counts are since it started."""

    t_ns: int
    policy: str
    instances: tuple[TickInstance, ...]
    sessions: int
    """Sessions bound."""
    decisions: Mapping[str, int]
    """Picks by reason."""
    latest: tuple[TickPick, ...]
    """The last LATEST picks, oldest first."""
    retries: int
    """Picks repeated because an instance failed before the first byte."""
    errors: int
    """Requests that ended in an error that was not the client's."""
    migrations: tuple[TickMigration, ...] = ()
    """Events since the last tick, oldest first. A refusal is reported once per session and reason."""


@dataclass(frozen=True, slots=True)
class RouterReady:
    """The router listens."""

    url: str
    pid: int
    instances: tuple[str, ...]
    block_tokens: int
    pages: tuple[str, ...] = ()
    """Base URLs of the metrics and the operator's pages of each of several processes; empty = at `url`."""


@dataclass(frozen=True, slots=True)
class RouterOutcome:
    """The totals of a router at its end."""

    t_start_ns: int
    t_end_ns: int
    policy: str
    index: str
    requests: int
    picks: int
    retries: int
    errors: int
    aborted: int
    """Requests whose client left first."""
    cut: int
    """Requests still in flight at the end of the drain."""
    decisions: Mapping[str, int]
    decide_us_p50: float | None
    """Over the latest picks; for several processes the largest; None = there were no picks."""
    decide_us_p99: float | None
    records_lost: int
    """Decision records that could not be written."""
    log_error: str = ""
    died: int = 0
    """Times that one of several processes died and was restarted; its counts are not included."""
    events_lost: int = 0
    """Instance events that could not be written."""


class RouterLine(ChildLine[RouterTick], frozen=True, omit_defaults=True):
    """One line of the router's standard output: exactly one field is set."""

    ready: RouterReady | None = None
    end: RouterOutcome | None = None


def read_router_spec(path: Path) -> RouterSpec:
    """The spec in a JSON file. Raises RouterError naming the file and the wrong field."""
    upgrades = {1: upgrade_router_spec_from_1}
    return read_spec(path, RouterSpec, "router spec", RouterError, ROUTER_SPEC_VERSION, upgrades)
