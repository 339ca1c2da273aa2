"""Counting and logging decisions, a moment after the fact and several at a time.

What a decision and its outcome have to leave behind at once is a reference. The rest costs a third of a request's
processor time where it is done request by request, cold, and in the way of others; in a row it costs little.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Protocol

import msgspec

from results.records.decisions import DecisionRecord, KvTransfer, RoutedOutcome
from results.records.migrations import TickMigration
from runners.router.counts import Counts
from runners.router.driver import Driver, Timer
from runners.router.migration_feed import MigrationFeed
from runners.router.policies.policy import Draft
from runners.router.response_facts import Usage, read_usage
from runners.router.spec import LATEST, TickPick
from runners.router.transfer.movement import Movement

SETTLE_S = 0.2
AT_ONCE = 6
"""Outcomes in a row: the event loop is blocked for some 0.2 ms where its caches are cold."""
NEXT_S = 0.001
"""Between two such rows."""
COUNTED_WITHIN_S = 5.0
"""A record waits this long at most for what its transfer moved to be counted."""


class RecordLog(Protocol):
    """Where decision records go."""

    @property
    def is_open(self) -> bool:
        """Records are stored."""

    def append_record(self, record: DecisionRecord) -> None: ...


class PendingOutcome(msgspec.Struct, frozen=True):
    """The outcome of a decision before it is counted; times are of the driver's `now_ns`."""

    record: DecisionRecord
    status: str
    """As in RoutedOutcome."""
    http_status: int | None
    t_dispatch_ns: int
    t_first_ns: int
    """0 = no byte came."""
    t_end_ns: int
    usage: Usage | tuple[bytes, ...]
    """Its token counts, or the last pieces of the body to read them from; empty = no counts are wanted."""
    error: str
    movement: Movement | None = None
    """The transfer that the decision asked for; None = none, or the router has no transport."""
    draft: Draft | None = None
    """Lists the decision's candidates; None = the record has them."""


