"""One running cell: which arrival is next, what is in flight, when it has enough, what it says and how it ended."""

from __future__ import annotations

import asyncio
import time
from array import array
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from results.records import RequestRecord, RequestStatus
from runners.load.client import LoadClient
from runners.load.fidelity import FidelityLimits, WindowCounts, judge
from runners.load.live import RecentValues
from runners.load.pacer import Pacer
from runners.load.prompts import Bodies, BodyShape
from runners.load.recorder import Recorder
from runners.load.schedule import offsets_ns
from runners.load.spec import LoadOutcome, LoadSpec, LoadTick
from runners.load.stream import Exchange

LEAD_NS = 50_000_000
"""From the end of all preparation to the first arrival."""
BUILD_AHEAD_PERIOD_S = 0.001


@dataclass(slots=True)
class Counts:
    """Since the cell began."""

    sent: int = 0
    completed: int = 0
    failed: int = 0
    dropped: int = 0
    cut: int = 0
    completed_measured: int = 0
    """Completions of requests due inside the window: what min_completed asks for."""
    wrong_length: int = 0
    failures_in_a_row: int = 0


@dataclass(frozen=True, slots=True)
class ChunkStamps:
    """A row of the chunks file."""

    index: int
    t_ns: list[int]
    """One per chunk that carried a token."""


