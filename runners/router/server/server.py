"""The router server: assembles the parts, listens, keeps time, and shuts down."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING

from msgspec import structs

from results.records.instance_events import InstanceEvent
from results.records.router_spec import RouterSpec
from results.records.visible import visible
from runners.router.cluster import Cluster
from runners.router.counts import Counts
from runners.router.dispatch import Dispatcher
from runners.router.instances.fleet import Fleet
from runners.router.ledger import Ledger
from runners.router.messages import RouterError, RouterOutcome, RouterReady, RouterTick
from runners.router.policies import may_migrate
from runners.router.policies.policy import Policy
from runners.router.reporting import ignore_event
from runners.router.server.front import ClientConnection
from runners.router.server.http_message import HttpRequest
from runners.router.server.log import RecordFile
from runners.router.server.pages import Pages, read_admin_token
from runners.router.server.paths import ROUTED, ROUTED_TARGETS
from runners.router.server.proxy import Proxy
from runners.router.sessions.bindings import Bindings
from runners.router.tick import make_tick
from runners.router.traffic import Traffic
from runners.router.transfer.transfers import Transfers

if TYPE_CHECKING:
    from runners.router.sessions.shared_bindings import SharedBindings

BACKLOG = 4096
BEAT_S = 0.25
"""Shortest time between two checks of the time limits of requests in flight, and the time between two picks for a held
one: a pause may have ended, or an instance recovered."""
BEATS_PER_LIMIT = 8
"""Checks within the shortest time limit; each wakes a process whose caches are cold."""
TIMER_S = 0.001
"""The event loop's timers are whole milliseconds: a beat that is due must not come before its time."""
TICK_S = 1.0
CLIENT_SWEEP_S = 5.0
STREAMS_LIMIT = 1 << 16
"""Client connections at a time unless the spec names another number. A slow stream takes some 11 kB, and a container's
limit of descriptors is often a million."""
DESCRIPTORS_KEPT = 64
"""Descriptors reserved for files, probes and the event loop."""
END_GRACE_S = 0.5
"""Time between cutting requests in flight and closing their connections."""
FLUSH_S, FLUSH_STEP_S = 0.3, 0.01
"""Time that clients then have to read what is already written, and the interval of the check."""


class EventLoop:
    """The live driver: clock and timers of the running loop. It may be created before the loop runs."""

    now_ns = staticmethod(perf_counter_ns)
    now_s = staticmethod(monotonic)

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        return asyncio.get_running_loop().call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback)


