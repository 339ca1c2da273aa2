"""Whether the router's core under the simulator's clock picks as a live router did, decision by decision.

The log of a live cell drives it: arrivals, ends of waits for KV, first bytes and ends come at their recorded times.
The core rebuilds from them what the live router knew at each pick (counters, bindings, what the prefix indexes hold)
and its policy decides. View and pick are compared with the recorded ones; then the recorded pick is followed, so that
one difference brings about no other. Whatever else the live router learned is in its instance events: membership,
health, pauses, capacity, KV events and transfers. Of a log without them availability, pauses, capacity and the pairs
that KV does not move between are taken from the recorded views.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

from results.records.decisions import ClusterView, Decision, DecisionRecord, InstanceLoad, RoutedOutcome, RoutedRequest
from results.records.instance_events import InstanceEvent
from results.records.router_spec import TransferRules
from runners.router.cluster import Cluster, Member
from runners.router.counts import Counts
from runners.router.dispatch import Dispatcher, Request, Reservation
from runners.router.failure import REFUSALS
from runners.router.ledger import Ledger, Pick
from runners.router.policies import may_migrate
from runners.router.policies.policy import Policy
from runners.router.sessions.bindings import Bindings
from runners.simulator.clock import START_NS, SimulatedClock
from runners.simulator.fleet import DecisionFile
from runners.simulator.logged_instances import LoggedInstances

UNSURE_NS = 1_000_000
"""A record without the moment of its pick gives the times of its first byte and end this much too early at most."""
TOLERANCE_S = 0.05
"""Between two times since something: a busy host may hold a live router up between two looks at its clock."""
SECONDS_LEFT = re.compile(r"\d+\.\d s more")
"""Remaining time of a quarantine, in words, rounded to 0.1 s: times within TOLERANCE_S may read otherwise."""
PICKED = ("instance", "reason", "prefill", "binds", "migrate_from", "advances")
OLD_LOG = "an event within 1 ms, and the log does not say which came first (made before version 3 of its records)"

KeysOf = Callable[[str], tuple[int, ...]]
"""The keys of a request's full blocks, by its id. Raises KeyError for an unknown one."""


@dataclass(frozen=True, slots=True)
class ComparedPick:
    """What is compared of a pick: what the router saw of the request and of its instances, and what it decided."""

    request: RoutedRequest
    cluster: ClusterView
    decision: Decision


@dataclass(frozen=True, slots=True)
class Difference:
    """A decision that came out otherwise."""

    seq: int
    fields: tuple[str, ...]
    """What differs, e.g. `e0.num_requests` or `decision.instance`; `e0`: one of both does not have that instance."""
    logged: ComparedPick
    simulated: ComparedPick


@dataclass(frozen=True, slots=True)
class Parity:
    """One log, decision by decision."""

    decisions: int
    equal: int
    unsure: Mapping[str, int]
    """Decisions that cannot be compared, by the reason."""
    without_index: int
    """Decisions among those compared whose cached tokens were taken from the log."""
    index_reason: str
    """Why they were, of all decisions. Empty: of none, or (without events) of those after an instance was away."""
    different: int
    first: Difference | None

    @property
    def compared(self) -> int:
        return self.equal + self.different


@dataclass(frozen=True, slots=True)
class LoggedRouter:
    """How the live router was set up."""

    policy: Policy
    block_tokens: int
    min_move_tokens: int
    reserved_output: int | Literal["max_tokens"]
    keys_of: KeysOf | None
    """None = what the indexes hold is taken from the log."""
    why_no_keys: str = ""
    index: str = "approximate"
    """As in RouterSpec."""
    transfer: TransferRules = field(default_factory=TransferRules)
    """Used with events alone."""


