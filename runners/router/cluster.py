"""The router's counters for each instance. They change in one way: reserve at the pick, release once.

Nothing here awaits: `take_view`, a policy's `decide` and `reserve_counters` are one atomic step of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from results.records.decisions import ClusterView, Decision, InstanceLoad, Role, RoutedRequest
from results.records.instance_events import InstanceEvent
from runners.router.reporting import Report, ignore_event
from runners.router.sessions.bindings import Bindings


@dataclass(frozen=True, slots=True)
class Member:
    """An instance as its spec describes it."""

    instance: str
    url: str = ""
    role: Role = "both"
    kv_capacity_tokens: int | None = None
    """Size of its KV pool in tokens; None = unknown."""
    block_tokens: int = 1
    """Its KV block size in tokens: KV moves from it in whole blocks."""


@dataclass(eq=False, slots=True)
class _Counters:
    """One instance's counters."""

    member: Member
    available: bool = True
    why: str = ""
    draining: bool = False
    paused_until_s: float = 0.0
    num_requests: int = 0
    pending_prefill_tokens: int = 0
    ongoing_tokens: int = 0
    ongoing_decode_tokens: int = 0
    retained_tokens: int = 0
    reserved_tokens: int = 0
    """KV tokens reserved for the output of its open requests, by the router's setting."""
    load: InstanceLoad | None = None
    """Cached row of the last view; None = stale. Code that changes a field above sets it to None."""

    def make_load(self, bindings: Bindings, now: float) -> InstanceLoad:
        capacity = self.member.kv_capacity_tokens
        used = self.ongoing_tokens + self.retained_tokens + self.reserved_tokens
        free = None if capacity is None else max(0, capacity - used)
        name = self.member.instance
        paused_for_s = self.paused_until_s - now if self.paused_until_s > now else 0.0
        load = InstanceLoad(
            instance=name,
            role=self.member.role,
            available=self.available and not self.draining,
            why_unavailable=self.why if not self.available else ("draining" if self.draining else ""),
            num_requests=self.num_requests,
            pending_prefill_tokens=self.pending_prefill_tokens,
            ongoing_tokens=self.ongoing_tokens,
            ongoing_decode_tokens=self.ongoing_decode_tokens,
            kv_capacity_tokens=capacity,
            retained_tokens=self.retained_tokens,
            free_kv_tokens=free,
            assigned=bindings.count_assigned(name),
            active_sessions=bindings.count_active(name),
            paused_for_s=paused_for_s,
        )
        self.load = None if paused_for_s else load  # the remaining pause differs in every view
        return load


class _Share:
    """One request's share of one instance's counters. It is released in steps, each once, in any order."""

    __slots__ = ("_counters", "_new", "_open", "_prefilling", "_reserved", "_retains", "_tokens")

    def __init__(self, counters: _Counters, tokens: int, new: int, reserved: int) -> None:
        self._counters = counters
        self._tokens = tokens
        self._reserved = reserved
        self._new = new
        self._prefilling = self._open = True
        self._retains = False
        counters.num_requests += 1
        counters.pending_prefill_tokens += new
        counters.ongoing_tokens += tokens
        counters.reserved_tokens += reserved
        counters.load = None

    def recount_new(self, new: int) -> None:
        """Correct the number of prompt tokens to compute; no effect after the first byte."""
        if self._prefilling:
            self._counters.pending_prefill_tokens += new - self._new
            self._counters.load = None
            self._new = new

    def end_prefill(self) -> None:
        if self._prefilling:
            self._prefilling = False
            self._counters.pending_prefill_tokens -= self._new
            self._counters.ongoing_decode_tokens += self._tokens
            self._counters.load = None

    def retain_blocks(self) -> None:
        """The instance has answered and retains the prompt's blocks for another instance until `end`."""
        if self._open and not self._retains:
            self.end()
            self._retains = True
            self._counters.retained_tokens += self._tokens
            self._counters.load = None

    def end(self) -> None:
        counters = self._counters
        counters.load = None
        if self._retains:
            self._retains = False
            counters.retained_tokens -= self._tokens
        if not self._open:
            return
        self._open = False
        if self._prefilling:
            self._prefilling = False
            counters.pending_prefill_tokens -= self._new
        else:
            counters.ongoing_decode_tokens -= self._tokens
        counters.num_requests -= 1
        counters.ongoing_tokens -= self._tokens
        counters.reserved_tokens -= self._reserved


