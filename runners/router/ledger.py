"""Count and log decisions in batches, shortly after they are made.

The request path only appends a reference. Counting and encoding request by request, with cold caches, would take a
third of a request's CPU time and delay other requests; in a batch it costs little.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Protocol

import msgspec

from results.records.decisions import ClusterView, Decision, DecisionRecord, KvTransfer, RoutedOutcome, RoutedRequest
from results.records.migrations import TickMigration
from runners.router.counts import Counts
from runners.router.driver import Driver, Timer
from runners.router.messages import LATEST, TickPick
from runners.router.migration_feed import MigrationFeed
from runners.router.policies.policy import Draft
from runners.router.response_facts import Usage, read_usage
from runners.router.transfer.movement import Movement

SETTLE_S = 0.4
"""Longest wait of a pick or an outcome. Every batch wakes the event loop and the thread that writes the log."""
AT_ONCE = 6
"""Outcomes per batch: one batch blocks the event loop for about 0.2 ms with cold caches."""
NEXT_S = 0.001
"""Pause between two batches."""
COUNTED_WITHIN_S = 5.0
"""Longest wait of a record for the token counts of its transfer."""


class RecordLog(Protocol):
    """The destination of decision records."""

    @property
    def is_open(self) -> bool:
        """Records are stored."""

    def append_record(self, record: DecisionRecord) -> None: ...
    def flush_records(self) -> None:
        """A batch is complete."""


class Pick(msgspec.Struct, frozen=True):
    """A decision and its inputs before the outcome is known; fields as in DecisionRecord."""

    request: RoutedRequest
    cluster: ClusterView
    draft: Draft
    """The decision; it lists the candidates when the record is written."""
    seq: int
    t_ns: int
    t_dispatch_ns: int

    @property
    def decision(self) -> Decision:
        """The decision without its candidates."""
        return self.draft.decision

    @property
    def decide_us(self) -> float:
        return (self.t_dispatch_ns - self.t_ns) / 1e3


class PendingOutcome(msgspec.Struct, frozen=True):
    """The outcome of a pick before it is counted; times are the driver's `now_ns`."""

    pick: Pick
    status: str
    """As in RoutedOutcome."""
    http_status: int | None
    t_first_ns: int
    """0 = no byte arrived."""
    t_end_ns: int
    usage: Usage | tuple[bytes, ...]
    """Token counts, or the last pieces of the body that hold them; empty = not needed."""
    error: str
    movement: Movement | None = None
    """The transfer that the pick started; None = none, or the router has no transport."""
    t_transfer_ns: int = 0
    """When the wait for KV ended; 0 = it never waited."""


