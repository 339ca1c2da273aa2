"""Dispatch: take the cluster's state, ask the policy, count the decision and log it, in one synchronous step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from results.records.decisions import Candidate, ClusterView, Decision, InstanceLoad, RoutedRequest
from results.records.visible import visible
from runners.router.cluster import Cluster, CounterReservation
from runners.router.counts import Counts
from runners.router.driver import Driver
from runners.router.ledger import Ledger, PendingOutcome, Pick
from runners.router.policies import POLICIES
from runners.router.policies.policy import Draft, Policy, WholePolicy
from runners.router.prefix_index import Index, count_cached_by_instance
from runners.router.response_facts import Usage
from runners.router.sessions.bindings import Bindings, BindingVersion, MigrationClaim
from runners.router.transfer.movement import Movement

PAUSE_LIMIT_S = 60.0
HOLD = "wait_"
"""Prefix of a reason without an instance: decide again once another request has ended."""
NO_TOKENS: Mapping[str, int] = {}
NO_REASONS: Mapping[str, str] = {}


class Request(msgspec.Struct, frozen=True):
    """A request to route."""

    request: str
    session: str
    turn: int
    keys: tuple[int, ...]
    input_tokens: int
    max_tokens: int
    wanted: str = ""
    """The instance that stores the response it continues; empty = any instance."""


class Reservation(msgspec.Struct, eq=False):
    """The resources of one pick until its outcome: counters, binding, transfer, claim. Ends once, with one record."""

    _dispatcher: Dispatcher
    pick: Pick
    counters: CounterReservation | None = None
    """None = the decision names no instance, or it is not counted yet."""
    binding: BindingVersion | None = None
    """The session's binding at the pick; None = no other router shares it."""
    movement: Movement | None = None
    """The KV transfer; None = not needed, or not possible."""
    claim: MigrationClaim | None = None
    _t_transfer_ns: int = 0
    """When the wait for KV ended; 0 = it never waited, or still waits."""
    _t_first_ns: int = 0
    _ended: bool = False

    @property
    def instance(self) -> str:
        """The instance that serves the request; empty = none."""
        return self.pick.decision.instance

    @property
    def source(self) -> str:
        """The instance to move KV from; empty = none."""
        decision = self.pick.decision
        return decision.prefill or decision.migrate_from

    @property
    def reason(self) -> str:
        return self.pick.decision.reason

    def end_transfer(self, *, arrived: bool) -> None:
        """The transfer has ended, or the request does not wait for it; `arrived`: the serving instance has the KV."""
        self._t_transfer_ns = self._t_transfer_ns or self._dispatcher.driver.now_ns()
        if self.counters is not None:
            self.counters.end_transfer(arrived=arrived)

    def start_response(self, *, served: bool) -> None:
        """The body begins; `served`: with a 2xx, which binds the session."""
        self._t_first_ns = self._dispatcher.driver.now_ns()
        if self.counters is not None:
            self.counters.end_prefill()
        if served:
            self._dispatcher.bind_session(self)
            if self.pick.decision.migrate_from:
                self._dispatcher.ledger.add_migration(self.pick, self._t_first_ns, self.movement)

    def end(
        self, status: str, *, http_status: int | None = None, usage: Usage | tuple[bytes, ...] = (), error: str = ""
    ) -> None:
        """Release everything. `status` as in RoutedOutcome; `usage` as in PendingOutcome."""
        if self._ended:
            return
        self._ended = True
        t_end_ns = self._dispatcher.driver.now_ns()
        if self.counters is not None:
            self.counters.end()
        if self.claim is not None:
            self.claim.release_right()
        self._dispatcher.ledger.add_outcome(
            PendingOutcome(
                self.pick,
                status,
                http_status,
                self._t_first_ns,
                t_end_ns,
                usage,
                error,
                self.movement,
                self._t_transfer_ns,
            )
        )