class CounterReservation:
    """A decision's share of its instances' counters. Each step is idempotent and may be called at any time."""

    __slots__ = (
        "_bindings", "_decode", "_lacks", "_new_after_transfer", "_pinned_at", "_pinned_tokens", "_prefill", "decision",
        "request",
    )  # fmt: skip

    def __init__(
        self,
        decision: Decision,
        request: RoutedRequest,
        serves: _Counters,
        source: _Counters | None,
        bindings: Bindings,
    ) -> None:
        tokens = request.input_tokens
        self.decision = decision
        self.request = request
        self._lacks = _count_lacking_tokens(request, decision.instance)
        self._new_after_transfer = self._lacks
        """Prompt tokens that the serving instance computes once the KV has arrived."""
        self._prefill: _Share | None = None
        self._pinned_at: _Counters | None = None
        """The source of a migration: it retains the blocks until the transfer has ended."""
        self._pinned_tokens = 0
        new = self._lacks
        if decision.prefill and source is not None:
            self._prefill = _Share(source, tokens, _count_lacking_tokens(request, decision.prefill), 0)
            self._new_after_transfer, new = min(1, self._lacks), 0
        elif source is not None:
            block = source.member.block_tokens
            moved_tokens = request.cached_tokens.get(decision.migrate_from, 0) // block * block
            self._new_after_transfer = new = min(self._lacks, max(0, tokens - moved_tokens))
            self._pin_blocks(source, moved_tokens)
        self._decode = _Share(serves, tokens, new, request.reserved_tokens)
        self._bindings: Bindings | None = bindings if decision.binds else None
        if self._bindings is not None:
            self._bindings.expect_binding(request.session, decision.instance, migrates=bool(decision.migrate_from))

    def end_transfer(self, *, arrived: bool) -> None:
        """The transfer has ended. If no KV arrived, the serving instance computes all the tokens it lacks.

        A prefill instance has answered and retains the prompt's blocks until they are pulled; if not `arrived`, nothing
        will be pulled from it and its share is released.
        """
        if self._prefill is not None:
            if arrived:
                self._prefill.retain_blocks()
            else:
                self._prefill.end()
        self._unpin_blocks()
        self._decode.recount_new(self._new_after_transfer if arrived else self._lacks)

    def end_prefill(self) -> None:
        """The first body byte has arrived: the prompt is no longer pending or retained."""
        self._decode.end_prefill()
        if self._prefill is not None:
            self._prefill.end()

    def end(self) -> None:
        """The request has completed, failed or been aborted. Commit its binding before this call, not after."""
        self._unpin_blocks()
        self._decode.end()
        if self._prefill is not None:
            self._prefill.end()
        if self._bindings is not None:
            migrates = bool(self.decision.migrate_from)
            self._bindings.drop_expected(self.request.session, self.decision.instance, migrates=migrates)
            self._bindings = None

    def _pin_blocks(self, source: _Counters, tokens: int) -> None:
        source.retained_tokens += tokens
        source.load = None
        self._pinned_at, self._pinned_tokens = source, tokens

    def _unpin_blocks(self) -> None:
        if self._pinned_at is not None:
            self._pinned_at.retained_tokens -= self._pinned_tokens
            self._pinned_at.load = None
            self._pinned_at = None


