"""Requests in flight, and what ends them from outside: the clock, an outage, the operator."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from runners.router.dispatch import Dispatcher
from runners.router.health import Health
from runners.router.link import Failure
from runners.router.metrics import Counts
from runners.router.spec import Limits
from runners.router.upstream import Pool

if TYPE_CHECKING:
    from runners.router.arrival import Arrival
    from runners.router.proxy import Exchange
    from runners.router.transfer import Transfers


class Traffic:
    """Requests in flight, and what they share."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        pools: Mapping[str, Pool],
        health: Health,
        counts: Counts,
        limits: Limits,
        transfers: Transfers,
    ) -> None:
        self.dispatcher = dispatcher
        self.pools = pools
        self.health = health
        self.counts = counts
        self.limits = limits
        self.transfers = transfers
        self.arriving: dict[Arrival, None] = {}
        """Not picked yet: another process is asked about their session."""
        self.moving: dict[Exchange, None] = {}
        """Picked, and their KV is on its way; in the order of their picks."""
        self.waiting: dict[Exchange, None] = {}
        """Without a body byte yet, in the order of their dispatch."""
        self.streaming: dict[Exchange, None] = {}
        self.held: dict[Exchange, None] = {}
        """Not sent yet: the policy found no room. In the order in which they came."""
        self._serving_held = False
        self._drained: asyncio.Event | None = None

    @property
    def in_flight(self) -> bool:
        """Some request is at an instance, or its KV on the way there."""
        return bool(self.waiting or self.streaming or self.moving)

    @property
    def _idle(self) -> bool:
        return not (self.in_flight or self.held or self.arriving)

    def arrived(self, arrival: Arrival) -> None:
        """A request is about to be picked, or will never be."""
        del self.arriving[arrival]
        self._look()

    def ended(self, exchange: Exchange) -> None:
        """A request (or an attempt of one) is over."""
        self.waiting.pop(exchange, None)
        self.moving.pop(exchange, None)
        self.streaming.pop(exchange, None)
        self.held.pop(exchange, None)
        self.made_room()
        self._look()

    def made_room(self) -> None:
        """Some instance may have room now: soon ask again for what is held."""
        if self.held and not self._serving_held:
            self._serving_held = True
            asyncio.get_running_loop().call_soon(self.serve_held)  # the claim of what has ended is released by then

    def serve_held(self) -> None:
        """Ask again for those that are held, the first one first; it goes before all others."""
        self._serving_held = False
        for exchange in tuple(self.held):
            exchange.begin()
            if exchange in self.held:
                break
        self._say_drained()

    async def drain(self, limit_s: float) -> bool:
        """Wait until nothing is in flight; False = some still is after `limit_s`."""
        if self._idle:
            return True
        self._drained = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._drained.wait()
        return self._idle

    def _look(self) -> None:
        """See soon whether a drain is over: what has just ended may be in flight again by then, somewhere else."""
        if self._drained is not None:
            asyncio.get_running_loop().call_soon(self._say_drained)

    def _say_drained(self) -> None:
        if self._drained is not None and self._idle:
            self._drained.set()

    def hurry(self) -> None:
        """Cut a drain short."""
        if self._drained is not None:
            self._drained.set()

    def sweep_waiting(self, now_s: float) -> None:
        """Give up on instances that let a request wait for too long."""
        limit_s = self.limits.first_byte_s
        while self.waiting:
            oldest = next(iter(self.waiting))
            if now_s - oldest.t_dispatch_s <= limit_s:
                break
            oldest.give_up_on(Failure("timeout", f"no byte of the response within {limit_s:g} s"))
        pull_s = self.transfers.timeout_s
        for exchange in [one for one in self.waiting if one.handed and now_s - one.t_dispatch_s > pull_s]:
            exchange.give_up_on(Failure("timeout", f"no byte of the response to the target leg within {pull_s:g} s"))
        while self.moving:
            oldest = next(iter(self.moving))
            if now_s - oldest.t_dispatch_s <= limit_s:
                break
            oldest.forgo(f"the transfer was not over within {limit_s:g} s")
        if self.held:
            self.serve_held()

    def sweep_streaming(self, now_s: float) -> None:
        """End streams that stand still."""
        limits = self.limits
        for exchange in tuple(self.streaming):
            if exchange.t_paused_s:
                if now_s - exchange.t_paused_s > limits.client_stall_s:
                    exchange.leave(f"the client took nothing for {limits.client_stall_s:g} s")
            elif now_s - exchange.t_read_s > limits.stall_s:
                exchange.give_up_on(Failure("stall", f"nothing came for {limits.stall_s:g} s"))

    def lost(self, instance: str, why: str) -> None:
        """The instance is gone: what waits there goes elsewhere; what streams hears it from its connection.

        What waits for KV from there does without it, also where an instance has begun to pull it.
        """
        self.transfers.lost(instance)
        for exchange in (*self.waiting, *self.moving):
            if exchange.instance == instance:
                exchange.give_up_on(Failure("down", why))
        self._do_without(instance, why, self.waiting)

    def cut(self, why: str, instance: str = "") -> int:
        """End everything in flight (at one instance); returns how many requests."""
        ended = 0
        if instance:
            self.transfers.lost(instance)
        for arrival in () if instance else tuple(self.arriving):
            arrival.cut(why)
            ended += 1
        for exchange in () if instance else tuple(self.held):
            exchange.cut(why, elsewhere=False)
            ended += 1
        for exchange in (*self.waiting, *self.moving, *self.streaming):
            if not instance or exchange.instance == instance:
                exchange.cut(why, elsewhere=bool(instance))
                ended += 1
        self._do_without(instance, why)
        return ended

    def _do_without(self, source: str, why: str, sent: Iterable[Exchange] = ()) -> None:
        pulling = (exchange for exchange in sent if exchange.handed)
        for exchange in (*self.moving, *pulling):
            if exchange.source == source:
                exchange.forgo(f"{source} is lost: {why}")
