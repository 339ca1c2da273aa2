"""A trace replayed against a simulated fleet: the load generator's own sessions, and its records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import BinaryIO

import msgspec
import numpy as np

from results.measures.latency import TPOT, TTFT
from results.records.schemas import RequestStatus
from results.records.turns import TurnRecord
from runners.load.driver import Counts
from runners.load.fidelity import WindowCounts, judge_fidelity
from runners.load.recent_latencies import LIVE_WINDOW_S, Latencies
from runners.load.replay import describe_replay, make_turn_record, make_unsent_record, session_fields
from runners.load.replay_plan import PlannedTurn, ReplayPlan, request_prefix
from runners.load.replay_spec import ReplayOutcome, ReplaySpec, ReplayTick
from runners.load.sessions import Sessions
from runners.simulator.clock import HeapTimer, SimulatedClock
from runners.simulator.fleet import Fleet, SimulatedRequest
from runners.simulator.workload import BlockKeys

SECOND_NS = 1_000_000_000


@dataclass(eq=False, slots=True)
class _Exchange:
    """One turn in flight, as its client sees it."""

    replay: SimulatedReplay
    turn: PlannedTurn
    due_ns: int
    sent_ns: int
    active: int
    timer: HeapTimer
    """Its time limit."""
    request: SimulatedRequest | None = None
    first_ns: int | None = None
    instance: str = ""

    def note_first(self, instance: str) -> None:
        self.first_ns, self.instance = self.replay.clock.now_ns(), instance
        self.replay.note_first(self)

    def note_end(self, instance: str, cached_tokens: int | None) -> None:
        self.instance = instance
        self.replay.end_turn(self, RequestStatus.OK, 200, cached_tokens=cached_tokens)

    def note_error(self, status: int, message: str) -> None:
        self.replay.end_turn(self, RequestStatus.ERROR, status, error=message)


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
    _inflight: dict[int, _Exchange] = field(default_factory=dict)
    """By index of the turn, in the order of their sends."""
    _timer: HeapTimer | None = None
    _encode: Callable[[TurnRecord], bytes] = msgspec.json.Encoder().encode
    _seen: Latencies = field(init=False)
    _seen_of: defaultdict[str, Latencies] = field(init=False)

    def __post_init__(self) -> None:
        self._seen = Latencies(self.window_s)
        self._seen_of = defaultdict(lambda: Latencies(self.window_s))

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
        self._arm()
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
            self.end_turn(exchange, RequestStatus.CUT, None)
        for turn, due_ns in self._sessions.list_unsent(now_ns):
            self.counts.cut += 1
            self._record_unsent(turn, RequestStatus.CUT, due_ns, None)

    def _arm(self) -> None:
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
        self._arm()

    def _send(self, due_ns: int, turn: PlannedTurn) -> None:
        now_ns = self.clock.now_ns()
        timer = self.clock.call_later(self.spec.request_timeout_s, lambda: self._time_out(turn.index))
        exchange = _Exchange(self, turn, due_ns, now_ns, self._sessions.counts.active, timer)
        self._inflight[turn.index] = exchange
        self.counts.sent += 1
        self._inflight_max = max(self._inflight_max, len(self._inflight))
        self._t_first_send_ns = self._t_first_send_ns or now_ns
        self._sessions.note_sent(turn, now_ns)
        session = self.plan.sessions[turn.session].session
        tokens = (turn.recorded.input_tokens, turn.output_tokens)
        exchange.request = self.fleet.send(self._name_turn(turn), session, self.keys[turn.index], tokens, exchange)

    def _name_turn(self, turn: PlannedTurn) -> str:
        return f"{request_prefix(self.spec.seed)}{turn.index}"

    def _time_out(self, index: int) -> None:
        exchange = self._inflight[index]
        assert exchange.request is not None
        exchange.request.drop_request("the client left")
        why = f"timed out: not finished {self.spec.request_timeout_s:g} s after the send"
        self.end_turn(exchange, RequestStatus.ERROR, None, error=why)

    def note_first(self, exchange: _Exchange) -> None:
        now_ns = self.clock.now_ns()
        ttft_s = TTFT.value(exchange.sent_ns, now_ns)
        assert ttft_s is not None
        for seen in (self._seen, self._seen_of[exchange.instance]):
            seen.ttft.add((now_ns, ttft_s))

    def end_turn(
        self,
        exchange: _Exchange,
        status: RequestStatus,
        http_status: int | None,
        *,
        cached_tokens: int | None = None,
        error: str | None = None,
    ) -> None:
        turn, now_ns, counts = exchange.turn, self.clock.now_ns(), self.counts
        well = status is RequestStatus.OK
        exchange.timer.cancel()
        del self._inflight[turn.index]
        counts.completed += well
        counts.failed += status is RequestStatus.ERROR
        counts.cut += status is RequestStatus.CUT
        self._t_last_end_ns = now_ns
        record = make_turn_record(
            self.plan,
            turn,
            self._name_turn(turn),
            index=turn.index,
            status=status,
            t_send_ns=exchange.sent_ns,
            t_first_token_ns=exchange.first_ns,
            t_last_token_ns=now_ns if well else None,
            t_end_ns=now_ns,
            input_tokens=turn.recorded.input_tokens,
            output_tokens=turn.output_tokens,
            prompt_tokens=turn.recorded.input_tokens if well else None,
            completion_tokens=turn.output_tokens if well else None,
            cached_tokens=cached_tokens,
            chunks=turn.output_tokens if well else 0,
            http_status=http_status,
            finish_reason="length" if well else None,
            error=error,
            t_due_ns=exchange.due_ns,
            inflight_sessions=exchange.active,
            instance=exchange.instance,
            session_delay_s=self._sessions.delay_ns(turn.session) / 1e9,
            simulated=True,
        )
        self._write_record(record)
        if well:  # a turn that ended early has fewer tokens than it asked for
            self._note_tpot(exchange, now_ns)
        if status is RequestStatus.CUT:
            return
        for given_up in self._sessions.note_ended(turn, now_ns, failed=not well):
            why = f"never sent: its session was ended when {record.request} failed"
            self._record_unsent(given_up, RequestStatus.DROPPED, None, why)
        if self._sessions.is_over:
            self.t_stop_ns = self.t_stop_ns or now_ns
        self._arm()

    def _note_tpot(self, exchange: _Exchange, now_ns: int) -> None:
        tpot_s = TPOT.value(exchange.first_ns, now_ns, exchange.turn.output_tokens)
        if tpot_s is not None:
            for seen in (self._seen, self._seen_of[exchange.instance]):
                seen.tpot.add((now_ns, tpot_s))

    def _record_unsent(self, turn: PlannedTurn, status: RequestStatus, due_ns: int | None, why: str | None) -> None:
        active = self._sessions.counts.active
        record = make_unsent_record(self.plan, turn, self._name_turn(turn), status, due_ns, active, why)
        self._write_record(replace(record, simulated=True))

    def _write_record(self, record: TurnRecord) -> None:
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
            pending_prefill_tokens=sum(
                one.turn.recorded.input_tokens for one in self._inflight.values() if one.first_ns is None
            ),
            **asdict(self._seen.summarize(now_ns)),
            **session_fields(self.plan, self.spec, self._sessions, self._seen_of, now_ns),
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
            fidelity=judge_fidelity(np.zeros(sent, dtype=np.int64), window, self.spec.limits),
        )
