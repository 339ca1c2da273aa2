"""What became of every turn that a load sent through a router: a whole answer, an error that its client saw, or none.

Reads what an attempt at a cell has left, also one whose load process or router was killed. Then the rows of turns that
were in flight are missing, and the last moments of the router's log. Everything before must agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import msgspec

from results.records.decisions import DecisionRecord
from results.records.load_specs import ReplaySpec
from results.records.schemas import TIMED_OUT, RequestStatus
from runners.load.replay_plan import FROM_END, PlannedTurn, ReplayPlan, make_request_prefix
from runners.router.ledger import COUNTED_WITHIN_S

LOG_LAG_S, COUNTED_LAG_S = 1.0, COUNTED_WITHIN_S + 1.0
"""A router that is killed loses the records of its last 0.3 s, on a busy machine of a little more; where it moves KV,
those that wait for the counts of their transfers too."""
LATE_S = 10.0
"""What a client may be late for: the longest stop of a process takes 6 s."""
HANG_S = 45.0
"""A turn of these runs takes a few seconds, and some stops and transfers that time out. The load's own limit of 600 s
never comes: a cell sends for 30 s, and cuts what is in flight 30 s later."""
VISIBLE = (
    "HTTP ",
    "the engine reported an error in the stream",
    "the engine ended it with finish_reason",
    "connection closed",
    "cannot connect",
)
"""How the load's text begins where its client saw an error: a status, an error event or finish reason, or a connection
that was cut. Any other text describes a stream that ended, or went on, as if nothing had happened."""
CUT_CONNECTION = "connection closed"

Span = tuple[int, int]


class SentTurn(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a row, whether a replay wrote it (`TurnRecord`) or `pd-lifecycle`."""

    request: str
    index: int
    status: RequestStatus
    t_send_ns: int | None
    t_end_ns: int | None
    output_tokens: int
    completion_tokens: int | None
    http_status: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    session: str = ""
    turn: int = 0

    @property
    def name(self) -> str:
        return f"turn {self.turn} of {self.session}" if self.session else self.request


@dataclass(frozen=True, slots=True)
class Traffic:
    """One attempt at a cell, as its load and its router recorded it."""

    turns: Sequence[SentTurn]
    """In the order in which they ended."""
    decisions: Sequence[DecisionRecord]
    spec: ReplaySpec | None = None
    plan: ReplayPlan | None = None
    """Of the replay; None = it was none."""
    starved: Sequence[Span] = ()
    """When the router could not write its log, or refuse in words: stopped, or short of memory, descriptors or disk."""
    records_lost: int = 0
    """Decisions that the router says it could not write, and lines that cannot be read."""
    is_log_closed: bool = False
    """The router ended in order: its log has every record."""


def list_lost(seen: Traffic) -> Iterator[str]:
    """One sentence for each turn whose client got neither a whole answer nor an error, or that left no record."""
    for turn in seen.turns:
        why = why_lost(turn)
        if why:
            yield f"{turn.name} {why}"
    yield from _list_unrecorded(seen)
    yield from _list_contradicted(seen)
    if seen.plan is not None and seen.spec is not None:
        yield from _list_never_sent(seen.turns, seen.plan, seen.spec)
        yield from _list_unended(seen, seen.spec)


def why_lost(turn: SentTurn) -> str:
    """Why the turn's client was left in the dark; empty = it got a whole answer or an error, or nothing was sent."""
    if turn.t_send_ns is None or turn.t_end_ns is None:
        return ""
    took_s = (turn.t_end_ns - turn.t_send_ns) / 1e9
    if (turn.error or "").startswith(TIMED_OUT) or took_s > HANG_S:
        return f"hung for {took_s:.0f} s"
    if turn.status is RequestStatus.OK and (turn.completion_tokens or 0) < turn.output_tokens:
        return f"ended as if whole after {turn.completion_tokens} of {turn.output_tokens} tokens"
    if turn.status is RequestStatus.ERROR and not turn.error:
        return "failed and its row does not say why"
    if turn.status is RequestStatus.ERROR and not (turn.error or "").startswith(VISIBLE):
        return f"got neither an error event nor a cut connection: {turn.error}"
    return ""


def _list_unrecorded(seen: Traffic) -> Iterator[str]:
    """Turns that reached the router and are not in its log, though it wrote what came later."""
    decided = {decision.request.request for decision in seen.decisions}
    alive_ns, lag_ns = _last_sign_of_router(seen), _log_lag_ns(seen.decisions)
    missing = [turn for turn in seen.turns if turn.request not in decided and _reached_router(turn)]
    unexplained = [
        turn
        for turn in missing
        if (seen.is_log_closed or (turn.t_end_ns or 0) + lag_ns < alive_ns) and not _is_in(turn, seen.starved, lag_ns)
    ]
    for turn in unexplained[seen.records_lost :]:
        how = "was cut" if (turn.error or "").startswith(CUT_CONNECTION) else "was answered"
        yield f"{turn.name} {how}, and the router, which lived on, has no record of it"


def _reached_router(turn: SentTurn) -> bool:
    """An answer came, or its connection was cut. One that was refused, e.g. at shutdown, needs no record."""
    if turn.t_send_ns is None or turn.status is RequestStatus.CUT:
        return False
    return turn.http_status == 200 or (turn.error or "").startswith(CUT_CONNECTION)


def _log_lag_ns(decisions: Sequence[DecisionRecord]) -> int:
    """How long a record may wait; of a log that is empty, the longer time."""
    outcomes = [decision.outcome for decision in decisions]
    moves_kv = not outcomes or any(outcome is not None and outcome.transfer is not None for outcome in outcomes)
    return round((COUNTED_LAG_S if moves_kv else LOG_LAG_S) * 1e9)