class Cluster:
    """Membership, availability and counters of all instances. `clock`: monotonic seconds, e.g. `time.monotonic`.

    `bindings` count the sessions of each instance (default: an empty table). `report` receives every change except an
    added instance, which `Fleet` reports with its transport.
    """

    def __init__(
        self,
        instances: Iterable[Member],
        clock: Callable[[], float],
        bindings: Bindings | None = None,
        report: Report = ignore_event,
    ) -> None:
        self.bindings = bindings if bindings is not None else Bindings()
        self.picks = 0
        self.fallbacks = 0
        self._clock = clock
        self._report = report
        self._counters: dict[str, _Counters] = {}
        """Sorted by name."""
        for member in instances:
            self.add_member(member)

    @property
    def members(self) -> tuple[Member, ...]:
        """Sorted by name."""
        return tuple(counters.member for counters in self._counters.values())

    def take_view(self) -> ClusterView:
        """A snapshot of everything that a policy may read."""
        for name in self.bindings.take_recounted():
            if name in self._counters:
                self._counters[name].load = None
        bindings, now = self.bindings, self._clock()
        loads = [counters.load or counters.make_load(bindings, now) for counters in self._counters.values()]
        return ClusterView(tuple(loads), self.picks, self.fallbacks)

    def may_be_picked(self, instance: str) -> bool:
        """Whether it is a member, available and not draining."""
        counters = self._counters.get(instance)
        return counters is not None and counters.available and not counters.draining

    def reserve_counters(self, decision: Decision, request: RoutedRequest) -> CounterReservation:
        """Count the pick on its instance: BS+1, PP+uncached, OT+prompt, and the tokens reserved for the output.

        Tokens whose KV is in transfer are not pending on the serving instance; with a prefill instance they are pending
        there instead. Call `CounterReservation.end_transfer` when the transfer has ended, even if nothing moved. Raises
        KeyError if the serving or prefill instance is not a member.
        """
        serves = self._counters[decision.instance]
        source = self._counters[decision.prefill] if decision.prefill else self._counters.get(decision.migrate_from)
        self.picks += 1
        self.fallbacks += decision.advances
        return CounterReservation(decision, request, serves, source, self.bindings)

    def add_member(self, member: Member) -> None:
        """Add an instance, or end the drain of the one with this name and URL. Raises ValueError for a taken name."""
        known = self._counters.get(member.instance)
        if known is None:
            self._counters[member.instance] = _Counters(member)
            self._counters = dict(sorted(self._counters.items()))
        elif known.draining and known.member.url == member.url:
            known.draining = False
            known.load = None
            self._report(InstanceEvent(member.instance, "resumed"))
        else:
            raise ValueError(f"there is an instance {member.instance} already, at {known.member.url}")

    def drain_instance(self, instance: str) -> None:
        """Send it no new requests; its open requests continue. Raises KeyError for an unknown one."""
        counters = self._counters[instance]
        counters.draining, counters.load = True, None
        self._report(InstanceEvent(instance, "draining"))

    def remove_instance(self, instance: str) -> tuple[str, ...]:
        """Remove it with its counters and bindings; returns the sessions that lost their owner.

        Its open reservations may still be ended. Raises KeyError for an unknown one.
        """
        del self._counters[instance]
        self._report(InstanceEvent(instance, "removed"))
        return self.bindings.release_instance(instance)

    def set_available(self, instance: str, available: bool, why: str = "") -> tuple[str, ...]:
        """Set whether it may be picked (health, breaker), and why not.

        An instance that comes back receives its even share of the bound sessions; returns those that moved. An
        unavailable instance keeps its bindings: its KV may still be there when it returns.
        """
        counters = self._counters[instance]
        came_back = available and not counters.available
        counters.available, counters.why = available, "" if available else why or "unavailable"
        counters.load = None
        self._report(InstanceEvent(instance, "available" if available else "unavailable", why=counters.why))
        if not came_back or counters.draining:
            return ()
        others = [name for name, other in self._counters.items() if other.available and not other.draining]
        return self.bindings.rebalance_sessions(instance, others)

    def pause_instance(self, instance: str, seconds: float) -> None:
        """Back-pressure: the instance asks for no new requests for `seconds`; 0 ends the pause."""
        counters = self._counters[instance]
        counters.paused_until_s, counters.load = self._clock() + seconds, None
        self._report(InstanceEvent(instance, "paused", pause_s=seconds))

    def set_capacity(self, instance: str, kv_capacity_tokens: int | None) -> None:
        """Set the size of its KV pool in tokens, as the engine reports it."""
        counters = self._counters[instance]
        counters.member = replace(counters.member, kv_capacity_tokens=kv_capacity_tokens)
        counters.load = None
        self._report(InstanceEvent(instance, "capacity", kv_capacity_tokens=kv_capacity_tokens))


def _count_lacking_tokens(request: RoutedRequest, instance: str) -> int:
    return max(0, request.input_tokens - request.cached_tokens.get(instance, 0))