class Cell:
    """One running cell; the listener of all its requests."""

    def __init__(self, spec: LoadSpec, client: LoadClient, recorder: Recorder, chunks: Recorder | None) -> None:
        self.spec = spec
        self.counts = Counts()
        self._client = client
        self._recorder = recorder
        self._chunks = chunks
        self._offsets: list[int] = offsets_ns(
            spec.arrival,
            rate_per_s=spec.rate_per_s,
            warmup_s=spec.warmup_s,
            window_s=spec.expected_window_s,
            horizon_s=spec.horizon_s,
            seed=spec.seed,
            cell_index=spec.cell_index,
        ).tolist()
        self._bodies = Bodies(body_shape(spec), len(self._offsets))
        self._request_id = f"tracon-{spec.seed:x}-{spec.cell_index}-"
        self._pacer = Pacer(self._due)
        self._next = 0
        """Index of the next arrival."""
        self._inflight = 0
        self._pending_prefill = 0
        self._lateness_ns = array("q")
        """Of every arrival scheduled inside the window."""
        self._completed_ns = array("q")
        self._ttft, self._tpot, self._late = RecentValues(), RecentValues(), RecentValues()
        self._building: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        """No more sends."""
        self._drained = asyncio.Event()
        self.realtime = False
        self.stop_reason = ""
        self.t_start_ns = self.t_window_start_ns = self.t_window_end_ns = self.t_end_ns = 0
        self.t_start_unix_s = 0.0
        self._cpu_at_window_s: float | None = None
        self._cpu_window_s: float | None = None

    def prepare(self) -> None:
        """Everything that can be made before the first send."""
        spec = self.spec
        self._bodies.prepare(int((spec.warmup_s + spec.expected_window_s) * spec.rate_per_s) + 1)

    def start(self) -> None:
        """Fix the time of the first arrival and arm the clock."""
        self.t_start_ns = perf_counter_ns() + LEAD_NS
        self.t_start_unix_s = time.time() + LEAD_NS / 1e9
        self.t_window_start_ns = self.t_start_ns + round(self.spec.warmup_s * 1e9)
        self._pacer.arm(self._arrival_ns(0))

    async def closed(self) -> None:
        await self._closed.wait()

    async def drained(self) -> None:
        await self._drained.wait()

    def stop(self, reason: str, t_ns: int) -> None:
        """Send nothing more; the window ends at `t_ns`."""
        if self._closed.is_set():
            return
        self.stop_reason, self.t_window_end_ns = reason, max(t_ns, self.t_window_start_ns)
        if self._cpu_at_window_s is not None:
            self._cpu_window_s = time.process_time() - self._cpu_at_window_s
        self._closed.set()
        if not self._inflight:
            self._drained.set()

    def finish(self) -> None:
        """Cut what is still in flight; the cell is over."""
        self.t_end_ns = perf_counter_ns()
        self.stop("cancelled", self.t_end_ns)
        self._pacer.close()
        if self._building is not None:
            self._building.cancel()
        self._client.cut(self.t_end_ns)

    # the clock
    def _due(self) -> None:
        """The pacer fired: handle every arrival whose time has come, or close the window."""
        while not self._closed.is_set():
            due_ns = self._arrival_ns(self._next)
            if due_ns > perf_counter_ns():
                self._pacer.arm(due_ns)
                self._build_ahead_soon()
                return
            if self._enough(due_ns):
                self.stop("complete", due_ns)
            elif self._next >= len(self._offsets):
                self.stop("hard_stop", due_ns)
            else:
                self._handle(self._next, due_ns)
                self._next += 1

    def _arrival_ns(self, index: int) -> int:
        """Time of an arrival; after the last one, of the hard stop."""
        if index < len(self._offsets):
            return self.t_start_ns + self._offsets[index]
        return self.t_start_ns + round(self.spec.horizon_s * 1e9)

    def _enough(self, now_ns: int) -> bool:
        long_enough = now_ns >= self.t_window_start_ns + round(self.spec.min_duration_s * 1e9)
        return long_enough and self.counts.completed_measured >= self.spec.min_completed

    def _handle(self, index: int, due_ns: int) -> None:
        warmup = due_ns < self.t_window_start_ns
        if not warmup and self._cpu_at_window_s is None:
            self._cpu_at_window_s = time.process_time()
        if self._inflight >= self.spec.inflight_cap:
            now_ns = perf_counter_ns()
            self._drop(index, due_ns, warmup)
        else:
            now_ns = self._send(index, due_ns, warmup)
        self._late.add((now_ns, (now_ns - due_ns) / 1e9))
        if not warmup:
            self._lateness_ns.append(now_ns - due_ns)

    def _send(self, index: int, due_ns: int, warmup: bool) -> int:
        body = self._bodies.take(index)
        exchange = Exchange(
            index, self, t_intended_ns=due_ns, warmup=warmup, inflight=self._inflight, stamps=self._chunks is not None
        )
        self._inflight += 1
        self._pending_prefill += self.spec.input_tokens
        self.counts.sent += 1
        self._client.send(exchange, f"{self._request_id}{index}", body)
        return exchange.t_send_ns

    def _drop(self, index: int, due_ns: int, warmup: bool) -> None:
        self._bodies.skip(index)
        self.counts.dropped += 1
        self._recorder.add(_dropped(self.spec, index, due_ns, warmup, self._inflight))

    # gaps between sends
    def _build_ahead_soon(self) -> None:
        if self._building is None:
            self._building = asyncio.get_running_loop().call_later(BUILD_AHEAD_PERIOD_S, self._build_ahead)

    def _build_ahead(self) -> None:
        self._building = None
        if not self._closed.is_set() and self._bodies.advance():
            self._build_ahead_soon()

    # Listener
    def first_token(self, exchange: Exchange) -> None:
        self._pending_prefill -= self.spec.input_tokens
        self._ttft.add((exchange.t_first_ns, (exchange.t_first_ns - exchange.t_send_ns) / 1e9))

    def ended(self, exchange: Exchange) -> None:
        self._inflight -= 1
        if not exchange.t_first_ns:
            self._pending_prefill -= self.spec.input_tokens
        self._count_end(exchange)
        self._recorder.add(exchange.record(self.spec.input_tokens, self.spec.output_tokens))
        if self._chunks is not None and exchange.stamps is not None:
            self._chunks.add(ChunkStamps(exchange.index, exchange.stamps.tolist()))
        if self._closed.is_set() and not self._inflight:
            self._drained.set()

    def _count_end(self, exchange: Exchange) -> None:
        counts, t_ns = self.counts, exchange.t_end_ns
        if exchange.status is RequestStatus.CUT:
            counts.cut += 1
            return
        if exchange.status is RequestStatus.ERROR:
            counts.failed += 1
            counts.failures_in_a_row += 1
            if 0 < self.spec.max_failures_in_a_row <= counts.failures_in_a_row:
                self.stop("failing", t_ns)
            return
        counts.completed += 1
        counts.failures_in_a_row = 0
        counts.completed_measured += not exchange.warmup
        self._completed_ns.append(t_ns)
        asked = (self.spec.input_tokens, self.spec.output_tokens)
        counts.wrong_length += (exchange.prompt_tokens or asked[0], exchange.counted_tokens or asked[1]) != asked
        tpot_s = exchange.tpot_s
        if tpot_s is not None:
            self._tpot.add((t_ns, tpot_s))

    # what it says
    def tick(self, now_ns: int) -> LoadTick:
        ttft_p50, ttft_p90 = self._ttft.quantiles(now_ns, 0.5, 0.9)
        tpot_p50, tpot_p90 = self._tpot.quantiles(now_ns, 0.5, 0.9)
        counts = self.counts
        phase = "warmup" if now_ns < self.t_window_start_ns else "drain" if self._closed.is_set() else "measure"
        return LoadTick(
            t_ns=now_ns,
            elapsed_s=max(0.0, (now_ns - self.t_start_ns) / 1e9),
            phase=phase,
            fraction=self._fraction(now_ns),
            sent=counts.sent,
            completed=counts.completed,
            failed=counts.failed,
            dropped=counts.dropped,
            inflight=self._inflight,
            pending_prefill_tokens=self._pending_prefill,
            ttft_p50_s=ttft_p50,
            ttft_p90_s=ttft_p90,
            tpot_p50_s=tpot_p50,
            tpot_p90_s=tpot_p90,
            lateness_p99_s=self._late.quantiles(now_ns, 0.99)[0],
        )

    def outcome(self) -> LoadOutcome:
        spec, counts = self.spec, self.counts
        begin, end = self.t_window_start_ns - self.t_start_ns, self.t_window_end_ns - self.t_start_ns
        scheduled = sum(1 for offset in self._offsets if begin <= offset < end)
        lateness = np.array(self._lateness_ns, dtype=np.int64)[:scheduled]
        due = np.array([offset for offset in self._offsets if begin <= offset < end][: len(lateness)], dtype=np.int64)
        handled = int(np.count_nonzero(due + lateness <= end))
        window = WindowCounts(scheduled, handled, (end - begin) / 1e9, self._cpu_window_s)
        limits = FidelityLimits(spec.lateness_p99_s, spec.achieved_ratio, spec.client_cpu_share)
        return LoadOutcome(
            t_start_ns=self.t_start_ns,
            t_window_start_ns=self.t_window_start_ns,
            t_window_end_ns=self.t_window_end_ns,
            t_end_ns=self.t_end_ns,
            t_start_unix_s=self.t_start_unix_s,
            stop_reason=self.stop_reason,
            sent=counts.sent,
            completed=counts.completed,
            failed=counts.failed,
            dropped=counts.dropped,
            cut=counts.cut,
            completed_in_window=sum(self.t_window_start_ns <= t < self.t_window_end_ns for t in self._completed_ns),
            retried=self._client.retried,
            wrong_length=counts.wrong_length,
            late_bodies=self._bodies.late,
            realtime=self.realtime,
            fidelity=judge(lateness, window, limits),
        )

    def _fraction(self, now_ns: int) -> float:
        spec = self.spec
        total_s = spec.warmup_s + spec.expected_window_s
        elapsed_s = (now_ns - self.t_start_ns) / 1e9
        done_s = min(elapsed_s, total_s)
        if elapsed_s > spec.warmup_s and spec.min_completed:
            share = min(1.0, self.counts.completed_measured / spec.min_completed)
            done_s = min(done_s, spec.warmup_s + share * spec.expected_window_s)
        return min(1.0, max(0.0, done_s / total_s, elapsed_s / spec.horizon_s))


def body_shape(spec: LoadSpec) -> BodyShape:
    return BodyShape(
        model=spec.model,
        output_tokens=spec.output_tokens,
        input_tokens=spec.input_tokens,
        seed=spec.seed,
        cell_index=spec.cell_index,
        low=spec.vocab_low,
        high=spec.vocab_high,
        evidence=spec.token_evidence,
    )


def _dropped(spec: LoadSpec, index: int, due_ns: int, warmup: bool, inflight: int) -> RequestRecord:
    return RequestRecord(
        index=index,
        status=RequestStatus.DROPPED,
        warmup=warmup,
        t_intended_ns=due_ns,
        t_send_ns=None,
        t_first_token_ns=None,
        t_last_token_ns=None,
        t_end_ns=None,
        input_tokens=spec.input_tokens,
        output_tokens=spec.output_tokens,
        prompt_tokens=None,
        completion_tokens=None,
        cached_tokens=None,
        chunks=0,
        inflight_at_send=inflight,
    )
