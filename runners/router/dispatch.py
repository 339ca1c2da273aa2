"""Where a request goes: one synchronous step from what is known to a pick that is counted and logged."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

from results.decisions import ClusterView, Decision, InstanceLoad, RoutedRequest
from runners.router.bindings import Bindings
from runners.router.ledger import End, Ledger, Pick
from runners.router.metrics import Counts
from runners.router.policies import Policy
from runners.router.prefix_index import Index, cached_tokens
from runners.router.view import Cluster, Reservation

if TYPE_CHECKING:
    from runners.router.shared_bindings import Claim, Seen, SharedBindings
    from runners.router.transfer import Movement

PAUSE_LIMIT_S = 60.0
HOLD = "wait_"
"""A decision for nowhere whose reason begins so may be asked for again once a request has ended."""
NOTHING: Mapping[str, int] = {}
NOBODY: Mapping[str, str] = {}


class Asked(NamedTuple):
    """A request as it came to be routed."""

    request: str
    session: str
    turn: int
    keys: tuple[int, ...]
    input_tokens: int
    max_tokens: int


class Placement:
    """One pick: its claim on the counters, until it ends. It ends once, with one record."""

    __slots__ = (
        "_dispatcher",
        "_ended",
        "_reservation",
        "_t_dispatch_ns",
        "_t_first_ns",
        "claim",
        "instance",
        "movement",
        "pick",
        "seen",
        "source",
    )

    def __init__(self, dispatcher: Dispatcher, pick: Pick, reservation: Reservation | None, seen: Seen | None) -> None:
        self.instance = pick.decision.instance
        """Where the request goes; empty = nowhere."""
        self.source = pick.decision.prefill or pick.decision.migrate_from
        """Where its KV is to come from; empty = it needs none."""
        self.movement: Movement | None = None
        """The transfer from there; None = there is no need or no way."""
        self.seen = seen
        """Its session at the pick; None = it has none, or no other router knows of it."""
        self.claim: Claim | None = None
        """The right to migrate the session, where routers share their bindings."""
        self._dispatcher = dispatcher
        self.pick = pick
        self._reservation = reservation
        self._t_dispatch_ns = perf_counter_ns()
        self._t_first_ns = 0
        self._ended = False

    @property
    def reason(self) -> str:
        return self.pick.decision.reason

    def moved(self, *, arrived: bool) -> None:
        """The transfer is over, or given up on; `arrived`: with the KV where the request goes."""
        if self._reservation is not None:
            self._reservation.moved(arrived=arrived)

    def first_byte(self, *, served: bool) -> None:
        """The body begins; `served`: with a 2xx, which binds the session."""
        self._t_first_ns = perf_counter_ns()
        if self._reservation is not None:
            self._reservation.first_byte()
        if served:
            self._dispatcher.served(self)
            if self.pick.decision.migrate_from:
                self._dispatcher.ledger.migrated(self.pick, self._t_first_ns, self.movement)

    def end(
        self, status: str, *, http_status: int | None = None, tail: tuple[bytes, ...] = (), error: str = ""
    ) -> None:
        """It is over: `status` as in RoutedOutcome; `tail`: the last pieces of the body."""
        if self._ended:
            return
        self._ended = True
        t_end_ns = perf_counter_ns()
        if self._reservation is not None:
            self._reservation.end()
        if self.claim is not None:
            self.claim.release()
        self._dispatcher.ledger.ended(
            End(
                self.pick,
                status,
                http_status,
                self._t_dispatch_ns,
                self._t_first_ns,
                t_end_ns,
                tail,
                error,
                self.movement,
            )
        )


class Dispatcher:
    """Policy, counters, bindings and prefix indexes behind one call, `pick`. Nothing here waits."""

    def __init__(
        self,
        policy: Policy,
        cluster: Cluster,
        bindings: Bindings,
        indexes: Mapping[str, Index],
        ledger: Ledger,
        counts: Counts,
        block_tokens: int,
        clock: Callable[[], float],
        cut_off: Callable[[str, Iterable[str]], Mapping[str, str]] | None = None,
        shared: SharedBindings | None = None,
        min_move_tokens: int = 0,
    ) -> None:
        """`cut_off`: says which of these instances no KV of an owner can be moved to; None = nobody asks for that.

        `shared`: the bindings, where other routers have them too. `min_move_tokens`: as in RoutedRequest.
        """
        self.block_tokens = block_tokens
        self.ledger = ledger
        self._policy = policy
        self._cluster = cluster
        self._bindings = bindings
        self._indexes = indexes
        self._counts = counts
        self._clock = clock
        self._cut_off = cut_off
        self._shared = shared
        self._min_move_tokens = min_move_tokens
        self._complained = False
        self._seq = 0

    def arrived(self, session: str) -> int:
        """Count a request of the session; returns its turn."""
        self._counts.requests += 1
        return self._bindings.arrive(session, self._clock())

    def arrives(self, session: str, then: Callable[[int], None]) -> None:
        """As `arrived`, for a session that other routers may know better; `then` gets its turn, maybe at once."""
        assert self._shared is not None
        self._counts.requests += 1
        self._shared.ask(session, then)

    def pick(self, asked: Asked, tried: tuple[str, ...] = ()) -> Placement:
        """Decide and count. `sent` must follow before anything else happens: no other pick comes between."""
        t_ns = perf_counter_ns()
        request = self._request(asked, tried)
        view = self._cluster.view()
        decision = self._decide(request, view)
        reservation = None
        if decision.instance:
            reservation = self._cluster.reserve(decision, request)
        decide_us = (perf_counter_ns() - t_ns) / 1e3
        self._seq += 1
        seen = self._shared.seen(asked.session) if self._shared is not None and asked.session else None
        return Placement(self, Pick(self._seq - 1, t_ns, decide_us, request, view, decision), reservation, seen)

    def claim(self, placement: Placement, then: Callable[[bool], None]) -> bool:
        """Ask whether this router may migrate the session; `then` hears of it. False = there is nobody to ask."""
        decision, seen = placement.pick.decision, placement.seen
        if self._shared is None or seen is None or not (decision.migrate_from and decision.binds):
            return False
        placement.claim = self._shared.claim(placement.pick.request.session, decision.instance, seen, then)
        return placement.claim is not None

    def sent(self, asked: Asked, placement: Placement) -> None:
        """The rest of a pick, once the request is on its way: what no other pick may miss, but this one need not."""
        decision = placement.pick.decision
        index = self._indexes.get(decision.instance)
        if index is not None and asked.keys:
            index.insert(asked.keys)
            if decision.prefill:
                self._indexes[decision.prefill].insert(asked.keys)
        self.ledger.picked(placement.pick)

    def another(self, asked: Asked, tried: tuple[str, ...]) -> bool:
        """The policy would pick some instance that has not been tried, or have the request wait for one."""
        decision = self._decide(self._request(asked, tried), self._cluster.view())
        return bool(decision.instance) or decision.reason.startswith(HOLD)

    def served(self, placement: Placement) -> None:
        """An instance has begun to answer a request well: its session lives there now."""
        decision, session, seen = placement.pick.decision, placement.pick.request.session, placement.seen
        migrates = bool(decision.migrate_from)
        if not (decision.binds and session):
            self._bindings.accepted(session, decision.instance)
        elif self._shared is None or seen is None:
            self._bindings.commit(session, decision.instance, self._clock(), migrates=migrates)
        else:
            self._shared.commit_seen(
                session, decision.instance, self._clock(), seen, migrates=migrates, claim=placement.claim
            )

    def refused(self, session: str, instance: str, pause_s: float) -> None:
        """An instance did not admit a request (429 or 503), and maybe said how long to stay away."""
        self._bindings.rejected(session, instance)
        self.pause(instance, pause_s)

    def pause(self, instance: str, seconds: float) -> None:
        if seconds > 0:
            self._cluster.pause(instance, min(seconds, PAUSE_LIMIT_S))

    def _request(self, asked: Asked, tried: tuple[str, ...]) -> RoutedRequest:
        bindings, session = self._bindings, asked.session
        cached = NOTHING
        if asked.keys:
            cached = {
                name: cached_tokens(index, asked.keys, asked.input_tokens) for name, index in self._indexes.items()
            }
        owner = bindings.owner(session) if session else ""
        return RoutedRequest(
            request=asked.request,
            session=session,
            turn=asked.turn,
            input_tokens=asked.input_tokens,
            max_tokens=asked.max_tokens,
            block_tokens=self.block_tokens,
            cached_tokens=cached,
            owner=owner,
            since_migration_s=bindings.since_migration_s(session, self._clock()) if session else None,
            rejects=bindings.rejects(session) if session else NOTHING,
            tried=tried,
            moving_to=bindings.moving_to(session) if session else "",
            cut_off=self._cut_off(owner, self._indexes) if owner and self._cut_off is not None else NOBODY,
            min_move_tokens=self._min_move_tokens,
        )

    def _decide(self, request: RoutedRequest, view: ClusterView) -> Decision:
        """The policy's decision; where a user's policy fails, the fewest requests decide, and it is said so."""
        try:
            decision = self._policy.decide(request, view)
        except Exception as error:  # noqa: BLE001  (a user's own code: it may raise anything, and serving goes on)
            return self._instead(request, view, f"{type(error).__name__}: {error}")
        may = {load.instance for load in view.instances if load.available} - set(request.tried)
        named = {decision.instance, decision.prefill} - {""}
        if not named <= may:
            return self._instead(request, view, f"it named {', '.join(sorted(named - may))}, which may not be picked")
        return decision

    def _instead(self, request: RoutedRequest, view: ClusterView, why: str) -> Decision:
        self._counts.policy_errors += 1
        if not self._complained:
            self._complained = True
            sys.stderr.write(f"policy {self._policy.name} failed, the fewest requests decide instead: {why}\n")
        may = [load for load in view.instances if load.available and load.instance not in request.tried]
        return Decision(self._policy.name, min(may, key=_requests).instance if may else "", "policy_error")


def _requests(load: InstanceLoad) -> int:
    return load.num_requests
