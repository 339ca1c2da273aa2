"""A replay: the sessions of a trace arrive at their recorded times; each sends a turn when the one before has ended.

Every turn is recorded. Bodies are built ahead in the gaps between sends: those of the turns that come next in running
sessions first, then those of sessions still to come.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter_ns
from typing import Any
from urllib.parse import quote

import numpy as np
from msgspec import UNSET, UnsetType

from results.measures.amplification import compute_amplification_ratio
from results.records.load_specs import ReplaySpec
from results.records.schemas import RequestStatus
from results.records.turns import TurnRecord
from runners.load.block_prompts import BlockShape, make_prompt_pieces
from runners.load.bodies import Bodies, build_body_preamble
from runners.load.client import RoutedConnection
from runners.load.driver import LoadDriver
from runners.load.fidelity import WindowCounts, judge_fidelity
from runners.load.messages import LoadError
from runners.load.process_settings import allow_connections
from runners.load.recent_latencies import Latencies
from runners.load.replay_messages import AnsweredBy, ReplayOutcome, ReplayTick
from runners.load.replay_plan import (
    PlannedTurn,
    ReplayPlan,
    count_reusable_tokens,
    make_request_prefix,
    plan_replay,
    read_pace,
)
from runners.load.sessions import SessionCounts, Sessions
from runners.load.stream import Exchange
from runners.target import Target, resolve_target
from runners.trace.formats import read_trace

PREPARE_NS = 3_000_000_000
BODIES_BUDGET_BYTES = 256 << 20
_NEVER_NS = 1 << 62
_UNQUOTED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


async def run_trace(spec: ReplaySpec, on_tick: Callable[[ReplayTick], None], cut: asyncio.Event) -> ReplayOutcome:
    """Run the replay in this process, on this event loop, and write a TurnRecord for every turn of the trace.

    `cut` ends it early: what is in flight or was not sent is recorded as CUT. Raises LoadError where nothing can be
    measured, TraceError where the trace is malformed.
    """
    plan, blocks = read_plan(spec)
    in_flight = plan.estimate_width(spec.max_inflight_sessions)
    allow_connections(in_flight + spec.spare_connections, "limit max_inflight_sessions")
    return await Replay(spec, plan, blocks, await resolve_target(spec.url, LoadError)).run(on_tick, cut)


def read_plan(spec: ReplaySpec) -> tuple[ReplayPlan, BlockShape]:
    """The plan of the spec's trace and the shape of its prompts. Raises LoadError where the trace holds no turn."""
    trace = read_trace(Path(spec.trace_path))
    if not trace.requests:
        raise LoadError(f"{spec.trace_path} holds no turn", remedy="Give a trace with at least one request.")
    blocks = BlockShape(spec.seed, trace.facts.block_tokens, trace.facts.hash_scope, spec.vocab_low, spec.vocab_high)
    return plan_replay(trace, count_reusable_tokens(trace, spec.block_tokens), read_pace(spec)), blocks


