"""The records of requests that were never sent, and of replayed turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from results.records.schemas import RequestStatus
from results.records.turns import TurnRecord

if TYPE_CHECKING:
    from runners.load.replay_plan import PlannedTurn
    from runners.load.stream import Exchange


def unsent_fields(
    index: int, status: RequestStatus, input_tokens: int, output_tokens: int, why: str | None = None
) -> dict[str, Any]:
    """The fields of the SentRequest of a request that never left; `why` is its error."""
    unmeasured = (
        "t_send_ns", "t_first_token_ns", "t_last_token_ns", "t_end_ns", "prompt_tokens", "completion_tokens",
        "cached_tokens",
    )  # fmt: skip
    return {
        **dict.fromkeys(unmeasured),
        "index": index,
        "status": status,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "chunks": 0,
        "error": why,
    }


def unsent_record(
    turn: PlannedTurn, request: str, status: RequestStatus, inflight_sessions: int, due_ns: int | None, why: str | None
) -> TurnRecord:
    """A turn that never left."""
    return TurnRecord(
        **unsent_fields(turn.index, status, turn.prompt.input_tokens, turn.output_tokens, why),
        **_planned_fields(turn, request),
        t_due_ns=due_ns,
        inflight_sessions=inflight_sessions,
    )


def sent_record(turn: PlannedTurn, request: str, exchange: Exchange, session_delay_s: float) -> TurnRecord:
    """A turn that has ended; its exchange carries the number of sessions in flight at its send."""
    return TurnRecord(
        **exchange.sent_fields(turn.prompt.input_tokens, turn.output_tokens),
        **_planned_fields(turn, request),
        t_due_ns=exchange.t_intended_ns,
        inflight_sessions=exchange.inflight_at_send,
        instance=exchange.instance,
        session_delay_s=session_delay_s,
    )


def _planned_fields(turn: PlannedTurn, request: str) -> dict[str, Any]:
    return {
        "request": request,
        "session": turn.prompt.session,
        "agent": turn.agent,
        "turn": turn.turn,
        "reusable_any_tokens": turn.reusable_any_tokens,
        "reusable_intra_tokens": turn.reusable_intra_tokens,
    }