class Ledger:
    """Collects picks and outcomes; counts and logs them within SETTLE_S, or at once with `settle_records`."""

    def __init__(self, log: RecordLog, counts: Counts, driver: Driver) -> None:
        self._log = log
        self._counts = counts
        self._driver = driver
        self._picks: deque[Pick] = deque()
        self._outcomes: deque[PendingOutcome] = deque()
        self._latest: deque[Pick] = deque(maxlen=LATEST)
        self._uncounted: dict[int, tuple[PendingOutcome, Usage]] = {}
        """Outcomes whose transfer is not counted yet, by pick number, in the order in which they ended."""
        self._feed = MigrationFeed(driver.now_ns)
        self._timer: Timer | None = None

    @property
    def stores_records(self) -> bool:
        return self._log.is_open

    @property
    def unsettled(self) -> int:
        """Picks and outcomes that are not counted and logged yet."""
        return len(self._picks) + len(self._outcomes) + len(self._uncounted)

    def add_pick(self, pick: Pick) -> None:
        self._picks.append(pick)
        self._latest.append(pick)
        if self._timer is None:
            self._timer = self._driver.call_later(SETTLE_S, self._settle_some)

    def add_outcome(self, outcome: PendingOutcome) -> None:
        self._outcomes.append(outcome)
        if self._timer is None:
            self._timer = self._driver.call_later(SETTLE_S, self._settle_some)

    def add_migration(self, pick: Pick, t_first_ns: int, movement: Movement | None) -> None:
        """The target of a migration has begun to answer with a 2xx."""
        self._feed.add_served(t_first_ns, pick.request, pick.decision, movement)

    def take_migrations(self, *, last: bool = False) -> tuple[TickMigration, ...]:
        """Migration events since the last call; `last`: do not wait for token counts."""
        return self._feed.take_steps(last=last)

    def list_latest_picks(self) -> tuple[TickPick, ...]:
        """The last LATEST picks, oldest first."""
        return tuple(
            TickPick(
                pick.t_ns, pick.request.request, pick.request.session, pick.decision.instance, pick.decision.reason
            )
            for pick in self._latest
        )

    def settle_records(self, *, last: bool = False) -> None:
        """Count and log everything except records that wait for a transfer's counters; `last`: these too."""
        while self._picks:
            self._count_pick(self._picks.popleft())
        while self._outcomes:
            self._count_outcome(self._outcomes.popleft())
        limit_ns = self._driver.now_ns() - (0 if last else round(COUNTED_WITHIN_S * 1e9))
        for seq, (outcome, _) in tuple(self._uncounted.items()):
            if outcome.t_end_ns > limit_ns:
                break
            assert outcome.movement is not None
            self._count_transfer(seq, outcome.movement.transfer)
        self._log.flush_records()

    def _settle_some(self) -> None:
        self._timer = None
        while self._picks:
            self._count_pick(self._picks.popleft())
        for _ in range(min(AT_ONCE, len(self._outcomes))):
            self._count_outcome(self._outcomes.popleft())
        if not self._outcomes:
            self._log.flush_records()
        elif self._timer is None:
            self._timer = self._driver.call_later(NEXT_S, self._settle_some)

    def _count_pick(self, pick: Pick) -> None:
        counts, decision = self._counts, pick.decision
        counts.picks += 1
        counts.retries += bool(pick.request.tried)
        counts.decisions[decision.reason] += 1
        counts.add_decide_time(pick.decide_us)
        for instance in (decision.instance, decision.prefill):
            if instance:
                counts.picks_of[instance] += 1
        if decision.gates or decision.migrate_from:
            self._feed.add_decision(pick.t_ns, pick.request, decision)

    def _count_outcome(self, outcome: PendingOutcome) -> None:
        counts, pick = self._counts, outcome.pick
        counts.outcomes[pick.decision.instance, outcome.status] += 1
        first_byte_s = _measure_first_byte_s(outcome)
        if outcome.status == "ok" and first_byte_s is not None:
            counts.first_byte.add_value(first_byte_s)
            counts.last_byte.add_value(_measure_last_byte_s(outcome))
        migration = _name_migration_result(outcome)
        if migration:
            counts.migrations[migration] += 1
            if migration == "failed":
                self._feed.add_failed(outcome.t_end_ns, pick.request, pick.decision, outcome.status, outcome.error)
        usage = _read_usage(outcome)
        movement = outcome.movement
        if movement is None:
            self._write_record(outcome, usage, None)
            return
        seq = pick.seq
        self._uncounted[seq] = outcome, usage
        movement.end_answer(usage.prompt_tokens, usage.cached_tokens)
        movement.call_when_settled(lambda transfer: self._count_transfer(seq, transfer))

    def _count_transfer(self, seq: int, transfer: KvTransfer) -> None:
        """Write the record of a pick whose transfer has settled, or whose wait for it has ended."""
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
        pick = outcome.pick
        record = DecisionRecord(
            seq=pick.seq,
            t_ns=pick.t_ns,
            decide_us=pick.decide_us,
            request=pick.request,
            cluster=pick.cluster,
            decision=pick.draft.complete(),
            outcome=RoutedOutcome(
                status=outcome.status,
                http_status=outcome.http_status,
                kv_wait_s=_measure_since_pick_s(outcome, outcome.t_transfer_ns),
                first_byte_s=_measure_first_byte_s(outcome),
                last_byte_s=_measure_last_byte_s(outcome),
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=usage.cached_tokens,
                completion_tokens=usage.completion_tokens,
                error=outcome.error,
                migration=_name_migration_result(outcome),
                transfer=transfer,
            ),
            t_dispatch_ns=pick.t_dispatch_ns,
        )
        self._log.append_record(record)


def _measure_first_byte_s(outcome: PendingOutcome) -> float | None:
    return _measure_since_pick_s(outcome, outcome.t_first_ns)


def _measure_since_pick_s(outcome: PendingOutcome, t_ns: int) -> float | None:
    return (t_ns - outcome.pick.t_dispatch_ns) / 1e9 if t_ns else None


def _measure_last_byte_s(outcome: PendingOutcome) -> float:
    return (outcome.t_end_ns - outcome.pick.t_dispatch_ns) / 1e9


def _read_usage(outcome: PendingOutcome) -> Usage:
    if isinstance(outcome.usage, Usage):
        return outcome.usage
    return read_usage(b"".join(outcome.usage)) if outcome.usage else Usage()


def _name_migration_result(outcome: PendingOutcome) -> str:
    """The result of a migration, as in RoutedOutcome; empty = the pick does not migrate."""
    if not outcome.pick.decision.migrate_from:
        return ""
    if not outcome.t_first_ns or outcome.http_status is None or outcome.http_status >= 300:
        return "failed"
    status = "" if outcome.movement is None else outcome.movement.transfer.status
    return status if status in ("transferred", "unneeded") else "recomputed"
