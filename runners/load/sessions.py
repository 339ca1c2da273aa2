"""Which turn may leave when: the sessions of a running replay. It reads no clock: events come with times."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from enum import IntEnum

from runners.load.replay_plan import FROM_END, PlannedTurn, ReplayPlan


class TurnState(IntEnum):
    PENDING = 0
    SENT = 1
    OVER = 2
    """It has ended, or will never be sent."""


@dataclass(slots=True)
class SessionCounts:
    """Since the replay began."""

    active: int = 0
    """Begun and not over."""
    active_max: int = 0
    done: int = 0
    failed: int = 0
    delayed: int = 0
    delay_max_ns: int = 0


class Sessions:
    """The closed loop within each session and the open arrival of sessions, up to `max_inflight` at once (0 = all).

    All times are absolute, on one clock; `t_start_ns` is when the first session is to begin.
    """

    def __init__(self, plan: ReplayPlan, *, max_inflight: int, end_on_error: bool) -> None:
        self.counts = SessionCounts()
        self.t_start_ns = 0
        self._plan = plan
        self._max_inflight = max_inflight or len(plan.sessions)
        self._end_on_error = end_on_error
        self._arrived = 0
        """Sessions whose time has come."""
        self._waiting: deque[int] = deque()
        self._due: list[tuple[int, int]] = []
        """Heap of (time, index) of turns that wait for nothing but their time."""
        self._state = bytearray(len(plan.turns))
        self._unended = [turn.waits for turn in plan.turns]
        self._unsent = [turn.waits for turn in plan.turns]
        self._send_ns = [0] * len(plan.turns)
        self._open = [session.end - session.first for session in plan.sessions]
        self._begun_ns = [0] * len(plan.sessions)
        self._failed = bytearray(len(plan.sessions))
        self._closed = False

    @property
    def is_over(self) -> bool:
        """Whether every session has ended."""
        return self.counts.done == len(self._plan.sessions)

    @property
    def waiting(self) -> int:
        """Sessions held back at this moment."""
        return len(self._waiting)

    def measure_delay_ns(self, index: int) -> int:
        """How long a session was held back; 0 while it has not begun."""
        return max(0, self._begun_ns[index] - self._find_arrival_ns(index))

    def next_ns(self) -> int | None:
        """When something is due next; None = nothing is until a turn in flight ends."""
        arrival = self._find_arrival_ns(self._arrived) if self._arrived < len(self._plan.sessions) else None
        if not self._due:
            return arrival
        return self._due[0][0] if arrival is None else min(arrival, self._due[0][0])

    def take_due(self, now_ns: int) -> tuple[int, PlannedTurn] | None:
        """A turn that is due by now, with its time, the earliest first; None = none is."""
        while self._arrived < len(self._plan.sessions) and self._find_arrival_ns(self._arrived) <= now_ns:
            self._note_arrival(self._arrived)
            self._arrived += 1
        while self._due and self._due[0][0] <= now_ns:
            due_ns, index = heapq.heappop(self._due)
            if self._state[index] == TurnState.PENDING:
                return due_ns, self._plan.turns[index]
        return None

    def note_sent(self, turn: PlannedTurn, t_ns: int) -> list[int]:
        """The turn was sent; returns the turns that now wait for no unsent turn: the next ones of the session."""
        self._state[turn.index] = TurnState.SENT
        self._send_ns[turn.index] = t_ns
        ready = []
        for follower in turn.followers:
            self._unsent[follower] -= 1
            if not self._unsent[follower]:
                ready.append(follower)
        return ready

    def note_ended(self, turn: PlannedTurn, t_ns: int, *, failed: bool) -> list[PlannedTurn]:
        """The turn has ended; returns the turns that its failure drops."""
        self._failed[turn.session] |= failed
        self._end_turn(turn, t_ns)
        if failed and self._end_on_error:
            return self._drop_pending(turn.session, t_ns)
        for follower in turn.followers:
            self._unended[follower] -= 1
            if not self._unended[follower]:
                self._push_turn(self._find_leave_time(self._plan.turns[follower], t_ns), follower)
        return []

    def close(self) -> None:
        """Nothing more will be sent."""
        self._closed = True

    def list_unsent(self, now_ns: int) -> list[tuple[PlannedTurn, int | None]]:
        """The turns that were neither sent nor dropped, each with its time if that had come by now."""
        due = {index: due_ns for due_ns, index in self._due if due_ns <= now_ns}
        return [(t, due.get(t.index)) for t in self._plan.turns if self._state[t.index] == TurnState.PENDING]

    def _find_arrival_ns(self, index: int) -> int:
        return self.t_start_ns + self._plan.sessions[index].start_ns

    def _note_arrival(self, index: int) -> None:
        if self.counts.active >= self._max_inflight:
            self._waiting.append(index)
            self.counts.delayed += 1
        else:
            self._begin_session(index, self._find_arrival_ns(index))

    def _begin_session(self, index: int, t_ns: int) -> None:
        counts = self.counts
        counts.active += 1
        counts.active_max = max(counts.active_max, counts.active)
        self._begun_ns[index] = t_ns
        counts.delay_max_ns = max(counts.delay_max_ns, self.measure_delay_ns(index))
        for turn in self._list_turns(index):
            if not turn.waits:
                self._push_turn(t_ns + turn.offset_ns, turn.index)

    def _list_turns(self, index: int) -> tuple[PlannedTurn, ...]:
        session = self._plan.sessions[index]
        return self._plan.turns[session.first : session.end]

    def _push_turn(self, due_ns: int, index: int) -> None:
        if not self._closed:
            heapq.heappush(self._due, (due_ns, index))

    def _find_leave_time(self, turn: PlannedTurn, t_end_ns: int) -> int:
        """When a turn may leave whose last predecessor ended at that time."""
        if turn.anchor == FROM_END:
            return t_end_ns + turn.pause_ns
        return max(t_end_ns, self._send_ns[turn.anchor] + turn.pause_ns)

    def _end_turn(self, turn: PlannedTurn, t_ns: int) -> None:
        self._state[turn.index] = TurnState.OVER
        self._open[turn.session] -= 1
        if self._open[turn.session]:
            return
        self.counts.active -= 1
        self.counts.done += 1
        self.counts.failed += self._failed[turn.session]
        if self._waiting and not self._closed:
            self._begin_session(self._waiting.popleft(), t_ns)

    def _drop_pending(self, index: int, t_ns: int) -> list[PlannedTurn]:
        pending = [turn for turn in self._list_turns(index) if self._state[turn.index] == TurnState.PENDING]
        for turn in pending:
            self._end_turn(turn, t_ns)
        return pending
