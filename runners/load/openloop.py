"""An open-loop cell: requests leave at their scheduled times whatever the engine does, until the cell has enough.

The cap on requests in flight drops and counts, it never blocks. The window begins when the warm-up ends and closes at
the scheduled time of the first arrival at which both the minimum duration and the minimum completions are met, or at
the hard stop. Requests sent before that get `drain_s` to finish, so that the sample includes the slow ones; what is
still open then is CUT.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns

import numpy as np

from results.records.load_specs import LoadSpec
from results.records.schemas import RequestStatus
from runners.load.driver import LoadDriver
from runners.load.fidelity import WindowCounts, judge_fidelity
from runners.load.messages import LoadError, LoadOutcome, LoadTick
from runners.load.process_settings import allow_connections
from runners.load.prompts import BodyShape, build_bodies
from runners.load.recorder import Recorder
from runners.load.schedule import make_offsets_ns
from runners.load.stream import Exchange
from runners.target import Target, resolve_target


async def run_cell(spec: LoadSpec, on_tick: Callable[[LoadTick], None], cut: asyncio.Event) -> LoadOutcome:
    """Run the cell in this process, on this event loop, and write its records.

    `cut` ends it early: what is in flight is recorded as CUT. Raises LoadError where nothing can be measured.
    """
    allow_connections(spec.inflight_cap + spec.spare_connections, "lower inflight_cap")
    return await Cell(spec, await resolve_target(spec.url, LoadError)).run(on_tick, cut)


@dataclass(frozen=True, slots=True)
class ChunkStamps:
    """A row of the chunks file."""

    index: int
    t_ns: list[int]
    """One per chunk that carried a token."""


class Cell(LoadDriver[LoadTick, LoadOutcome]):
    """One running cell."""

    def __init__(self, spec: LoadSpec, target: Target) -> None:
        self.spec = spec
        self._offsets: list[int] = make_offsets_ns(
            spec.arrival,
            rate_per_s=spec.rate_per_s,
            warmup_s=spec.warmup_s,
            window_s=spec.expected_window_s,
            horizon_s=spec.horizon_s,
            seed=spec.seed,
            cell_index=spec.cell_index,
        ).tolist()
        self._request_id = f"tracon-{spec.seed:x}-{spec.cell_index}-"
        self._next = 0
        """Index of the next arrival."""
        self._completed_ns = array("q")
        self.t_window_start_ns = 0
        self._dropped = 0
        self._completed_measured = 0
        """Completions of requests due inside the window: what min_completed asks for."""
        super().__init__(spec, target, build_bodies(make_body_shape(spec), len(self._offsets)))
        self._chunks = Recorder(Path(spec.chunks_path)) if spec.chunks_path else None
        if self._chunks is not None:
            self._recorders.append(self._chunks)

    @property
    def t_window_end_ns(self) -> int:
        """When sending stopped; 0 before."""
        return max(self.t_stop_ns, self.t_window_start_ns) if self._closed.is_set() else 0

    def prepare(self) -> None:
        spec = self.spec
        self._bodies.build_first(int((spec.warmup_s + spec.expected_window_s) * spec.rate_per_s) + 1)

    def start(self) -> None:
        self._start_clock()
        self.t_window_start_ns = self.t_start_ns + round(self.spec.warmup_s * 1e9)
        self._pacer.arm(self._find_arrival_ns(0))

    # the clock
    def _send_due(self) -> None:
        """The pacer fired: handle every arrival whose time has come, or close the window."""
        while not self._closed.is_set():
            due_ns = self._find_arrival_ns(self._next)
            if due_ns > perf_counter_ns():
                self._pacer.arm(due_ns)
                self._build_ahead_soon()
                return
            if self._has_enough(due_ns):
                self.stop("complete", due_ns)
            elif self._next >= len(self._offsets):
                self.stop("hard_stop", due_ns)
            else:
                self._handle_arrival(self._next, due_ns)
                self._next += 1

    def _find_arrival_ns(self, index: int) -> int:
        """Time of an arrival; after the last one, of the hard stop."""
        if index < len(self._offsets):
            return self.t_start_ns + self._offsets[index]
        return self.t_start_ns + round(self.spec.horizon_s * 1e9)

    def _has_enough(self, now_ns: int) -> bool:
        long_enough = now_ns >= self.t_window_start_ns + round(self.spec.min_duration_s * 1e9)
        return long_enough and self._completed_measured >= self.spec.min_completed

    def _handle_arrival(self, index: int, due_ns: int) -> None:
        warmup = due_ns < self.t_window_start_ns
        if not warmup and self._cpu_begin_s is None:
            self._cpu_begin_s = time.process_time()
        if self._inflight >= self.spec.inflight_cap:
            now_ns = perf_counter_ns()
            self._drop_request(index, due_ns, warmup)
        else:
            now_ns = self._send_request(index, due_ns, warmup)
        self._recent_lateness.add((now_ns, (now_ns - due_ns) / 1e9))
        if not warmup:
            self._lateness_ns.append(now_ns - due_ns)

    def _send_request(self, index: int, due_ns: int, warmup: bool) -> int:
        body = self._bodies.take_body(index)
        stamps = None if self._chunks is None else array("q")
        exchange = Exchange(index, self, due_ns, warmup, self._inflight, stamps)
        self._count_send(self.spec.input_tokens)
        self._client.send(exchange, f"{self._request_id}{index}", body)
        return exchange.t_send_ns

    def _drop_request(self, index: int, due_ns: int, warmup: bool) -> None:
        self._bodies.drop_body(index)
        self._dropped += 1
        dropped = Exchange(index, self, due_ns, warmup, self._inflight, status=RequestStatus.DROPPED)
        self._recorder.add(dropped.record(self.spec.input_tokens, self.spec.output_tokens))

    def _count_requested_tokens(self, exchange: Exchange) -> tuple[int, int]:
        return self.spec.input_tokens, self.spec.output_tokens

    def _on_end(self, exchange: Exchange) -> None:
        if exchange.status is RequestStatus.OK:
            self._completed_measured += not exchange.warmup
            self._completed_ns.append(exchange.t_end_ns)
        self._recorder.add(exchange.record(self.spec.input_tokens, self.spec.output_tokens))
        if self._chunks is not None and exchange.stamps is not None:
            self._chunks.add(ChunkStamps(exchange.index, exchange.stamps.tolist()))

    def tick(self, now_ns: int) -> LoadTick:
        phase = "warmup" if now_ns < self.t_window_start_ns else "drain" if self._closed.is_set() else "measure"
        return LoadTick(
            **self._make_tick_fields(now_ns),
            phase=phase,
            fraction=self._compute_fraction(now_ns),
            dropped=self._dropped,
        )

    def outcome(self) -> LoadOutcome:
        begin, end = self.t_window_start_ns - self.t_start_ns, self.t_window_end_ns - self.t_start_ns
        due = np.array([offset for offset in self._offsets if begin <= offset < end], dtype=np.int64)
        lateness = np.array(self._lateness_ns, dtype=np.int64)[: len(due)]
        handled = int(np.count_nonzero(due[: len(lateness)] + lateness <= end))
        return LoadOutcome(
            **self._make_outcome_fields(),
            t_window_start_ns=self.t_window_start_ns,
            t_window_end_ns=self.t_window_end_ns,
            dropped=self._dropped,
            completed_in_window=sum(self.t_window_start_ns <= t < self.t_window_end_ns for t in self._completed_ns),
            fidelity=judge_fidelity(
                lateness, WindowCounts(len(due), handled, (end - begin) / 1e9, self._cpu_s), self.spec
            ),
        )

    def _compute_fraction(self, now_ns: int) -> float:
        spec = self.spec
        total_s = spec.warmup_s + spec.expected_window_s
        elapsed_s = (now_ns - self.t_start_ns) / 1e9
        done_s = min(elapsed_s, total_s)
        if elapsed_s > spec.warmup_s and spec.min_completed:
            share = min(1.0, self._completed_measured / spec.min_completed)
            done_s = min(done_s, spec.warmup_s + share * spec.expected_window_s)
        return min(1.0, max(0.0, done_s / total_s, elapsed_s / spec.horizon_s))


def make_body_shape(spec: LoadSpec) -> BodyShape:
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
