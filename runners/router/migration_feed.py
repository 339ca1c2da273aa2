"""What happens to migrations, told once a second: picked, served, failed, or refused because a gate did not pass."""

from __future__ import annotations

from collections import OrderedDict, deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Literal

from results.decisions import Decision, KvTransfer, RoutedRequest
from runners.router.metrics import transfer_s
from runners.router.spec import TickMigration

if TYPE_CHECKING:
    from runners.router.transfer import Movement

KEPT = 4096
"""Lines kept for whoever takes them."""
AT_ONCE = 400
"""Lines of one tick, which whoever follows the router reads as one line of at most 1 MiB."""
REFUSALS_KEPT = 10_000
"""Refusals remembered, so that each is told once."""
COUNTED_WITHIN_NS = 3_000_000_000
"""A migration that was served is told when its tokens have been counted, or so long after."""
NOT_ASKED = "no KV was asked for: an instance has no transfer endpoint, or another router migrates the session"


class MigrationFeed:
    """Lines for the router's ticks. Times are `time.perf_counter_ns()`."""

    def __init__(self) -> None:
        self._lines: deque[TickMigration] = deque(maxlen=KEPT)
        self._served: deque[tuple[int, RoutedRequest, Decision, Movement | None]] = deque(maxlen=KEPT)
        self._refused: OrderedDict[tuple[str, str], None] = OrderedDict()

    def picked(self, t_ns: int, request: RoutedRequest, made: Decision) -> None:
        """A pick that wants to migrate, or whose hot instance keeps it."""
        hot = next((gate for gate in made.gates if gate.name == "hot" and gate.passed), None)
        if made.migrate_from and made.instance:
            self._add(t_ns, request, made, "started", made.reason, hot.text if hot else "")
            return
        failed = next((gate for gate in made.gates if not gate.passed), None)
        if hot is None or failed is None or (request.session, made.reason) in self._refused:
            return
        self._refused[request.session, made.reason] = None
        if len(self._refused) > REFUSALS_KEPT:
            self._refused.popitem(last=False)
        self._lines.append(
            TickMigration(
                t_ns, request.request, request.session, request.turn, request.owner, "", "refused", made.reason,
                failed.text,
            )
        )  # fmt: skip

    def served(self, t_ns: int, request: RoutedRequest, made: Decision, movement: Movement | None) -> None:
        """The target has begun to answer a request that migrates."""
        self._served.append((t_ns, request, made, movement))

    def failed(self, t_ns: int, request: RoutedRequest, made: Decision, status: str, why: str) -> None:
        """It was not served at its target; `status` as in RoutedOutcome."""
        self._add(t_ns, request, made, "failed", status, why)

    def take(self, *, last: bool = False) -> tuple[TickMigration, ...]:
        """The lines since the last call, oldest first, at most AT_ONCE. `last`: nothing is waited for any more."""
        waiting = []
        now_ns = perf_counter_ns()
        for one in self._served:
            t_ns, request, made, movement = one
            ready = movement is None or movement.settled or now_ns - t_ns > COUNTED_WITHIN_NS
            if ready or last:
                self._done(t_ns, request, made, None if movement is None else movement.transfer)
            else:
                waiting.append(one)
        self._served.clear()
        self._served.extend(waiting)
        lines = sorted(self._lines, key=lambda line: line.t_ns)
        self._lines.clear()
        self._lines.extend(lines[AT_ONCE:])
        return tuple(lines[:AT_ONCE])

    def _done(self, t_ns: int, request: RoutedRequest, made: Decision, transfer: KvTransfer | None) -> None:
        if transfer is None:
            self._add(t_ns, request, made, "done", "recomputed", NOT_ASKED)
        elif transfer.status == "transferred":
            self._add(t_ns, request, made, "done", "transferred", transfer.counted_reason, transfer)
        else:
            how = "unneeded" if transfer.status == "unneeded" else "recomputed"
            self._add(t_ns, request, made, "done", how, transfer.reason)

    def _add(
        self,
        t_ns: int,
        request: RoutedRequest,
        made: Decision,
        phase: Literal["started", "done", "failed", "refused"],
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
                source=made.migrate_from,
                target=made.instance,
                phase=phase,
                reason=reason,
                text=text,
                external_tokens=None if transfer is None else transfer.external_tokens,
                bytes=None if transfer is None else transfer.bytes,
                transfer_s=None if transfer is None else transfer_s(transfer),
            )
        )