def _is_in(turn: SentTurn, spans: Sequence[Span], lag_ns: int) -> bool:
    """Whether a span may have cost the turn or its record, which is written up to `lag_ns` after its end."""
    sent_ns, end_ns = turn.t_send_ns or 0, turn.t_end_ns or 0
    return any(begin - lag_ns <= end_ns and sent_ns <= end for begin, end in spans)


def _last_sign_of_router(seen: Traffic) -> int:
    """The last byte that it is known to have passed on."""
    passed = [turn.t_end_ns or 0 for turn in seen.turns if turn.http_status is not None]
    passed = [*passed, *(_end_ns(decision) for decision in seen.decisions)]
    return max(passed, default=0)


def _end_ns(decision: DecisionRecord) -> int:
    """When its outcome was known; of one without outcome, when it was made."""
    begin_ns = decision.t_dispatch_ns or decision.t_ns
    last_s = decision.outcome.last_byte_s if decision.outcome is not None else None
    return begin_ns + round((last_s or 0.0) * 1e9)


def _list_contradicted(seen: Traffic) -> Iterator[str]:
    """Turns of which router and client say different things."""
    last = {decision.request.request: decision for decision in seen.decisions}
    for turn in seen.turns:
        decision = last.get(turn.request)
        if decision is None or turn.t_end_ns is None:
            continue
        if turn.status is RequestStatus.OK and decision.outcome is None:
            yield f"{turn.name} was answered and its last decision has no outcome"
        waited_s = (turn.t_end_ns - _end_ns(decision)) / 1e9
        if turn.status is RequestStatus.CUT and _is_whole(decision) and waited_s > LATE_S:
            yield f"{turn.name} was whole for the router, and its client waited {waited_s:.0f} s more"


def _is_whole(decision: DecisionRecord) -> bool:
    return decision.outcome is not None and decision.outcome.status == "ok"


def _list_unended(seen: Traffic, spec: ReplaySpec) -> Iterator[str]:
    """Turns that the router answered and that never ended for their client, though later ones did."""
    rows = {turn.request for turn in seen.turns}
    until_ns = max((turn.t_end_ns or 0 for turn in seen.turns), default=0)
    for decision in seen.decisions:
        request, ended_ns = decision.request, _end_ns(decision)
        if request.request in rows or not request.request.startswith(make_request_prefix(spec.seed)):
            continue
        if _is_whole(decision) and ended_ns + LATE_S * 1e9 < until_ns:
            yield f"turn {request.turn} of {request.session} was whole for the router, and its client has no row of it"


def _list_never_sent(turns: Sequence[SentTurn], plan: ReplayPlan, spec: ReplaySpec) -> Iterator[str]:
    """Turns whose time had come while the load still sent, and that it never sent."""
    rows = {turn.index: turn for turn in turns}
    failed = {turn.session for turn in turns if turn.status is RequestStatus.ERROR}
    until_ns = _last_send_ns(turns, spec)
    for planned in plan.turns:
        row, session = rows.get(planned.index), plan.sessions[planned.session].session
        due_ns = _due_ns(planned, plan, rows)
        name = f"turn {planned.recorded.turn} of {session}"
        if row is not None and row.status is RequestStatus.DROPPED and session not in failed:
            yield f"{name} was dropped, and no turn of its session failed"
        if due_ns is None or (row is not None and (row.t_send_ns or row.status is RequestStatus.DROPPED)):
            continue
        may_be_in_flight_s = HANG_S if row is None else 0.0
        if due_ns + (LATE_S + may_be_in_flight_s) * 1e9 < until_ns:
            yield f"{name} was due {(until_ns - due_ns) / 1e9:.0f} s before the load stopped, and was never sent"


def _last_send_ns(turns: Sequence[SentTurn], spec: ReplaySpec) -> int:
    """When the load may have sent at the latest: its last row, its hard stop, or too many failures in a row."""
    sent = [turn for turn in turns if turn.t_send_ns is not None]
    if not sent:
        return 0
    begin_ns = min(turn.t_send_ns or 0 for turn in sent)
    last_ns = max(turn.t_end_ns or 0 for turn in sent)
    ended = sorted(sent, key=lambda turn: turn.t_end_ns or 0)
    most = spec.max_failures_in_a_row
    for first in range(len(ended) - most + 1 if most else 0):
        run = [*takewhile(lambda turn: turn.status is RequestStatus.ERROR, ended[first : first + most])]
        if len(run) == most:
            last_ns = min(last_ns, run[-1].t_end_ns or 0)
            break
    return min(last_ns, begin_ns + round(spec.max_duration_s * 1e9))


def _due_ns(planned: PlannedTurn, plan: ReplayPlan, rows: Mapping[int, SentTurn]) -> int | None:
    """When it was to be sent; None = that is not known: it waits for no turn, or for one that has not ended."""
    session = plan.sessions[planned.session]
    before = [turn for turn in plan.turns[session.first : session.end] if planned.index in turn.followers]
    ends = [row.t_end_ns for turn in before if (row := rows.get(turn.index)) is not None and row.t_end_ns is not None]
    if not before or len(ends) < len(before):
        return None
    if planned.anchor == FROM_END:
        return max(ends) + planned.pause_ns
    anchor = rows.get(planned.anchor)
    if anchor is None or anchor.t_send_ns is None:
        return None
    return max(*ends, anchor.t_send_ns + planned.pause_ns)