def compare_log(
    records: Sequence[DecisionRecord], router: LoggedRouter, events: Sequence[InstanceEvent] | None = None
) -> Parity:
    """Drive the core by the log of one router, and by its instance events; None = it has none.

    Raises ValueError for a log without a decision.
    """
    if not records:
        raise ValueError("the log holds no decision")
    return _ReplayedLog(sorted(records, key=lambda record: (record.t_ns, record.seq)), router, events).run()


class _FollowedPolicy:
    """Decides as the policy does, and has the core do what the log says."""

    name: ClassVar[str] = "followed"
    source: ClassVar[str] = ""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.logged: Decision | None = None
        self.simulated: ComparedPick | None = None

    def decide(self, request: RoutedRequest, cluster: ClusterView) -> Decision:
        self.simulated = ComparedPick(request, cluster, self._policy.decide(request, cluster))
        assert self.logged is not None
        return self.logged


class _FollowedCluster(Cluster):
    """Has the log's pick followed also where a missing event leaves its instance unavailable: the views show that."""

    def may_be_picked(self, instance: str) -> bool:
        return True


class _ReplayedLog:
    """One core that follows one log."""

    def __init__(
        self, records: Sequence[DecisionRecord], router: LoggedRouter, events: Sequence[InstanceEvent] | None
    ) -> None:
        self._records = records
        self._router = router
        self._events = events
        self._clock = SimulatedClock()
        self._zero_ns = min([records[0].t_ns, *(event.t_ns for event in events or ())]) - START_NS
        self._policy = _FollowedPolicy(router.policy)
        self._bindings = Bindings()
        self._cluster = _FollowedCluster((), self._clock.now_s, self._bindings)
        self._instances = LoggedInstances(
            self._cluster, router.transfer, self._clock.now_s, router.block_tokens, by_events=router.index == "events"
        )
        self._lost: set[str] = set()
        """Without events: instances that have been away. What they hold since then is not known."""
        counts = Counts()
        self._dispatcher = Dispatcher(
            self._policy, self._cluster, self._bindings, self._instances.indexes,
            Ledger(DecisionFile(None), counts, self._clock), counts, router.block_tokens, self._clock,
            self._list_cut_off if may_migrate(router.policy) else None, router.min_move_tokens, router.reserved_output,
        )  # fmt: skip
        self._record = records[0]
        self._turns: dict[str, int] = {}
        """Turn of each request that is not over."""
        self._unsure_until_ns = 0
        self._unsure = 0
        self._without_index = 0
        self._equal = 0
        self._differences: list[Difference] = []

    def run(self) -> Parity:
        for event in self._events or ():
            self._clock.call_at(event.t_ns - self._zero_ns, partial(self._instances.apply_event, event))
        for record in self._records:
            self._clock.call_at(record.t_ns - self._zero_ns, partial(self._pick, record))
        self._clock.run()
        first = self._differences[0] if self._differences else None
        return Parity(
            len(self._records), self._equal, {OLD_LOG: self._unsure} if self._unsure else {}, self._without_index,
            self._router.why_no_keys, len(self._differences), first,
        )  # fmt: skip

    # a pick
    def _pick(self, record: DecisionRecord) -> None:
        self._record, self._policy.logged = record, record.decision
        self._policy.simulated = None
        routed, decision = record.request, record.decision
        differing = self._follow_members(record.cluster)
        if self._events is None:
            self._follow_loads(record.cluster)
            differing = []
        keys = self._find_keys(routed)
        if routed.request not in self._turns:
            self._turns[routed.request] = self._dispatcher.count_arrival(routed.session)
        wanted = decision.instance if decision.reason == "stored_response" else ""
        turn = self._turns[routed.request]
        request = Request(routed.request, routed.session, turn, keys, routed.input_tokens, routed.max_tokens, wanted)
        reservation = self._dispatcher.pick_instance(request, routed.tried)
        simulated = self._policy.simulated
        if simulated is None:  # the policy was not asked: the request had to go where its stored response is
            simulated = _select_compared_part(reservation.pick)
        self._compare(record, simulated, differing)
        self._dispatcher.count_pick(request, reservation)
        if record.outcome is not None:
            self._follow_outcome(record, record.outcome, reservation)

    def _compare(self, record: DecisionRecord, simulated: ComparedPick, members: Sequence[str]) -> None:
        """`members`: instances that only the log or only the core had."""
        logged = _select_compared_part(record)
        fields = (*members, *list_differences(logged, simulated))
        if not fields:
            self._equal += 1
        elif self._clock.now_ns() <= self._unsure_until_ns:
            self._unsure += 1
        else:
            self._differences.append(Difference(record.seq, fields, logged, simulated))

    def _find_keys(self, request: RoutedRequest) -> tuple[int, ...]:
        """The prompt's keys; where they are not known, the indexes answer what the log says."""
        keys: tuple[int, ...] = ()
        if self._router.keys_of is not None:
            keys = self._router.keys_of(request.request)
        for name, index in self._instances.indexes.items():
            from_log = self._router.keys_of is None or name in self._lost
            index.logged_tokens = request.cached_tokens.get(name, 0) if from_log else None
        self._without_index += self._router.keys_of is None or bool(self._lost)
        return keys or ((0,) if request.cached_tokens else ())

    def _follow_members(self, view: ClusterView) -> list[str]:
        """Add and remove instances until they are those of this pick; returns which ones it took."""
        known = {member.instance for member in self._cluster.members}
        logged = {load.instance: load for load in view.instances}
        for name in known - logged.keys():
            self._instances.remove_instance(name)
        for name in logged.keys() - known:
            load = logged[name]
            member = Member(name, "", load.role, load.kv_capacity_tokens, self._router.block_tokens)
            self._instances.add_instance(member)
        return sorted(known ^ logged.keys())

    def _follow_loads(self, view: ClusterView) -> None:
        """Capacity, pauses and availability, as this pick saw them: no event reported them."""
        capacities = {member.instance: member.kv_capacity_tokens for member in self._cluster.members}
        for load in view.instances:
            if capacities[load.instance] != load.kv_capacity_tokens:
                self._cluster.set_capacity(load.instance, load.kv_capacity_tokens)
            if load.paused_for_s:
                self._cluster.pause_instance(load.instance, load.paused_for_s)
        before = {load.instance: load for load in self._cluster.take_view().instances}
        for load in view.instances:
            now = before[load.instance]
            if (now.available, now.why_unavailable) != (load.available, load.why_unavailable):
                if not load.available:
                    self._lost.add(load.instance)
                self._cluster.set_available(load.instance, load.available, load.why_unavailable)

    def _list_cut_off(self, owner: str, targets: Iterable[str]) -> Mapping[str, str]:
        if self._events is None:
            return self._record.request.cut_off
        return self._instances.rules.cut_off(owner, targets)

    # what followed
    def _follow_outcome(self, record: DecisionRecord, outcome: RoutedOutcome, reservation: Reservation) -> None:
        if outcome.status == "held" or not record.decision.instance:
            reservation.end(outcome.status)
            if outcome.status != "held":
                self._turns.pop(record.request.request, None)
            return
        dispatch_ns = record.t_dispatch_ns or record.t_ns + round(record.decide_us * 1e3)
        moved_ns = self._find_move_end(record, outcome, dispatch_ns)
        self._at(record, moved_ns, partial(reservation.end_transfer, arrived=_has_arrived(outcome)))
        if outcome.transfer is not None and outcome.transfer.status == "failed" and _has_arrived(outcome):
            late = partial(reservation.end_transfer, arrived=False)
            self._at(record, outcome.transfer.t_done_ns or None, late)
        first_ns = _add_seconds(dispatch_ns, outcome.first_byte_s)
        self._at(record, first_ns, partial(self._begin_response, record, outcome, reservation))
        end_ns = _add_seconds(dispatch_ns, outcome.last_byte_s)
        self._at(record, end_ns, partial(self._end, record, outcome, reservation))

    def _find_move_end(self, record: DecisionRecord, outcome: RoutedOutcome, dispatch_ns: int) -> int | None:
        """When the request waited no longer for KV; None = it waited for none."""
        if not (record.decision.prefill or record.decision.migrate_from):
            return None
        if record.t_dispatch_ns:
            return _add_seconds(dispatch_ns, outcome.kv_wait_s)
        transfer = outcome.transfer
        if transfer is None:
            return dispatch_ns
        if transfer.purpose == "handover":
            return transfer.t_target_sent_ns or transfer.t_done_ns or None
        return transfer.t_done_ns or None

    def _at(self, record: DecisionRecord, t_ns: int | None, event: Callable[[], None]) -> None:
        """Let it happen then, by the log's clock; None = it did not happen."""
        if t_ns is None:
            return

        def happen() -> None:
            event()
            if not record.t_dispatch_ns:
                self._unsure_until_ns = self._clock.now_ns() + UNSURE_NS

        self._clock.call_at(max(t_ns - self._zero_ns, self._clock.now_ns()), happen)

    def _begin_response(self, record: DecisionRecord, outcome: RoutedOutcome, reservation: Reservation) -> None:
        self._count_refusal(record, outcome)
        reservation.start_response(served=outcome.http_status is not None and outcome.http_status < 300)

    def _end(self, record: DecisionRecord, outcome: RoutedOutcome, reservation: Reservation) -> None:
        if outcome.first_byte_s is None:
            self._count_refusal(record, outcome)
        if outcome.status != "retried":
            self._turns.pop(record.request.request, None)
        reservation.end(outcome.status)

    def _count_refusal(self, record: DecisionRecord, outcome: RoutedOutcome) -> None:
        if outcome.http_status in REFUSALS:
            self._bindings.count_refusal(record.request.session, record.decision.instance)