class Ledger:
    """Collects decisions and outcomes; `settle_records` brings counts and log up to date, within SETTLE_S by itself."""

    def __init__(self, log: RecordLog, counts: Counts, driver: Driver) -> None:
        self._log = log
        self._counts = counts
        self._driver = driver
        self._decisions: deque[DecisionRecord] = deque()
        self._outcomes: deque[PendingOutcome] = deque()
        self._latest: deque[DecisionRecord] = deque(maxlen=LATEST)
        self._uncounted: dict[int, tuple[PendingOutcome, Usage]] = {}
        """Outcomes whose transfer is not counted yet; by decision, in the order of their ends."""
        self._feed = MigrationFeed(driver.now_ns)
        self._timer: Timer | None = None

    @property
    def stores_records(self) -> bool:
        return self._log.is_open

    def add_decision(self, record: DecisionRecord) -> None:
        self._decisions.append(record)
        self._latest.append(record)
        if self._timer is None:
            self._timer = self._driver.call_later(SETTLE_S, self._settle_some)

    def add_outcome(self, outcome: PendingOutcome) -> None:
        self._outcomes.append(outcome)
        if self._timer is None:
            self._timer = self._driver.call_later(SETTLE_S, self._settle_some)

    def add_migration(self, record: DecisionRecord, t_first_ns: int, movement: Movement | None) -> None:
        """The target of a migration has begun to answer with a 2xx."""
        self._feed.add_served(t_first_ns, record.request, record.decision, movement)

    def take_migrations(self, *, last: bool = False) -> tuple[TickMigration, ...]:
        """What happened to migrations since the last call; `last`: nothing is waited for."""
        return self._feed.take_steps(last=last)

    def latest_picks(self) -> tuple[TickPick, ...]:
        """The last LATEST picks, oldest first."""
        return tuple(
            TickPick(
                record.t_ns,
                record.request.request,
                record.request.session,
                record.decision.instance,
                record.decision.reason,
            )
            for record in self._latest
        )

    def settle_records(self, *, last: bool = False) -> None:
        """Count and log everything but records that wait for a transfer's counters; `last`: these too."""
        while self._decisions:
            self._count_decision(self._decisions.popleft())
        while self._outcomes:
            self._count_outcome(self._outcomes.popleft())
        limit_ns = self._driver.now_ns() - (0 if last else round(COUNTED_WITHIN_S * 1e9))
        for seq, (outcome, _) in tuple(self._uncounted.items()):
            if outcome.t_end_ns > limit_ns:
                break
            assert outcome.movement is not None
            self._count_transfer(seq, outcome.movement.transfer)

    def _settle_some(self) -> None:
        self._timer = None
        while self._decisions:
            self._count_decision(self._decisions.popleft())
        for _ in range(min(AT_ONCE, len(self._outcomes))):
            self._count_outcome(self._outcomes.popleft())
        if self._outcomes and self._timer is None:
            self._timer = self._driver.call_later(NEXT_S, self._settle_some)

    def _count_decision(self, record: DecisionRecord) -> None:
        counts, decision = self._counts, record.decision
        counts.picks += 1
        counts.retries += bool(record.request.tried)
        counts.decisions[decision.reason] += 1
        counts.add_decide_time(record.decide_us)
        for instance in (decision.instance, decision.prefill):
            if instance:
                counts.placed[instance] += 1
        if decision.gates or decision.migrate_from:
            self._feed.add_decision(record.t_ns, record.request, decision)

    def _count_outcome(self, outcome: PendingOutcome) -> None:
        counts, record = self._counts, outcome.record
        counts.outcomes[record.decision.instance, outcome.status] += 1
        first_byte_s = _first_byte_s(outcome)
        if outcome.status == "ok" and first_byte_s is not None:
            counts.first_byte.add_value(first_byte_s)
            counts.last_byte.add_value(_last_byte_s(outcome))
        migration = _migration_result(outcome)
        if migration:
            counts.migrations[migration] += 1
            if migration == "failed":
                self._feed.add_failed(outcome.t_end_ns, record.request, record.decision, outcome.status, outcome.error)
        usage = _read_usage(outcome)
        movement = outcome.movement
        if movement is None:
            self._write_record(outcome, usage, None)
            return
        seq = record.seq
        self._uncounted[seq] = outcome, usage
        movement.end_answer(usage.prompt_tokens, usage.cached_tokens)
        movement.when_settled(lambda transfer: self._count_transfer(seq, transfer))

    def _count_transfer(self, seq: int, transfer: KvTransfer) -> None:
        """Write the record of a decision whose transfer has settled, or is not waited for any longer."""
        uncounted = self._uncounted.pop(seq, None)
        if uncounted is None:
            return
        outcome, usage = uncounted
        if outcome.movement is not None and not outcome.movement.settled and not transfer.counted_reason:
            transfer = replace(transfer, counted_reason="its counters were not read before the record was written")
        self._counts.add_transfer(transfer)
        self._write_record(outcome, usage, transfer)

    def _write_record(self, outcome: PendingOutcome, usage: Usage, transfer: KvTransfer | None) -> None:
        if not self._log.is_open:
            return
        routed = RoutedOutcome(
            status=outcome.status,
            http_status=outcome.http_status,
            first_byte_s=_first_byte_s(outcome),
            last_byte_s=_last_byte_s(outcome),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            error=outcome.error,
            migration=_migration_result(outcome),
            transfer=transfer,
        )
        record = outcome.record
        decision = record.decision if outcome.draft is None else outcome.draft.complete()
        finished = DecisionRecord(
            seq=record.seq,
            t_ns=record.t_ns,
            decide_us=record.decide_us,
            request=record.request,
            cluster=record.cluster,
            decision=decision,
            outcome=routed,
        )
        self._log.append_record(finished)


def _first_byte_s(outcome: PendingOutcome) -> float | None:
    return (outcome.t_first_ns - outcome.t_dispatch_ns) / 1e9 if outcome.t_first_ns else None


def _last_byte_s(outcome: PendingOutcome) -> float:
    return (outcome.t_end_ns - outcome.t_dispatch_ns) / 1e9


def _read_usage(outcome: PendingOutcome) -> Usage:
    if isinstance(outcome.usage, Usage):
        return outcome.usage
    return read_usage(b"".join(outcome.usage)) if outcome.usage else Usage()


def _migration_result(outcome: PendingOutcome) -> str:
    """What became of a migration, as in RoutedOutcome; empty = the decision asked for none."""
    if not outcome.record.decision.migrate_from:
        return ""
    if not outcome.t_first_ns or outcome.http_status is None or outcome.http_status >= 300:
        return "failed"
    status = "" if outcome.movement is None else outcome.movement.transfer.status
    return status if status in ("transferred", "unneeded") else "recomputed"