class Replay(LoadDriver[ReplayTick, ReplayOutcome]):
    """One running replay."""

    build_ahead_ns = 100_000
    connection = RoutedConnection

    def __init__(self, spec: ReplaySpec, plan: ReplayPlan, blocks: BlockShape, target: Target) -> None:
        self.spec = spec
        self.plan = plan
        self._blocks = blocks
        self._sessions = Sessions(
            plan, max_inflight=spec.max_inflight_sessions, end_on_error=spec.on_error == "end_session"
        )
        self._session_lines = [make_session_line(session.session) for session in plan.sessions]
        self._request_prefix = make_request_prefix(spec.seed)
        self._armed_ns = _NEVER_NS
        self._t_first_send_ns = self._t_last_end_ns = 0
        self._overdue = self._inflight_max = 0
        super().__init__(
            spec, target, Bodies(self._build_preamble, self._build_pieces, budget_bytes=BODIES_BUDGET_BYTES)
        )

    def prepare(self) -> None:
        """Build bodies of the first sessions within PREPARE_NS and the budget; the others follow between sends."""
        for session in self.plan.sessions:
            self._bodies.expect_later(session.first)
        until_ns = perf_counter_ns() + PREPARE_NS
        while self._bodies.build_slice() and perf_counter_ns() < until_ns:
            pass

    def start(self) -> None:
        self._cpu_begin_s = time.process_time()
        self._start_clock()
        self._sessions.t_start_ns = self.t_start_ns
        self._arm_pacer(self.t_start_ns)

    def finish(self) -> None:
        """Cut what is still in flight and record what was never sent; the replay is over."""
        super().finish()
        for turn, due_ns in self._sessions.list_unsent(self.t_stop_ns):
            self.counts.cut += 1
            self._overdue += due_ns is not None
            self._record_unsent(turn, RequestStatus.CUT, due_ns, None)

    def _on_stop(self) -> None:
        self._sessions.close()

    # the clock
    def _send_due(self) -> None:
        """The pacer fired: send every turn whose time has come, or close."""
        self._armed_ns = _NEVER_NS
        while not self._closed.is_set():
            now_ns = perf_counter_ns()
            if now_ns >= self._hard_stop_ns:
                self.stop("hard_stop", self._hard_stop_ns)
                return
            next_turn = self._sessions.take_due(now_ns)
            if next_turn is None:
                self._wait_for_due()
                return
            self._send_turn(*next_turn)

    @property
    def _hard_stop_ns(self) -> int:
        return self.t_start_ns + round(self.spec.max_duration_s * 1e9)

    def _wait_for_due(self) -> None:
        """Arm the pacer for the next due time, and build bodies until then."""
        next_ns = self._sessions.next_ns()
        self._arm_pacer(self._hard_stop_ns if next_ns is None else min(next_ns, self._hard_stop_ns))
        self._build_ahead_soon()

    def _arm_pacer(self, t_ns: int) -> None:
        if t_ns < self._armed_ns:
            self._armed_ns = t_ns
            self._pacer.arm(t_ns)

    def _send_turn(self, due_ns: int, turn: PlannedTurn) -> None:
        # A replay counts sessions in flight at the send, an open loop requests.
        exchange = Exchange(turn.index, self, due_ns, inflight_at_send=self._sessions.counts.active)
        body = self._bodies.take_body(turn.index)
        self._count_send(turn.recorded.input_tokens)
        self._inflight_max = max(self._inflight_max, self._inflight)
        self._client.send(exchange, self._name_turn(turn), body, self._session_lines[turn.session])
        t_ns = exchange.t_send_ns
        if not self._t_first_send_ns:
            self._t_first_send_ns = t_ns
        for index in self._sessions.note_sent(turn, t_ns):
            self._bodies.expect_soon(index)
        self._lateness_ns.append(t_ns - due_ns)
        self._recent_lateness.add((t_ns, (t_ns - due_ns) / 1e9))

    def _name_turn(self, turn: PlannedTurn) -> str:
        return f"{self._request_prefix}{turn.index}"

    def _count_requested_tokens(self, exchange: Exchange) -> tuple[int, int]:
        turn = self.plan.turns[exchange.index]
        return turn.recorded.input_tokens, turn.output_tokens

    def _on_end(self, exchange: Exchange) -> None:
        turn = self.plan.turns[exchange.index]
        self._t_last_end_ns = max(self._t_last_end_ns, exchange.t_end_ns)
        self._record_turn(exchange)
        if exchange.status is not RequestStatus.CUT:
            self._advance_session(turn, exchange)
        if not self._closed.is_set():
            self._wait_for_due()

    def _advance_session(self, turn: PlannedTurn, exchange: Exchange) -> None:
        """Let the turns leave that waited for this one; after an error, drop them where the spec says so."""
        failed = exchange.status is RequestStatus.ERROR
        for dropped in self._sessions.note_ended(turn, exchange.t_end_ns, failed=failed):
            self._bodies.drop_body(dropped.index)
            why = f"never sent: its session was ended when {self._name_turn(turn)} failed"
            self._record_unsent(dropped, RequestStatus.DROPPED, None, why)
        if self._sessions.is_over:
            self.stop("complete", exchange.t_end_ns)

    def _record_unsent(self, turn: PlannedTurn, status: RequestStatus, due_ns: int | None, why: str | None) -> None:
        active = self._sessions.counts.active
        self._record_turn(Exchange(turn.index, self, due_ns or 0, inflight_at_send=active, status=status, error=why))

    def _record_turn(self, exchange: Exchange) -> None:
        turn = self.plan.turns[exchange.index]
        delay_s = self._sessions.measure_delay_ns(turn.session) / 1e9
        self._recorder.add(make_turn_record(self.plan, exchange, self._name_turn(turn), delay_s))

    def _build_preamble(self, index: int) -> bytes:
        return build_body_preamble(self.spec.model, self.plan.turns[index].output_tokens, self.spec.token_evidence)

    def _build_pieces(self, index: int) -> Iterator[bytes]:
        turn = self.plan.turns[index]
        session = self.plan.sessions[turn.session]
        return make_prompt_pieces(self._blocks, session.session, index - session.first, turn.recorded)

    def tick(self, now_ns: int) -> ReplayTick:
        counts, turns = self.counts, len(self.plan.turns)
        fields = self._make_tick_fields(now_ns)
        over = counts.completed + counts.failed + counts.cut
        return ReplayTick(
            **fields,
            phase="drain" if self._closed.is_set() else "replay",
            fraction=min(1.0, max(over / turns, fields["elapsed_s"] / self.spec.max_duration_s)),
            **make_session_fields(self.plan, self.spec, self._sessions, self._latencies_of, now_ns),
        )

    def outcome(self) -> ReplayOutcome:
        plan, counts, sessions = self.plan, self.counts, self._sessions.counts
        wall_s = (self._t_last_end_ns - self._t_first_send_ns) / 1e9 if counts.sent else None
        window = WindowCounts(
            scheduled=counts.sent + self._overdue,
            handled=counts.sent,
            window_s=(self.t_stop_ns - self.t_start_ns) / 1e9,
            cpu_s=self._cpu_s,
        )
        return ReplayOutcome(
            **self._make_outcome_fields(),
            t_stop_ns=self.t_stop_ns,
            inflight_max=self._inflight_max,
            **describe_replay(plan, sessions, counts.sent, wall_s, self.stop_reason),
            fidelity=judge_fidelity(np.array(self._lateness_ns, dtype=np.int64), window, self.spec),
        )


