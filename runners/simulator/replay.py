"""A trace replayed against a simulated fleet: the load generator's own sessions, and its records."""

from __future__ import annotations

from dataclasses import dataclass, field

from results.records.schemas import RequestStatus
from results.records.turns import TurnRecord
from runners.load.replay_plan import PlannedTurn, ReplayPlan
from runners.load.sessions import Sessions
from runners.simulator.clock import HeapTimer, SimulatedClock
from runners.simulator.fleet import Fleet
from runners.trace.session import Trace


@dataclass(eq=False, slots=True)
class _Exchange:
    """One turn in flight, as its client sees it."""

    replay: SimulatedReplay
    turn: PlannedTurn
    due_ns: int
    sent_ns: int
    active: int
    first_ns: int | None = None
    instance: str = ""

    def note_first(self, instance: str) -> None:
        self.first_ns, self.instance = self.replay.clock.now_ns(), instance

    def note_end(self, instance: str, cached_tokens: int | None) -> None:
        self.instance = instance
        self.replay.end_turn(self, RequestStatus.OK, 200, cached_tokens=cached_tokens)

    def note_error(self, status: int, message: str) -> None:
        self.replay.end_turn(self, RequestStatus.ERROR, status, error=message)


@dataclass(eq=False, slots=True)
class SimulatedReplay:
    """Sends every turn when it is due, and records it when it has ended."""

    fleet: Fleet
    plan: ReplayPlan
    keys: tuple[tuple[int, ...], ...]
    """Of each turn's full blocks."""
    max_inflight_sessions: int = 0
    records: list[TurnRecord] = field(default_factory=list)
    _sessions: Sessions = field(init=False)
    _timer: HeapTimer | None = None

    @property
    def clock(self) -> SimulatedClock:
        return self.fleet.clock

    def run(self) -> None:
        """To the end of the last turn."""
        self._sessions = Sessions(self.plan, max_inflight=self.max_inflight_sessions, end_on_error=False)
        self._sessions.t_start_ns = self.clock.now_ns()
        self._arm()
        self.clock.run()
        self.fleet.ledger.settle_records(last=True)

    def _arm(self) -> None:
        due_ns = self._sessions.next_ns()
        if due_ns is None or (self._timer is not None and self._timer.at_ns <= due_ns):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.clock.call_at(max(due_ns, self.clock.now_ns()), self._send_due)

    def _send_due(self) -> None:
        self._timer = None
        while (due := self._sessions.take_due(self.clock.now_ns())) is not None:
            self._send(*due)
        self._arm()

    def _send(self, due_ns: int, turn: PlannedTurn) -> None:
        now_ns = self.clock.now_ns()
        exchange = _Exchange(self, turn, due_ns, now_ns, self._sessions.counts.active)
        self._sessions.note_sent(turn, now_ns)
        session = self.plan.sessions[turn.session].session
        tokens = (turn.recorded.input_tokens, turn.output_tokens)
        self.fleet.send(f"sim-{turn.index}", session, self.keys[turn.index], tokens, exchange)

    def end_turn(
        self,
        exchange: _Exchange,
        status: RequestStatus,
        http_status: int,
        *,
        cached_tokens: int | None = None,
        error: str | None = None,
    ) -> None:
        turn, now_ns = exchange.turn, self.clock.now_ns()
        well = status is RequestStatus.OK
        self.records.append(
            TurnRecord(
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
                request=f"sim-{turn.index}",
                session=self.plan.sessions[turn.session].session,
                agent=turn.recorded.agent,
                turn=turn.recorded.turn,
                t_due_ns=exchange.due_ns,
                reusable_any_tokens=turn.reusable_any_tokens,
                reusable_intra_tokens=turn.reusable_intra_tokens,
                inflight_sessions=exchange.active,
                instance=exchange.instance,
                session_delay_s=self._sessions.delay_ns(turn.session) / 1e9,
            )
        )
        self._sessions.note_ended(turn, now_ns, failed=not well)
        self._arm()


def list_keys(trace: Trace) -> tuple[tuple[int, ...], ...]:
    """Per turn, in the order of sessions and their turns, a key for each full block; equal keys are equal prefixes."""
    facts = trace.facts
    known: dict[tuple[int, int, int], int] = {}
    per_turn = []
    for place, session in enumerate(trace.sessions):
        scope = place + 1 if facts.hash_scope == "session" else 0
        for turn in session.turns:
            keys, above = [], 0
            for block in turn.hashes[: turn.input_tokens // facts.block_tokens]:
                above = known.setdefault((scope, above, block), len(known) + 1)
                keys.append(above)
            per_turn.append(tuple(keys))
    return tuple(per_turn)
