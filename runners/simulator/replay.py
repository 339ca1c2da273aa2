"""A trace replayed against a simulated fleet: the load generator's own sessions, and its records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import BinaryIO

import msgspec
import numpy as np

from results.records.load_specs import ReplaySpec
from results.records.schemas import RequestStatus
from results.records.turns import TurnRecord
from runners.load.driver import Counts
from runners.load.fidelity import WindowCounts, judge_fidelity
from runners.load.recent_latencies import LIVE_WINDOW_S, Latencies
from runners.load.replay import describe_replay, make_session_fields, make_turn_record
from runners.load.replay_messages import ReplayOutcome, ReplayTick
from runners.load.replay_plan import PlannedTurn, ReplayPlan, make_request_prefix
from runners.load.sessions import Sessions
from runners.load.stream import Exchange, PendingPrefill
from runners.simulator.clock import HeapTimer, SimulatedClock
from runners.simulator.fleet import Fleet, SimulatedRequest
from runners.simulator.workload import BlockKeys

SECOND_NS = 1_000_000_000


@dataclass(eq=False, slots=True, kw_only=True)
class _SimulatedExchange(Exchange):
    """One turn in flight. A model answers without a stream: what that would have held is filled in at the end."""

    clock: SimulatedClock
    requested_tokens: tuple[int, int]
    """Tokens of its prompt and of its answer."""
    timer: HeapTimer
    """Its time limit."""
    request: SimulatedRequest | None = None

    # runners.simulator.fleet.Client
    def note_first(self, instance: str) -> None:
        self.instance, self.t_first_ns = instance, self.clock.now_ns()
        self.listener.first_token(self)

    def note_end(self, instance: str, cached_tokens: int | None) -> None:
        input_tokens, output_tokens = self.requested_tokens
        self.instance, self.http_status, self.t_last_ns = instance, 200, self.clock.now_ns()
        self.prompt_tokens, self.cached_tokens = input_tokens, cached_tokens
        self.completion_tokens = self.chunks = output_tokens
        self.finish_reason, self.done_marker = "length", True
        self.complete(self.t_last_ns)

    def note_error(self, status: int, message: str) -> None:
        self.http_status = status
        self.fail(message, self.clock.now_ns())


@dataclass(eq=False, slots=True)
class SimulatedReplay:
    """Sends every turn when it is due, and records it when it has ended."""

    fleet: Fleet
    spec: ReplaySpec
    plan: ReplayPlan
    keys: BlockKeys
    file: BinaryIO
    """For the turns' records, in the order of their ends."""
    window_s: float = LIVE_WINDOW_S
    """Simulated seconds that the latencies of a tick are of."""
    counts: Counts = field(default_factory=Counts)
    stop_reason: str = "complete"
    t_stop_ns: int = 0
    _inflight_max: int = 0
    _t_first_send_ns: int = 0
    _t_last_end_ns: int = 0
    _sessions: Sessions = field(init=False)
    _inflight: dict[int, _SimulatedExchange] = field(default_factory=dict)
    """By index of the turn, in the order of their sends."""
    _pending_prefill: PendingPrefill = field(default_factory=PendingPrefill)
    _timer: HeapTimer | None = None
    _encode: Callable[[TurnRecord], bytes] = msgspec.json.Encoder().encode
    _latencies: Latencies = field(init=False)
    _latencies_of: defaultdict[str, Latencies] = field(init=False)
    """By the instance that answered."""

    def __post_init__(self) -> None:
        self._latencies = Latencies(self.window_s)
        self._latencies_of = defaultdict(lambda: Latencies(self.window_s))

    @property
    def clock(self) -> SimulatedClock:
        return self.fleet.clock

    def run(self, on_second: Callable[[], None]) -> None:
        """To the end of the last turn or the hard stop; `on_second` is called in every simulated second."""
        spec, begin_ns = self.spec, self.clock.now_ns()
        self._sessions = Sessions(
            self.plan, max_inflight=spec.max_inflight_sessions, end_on_error=spec.on_error == "end_session"
        )
        self._sessions.t_start_ns = begin_ns
        self._arm_timer()
        self._pass_time(begin_ns + round(spec.max_duration_s * SECOND_NS), on_second)
        if not self._sessions.is_over:
            self.stop_reason, self.t_stop_ns = "hard_stop", self.clock.now_ns()
            self._sessions.close()
            self._pass_time(self.t_stop_ns + round(spec.drain_s * SECOND_NS), on_second)
            self._cut_rest()
        self.fleet.ledger.settle_records(last=True)

    def _pass_time(self, until_ns: int, on_second: Callable[[], None]) -> None:
        """Until that time, or until nothing is left to wait for."""
        while self.clock.now_ns() < until_ns and not self._sessions.is_over:
            if self.stop_reason != "complete" and not self._inflight:
                return
            self.clock.run(min(until_ns, self.clock.now_ns() + SECOND_NS))
            on_second()

    def _cut_rest(self) -> None:
        now_ns = self.clock.now_ns()
        for exchange in tuple(self._inflight.values()):
            assert exchange.request is not None
            exchange.request.drop_request("the replay was ended")
            exchange.cut(now_ns)
        for turn, due_ns in self._sessions.list_unsent(now_ns):
            self.counts.cut += 1
            self._record_unsent(turn, RequestStatus.CUT, due_ns, None)

    def _arm_timer(self) -> None:
        due_ns = self._sessions.next_ns()
        if due_ns is None or (self._timer is not None and self._timer.at_ns <= due_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.clock.call_at(max(due_ns, self.clock.now_ns()), self._send_due)

    def _send_due(self) -> None:
        self._timer = None
        if self.t_stop_ns:
            return
        while (due := self._sessions.take_due(self.clock.now_ns())) is not None:
            self._send(*due)
        self._arm_timer()

    def _send(self, due_ns: int, turn: PlannedTurn) -> None:
        now_ns = self.clock.now_ns()
        tokens = (turn.recorded.input_tokens, turn.output_tokens)
        self._inflight[turn.index] = exchange = _SimulatedExchange(
            turn.index,
            self,
            due_ns,
            inflight_at_send=self._sessions.counts.active,
            t_send_ns=now_ns,
            clock=self.clock,
            requested_tokens=tokens,
            timer=self.clock.call_later(self.spec.request_timeout_s, lambda: self._time_out(turn.index)),
        )
        self.counts.sent += 1
        self._pending_prefill.add_sent(tokens[0])
        self._inflight_max = max(self._inflight_max, len(self._inflight))
        self._t_first_send_ns = self._t_first_send_ns or now_ns
        self._sessions.note_sent(turn, now_ns)
        session = self.plan.sessions[turn.session].session
        exchange.request = self.fleet.send(self._name_turn(turn), session, self.keys[turn.index], tokens, exchange)

    def _name_turn(self, turn: PlannedTurn) -> str:
        return f"{make_request_prefix(self.spec.seed)}{turn.index}"

    def _time_out(self, index: int) -> None:
        exchange = self._inflight[index]
        assert exchange.request is not None
        exchange.request.drop_request("the client left")
        why = f"timed out: not finished {self.spec.request_timeout_s:g} s after the send"
        exchange.fail(why, self.clock.now_ns())

    # runners.load.stream.Listener
    def first_token(self, exchange: Exchange) -> None:
        self._pending_prefill.remove_started(self.plan.turns[exchange.index].recorded.input_tokens)
        ttft_s = exchange.ttft_s
        assert ttft_s is not None
        for latencies in (self._latencies, self._latencies_of[exchange.instance]):
            latencies.ttft.add((exchange.t_first_ns, ttft_s))

    def ended(self, exchange: Exchange) -> None:
        turn, counts, status = self.plan.turns[exchange.index], self.counts, exchange.status
        self._inflight.pop(exchange.index).timer.cancel()
        self._pending_prefill.remove_ended(exchange, turn.recorded.input_tokens)
        counts.completed += status is RequestStatus.OK
        counts.failed += status is RequestStatus.ERROR
        counts.cut += status is RequestStatus.CUT
        self._t_last_end_ns = exchange.t_end_ns
        self._record_turn(exchange)
        if status is RequestStatus.OK:  # a turn that ended early has fewer tokens than it asked for
            self._note_tpot(exchange)
        if status is RequestStatus.CUT:
            return
        for dropped in self._sessions.note_ended(turn, exchange.t_end_ns, failed=status is RequestStatus.ERROR):
            why = f"never sent: its session was ended when {self._name_turn(turn)} failed"
            self._record_unsent(dropped, RequestStatus.DROPPED, None, why)
        if self._sessions.is_over:
            self.t_stop_ns = self.t_stop_ns or exchange.t_end_ns
        self._arm_timer()

    def _note_tpot(self, exchange: Exchange) -> None:
        tpot_s = exchange.tpot_s
        if tpot_s is not None:
            for latencies in (self._latencies, self._latencies_of[exchange.instance]):
                latencies.tpot.add((exchange.t_end_ns, tpot_s))

    def _record_unsent(self, turn: PlannedTurn, status: RequestStatus, due_ns: int | None, why: str | None) -> None:
        active = self._sessions.counts.active
        self._record_turn(Exchange(turn.index, self, due_ns or 0, inflight_at_send=active, status=status, error=why))

    def _record_turn(self, exchange: Exchange) -> None:
        turn = self.plan.turns[exchange.index]
        delay_s = self._sessions.measure_delay_ns(turn.session) / 1e9
        record = make_turn_record(self.plan, exchange, self._name_turn(turn), delay_s, simulated=True)
        self.file.write(self._encode(record) + b"\n")

    def tick(self) -> ReplayTick:
        """As a running replay sends them; times are the clock's."""
        counts, sessions, now_ns = self.counts, self._sessions, self.clock.now_ns()
        turns = len(self.plan.turns)
        return ReplayTick(
            t_ns=now_ns,
            elapsed_s=(now_ns - sessions.t_start_ns) / 1e9,
            phase="drain" if self.t_stop_ns else "replay",
            fraction=min(1.0, (counts.completed + counts.failed + counts.cut) / turns),
            sent=counts.sent,
            completed=counts.completed,
            failed=counts.failed,
            inflight=len(self._inflight),
            pending_prefill_tokens=self._pending_prefill.tokens,
            **asdict(self._latencies.summarize(now_ns)),
            **make_session_fields(self.plan, self.spec, self._sessions, self._latencies_of, now_ns),
        )

    def make_outcome(self) -> ReplayOutcome:
        """A simulated client is never late, and its schedule costs no simulated time."""
        sent, begin_ns = self.counts.sent, self._sessions.t_start_ns
        wall_s = (self._t_last_end_ns - self._t_first_send_ns) / 1e9 if sent else None
        window = WindowCounts(sent, sent, (self.t_stop_ns - begin_ns) / 1e9, None)
        return ReplayOutcome(
            t_start_ns=begin_ns,
            t_stop_ns=self.t_stop_ns,
            t_end_ns=self._t_last_end_ns,
            t_start_unix_s=begin_ns / 1e9,
            stop_reason=self.stop_reason,
            **asdict(self.counts),
            retried=0,
            late_bodies=0,
            realtime=False,
            inflight_max=self._inflight_max,
            **describe_replay(self.plan, self._sessions.counts, sent, wall_s, self.stop_reason),
            fidelity=judge_fidelity(np.zeros(sent, dtype=np.int64), window, self.spec),
        )
