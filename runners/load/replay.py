"""A running replay: turns leave when what they wait for has ended and their pause is over, and every turn is recorded.

The clock, the client and the verdict on the client are those of the open loop. Bodies are built ahead in the gaps
between sends: those of the turns that come next in running sessions first, then those of sessions still to come.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import defaultdict
from dataclasses import dataclass
from time import perf_counter_ns
from urllib.parse import quote

import numpy as np

from results.records import RequestStatus
from runners.load.block_prompts import BlockShape
from runners.load.client import LoadClient
from runners.load.fidelity import FidelityLimits, WindowCounts, judge
from runners.load.live import Latencies, RecentValues
from runners.load.pacer import Pacer
from runners.load.recorder import Recorder
from runners.load.replay_plan import PlannedTurn, ReplayPlan
from runners.load.replay_spec import AnsweredBy, ReplayOutcome, ReplaySpec, ReplayTick
from runners.load.sessions import Sessions
from runners.load.stream import Exchange
from runners.load.turn_bodies import AskShape, TurnBodies
from runners.load.turn_records import sent_record, unsent_record

LEAD_NS = 50_000_000
"""From the end of all preparation to the first session."""
PREPARE_NS = 3_000_000_000
BUILD_AHEAD_PERIOD_S = 0.001
BUILD_AHEAD_NS = 100_000
"""How long one gap is used for building, one slice at least."""
_NEVER_NS = 1 << 62
_AS_IS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


@dataclass(slots=True)
class TurnCounts:
    """Since the replay began."""

    sent: int = 0
    completed: int = 0
    failed: int = 0
    cut: int = 0
    overdue: int = 0
    """Turns whose time had come when sending stopped and that had not been sent."""
    inflight_max: int = 0
    wrong_length: int = 0
    failures_in_a_row: int = 0


class Replay:
    """One running replay; the listener of all its requests."""

    def __init__(
        self, spec: ReplaySpec, plan: ReplayPlan, blocks: BlockShape, client: LoadClient, recorder: Recorder
    ) -> None:
        self.spec = spec
        self.plan = plan
        self.counts = TurnCounts()
        self.realtime = False
        self.stop_reason = ""
        self.t_start_ns = self.t_stop_ns = self.t_end_ns = 0
        self.t_start_unix_s = 0.0
        self._client = client
        self._recorder = recorder
        self._sessions = Sessions(
            plan, max_inflight=spec.max_inflight_sessions, end_on_error=spec.on_error == "end_session"
        )
        self._bodies = TurnBodies(AskShape(spec.model, spec.token_evidence, blocks), plan.turns)
        self._session_lines = [session_line(session.session) for session in plan.sessions]
        self._request_id = f"tracon-{spec.seed:x}-"
        self._pacer = Pacer(self._due)
        self._armed_ns = _NEVER_NS
        self._inflight = 0
        self._pending_prefill = 0
        self._t_first_send_ns = self._t_last_end_ns = 0
        self._lateness_ns = array("q")
        self._seen, self._late = Latencies(), RecentValues()
        self._seen_of: defaultdict[str, Latencies] = defaultdict(Latencies)
        """By the instance that answered."""
        self._building: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        """No more sends."""
        self._drained = asyncio.Event()
        self._cpu_at_start_s: float | None = None
        self._cpu_s: float | None = None

    def prepare(self) -> None:
        """Build the bodies of the first sessions, as many as find room and time; the others follow between sends."""
        for session in self.plan.sessions:
            self._bodies.expect_later(session.first)
        until_ns = perf_counter_ns() + PREPARE_NS
        while self._bodies.advance() and perf_counter_ns() < until_ns:
            pass

    def start(self) -> None:
        """Fix the time of the first session and arm the clock."""
        self._cpu_at_start_s = time.process_time()
        self.t_start_ns = self._sessions.t_start_ns = perf_counter_ns() + LEAD_NS
        self.t_start_unix_s = time.time() + LEAD_NS / 1e9
        self._arm(self.t_start_ns)

    async def closed(self) -> None:
        await self._closed.wait()

    async def drained(self) -> None:
        await self._drained.wait()

    def stop(self, reason: str, t_ns: int) -> None:
        """Send nothing more."""
        if self._closed.is_set():
            return
        self.stop_reason, self.t_stop_ns = reason, t_ns
        if self._cpu_at_start_s is not None:
            self._cpu_s = time.process_time() - self._cpu_at_start_s
        self._sessions.close()
        self._closed.set()
        if not self._inflight:
            self._drained.set()

    def finish(self) -> None:
        """Cut what is still in flight and record what was never sent; the replay is over."""
        self.t_end_ns = perf_counter_ns()
        self.stop("cancelled", self.t_end_ns)
        self._pacer.close()
        if self._building is not None:
            self._building.cancel()
        self._client.cut(self.t_end_ns)
        for turn, due_ns in self._sessions.unsent(self.t_stop_ns):
            self.counts.cut += 1
            self.counts.overdue += due_ns is not None
            self._record_unsent(turn, RequestStatus.CUT, due_ns, None)

    # the clock
    def _due(self) -> None:
        """The pacer fired: send every turn whose time has come, or close."""
        self._armed_ns = _NEVER_NS
        while not self._closed.is_set():
            now_ns = perf_counter_ns()
            if now_ns >= self._hard_stop_ns:
                self.stop("hard_stop", self._hard_stop_ns)
                return
            found = self._sessions.take(now_ns)
            if found is None:
                self._wait()
                return
            self._send(*found)

    @property
    def _hard_stop_ns(self) -> int:
        return self.t_start_ns + round(self.spec.max_duration_s * 1e9)

    def _wait(self) -> None:
        """Be woken when something is due next, and build bodies until then."""
        next_ns = self._sessions.next_ns()
        self._arm(self._hard_stop_ns if next_ns is None else min(next_ns, self._hard_stop_ns))
        self._build_ahead_soon()

    def _arm(self, t_ns: int) -> None:
        if t_ns < self._armed_ns:
            self._armed_ns = t_ns
            self._pacer.arm(t_ns)

    def _send(self, due_ns: int, turn: PlannedTurn) -> None:
        counts = self.counts
        # The exchange keeps a number in flight at the send: for a replay that of sessions.
        active = self._sessions.counts.active
        exchange = Exchange(turn.index, self, t_intended_ns=due_ns, warmup=False, inflight=active)
        body = self._bodies.take(turn.index)
        self._inflight += 1
        counts.inflight_max = max(counts.inflight_max, self._inflight)
        counts.sent += 1
        self._pending_prefill += turn.prompt.input_tokens
        self._client.send(exchange, self._name(turn), body, self._session_lines[turn.session])
        t_ns = exchange.t_send_ns
        if not self._t_first_send_ns:
            self._t_first_send_ns = t_ns
        for index in self._sessions.sent(turn, t_ns):
            self._bodies.expect(index)
        self._lateness_ns.append(t_ns - due_ns)
        self._late.add((t_ns, (t_ns - due_ns) / 1e9))

    def _name(self, turn: PlannedTurn) -> str:
        return f"{self._request_id}{turn.index}"

    # gaps between sends
    def _build_ahead_soon(self) -> None:
        if self._building is None:
            self._building = asyncio.get_running_loop().call_later(BUILD_AHEAD_PERIOD_S, self._build_ahead)

    def _build_ahead(self) -> None:
        self._building = None
        until_ns, more = perf_counter_ns() + BUILD_AHEAD_NS, not self._closed.is_set()
        while more and (more := self._bodies.advance()) and perf_counter_ns() < until_ns:
            pass
        if more:
            self._build_ahead_soon()

    # Listener
    def first_token(self, exchange: Exchange) -> None:
        self._pending_prefill -= self.plan.turns[exchange.index].prompt.input_tokens
        ttft = exchange.t_first_ns, (exchange.t_first_ns - exchange.t_send_ns) / 1e9
        self._seen.ttft.add(ttft)
        if exchange.instance:
            self._seen_of[exchange.instance].ttft.add(ttft)

    def ended(self, exchange: Exchange) -> None:
        turn = self.plan.turns[exchange.index]
        self._inflight -= 1
        self._t_last_end_ns = max(self._t_last_end_ns, exchange.t_end_ns)
        if not exchange.t_first_ns:
            self._pending_prefill -= turn.prompt.input_tokens
        self._count_end(exchange, turn)
        delay_s = self._sessions.delay_ns(turn.session) / 1e9
        self._recorder.add(sent_record(turn, self._name(turn), exchange, delay_s))
        if exchange.status is not RequestStatus.CUT:
            self._go_on(turn, exchange)
        if not self._closed.is_set():
            self._wait()
        elif not self._inflight:
            self._drained.set()

    def _go_on(self, turn: PlannedTurn, exchange: Exchange) -> None:
        """What the end of a turn means for its session."""
        failed = exchange.status is RequestStatus.ERROR
        for given_up in self._sessions.ended(turn, exchange.t_end_ns, failed=failed):
            self._bodies.forget(given_up.index)
            why = f"never sent: its session was ended when {self._name(turn)} failed"
            self._record_unsent(given_up, RequestStatus.DROPPED, None, why)
        if self._sessions.over:
            self.stop("complete", exchange.t_end_ns)

    def _record_unsent(self, turn: PlannedTurn, status: RequestStatus, due_ns: int | None, why: str | None) -> None:
        active = self._sessions.counts.active
        self._recorder.add(unsent_record(turn, self._name(turn), status, active, due_ns, why))

    def _count_end(self, exchange: Exchange, turn: PlannedTurn) -> None:
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
        asked = (turn.prompt.input_tokens, turn.output_tokens)
        counts.wrong_length += (exchange.prompt_tokens or asked[0], exchange.counted_tokens or asked[1]) != asked
        tpot_s = exchange.tpot_s
        if tpot_s is not None:
            self._seen.tpot.add((t_ns, tpot_s))
            if exchange.instance:
                self._seen_of[exchange.instance].tpot.add((t_ns, tpot_s))

    # what it says
    def tick(self, now_ns: int) -> ReplayTick:
        ttft_p50, ttft_p90, tpot_p50, tpot_p90 = self._seen.p50_p90(now_ns)
        counts, sessions, turns = self.counts, self._sessions, len(self.plan.turns)
        elapsed_s = max(0.0, (now_ns - self.t_start_ns) / 1e9)
        over = counts.completed + counts.failed + counts.cut
        return ReplayTick(
            t_ns=now_ns,
            elapsed_s=elapsed_s,
            phase="drain" if self._closed.is_set() else "replay",
            fraction=min(1.0, max(over / turns, elapsed_s / self.spec.max_duration_s)),
            turns=turns,
            sent=counts.sent,
            completed=counts.completed,
            failed=counts.failed,
            inflight=self._inflight,
            inflight_sessions=sessions.counts.active,
            waiting_sessions=sessions.waiting,
            sessions_done=sessions.counts.done,
            sessions=len(self.plan.sessions),
            pending_prefill_tokens=self._pending_prefill,
            trace_span_s=self.plan.trace_span_s if self.spec.think != "none" else 0.0,
            ttft_p50_s=ttft_p50,
            ttft_p90_s=ttft_p90,
            tpot_p50_s=tpot_p50,
            tpot_p90_s=tpot_p90,
            lateness_p99_s=self._late.quantiles(now_ns, 0.99)[0],
            instances=tuple(AnsweredBy(name, *seen.p50_p90(now_ns)) for name, seen in sorted(self._seen_of.items())),
        )

    def outcome(self) -> ReplayOutcome:
        """How it ended; only after `finish`."""
        plan, counts, sessions = self.plan, self.counts, self._sessions.counts
        wall_s = (self._t_last_end_ns - self._t_first_send_ns) / 1e9 if counts.sent else None
        amplification, reason = amplified(wall_s, plan.trace_span_s, self.stop_reason)
        return ReplayOutcome(
            t_start_ns=self.t_start_ns,
            t_stop_ns=self.t_stop_ns,
            t_end_ns=self.t_end_ns,
            t_start_unix_s=self.t_start_unix_s,
            stop_reason=self.stop_reason,
            turns=len(plan.turns),
            sent=counts.sent,
            completed=counts.completed,
            failed=counts.failed,
            cut=counts.cut,
            never_sent=len(plan.turns) - counts.sent,
            sessions=len(plan.sessions),
            sessions_done=sessions.done,
            sessions_failed=sessions.failed,
            sessions_delayed=sessions.delayed,
            session_delay_max_s=sessions.delay_max_ns / 1e9,
            inflight_sessions_max=sessions.active_max,
            inflight_max=counts.inflight_max,
            retried=self._client.retried,
            wrong_length=counts.wrong_length,
            late_bodies=self._bodies.late,
            realtime=self.realtime,
            input_tokens=sum(turn.prompt.input_tokens for turn in plan.turns),
            output_tokens=sum(turn.output_tokens for turn in plan.turns),
            reusable_any_tokens=sum(turn.reusable_any_tokens for turn in plan.turns),
            reusable_intra_tokens=sum(turn.reusable_intra_tokens for turn in plan.turns),
            trace_span_s=plan.trace_span_s,
            wall_clock_s=wall_s,
            amplification=amplification,
            amplification_reason=reason,
            fidelity=judge(
                np.array(self._lateness_ns, dtype=np.int64),
                WindowCounts(
                    scheduled=counts.sent + counts.overdue,
                    handled=counts.sent,
                    window_s=(self.t_stop_ns - self.t_start_ns) / 1e9,
                    cpu_s=self._cpu_s,
                ),
                FidelityLimits(self.spec.lateness_p99_s, self.spec.achieved_ratio, self.spec.client_cpu_share),
            ),
        )


def amplified(wall_clock_s: float | None, trace_span_s: float, stop_reason: str) -> tuple[float | None, str]:
    """wall clock / trace span, or None and why: a replay that was ended early has no wall clock of the whole trace."""
    if stop_reason != "complete" or wall_clock_s is None:
        return None, f"the replay was not completed ({stop_reason})"
    if trace_span_s <= 0:
        return None, "every turn of the trace was recorded at one moment"
    return wall_clock_s / trace_span_s, ""


def session_line(session: str) -> str:
    """The header line that carries a session's id; what may not stand in a header is percent-encoded."""
    return f"x-session-id: {quote(session, safe=_AS_IS)}\r\n"
