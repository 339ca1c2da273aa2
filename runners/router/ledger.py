"""Counting and logging picks, a moment after the fact and several at a time.

What a pick and an end have to leave behind at once is a reference. The rest costs a third of a request's processor time
where it is done request by request, cold, and in the way of others; done in a row it costs little and delays nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

from results.decisions import ClusterView, Decision, DecisionRecord, KvTransfer, RoutedOutcome, RoutedRequest
from runners.router.facts import Usage, read_usage
from runners.router.log import DecisionLog
from runners.router.metrics import Counts
from runners.router.migration_feed import MigrationFeed
from runners.router.spec import LATEST, TickMigration, TickPick

if TYPE_CHECKING:
    from runners.router.transfer import Movement

SETTLE_S = 0.05
AT_ONCE = 16
"""Ends in a row: what waits meanwhile waits less than half a millisecond."""
NEXT_S = 0.001
"""Between two such rows."""
COUNTED_WITHIN_S = 5.0
"""A record waits so long for what its transfer moved to be counted."""


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
    movement: Movement | None = None
    """The transfer it asked for; None = none, or the router has no transport."""


class Ledger:
    """Takes notes; `settle` brings counts and log up to them. It happens by itself within SETTLE_S or so."""

    def __init__(self, log: DecisionLog, counts: Counts) -> None:
        self._log = log
        self._counts = counts
        self._picks: deque[Pick] = deque()
        self._ends: deque[End] = deque()
        self._latest: deque[Pick] = deque(maxlen=LATEST)
        self._uncounted: dict[int, tuple[End, Usage]] = {}
        """Over, but what their transfer moved is not counted yet; by pick, in the order of their ends."""
        self._feed = MigrationFeed()
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

    def migrated(self, pick: Pick, t_first_ns: int, movement: Movement | None) -> None:
        """The target of a migration has begun to answer well."""
        self._feed.served(t_first_ns, pick.request, pick.decision, movement)

    def migrations(self, *, last: bool = False) -> tuple[TickMigration, ...]:
        """What happened to migrations since the last call; `last`: nothing is waited for."""
        return self._feed.take(last=last)

    def latest(self) -> tuple[TickPick, ...]:
        """The last LATEST picks, oldest first."""
        return tuple(
            TickPick(
                pick.t_ns, pick.request.request, pick.request.session, pick.decision.instance, pick.decision.reason
            )
            for pick in self._latest
        )

    def settle(self, *, last: bool = False) -> None:
        """Count and log everything noted so far, but records that wait for a transfer's counters; `last`: these too."""
        while self._picks:
            self._count(self._picks.popleft())
        while self._ends:
            self._close(self._ends.popleft())
        limit_ns = perf_counter_ns() - (0 if last else round(COUNTED_WITHIN_S * 1e9))
        for seq, (end, _) in tuple(self._uncounted.items()):
            if end.t_end_ns > limit_ns:
                break
            assert end.movement is not None
            self._counted(seq, end.movement.transfer)

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
        if decision.gates or decision.migrate_from:
            self._feed.picked(pick.t_ns, pick.request, decision)

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
            if migration == "failed":
                self._feed.failed(end.t_end_ns, end.pick.request, end.pick.decision, end.status, end.error)
        usage = read_usage(b"".join(end.tail)) if end.tail else Usage()
        movement = end.movement
        if movement is None:
            self._write(end, usage, None)
            return
        seq = end.pick.seq
        self._uncounted[seq] = end, usage
        movement.counted(usage.prompt_tokens, usage.cached_tokens)
        movement.when_settled(lambda transfer: self._counted(seq, transfer))

    def _counted(self, seq: int, transfer: KvTransfer) -> None:
        """A transfer has settled, or is not waited for any longer."""
        found = self._uncounted.pop(seq, None)
        if found is None:
            return
        end, usage = found
        if end.movement is not None and not end.movement.settled and not transfer.counted_reason:
            transfer = replace(transfer, counted_reason="its counters were not read before the record was written")
        self._counts.transfer_ended(transfer)
        self._write(end, usage, transfer)

    def _write(self, end: End, usage: Usage, transfer: KvTransfer | None) -> None:
        if not self._log.kept:
            return
        outcome = RoutedOutcome(
            status=end.status,
            http_status=end.http_status,
            ttft_s=(end.t_first_ns - end.t_dispatch_ns) / 1e9 if end.t_first_ns else None,
            e2e_s=(end.t_end_ns - end.t_dispatch_ns) / 1e9,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            error=end.error,
            migration=_migration(end),
            transfer=transfer,
        )
        self._log.append(DecisionRecord(*end.pick, outcome))


def _migration(end: End) -> str:
    """What came of a pick that wanted its session's KV moved, as in RoutedOutcome; empty = it did not."""
    if not end.pick.decision.migrate_from:
        return ""
    if not end.t_first_ns or end.http_status is None or end.http_status >= 300:
        return "failed"
    status = "" if end.movement is None else end.movement.transfer.status
    return status if status in ("transferred", "unneeded") else "recomputed"
