"""Migration events of the router's ticks, once a second: started, done, failed, or refused because a gate failed."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

from results.records.decisions import Decision, KvTransfer, RoutedRequest, transfer_s
from results.records.migrations import Phase, TickMigration
from runners.router.transfer.movement import Movement

LINES_STORED = 4096
"""Lines stored between two calls of `take_steps`; the oldest are dropped."""
AT_ONCE = 400
"""Lines per tick: the router's parent reads a tick as one line of at most 1 MiB."""
REFUSALS_STORED = 10_000
"""Refusals remembered, so that each is reported once."""
COUNTED_WITHIN_NS = 3_000_000_000
"""A served migration is reported when its tokens have been counted, at the latest after this time."""
NOT_ASKED = "no KV was asked for: an instance has no transfer endpoint, or another router migrates the session"


class MigrationFeed:
    """Lines for the router's ticks; times are `now_ns`."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._lines: deque[TickMigration] = deque(maxlen=LINES_STORED)
        self._served: deque[tuple[int, RoutedRequest, Decision, Movement | None]] = deque(maxlen=LINES_STORED)
        self._refused: OrderedDict[tuple[str, str], None] = OrderedDict()

    def add_decision(self, t_ns: int, request: RoutedRequest, decision: Decision) -> None:
        """Report a pick that migrates its session, or that leaves it on a hot instance."""
        hot = next((gate for gate in decision.gates if gate.name == "hot" and gate.passed), None)
        if decision.migrate_from and decision.instance:
            self._add_line(t_ns, request, decision, "started", decision.reason, hot.text if hot else "")
            return
        failed = next((gate for gate in decision.gates if not gate.passed), None)
        if hot is None or failed is None or (request.session, decision.reason) in self._refused:
            return
        self._refused[request.session, decision.reason] = None
        if len(self._refused) > REFUSALS_STORED:
            self._refused.popitem(last=False)
        self._lines.append(
            TickMigration(
                request.request, request.session, request.turn, request.owner, "", "refused", decision.reason,
                failed.text, t_ns=t_ns,
            )
        )  # fmt: skip

    def add_served(self, t_ns: int, request: RoutedRequest, decision: Decision, movement: Movement | None) -> None:
        """The target has begun to answer a migrating request."""
        self._served.append((t_ns, request, decision, movement))

    def add_failed(self, t_ns: int, request: RoutedRequest, decision: Decision, status: str, why: str) -> None:
        self._add_line(t_ns, request, decision, "failed", status, why)

    def take_steps(self, *, last: bool = False) -> tuple[TickMigration, ...]:
        """The lines since the last call, oldest first, at most AT_ONCE. `last`: do not wait for token counts."""
        waiting = []
        now_ns = self._now_ns()
        for row in self._served:
            t_ns, request, decision, movement = row
            ready = movement is None or movement.settled or now_ns - t_ns > COUNTED_WITHIN_NS
            if ready or last:
                self._add_done(t_ns, request, decision, None if movement is None else movement.transfer)
            else:
                waiting.append(row)
        self._served.clear()
        self._served.extend(waiting)
        lines = sorted(self._lines, key=lambda line: line.t_ns)
        self._lines.clear()
        self._lines.extend(lines[AT_ONCE:])
        return tuple(lines[:AT_ONCE])

    def _add_done(self, t_ns: int, request: RoutedRequest, decision: Decision, transfer: KvTransfer | None) -> None:
        if transfer is None:
            self._add_line(t_ns, request, decision, "done", "recomputed", NOT_ASKED)
        elif transfer.status == "transferred":
            self._add_line(t_ns, request, decision, "done", "transferred", transfer.counted_reason, transfer)
        else:
            how = "unneeded" if transfer.status == "unneeded" else "recomputed"
            self._add_line(t_ns, request, decision, "done", how, transfer.reason)

    def _add_line(
        self,
        t_ns: int,
        request: RoutedRequest,
        decision: Decision,
        phase: Phase,
        reason: str,
        text: str = "",
        transfer: KvTransfer | None = None,
    ) -> None:
        self._lines.append(
            TickMigration(
                t_ns=t_ns,
                migration=request.request,
                session=request.session,
                turn=request.turn,
                source=decision.migrate_from,
                target=decision.instance,
                phase=phase,
                reason=reason,
                text=text,
                external_tokens=None if transfer is None else transfer.external_tokens,
                bytes=None if transfer is None else transfer.bytes,
                transfer_s=None if transfer is None else transfer_s(transfer),
            )
        )