def _select_compared_part(pick: DecisionRecord | Pick) -> ComparedPick:
    return ComparedPick(pick.request, pick.cluster, pick.decision)


def list_differences(logged: ComparedPick, simulated: ComparedPick) -> tuple[str, ...]:
    """What differs between two picks; times within TOLERANCE_S are equal. Empty = nothing does."""
    names = [
        f"request.{name}"
        for name in _list_differing(_list_fields(logged.request), _list_fields(simulated.request))
        if name != "reserved_tokens" or logged.request.reserved_tokens
    ]
    loads = {load.instance: load for load in simulated.cluster.instances}
    for load in logged.cluster.instances:
        names += [
            f"{load.instance}.{name}"
            for name in _list_differing(_list_fields(load), _list_fields(loads[load.instance]))
        ]
    for name in ("picks", "fallbacks"):
        if getattr(logged.cluster, name) != getattr(simulated.cluster, name):
            names.append(f"cluster.{name}")
    for name in PICKED:
        if getattr(logged.decision, name) != getattr(simulated.decision, name):
            names.append(f"decision.{name}")
    return tuple(names)


def _list_fields(seen: InstanceLoad | RoutedRequest) -> dict[str, Any]:
    fields = {name: getattr(seen, name) for name in seen.__struct_fields__}
    if isinstance(seen, RoutedRequest):
        fields["cut_off"] = {target: SECONDS_LEFT.sub("", why) for target, why in seen.cut_off.items()}
    return fields


def _list_differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [name for name, value in one.items() if not _is_same(value, other[name])]


def _is_same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= TOLERANCE_S
    return one == other


def _has_arrived(outcome: RoutedOutcome) -> bool:
    """The KV came, or its source had it ready and the request was sent to pull it."""
    transfer = outcome.transfer
    if transfer is None:
        return False
    if transfer.purpose == "handover":
        return transfer.status == "transferred" or transfer.t_target_sent_ns > 0
    return transfer.status == "transferred"


def _add_seconds(t_ns: int, seconds: float | None) -> int | None:
    return None if seconds is None else t_ns + round(seconds * 1e9)