class Server:
    """One router, from `start` to `end`. `on_tick` is called once a second."""

    def __init__(self, spec: RouterSpec, policy: Policy, on_tick: Callable[[RouterTick], None]) -> None:
        self.closing = False
        self.own_url = ""
        """URL of the port that only this process listens on; empty = it shares no port."""
        self.body_limit_bytes = spec.limits.body_bytes
        self.held_limit_bytes = spec.limits.held_bytes
        self.held_bytes = 0
        self._spec = spec
        self._policy = policy
        self._on_tick = on_tick
        self._t_start_ns = perf_counter_ns()
        self._counts = Counts()
        self._clients: set[ClientConnection] = set()
        self._limit = min(spec.limits.streams or STREAMS_LIMIT, _allow_descriptors())
        self._limit_by_peer = spec.limits.peer_streams or max(1, self._limit // 2)
        self._by_peer: Counter[str] = Counter()
        """Connections by client address, except this machine's."""
        self._pages_open: set[asyncio.Task[None]] = set()
        self._log = RecordFile(spec.decisions_path)
        self._event_log = RecordFile(spec.events_path)
        self._report = self._log_event if self._event_log.is_open else ignore_event
        self._driver = EventLoop()
        self._ledger = Ledger(self._log, self._counts, self._driver)
        self._shared = self._make_shared_bindings(spec) if spec.bindings.redis_url else None
        in_memory = Bindings(spec.max_sessions, spec.session_ttl_s)
        self._bindings = in_memory if self._shared is None else self._shared
        self._cluster = Cluster((), monotonic, self._bindings, self._report)
        self._fleet = Fleet(spec, self._cluster, self._driver, self._report)
        self._transfers: Transfers
        self._dispatcher: Dispatcher
        self._traffic: Traffic
        self._proxy: Proxy
        self._pages: Pages
        self._next_beat: asyncio.TimerHandle | None = None
        self._is_resting = False
        """Nothing is in flight: the next beat comes when periodic work is due, or soon after the next request."""
        self._listening: list[asyncio.Server] = []
        self._drained: asyncio.Event | None = None
        self._outcome: RouterOutcome | None = None
        self._due = {"tick": monotonic() + TICK_S, "stall": 0.0, "clients": 0.0}
        limits = spec.limits
        shortest_s = min(limits.first_byte_s, limits.stall_s, limits.client_stall_s, spec.transfer.timeout_s)
        self._pace_s = min(TICK_S, max(BEAT_S, shortest_s / BEATS_PER_LIMIT))
        """Between two checks of the time limits of requests in flight."""

    @property
    def connections(self) -> int:
        return len(self._clients)

    @property
    def records_lost(self) -> int:
        return self._log.lost

    @property
    def backlog_bytes(self) -> int:
        return self._log.backlog_bytes

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    async def start(self) -> RouterReady:
        """Add the instances, probe each once, and listen. Raises RouterError."""
        spec, fleet, admin_token = self._spec, self._fleet, read_admin_token()
        self._transfers = transfers = Transfers(fleet.pools, fleet.specs, spec.transfer, self._driver, self._report)
        fleet.on_recovered = transfers.recover_instance
        await fleet.add_instances()
        if spec.prewarm is not None:
            try:
                await fleet.prewarm_instances(spec.prewarm)
            except RouterError:
                await fleet.close()
                raise
        if self._shared is not None:
            await self._shared.start()  # after the first probes: an instance found at start has not recovered
        self._dispatcher = Dispatcher(
            self._policy,
            self._cluster,
            self._bindings,
            fleet.indexes,
            self._ledger,
            self._counts,
            fleet.block_tokens,
            self._driver,
            transfers.cut_off if may_migrate(self._policy) else None,
            spec.transfer.min_tokens,
            spec.reserved_output,
        )
        self._traffic = Traffic(self._dispatcher, fleet.health, self._counts, spec.limits, transfers)
        self._traffic.notify_held(lambda: self._beat_within(BEAT_S))
        fleet.on_lost = self._traffic.lose_instance
        self._proxy = Proxy(self._traffic, fleet.pools)
        self._pages = Pages(fleet, self._cluster, self._bindings, self._traffic, transfers, self, admin_token)
        pages: tuple[str, ...] = ()
        if spec.own_port is not None:
            self.own_url = await self._listen(spec.own_port)
            pages = (self.own_url,)
        url = await self._listen(spec.port, shared=spec.own_port is not None)
        self._schedule_beat()
        names = tuple(instance.instance for instance in spec.instances)
        return RouterReady(url, os.getpid(), names, fleet.block_tokens, pages)

    async def _listen(self, port: int, *, shared: bool = False) -> str:
        """Listen on a port, `shared` by several processes or not; returns the URL. Raises RouterError."""
        host = self._spec.host
        try:
            listening = await asyncio.get_running_loop().create_server(
                lambda: ClientConnection(self, shared=shared), host, port, backlog=BACKLOG, reuse_port=shared
            )
        except OSError as error:
            remedy = "Give another --port (0 = any free one), or end what listens there."
            raise RouterError(f"cannot listen on {host}:{port}: {error.strerror}", remedy=remedy) from error
        self._listening.append(listening)
        bound, taken = listening.sockets[0].getsockname()[:2]
        shown = f"[{bound}]" if ":" in bound else bound
        return f"http://{shown}:{taken}"

    async def end(self, drain_s: float | None = None) -> RouterOutcome:
        """Accept no new requests, let those in flight finish for at most `drain_s` (default: the spec's), and stop."""
        if self._outcome is not None:
            return self._outcome
        self.closing = True
        for listening in self._listening:
            listening.close()
        for client in tuple(self._clients):
            if client.idle and client.unsent_bytes:
                client.close()
            elif client.idle:
                client.abort()
        drain_s = self._spec.limits.drain_s if drain_s is None else drain_s
        if not await self._drain_traffic(drain_s):
            self._counts.cut = self._traffic.cut_requests("the router is shutting down")
            await asyncio.sleep(END_GRACE_S)
        if self._next_beat is not None:
            self._next_beat.cancel()
            await asyncio.gather(*self._pages_open, return_exceptions=True)
        await self._flush_clients()
        for client in tuple(self._clients):
            client.abort()
        if self._shared is not None:
            await self._shared.close()
        await self._transfers.close()
        await self._fleet.close()
        self._ledger.settle_records(last=True)
        self._report_last()
        await self._log.close()
        await self._event_log.close()
        self._outcome = self._make_outcome()
        return self._outcome

    async def _flush_clients(self) -> None:
        """Wait for at most FLUSH_S until clients have read the responses already written."""
        until_s = monotonic() + FLUSH_S
        while monotonic() < until_s and any(client.unsent_bytes for client in self._clients):  # noqa: ASYNC110
            await asyncio.sleep(FLUSH_STEP_S)

    def hurry(self) -> None:
        """End the drain that `end` waits for."""
        if self._drained is not None:
            self._drained.set()

    async def _drain_traffic(self, limit_s: float) -> bool:
        if self._traffic.is_idle:
            return True
        self._drained = asyncio.Event()
        self._traffic.notify_idle(self._drained.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._drained.wait()
        return self._traffic.is_idle

    def _log_event(self, event: InstanceEvent) -> None:
        self._event_log.append_record(structs.replace(event, t_ns=perf_counter_ns()))

    def tick(self) -> RouterTick:
        return make_tick(
            perf_counter_ns(), self._policy.name, self._cluster, self._bindings, self._counts, self._ledger
        )

    # the service of client connections
    def admit(self, connection: ClientConnection) -> str:
        self._clients.add(connection)
        if not connection.local:
            self._by_peer[connection.peer] += 1
        if self.closing:
            return "the router is shutting down"
        if len(self._clients) > self._limit:
            return f"the router holds {self._limit} connections, as many as it may"
        if self._by_peer[connection.peer] > self._limit_by_peer:
            return f"the router holds {self._limit_by_peer} connections of {connection.peer}, as many as it may"
        return ""

    def forget(self, connection: ClientConnection) -> None:
        self._clients.discard(connection)
        if connection.peer in self._by_peer:
            self._by_peer[connection.peer] -= 1
            if self._by_peer[connection.peer] <= 0:
                del self._by_peer[connection.peer]

    def serve(self, connection: ClientConnection, request: HttpRequest) -> None:
        chat = ROUTED_TARGETS.get(request.target)
        if chat is None:
            chat = ROUTED.get(request.path)
        if chat is None or request.method != "POST":
            if self.held_bytes > self.held_limit_bytes:
                connection.refuse(503, "the router holds as many bytes for clients as it may", "router_overloaded")
                return
            task = asyncio.get_running_loop().create_task(self._pages.answer(connection, request))
            self._pages_open.add(task)
            task.add_done_callback(self._end_page)
        elif self.closing:
            connection.refuse(503, "the router is shutting down", "closing")
        elif request.version != "1.1":
            connection.refuse(505, "the router proxies HTTP/1.1 only (in nginx: proxy_http_version 1.1)", "bad_request")
        elif b"origin" in request.named and not request.is_json:  # a browser lets any web page send it
            connection.refuse(415, "a web page sends its request with content-type application/json", "bad_request")
        else:
            if self._is_resting:
                self._beat_within(self._pace_s)
            self._proxy.route_request(connection, request, chat=chat)

    def _make_shared_bindings(self, spec: RouterSpec) -> SharedBindings:
        from runners.router.sessions.shared_bindings import SharedBindings

        def names() -> tuple[str, ...]:
            return tuple(member.instance for member in self._cluster.members)

        return SharedBindings(spec.bindings, self._counts, names, monotonic, spec.max_sessions, spec.session_ttl_s)

    def _end_page(self, task: asyncio.Task[None]) -> None:
        self._pages_open.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            sys.stderr.write(visible(f"a page of the router failed: {type(error).__name__}: {error}\n"))

    def _beat(self) -> None:
        """Do the periodic work that is due."""
        try:
            self._beat_once(monotonic())
        except Exception:  # noqa: BLE001  (without the clock nothing would ever time out)
            sys.stderr.write(visible(f"a beat of the router's clock failed:\n{traceback.format_exc()}"))
        self._schedule_beat()

    def _schedule_beat(self) -> None:
        pause_s = max(BEAT_S, min(self._due.values()) - monotonic() + TIMER_S)
        if self._traffic.held or self._fleet.follows_events:
            pause_s = BEAT_S
        elif not self._traffic.is_idle:
            pause_s = min(self._pace_s, pause_s)
        self._is_resting = pause_s > self._pace_s
        self._next_beat = self._driver.call_later(pause_s, self._beat)

    def _beat_within(self, limit_s: float) -> None:
        """Bring the next beat forward if it is further away."""
        self._is_resting = False
        beat = self._next_beat
        if beat is not None and beat.when() - asyncio.get_running_loop().time() > limit_s:
            beat.cancel()
            self._next_beat = self._driver.call_later(limit_s, self._beat)

    def _beat_once(self, now_s: float) -> None:
        limits, due = self._spec.limits, self._due
        self._traffic.sweep_waiting(now_s)
        if now_s >= due["stall"]:
            limit_s = min(limits.stall_s, limits.client_stall_s)
            due["stall"] = now_s + min(5.0, max(BEAT_S, limit_s / BEATS_PER_LIMIT))
            self._traffic.sweep_streaming(now_s)
        if now_s >= due["clients"]:
            times = (limits.client_idle_s, limits.client_stall_s, limits.head_s, limits.body_s)
            due["clients"] = now_s + min(CLIENT_SWEEP_S, min(times) / 4)
            self._sweep_clients(now_s)
        if now_s >= due["tick"]:
            due["tick"] = max(now_s, due["tick"] + TICK_S)
            self._run_each_second()
        self._fleet.follow_events()  # last: events from engines must not delay the time limits

    def _run_each_second(self) -> None:
        for pool in self._fleet.pools.values():
            pool.close_idle()
        self._bindings.expire_sessions(monotonic())
        if self._shared is not None:
            self._shared.refresh_table()
        with contextlib.suppress(BrokenPipeError):
            self._on_tick(replace(self.tick(), migrations=self._ledger.take_migrations()))

    def _report_last(self) -> None:
        """Report what came since the last tick, at the end of the router: picks, and migration events."""
        parts = [*iter(lambda: self._ledger.take_migrations(last=True), ())] or [()]
        with contextlib.suppress(BrokenPipeError):
            for migrations in parts:
                self._on_tick(replace(self.tick(), migrations=migrations))

    def _sweep_clients(self, now_s: float) -> None:
        limits = self._spec.limits
        for client in tuple(self._clients):
            limit_s = limits.head_s if client.in_head else limits.body_s
            if client.in_flight is None and client.t_full_s and now_s - client.t_full_s > limits.client_stall_s:
                client.abort()  # it does not read a complete response, possibly its last
            elif client.is_paused:
                continue
            elif client.t_begin_s and now_s - client.t_begin_s > limit_s:
                part = "head" if client.in_head else "body"
                client.reject_late(f"the {part} of the request was not whole within {limit_s:g} s")
            elif client.idle and now_s - client.t_read_s > limits.client_idle_s:
                client.abort()

    def _make_outcome(self) -> RouterOutcome:
        counts = self._counts
        return RouterOutcome(
            t_start_ns=self._t_start_ns,
            t_end_ns=perf_counter_ns(),
            policy=self._policy.name,
            index=self._spec.index,
            **counts.make_outcome_fields(),
            decide_us_p50=counts.decide_quantile_us(0.5),
            decide_us_p99=counts.decide_quantile_us(0.99),
            records_lost=self._log.lost,
            events_lost=self._event_log.lost,
            log_error=self._log.error or self._event_log.error,
        )


def _allow_descriptors() -> int:
    """Set the soft limit of descriptors to the hard one; returns the client connections that it allows, at two each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    limit = hard if hard != resource.RLIM_INFINITY else 1 << 20
    return max(1, (limit - DESCRIPTORS_KEPT) // 2)
