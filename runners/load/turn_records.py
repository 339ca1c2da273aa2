"""The record of a replayed turn, from its plan and what became of it."""

from __future__ import annotations

from dataclasses import replace

from results.records import RequestStatus
from results.routing.record import TurnRecord
from runners.load.replay_plan import PlannedTurn
from runners.load.stream import Exchange


def unsent_record(
    turn: PlannedTurn, request: str, status: RequestStatus, inflight_sessions: int, due_ns: int | None, why: str | None
) -> TurnRecord:
    """A turn that never left."""
    return TurnRecord(
        index=turn.index,
        request=request,
        session=turn.prompt.session,
        agent=turn.agent,
        turn=turn.turn,
        status=status,
        t_due_ns=due_ns,
        t_send_ns=None,
        t_first_token_ns=None,
        t_last_token_ns=None,
        t_end_ns=None,
        input_tokens=turn.prompt.input_tokens,
        output_tokens=turn.output_tokens,
        prompt_tokens=None,
        completion_tokens=None,
        cached_tokens=None,
        reusable_any_tokens=turn.reusable_any_tokens,
        reusable_intra_tokens=turn.reusable_intra_tokens,
        chunks=0,
        inflight_sessions=inflight_sessions,
        error=why,
    )


def sent_record(turn: PlannedTurn, request: str, exchange: Exchange, session_delay_s: float) -> TurnRecord:
    """A turn that has ended; its exchange carries the number of sessions in flight at its send."""
    assert exchange.status is not None
    unsent = unsent_record(turn, request, exchange.status, exchange.inflight_at_send, exchange.t_intended_ns, None)
    return replace(
        unsent,
        t_send_ns=exchange.t_send_ns,
        t_first_token_ns=exchange.t_first_ns or None,
        t_last_token_ns=exchange.t_last_ns or None,
        t_end_ns=exchange.t_end_ns,
        prompt_tokens=exchange.prompt_tokens,
        completion_tokens=exchange.counted_tokens,
        cached_tokens=exchange.cached_tokens,
        chunks=exchange.chunks,
        instance=exchange.instance,
        http_status=exchange.http_status,
        finish_reason=exchange.finish_reason,
        error=exchange.error,
        session_delay_s=session_delay_s,
    )
