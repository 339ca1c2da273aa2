"""A running load: what the open loop and a replay share.

Both send on the pacer's clock, follow every request to its end, build bodies in the gaps between sends, and close when
they have enough, fail, or are cut. The subclass decides what to send next, and when.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from array import array
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Generic, TypeVar

from results.records.load_specs import LoadOptions
from results.records.schemas import RequestStatus
from runners.load.bodies import Bodies
from runners.load.client import Connection, LoadClient
from runners.load.pacer import Pacer
from runners.load.process_settings import disable_gc, schedule_in_real_time
from runners.load.recent_latencies import Latencies, RecentValues
from runners.load.recorder import Recorder
from runners.load.stream import Exchange, PendingPrefill
from runners.target import Target

LEAD_NS = 50_000_000
"""From the end of all preparation to the first send."""
BUILD_AHEAD_PERIOD_S = 0.001
HOUSEKEEPING_S = 0.25
TICKS_EVERY = 4
"""A tick per this many rounds of housekeeping: 1 Hz."""

Tick = TypeVar("Tick")
OutcomeOf = TypeVar("OutcomeOf")


@dataclass(slots=True)
class Counts:
    """Since the load began."""

    sent: int = 0
    completed: int = 0
    failed: int = 0
    cut: int = 0
    wrong_length: int = 0


class LoadDriver(ABC, Generic[Tick, OutcomeOf]):
    """One running load; the listener of all its requests."""

    build_ahead_ns = 0
    """Time for building bodies in one gap between sends; at least one slice is built."""
    connection: type[Connection] = Connection

    def __init__(self, spec: LoadOptions, target: Target, bodies: Bodies) -> None:
        """Raises LoadError where the file of requests cannot be written."""
        self.counts = Counts()
        self._failures_in_a_row = 0
        self.realtime = False
        self.stop_reason = ""
        self.t_start_ns = self.t_stop_ns = self.t_end_ns = 0
        self.t_start_unix_s = 0.0
        self._options = spec
        self._client = LoadClient(
            target,
            spares=spec.spare_connections,
            request_timeout_s=spec.request_timeout_s,
            stall_timeout_s=spec.stall_timeout_s,
            connection=self.connection,
        )
        self._recorder = Recorder(Path(spec.requests_path))
        self._recorders = [self._recorder]
        self._bodies = bodies
        self._pacer = Pacer(self._send_due)
        self._inflight = 0
        self._pending_prefill = PendingPrefill()
        self._lateness_ns = array("q")
        """Lateness of every send that fidelity is judged by."""
        self._recent_lateness = RecentValues()
        self._latencies = Latencies()
        self._latencies_of: defaultdict[str, Latencies] = defaultdict(Latencies)
        """By the instance that answered."""
        self._building: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        """No more sends."""
        self._drained = asyncio.Event()
        self._cpu_begin_s: float | None = None
        self._cpu_s: float | None = None

    async def run(self, on_tick: Callable[[Tick], None], cut: asyncio.Event) -> OutcomeOf:
        """Run the load in this process, on this event loop, and write its records; `cut` ends it early."""
        try:
            self.prepare()
            await self._client.open()
            with disable_gc(), schedule_in_real_time(self._options.realtime) as self.realtime:
                self.start()
                await self._follow_load(on_tick, cut)
        finally:
            self.finish()
            await self._client.close()
            for recorder in self._recorders:
                await recorder.close()
        return self.outcome()

    def stop(self, reason: str, t_ns: int) -> None:
        """Stop sending; the reason is the first caller's."""
        if self._closed.is_set():
            return
        self.stop_reason, self.t_stop_ns = reason, t_ns
        if self._cpu_begin_s is not None:
            self._cpu_s = time.process_time() - self._cpu_begin_s
        self._on_stop()
        self._closed.set()
        if not self._inflight:
            self._drained.set()

    def finish(self) -> None:
        """Cut what is still in flight; the load is over."""
        self.t_end_ns = perf_counter_ns()
        self.stop("cancelled", self.t_end_ns)
        self._pacer.close()
        if self._building is not None:
            self._building.cancel()
        self._client.cut(self.t_end_ns)

    def first_token(self, exchange: Exchange) -> None:
        self._pending_prefill.remove_started(self._count_requested_tokens(exchange)[0])
        ttft_s = exchange.ttft_s
        assert ttft_s is not None
        for latencies in self._list_latencies(exchange):
            latencies.ttft.add((exchange.t_first_ns, ttft_s))

    def ended(self, exchange: Exchange) -> None:
        self._inflight -= 1
        self._pending_prefill.remove_ended(exchange, self._count_requested_tokens(exchange)[0])
        self._count_end(exchange)
        self._on_end(exchange)
        if self._closed.is_set() and not self._inflight:
            self._drained.set()

    # the subclass's part
    @abstractmethod
    def prepare(self) -> None:
        """Build what can be built before the first send."""

    @abstractmethod
    def start(self) -> None:
        """Fix the time of the first send and arm the clock."""

    @abstractmethod
    def tick(self, now_ns: int) -> Tick: ...

    @abstractmethod
    def outcome(self) -> OutcomeOf:
        """How it ended; only after `finish`."""

    @abstractmethod
    def _send_due(self) -> None:
        """The pacer fired: send whatever is due, or close."""

    @abstractmethod
    def _count_requested_tokens(self, exchange: Exchange) -> tuple[int, int]:
        """Input and output tokens of the request."""

    @abstractmethod
    def _on_end(self, exchange: Exchange) -> None:
        """Record the request, and act on its end."""

    def _on_stop(self) -> None:
        """Sending stops at `t_stop_ns`."""

    # shared steps
    async def _follow_load(self, on_tick: Callable[[Tick], None], cut: asyncio.Event) -> None:
        """Wait until the load is closed and drained (for at most `drain_s`), or cut."""
        housekeeping = asyncio.create_task(self._run_housekeeping(on_tick))
        defect = _watch_for_defect()
        cutting = asyncio.create_task(cut.wait())
        futures: list[asyncio.Future[Any]] = [housekeeping, cutting, defect]
        try:
            for event, limit_s in ((self._closed, None), (self._drained, self._options.drain_s)):
                futures.append(asyncio.create_task(event.wait()))
                await asyncio.wait(
                    (housekeeping, cutting, defect, futures[-1]), timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
                )
                for broken in (housekeeping, defect):
                    if broken.done():
                        broken.result()
                if cutting.done():
                    return
        finally:
            asyncio.get_running_loop().set_exception_handler(None)
            for future in futures:
                future.cancel()
            await asyncio.gather(*futures, return_exceptions=True)

    async def _run_housekeeping(self, on_tick: Callable[[Tick], None]) -> None:
        """Time-outs at 4 Hz, records and ticks at 1 Hz, all at absolute times."""
        rounds = 0
        while True:
            rounds += 1
            due_ns = self.t_start_ns + round(rounds * HOUSEKEEPING_S * 1e9)
            await asyncio.sleep(max(0.0, (due_ns - perf_counter_ns()) / 1e9))
            now_ns = perf_counter_ns()
            self._client.sweep(now_ns)
            if rounds % TICKS_EVERY == 0:
                for recorder in self._recorders:
                    recorder.flush()
                on_tick(self.tick(now_ns))

    def _start_clock(self) -> None:
        self.t_start_ns = perf_counter_ns() + LEAD_NS
        self.t_start_unix_s = time.time() + LEAD_NS / 1e9

    def _count_send(self, input_tokens: int) -> None:
        self._inflight += 1
        self._pending_prefill.add_sent(input_tokens)
        self.counts.sent += 1

    def _build_ahead_soon(self) -> None:
        if self._building is None:
            self._building = asyncio.get_running_loop().call_later(BUILD_AHEAD_PERIOD_S, self._build_ahead)

    def _build_ahead(self) -> None:
        self._building = None
        until_ns, more = perf_counter_ns() + self.build_ahead_ns, not self._closed.is_set()
        while more and (more := self._bodies.build_slice()) and perf_counter_ns() < until_ns:
            pass
        if more:
            self._build_ahead_soon()

    def _count_end(self, exchange: Exchange) -> None:
        counts = self.counts
        if exchange.status is RequestStatus.CUT:
            counts.cut += 1
            return
        if exchange.status is RequestStatus.ERROR:
            counts.failed += 1
            self._failures_in_a_row += 1
            if 0 < self._options.max_failures_in_a_row <= self._failures_in_a_row:
                self.stop("failing", exchange.t_end_ns)
            return
        counts.completed += 1
        self._failures_in_a_row = 0
        requested = self._count_requested_tokens(exchange)
        counted = (exchange.prompt_tokens or requested[0], exchange.counted_tokens or requested[1])
        counts.wrong_length += counted != requested
        tpot_s = exchange.tpot_s
        if tpot_s is not None:
            for latencies in self._list_latencies(exchange):
                latencies.tpot.add((exchange.t_end_ns, tpot_s))

    def _list_latencies(self, exchange: Exchange) -> tuple[Latencies, ...]:
        return (self._latencies, self._latencies_of[exchange.instance]) if exchange.instance else (self._latencies,)

    def _make_tick_fields(self, now_ns: int) -> dict[str, Any]:
        """The fields of a LoadTick that every load has."""
        return {
            "t_ns": now_ns,
            "elapsed_s": max(0.0, (now_ns - self.t_start_ns) / 1e9),
            "sent": self.counts.sent,
            "completed": self.counts.completed,
            "failed": self.counts.failed,
            "inflight": self._inflight,
            "pending_prefill_tokens": self._pending_prefill.tokens,
            **asdict(self._latencies.summarize(now_ns)),
            "lateness_p99_s": self._recent_lateness.quantiles(now_ns, 0.99)[0],
        }

    def _make_outcome_fields(self) -> dict[str, Any]:
        """The fields of an outcome that every load has, without its fidelity."""
        return {
            "t_start_ns": self.t_start_ns,
            "t_end_ns": self.t_end_ns,
            "t_start_unix_s": self.t_start_unix_s,
            "stop_reason": self.stop_reason,
            **asdict(self.counts),
            "retried": self._client.retried,
            "late_bodies": self._bodies.late,
            "realtime": self.realtime,
        }


def _watch_for_defect() -> asyncio.Future[None]:
    """Fails with the first exception that escapes a callback: a defective load generator must stop measuring."""
    loop = asyncio.get_running_loop()
    defect: asyncio.Future[None] = loop.create_future()

    def note_defect(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not defect.done():
            defect.set_exception(context.get("exception") or RuntimeError(context["message"]))

    loop.set_exception_handler(note_defect)
    return defect