def make_turn_record(
    plan: ReplayPlan, exchange: Exchange, request: str, session_delay_s: float, simulated: bool | UnsetType = UNSET
) -> TurnRecord:
    """The row of a turn that has ended, or is never sent; `request`: its id."""
    turn = plan.turns[exchange.index]
    return TurnRecord(
        **exchange.sent_fields(turn.recorded.input_tokens, turn.output_tokens),
        request=request,
        session=plan.sessions[turn.session].session,
        agent=turn.recorded.agent,
        turn=turn.recorded.turn,
        t_due_ns=exchange.t_intended_ns or None,
        reusable_any_tokens=turn.reusable_any_tokens,
        reusable_intra_tokens=turn.reusable_intra_tokens,
        inflight_sessions=exchange.inflight_at_send,
        instance=exchange.instance,
        session_delay_s=session_delay_s,
        simulated=simulated,
    )


def describe_replay(
    plan: ReplayPlan, sessions: SessionCounts, sent: int, wall_s: float | None, stop_reason: str
) -> dict[str, Any]:
    """The fields of a ReplayOutcome about the plan and its sessions; the caller adds those of the client.

    `wall_s`: from the first send to the last end; None where nothing was sent.
    """
    amplification, reason = compute_amplification(wall_s, plan.trace_span_s, stop_reason)
    return {
        "turns": len(plan.turns),
        "never_sent": len(plan.turns) - sent,
        "sessions": len(plan.sessions),
        "sessions_done": sessions.done,
        "sessions_failed": sessions.failed,
        "sessions_delayed": sessions.delayed,
        "session_delay_max_s": sessions.delay_max_ns / 1e9,
        "inflight_sessions_max": sessions.active_max,
        "input_tokens": sum(turn.recorded.input_tokens for turn in plan.turns),
        "output_tokens": sum(turn.output_tokens for turn in plan.turns),
        "reusable_any_tokens": sum(turn.reusable_any_tokens for turn in plan.turns),
        "reusable_intra_tokens": sum(turn.reusable_intra_tokens for turn in plan.turns),
        "trace_span_s": plan.trace_span_s,
        "wall_clock_s": wall_s,
        "amplification": amplification,
        "amplification_reason": reason,
    }


def compute_amplification(
    wall_clock_s: float | None, trace_span_s: float, stop_reason: str
) -> tuple[float | None, str]:
    """wall clock / trace span, or None and why: a replay that ended early has no wall clock of the whole trace."""
    if stop_reason != "complete" or wall_clock_s is None:
        return None, f"the replay was not completed ({stop_reason})"
    ratio = compute_amplification_ratio(wall_clock_s, trace_span_s)
    return ratio, "every turn of the trace was recorded at one moment" if ratio is None else ""


def make_session_line(session: str) -> str:
    """The header line that carries a session's id; what may not stand in a header is percent-encoded."""
    return f"x-session-id: {quote(session, safe=_UNQUOTED)}\r\n"


def make_session_fields(
    plan: ReplayPlan, spec: ReplaySpec, sessions: Sessions, latencies: Mapping[str, Latencies], now_ns: int
) -> dict[str, Any]:
    """The fields of a ReplayTick about sessions and instances; `latencies`: by instance."""
    return {
        "turns": len(plan.turns),
        "inflight_sessions": sessions.counts.active,
        "waiting_sessions": sessions.waiting,
        "sessions_done": sessions.counts.done,
        "sessions": len(plan.sessions),
        "trace_span_s": plan.trace_span_s if spec.think != "none" else 0.0,
        "instances": tuple(
            AnsweredBy(**asdict(latencies[name].summarize(now_ns)), instance=name) for name in sorted(latencies)
        ),
    }
