"""Requests in flight, and the events that end them from outside: time limits, outages, the operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from results.records.router_spec import Limits
from runners.router.counts import Counts
from runners.router.dispatch import Dispatcher
from runners.router.failure import Failure
from runners.router.health import Health
from runners.router.transfer.movement import KvTransport


class Arriving(Protocol):
    """A request before its pick: its body is being read, or its session looked up in the shared table."""

    def cut_request(self, why: str) -> None: ...


class InFlight(Protocol):
    """A request from its pick to its end, as `RequestLifecycle` is."""

    t_dispatch_s: float
    t_read_s: float
    t_paused_s: float
    is_handed_over: bool

    @property
    def instance(self) -> str: ...
    @property
    def source(self) -> str: ...
    def start_request(self) -> None: ...
    def fail_attempt(self, failure: Failure) -> None: ...
    def give_up_transfer(self, why: str) -> None: ...
    def drop_client(self, why: str) -> None: ...
    def cut_request(self, why: str, *, elsewhere: bool) -> None: ...


class Traffic:
    """All requests in flight, and the services that they share."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        health: Health,
        counts: Counts,
        limits: Limits,
        transfers: KvTransport,
    ) -> None:
        self.dispatcher = dispatcher
        self.health = health
        self.counts = counts
        self.limits = limits
        self.transfers = transfers
        self.driver = dispatcher.driver
        self.arriving: dict[Arriving, None] = {}
        self.moving: dict[InFlight, None] = {}
        """Picked, waiting for a KV transfer or its claim; in the order of their picks."""
        self.waiting: dict[InFlight, None] = {}
        """Sent, no body byte yet; in the order of their dispatch."""
        self.streaming: dict[InFlight, None] = {}
        self.held: dict[InFlight, None] = {}
        """Not sent: no instance has room. In order of arrival; a request that is held again keeps its position."""
        self._offering = False
        self._on_idle: Callable[[], None] | None = None
        self._on_held: Callable[[], None] | None = None

    @property
    def in_flight(self) -> bool:
        """Whether any request is at an instance or waits for a transfer."""
        return bool(self.waiting or self.streaming or self.moving)

    @property
    def is_idle(self) -> bool:
        return not (self.in_flight or self.held or self.arriving)

    def end_arrival(self, arrival: Arriving) -> None:
        """A request is about to be picked, or will never be."""
        del self.arriving[arrival]
        self._check_idle_soon()

    def end_attempt(self, request: InFlight) -> None:
        self.waiting.pop(request, None)
        self.moving.pop(request, None)
        self.streaming.pop(request, None)
        self.held.pop(request, None)
        self.offer_room()
        self._check_idle_soon()

    def hold_request(self, request: InFlight) -> None:
        """Queue a request that no instance has room for, behind those already held."""
        if request not in self.held:
            self.held[request] = None
            if self._on_held is not None:
                self._on_held()

    def offer_room(self) -> None:
        """An instance may have room: start held requests soon, once the ended request has released its counters."""
        if self.held and not self._offering:
            self._offering = True
            self.driver.call_soon(self.serve_held)

    def serve_held(self) -> None:
        """Start held requests in order of arrival, until one has to be held again."""
        self._offering = False
        for request in tuple(self.held):
            request.start_request()
            if request in self.held:
                break
        self._check_idle()

    def notify_idle(self, callback: Callable[[], None]) -> None:
        self._on_idle = callback

    def notify_held(self, callback: Callable[[], None]) -> None:
        """Call it whenever a request is held: `sweep_waiting` is due soon, and often until none is held."""
        self._on_held = callback

    def _check_idle_soon(self) -> None:
        """Check later: the attempt that has just ended may be retried on another instance."""
        if self._on_idle is not None:
            self.driver.call_soon(self._check_idle)

    def _check_idle(self) -> None:
        if self._on_idle is not None and self.is_idle:
            self._on_idle()

    def sweep_waiting(self, now_s: float) -> None:
        """Fail requests that have waited too long for their first byte or their transfer; retry held ones."""
        limit_s = self.limits.first_byte_s
        while self.waiting:
            oldest = next(iter(self.waiting))
            if now_s - oldest.t_dispatch_s <= limit_s:
                break
            oldest.fail_attempt(Failure("timeout", f"no byte of the response within {limit_s:g} s"))
        pull_s = self.transfers.timeout_s
        for request in [one for one in self.waiting if one.is_handed_over and now_s - one.t_dispatch_s > pull_s]:
            why = f"no byte of the response to the decode request within {pull_s:g} s"
            request.fail_attempt(Failure("timeout", why))
        while self.moving:
            oldest = next(iter(self.moving))
            if now_s - oldest.t_dispatch_s <= limit_s:
                break
            oldest.give_up_transfer(f"the transfer was not over within {limit_s:g} s")
        if self.held:
            self.serve_held()

    def sweep_streaming(self, now_s: float) -> None:
        """End streams that stall at the client or at the instance."""
        limits = self.limits
        for request in tuple(self.streaming):
            if request.t_paused_s:
                if now_s - request.t_paused_s > limits.client_stall_s:
                    request.drop_client(f"the client took nothing for {limits.client_stall_s:g} s")
            elif now_s - request.t_read_s > limits.stall_s:
                request.fail_attempt(Failure("stall", f"nothing came for {limits.stall_s:g} s"))

    def lose_instance(self, instance: str, why: str) -> None:
        """The instance is down: retry its waiting requests elsewhere. Its streams fail with their connections.

        Requests that wait for KV from it give up the transfer, even if the pull has begun.
        """
        self.transfers.forget_process(instance)
        for request in (*self.waiting, *self.moving):
            if request.instance == instance:
                request.fail_attempt(Failure("down", why))
        self._give_up_transfers_from(instance, why, self.waiting)

    def cut_requests(self, why: str, instance: str = "") -> int:
        """End every request in flight, or those of one instance; returns their number."""
        ended = 0
        if instance:
            self.transfers.forget_process(instance)
        else:
            for arrival in tuple(self.arriving):
                arrival.cut_request(why)
                ended += 1
        for request in () if instance else tuple(self.held):
            request.cut_request(why, elsewhere=False)
            ended += 1
        for request in (*self.waiting, *self.moving, *self.streaming):
            if not instance or request.instance == instance:
                request.cut_request(why, elsewhere=bool(instance))
                ended += 1
        self._give_up_transfers_from(instance, why)
        return ended

    def _give_up_transfers_from(self, source: str, why: str, sent: Iterable[InFlight] = ()) -> None:
        pulling = (request for request in sent if request.is_handed_over)
        for request in (*self.moving, *pulling):
            if request.source == source:
                request.give_up_transfer(f"{source} is lost: {why}")
