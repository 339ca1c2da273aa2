"""Counting and logging picks, a moment after the fact and several at a time.

What a pick and an end have to leave behind at once is a reference. The rest costs a third of a request's processor time
where it is done request by request, cold, and in the way of others; done in a row it costs little and delays nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from results.decisions import ClusterView, Decision, DecisionRecord, RoutedOutcome, RoutedRequest
from runners.router.facts import Usage, read_usage
from runners.router.log import DecisionLog
from runners.router.metrics import Counts
from runners.router.spec import LATEST, TickPick

SETTLE_S = 0.05
AT_ONCE = 16
"""Ends in a row: what waits meanwhile waits less than half a millisecond."""
NEXT_S = 0.001
"""Between two such rows."""


class Pick(NamedTuple):
    """What was decided, and on what ground."""

    seq: int
    t_ns: int
    decide_us: float
    request: RoutedRequest
    cluster: ClusterView
    decision: Decision


class End(NamedTuple):
    """What became of a pick; times are `perf_counter_ns`."""

    pick: Pick
    status: str
    """As in RoutedOutcome."""
    http_status: int | None
    t_dispatch_ns: int
    t_first_ns: int
    """0 = there was no byte."""
    t_end_ns: int
    tail: tuple[bytes, ...]
    """The last pieces of the body; empty = its token counts are not wanted."""
    error: str


class Ledger:
    """Takes notes; `settle` brings counts and log up to them. It happens by itself within SETTLE_S or so."""

    def __init__(self, log: DecisionLog, counts: Counts) -> None:
        self._log = log
        self._counts = counts
        self._picks: deque[Pick] = deque()
        self._ends: deque[End] = deque()
        self._latest: deque[Pick] = deque(maxlen=LATEST)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def keeps_records(self) -> bool:
        return self._log.kept

    def picked(self, pick: Pick) -> None:
        """A request was sent, or could be sent nowhere."""
        self._picks.append(pick)
        self._latest.append(pick)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._settle_some)

    def ended(self, end: End) -> None:
        """A pick is over."""
        self._ends.append(end)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._settle_some)

    def latest(self) -> tuple[TickPick, ...]:
        """The last LATEST picks, oldest first."""
        return tuple(
            TickPick(
                pick.t_ns, pick.request.request, pick.request.session, pick.decision.instance, pick.decision.reason
            )
            for pick in self._latest
        )

    def settle(self) -> None:
        """Count and log everything noted so far."""
        while self._picks:
            self._count(self._picks.popleft())
        while self._ends:
            self._close(self._ends.popleft())

    def _settle_some(self) -> None:
        self._timer = None
        while self._picks:
            self._count(self._picks.popleft())
        for _ in range(min(AT_ONCE, len(self._ends))):
            self._close(self._ends.popleft())
        if self._ends and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(NEXT_S, self._settle_some)

    def _count(self, pick: Pick) -> None:
        counts, decision = self._counts, pick.decision
        counts.picks += 1
        counts.retries += bool(pick.request.tried)
        counts.decisions[decision.reason] += 1
        counts.decided(pick.decide_us)
        for instance in (decision.instance, decision.prefill):
            if instance:
                counts.placed[instance] += 1

    def _close(self, end: End) -> None:
        counts = self._counts
        counts.outcomes[end.pick.decision.instance, end.status] += 1
        ttft_s = (end.t_first_ns - end.t_dispatch_ns) / 1e9 if end.t_first_ns else None
        e2e_s = (end.t_end_ns - end.t_dispatch_ns) / 1e9
        if end.status == "ok" and ttft_s is not None:
            counts.ttft.add(ttft_s)
            counts.e2e.add(e2e_s)
        migration = _migration(end)
        if migration:
            counts.migrations[migration] += 1
        if not self._log.kept:
            return
        usage = read_usage(b"".join(end.tail)) if end.tail else Usage()
        outcome = RoutedOutcome(
            status=end.status,
            http_status=end.http_status,
            ttft_s=ttft_s,
            e2e_s=e2e_s,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            error=end.error,
            migration=migration,
        )
        self._log.append(DecisionRecord(*end.pick, outcome))


def _migration(end: End) -> str:
    """What came of a pick that wanted its session's KV moved: nothing moves it yet, so the target recomputes it."""
    if not end.pick.decision.migrate_from:
        return ""
    served = end.t_first_ns and end.http_status is not None and end.http_status < 300
    return "recomputed" if served else "failed"