class Dispatcher:
    """Policy, counters, bindings and prefix indexes behind one call, `pick_instance`. Nothing here waits."""

    def __init__(
        self,
        policy: Policy,
        cluster: Cluster,
        bindings: Bindings,
        indexes: Mapping[str, Index],
        ledger: Ledger,
        counts: Counts,
        block_tokens: int,
        driver: Driver,
        cut_off: Callable[[str, Iterable[str]], Mapping[str, str]] | None = None,
        min_move_tokens: int = 0,
        reserved_output: int | Literal["max_tokens"] = 0,
    ) -> None:
        """`cut_off`: instances that an owner's KV cannot be moved to, with reasons; None = the policy never migrates.

        `min_move_tokens`: as in RoutedRequest. `reserved_output`: as in RouterSpec.
        """
        self.block_tokens = block_tokens
        self.driver = driver
        self.ledger = ledger
        self._policy = policy
        self._drafts = _find_drafts(policy)
        self._cluster = cluster
        self._bindings = bindings
        self._indexes = indexes
        self._counts = counts
        self._cut_off = cut_off
        self._min_move_tokens = min_move_tokens
        self._reserved_output = reserved_output
        self._complained = False
        self._seq = 0

    @property
    def asks_first(self) -> bool:
        """Routers share bindings: call `ask_arrival` instead of `count_arrival`."""
        return self._bindings.is_shared

    def count_arrival(self, session: str) -> int:
        """Count a request of the session; returns its turn."""
        self._counts.requests += 1
        return self._bindings.count_arrival(session, self.driver.now_s())

    def ask_arrival(self, session: str, then: Callable[[int], None]) -> None:
        """As `count_arrival`, where routers share bindings; `then` receives the turn, possibly before this returns."""
        self._counts.requests += 1
        self._bindings.ask_arrival(session, self.driver.now_s(), then)

    def pick_instance(self, request: Request, tried: tuple[str, ...] = ()) -> Reservation:
        """Decide. The caller must call `count_pick` before any other pick."""
        return Reservation(self, self._make_pick(request, tried))

    def claim_migration(self, reservation: Reservation, then: Callable[[bool], None]) -> bool:
        """Claim the session's migration; `then` receives whether it is granted. False = no claim is needed."""
        decision, binding = reservation.pick.decision, reservation.binding
        session = reservation.pick.request.session
        if not (binding is not None and session and decision.migrate_from and decision.binds):
            return False
        reservation.claim = self._bindings.claim_migration(session, decision.instance, binding, then)
        return reservation.claim is not None

    def count_pick(self, request: Request, reservation: Reservation) -> None:
        """Complete a pick once the request is sent: update what the next pick reads.

        A pick that is not counted gets no number and no record: its request is still held.
        """
        self._seq += 1
        decision = reservation.pick.decision
        if decision.instance:
            reservation.counters = self._cluster.reserve_counters(decision, reservation.pick.request)
        reservation.binding = self._bindings.find_version(request.session)
        index = self._indexes.get(decision.instance)
        if index is not None and request.keys:
            index.insert_keys(request.keys)
            if decision.prefill:
                self._indexes[decision.prefill].insert_keys(request.keys)
        self.ledger.add_pick(reservation.pick)

    def has_alternative(self, request: Request, tried: tuple[str, ...]) -> bool:
        """Whether the policy would pick an untried instance, or hold the request."""
        decision = self._make_pick(request, tried).decision
        return bool(decision.instance) or decision.reason.startswith(HOLD)

    def bind_session(self, reservation: Reservation) -> None:
        """Bind the session to the instance that has begun to answer its request with a 2xx."""
        decision, session = reservation.pick.decision, reservation.pick.request.session
        if not (decision.binds and session):
            self._bindings.clear_refusals(session, decision.instance)
            return
        self._bindings.commit_version(
            session,
            decision.instance,
            self.driver.now_s(),
            reservation.binding,
            migrates=bool(decision.migrate_from),
            claim=reservation.claim,
        )

    def note_refusal(self, session: str, instance: str, pause_s: float) -> None:
        """An instance refused a request (429 or 503); `pause_s`: for how long it asks for no new requests."""
        self._bindings.count_refusal(session, instance)
        self.pause_instance(instance, pause_s)

    def pause_instance(self, instance: str, pause_s: float) -> None:
        if pause_s > 0:
            self._cluster.pause_instance(instance, min(pause_s, PAUSE_LIMIT_S))

    def _make_pick(self, request: Request, tried: tuple[str, ...]) -> Pick:
        t_ns = self.driver.now_ns()
        routed = self._describe_request(request, tried)
        view = self._cluster.take_view()
        draft = self._decide(request, routed, view)
        return Pick(routed, view, draft, self._seq, t_ns, self.driver.now_ns())

    def _describe_request(self, request: Request, tried: tuple[str, ...]) -> RoutedRequest:
        """The request as the policy sees it. A request without a session has no binding."""
        owner = self._bindings.find_owner(request.session)
        return RoutedRequest(
            request=request.request,
            session=request.session,
            turn=request.turn,
            input_tokens=request.input_tokens,
            max_tokens=request.max_tokens,
            block_tokens=self.block_tokens,
            cached_tokens=(
                count_cached_by_instance(self._indexes, request.keys, request.input_tokens)
                if request.keys
                else NO_TOKENS
            ),
            owner=owner,
            since_migration_s=self._bindings.since_migration_s(request.session, self.driver.now_s()),
            rejects=self._bindings.find_refusals(request.session),
            tried=tried,
            moving_to=self._bindings.moving_to(request.session),
            cut_off=self._cut_off(owner, self._indexes) if owner and self._cut_off is not None else NO_REASONS,
            min_move_tokens=self._min_move_tokens,
            reserved_tokens=request.max_tokens if self._reserved_output == "max_tokens" else self._reserved_output,
        )

    def _decide(self, request: Request, routed: RoutedRequest, view: ClusterView) -> Draft:
        instance = request.wanted
        if not instance or not self._may_be_picked(instance, routed):
            return self._ask_policy(routed, view)
        why = f"{instance} stores the response that the request continues"
        candidates = tuple(
            Candidate(load.instance, (), ruled_out="" if load.instance == instance else why) for load in view.instances
        )
        return Draft(Decision(self._policy.name, instance, "stored_response", candidates, binds=False))

    def _ask_policy(self, routed: RoutedRequest, view: ClusterView) -> Draft:
        """The policy's decision; if a user's policy fails, the instance with the fewest requests."""
        try:
            draft = self._drafts(routed, view)
        except Exception as error:  # noqa: BLE001  (a user's code may raise anything; the router keeps serving)
            return self._decide_instead(routed, view, f"{type(error).__name__}: {error}")
        for instance in (draft.decision.instance, draft.decision.prefill):
            if instance and not self._may_be_picked(instance, routed):
                return self._decide_instead(routed, view, f"it named {instance}, which may not be picked")
        return draft

    def _may_be_picked(self, instance: str, routed: RoutedRequest) -> bool:
        return instance not in routed.tried and self._cluster.may_be_picked(instance)

    def _decide_instead(self, routed: RoutedRequest, view: ClusterView, why: str) -> Draft:
        self._counts.policy_errors += 1
        if not self._complained:
            self._complained = True
            sys.stderr.write(visible(f"policy {self._policy.name} failed, the fewest requests decide instead: {why}\n"))
        loads = [load for load in view.instances if load.available and load.instance not in routed.tried]
        instance = min(loads, key=_count_requests).instance if loads else ""
        return Draft(Decision(self._policy.name, instance, "policy_error"))


def _find_drafts(policy: Policy) -> Callable[[RoutedRequest, ClusterView], Draft]:
    """How to ask the policy. Most built-in ones list candidates later; a user's decides at once, where it may fail."""
    if isinstance(policy, WholePolicy) and type(policy) in POLICIES.values():
        return policy.draft_decision
    return lambda request, view: Draft(policy.decide(request, view))


def _count_requests(load: InstanceLoad) -> int:
    return load.num_requests
