"""The plan of a replay, fixed before it starts: when its turns may leave, and what of their prompts is reusable. Pure.

A turn that waits for others leaves its pause after the last of them has ended. The pause is the recorded think time;
where the source has none it is the recorded gap from send to send, counted from the send of the turn waited for, and
the turn still never leaves before that has ended. Every recorded time is multiplied by `time_scale`; after that no
pause inside a session is longer than `idle_gap_cap_s`. Sessions begin at their recorded arrivals, scaled, never capped.

The trace span is the replay of a system that takes as long over each turn as the recorded one did (scaled): from the
first send to the last, with the pauses cut as above. It depends on the trace and the pace only, not on `think`.

Two prompts share the tokens of their common leading hashes. Tokens without a hash differ in every prompt, as they do in
a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from results.records.load_specs import ReplaySpec
from results.records.trace_lines import Turn
from results.traces.prefix_keys import Keys, find_known_depth, prefix_keys
from runners.trace.session import Session, Trace

FROM_END = -1
"""`PlannedTurn.anchor` of a pause that counts from the end of what the turn waits for."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How recorded times become times of the replay."""

    time_scale: float = 1.0
    """0.5 = twice as fast as recorded."""
    idle_gap_cap_s: float | None = None
    think: str = "recorded"
    """`recorded`: think times, gaps where there are none; `gaps`: always the gaps from send to send; `none`: no pause
    after the turns waited for."""


def read_pace(spec: ReplaySpec) -> Pace:
    return Pace(spec.time_scale, spec.idle_gap_cap_s, spec.think)


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One turn of a replay."""

    index: int
    """Among all turns of the replay."""
    session: int
    """Index among the sessions."""
    recorded: Turn
    """What the trace says of it: its agent, lengths and hashes."""
    waits: int
    """Turns that must have ended before it; 0 = it leaves `offset_ns` after its session began."""
    followers: tuple[int, ...]
    """Indices of the turns that wait for it."""
    offset_ns: int
    pause_ns: int
    anchor: int
    """Index of the turn from whose send the pause counts; FROM_END = it counts from the last end."""
    reusable_any_tokens: int
    reusable_intra_tokens: int

    @property
    def output_tokens(self) -> int:
        """To ask for: an engine serves no answer of no token."""
        return max(1, self.recorded.output_tokens)


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """One session: the turns `first` <= index < `end`."""

    session: str
    start_ns: int
    """After the replay's start."""
    first: int
    end: int
    agents: int
    """Agents in it: about this many of its turns may be in flight at once."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """All of a replay. Sessions by start; `turns[i].index == i`."""

    sessions: tuple[PlannedSession, ...]
    turns: tuple[PlannedTurn, ...]
    trace_span_s: float

    def estimate_width(self, max_sessions: int) -> int:
        """Requests that may be in flight at once when `max_sessions` may (0 = all), estimated from their agents."""
        widths = sorted((session.agents for session in self.sessions), reverse=True)
        return sum(widths[: max_sessions or None])


@dataclass(frozen=True, slots=True)
class _Moment:
    """The timing of one turn within its session."""

    offset_s: float
    """Its send, after the session's start, as the trace span counts it."""
    pause_s: float
    anchor: int
    """Index in the session, or FROM_END."""


def make_request_prefix(seed: int) -> str:
    """Begins the `x-request-id` of every turn of a replay with this seed; the turn's index ends it."""
    return f"tracon-{seed:x}-"


def plan_replay(trace: Trace, reusable: Sequence[tuple[int, int]], pace: Pace) -> ReplayPlan:
    """The plan of a trace; `reusable` holds (any, intra) tokens per turn, in the order of sessions and their turns."""
    sessions: list[PlannedSession] = []
    turns: list[PlannedTurn] = []
    begin_s = min((session.arrival_s for session in trace.sessions), default=0.0)
    last_s = 0.0
    for position, session in enumerate(trace.sessions):
        moments = _find_moments(session, pace)
        start_s = (session.arrival_s - begin_s) * pace.time_scale
        first = len(turns)
        turns += _plan_turn(session, position, first, moments, reusable, pace)
        agents = len({turn.agent for turn in session.turns})
        sessions.append(PlannedSession(session.session, round(start_s * 1e9), first, len(turns), agents))
        last_s = max(last_s, start_s + max(moment.offset_s for moment in moments))
    return ReplayPlan(tuple(sessions), tuple(turns), last_s)


def _plan_turn(
    session: Session, position: int, first: int, moments: list[_Moment], reusable: Sequence[tuple[int, int]], pace: Pace
) -> list[PlannedTurn]:
    followers: list[list[int]] = [[] for _ in session.turns]
    for number, turn in enumerate(session.turns):
        for waited in set(turn.after):
            followers[waited].append(first + number)
    planned = []
    for number, (turn, moment) in enumerate(zip(session.turns, moments, strict=True)):
        reusable_any, reusable_intra = reusable[first + number]
        idle = pace.think == "none"
        planned.append(
            PlannedTurn(
                index=first + number,
                session=position,
                recorded=turn,
                waits=len(set(turn.after)),
                followers=tuple(followers[number]),
                offset_ns=round(moment.offset_s * 1e9),
                pause_ns=0 if idle else round(moment.pause_s * 1e9),
                anchor=FROM_END if idle or moment.anchor == FROM_END else first + moment.anchor,
                reusable_any_tokens=reusable_any,
                reusable_intra_tokens=reusable_intra,
            )
        )
    return planned


def _find_moments(session: Session, pace: Pace) -> list[_Moment]:
    """Per turn: its pause after capping, and its recorded send less what capping has saved before it."""
    saved: list[float] = []
    moments = []
    for number, turn in enumerate(session.turns):
        before = max(turn.after, key=lambda position: session.turns[position].arrival_s) if turn.after else number - 1
        recorded_s, anchor = _find_pause(session, turn, before, pace)
        scaled_s = recorded_s * pace.time_scale
        cap_s = pace.idle_gap_cap_s
        pause_s = scaled_s if cap_s is None else min(scaled_s, cap_s)
        saved.append((saved[before] if before >= 0 else 0.0) + scaled_s - pause_s)
        offset_s = (turn.arrival_s - session.arrival_s) * pace.time_scale - saved[-1]
        moments.append(_Moment(max(0.0, offset_s), pause_s, anchor))
    return moments


def _find_pause(session: Session, turn: Turn, before: int, pace: Pace) -> tuple[float, int]:
    """The recorded pause before a turn and what it counts from; `before` is the turn it follows (-1 = none)."""
    if before < 0:
        return 0.0, FROM_END
    if turn.after and turn.think_s is not None and pace.think != "gaps":
        return max(0.0, turn.think_s), FROM_END
    return max(0.0, turn.arrival_s - session.turns[before].arrival_s), before


def count_reusable_tokens(trace: Trace, block_tokens: int) -> list[tuple[int, int]]:
    """Per turn the tokens of its longest prefix in an earlier prompt: (of any session, of its own session).

    Sorted by (session, turn) of the trace; "earlier" is by recorded arrival, then by that order. Counts like vLLM with
    an unlimited cache: whole blocks of `block_tokens` only, and the last token of a prompt is always computed, so at
    most input_tokens - 1, rounded down to blocks. Both numbers are equal where hashes are local to a session. Raises
    ValueError where `block_tokens` is not positive.
    """
    if block_tokens < 1:
        raise ValueError(f"a block cannot have {block_tokens} tokens")
    turns = [
        (turn.arrival_s, number, index)
        for number, session in enumerate(trace.sessions)
        for index, turn in enumerate(session.turns)
    ]
    everywhere, own = _KnownPrompts(), [_KnownPrompts() for _ in trace.sessions]
    reusable: dict[tuple[int, int], tuple[int, int]] = {}
    for _, number, index in sorted(turns):
        turn = trace.sessions[number].turns[index]
        prompt = _Prompt(prefix_keys(turn.hashes), turn.input_tokens, trace.facts.block_tokens)
        intra = own[number].add(prompt)
        shared = intra if trace.facts.hash_scope == "session" else everywhere.add(prompt)
        most = prompt.input_tokens - 1
        reusable[number, index] = (
            _round_to_whole_blocks(min(shared, most), block_tokens),
            _round_to_whole_blocks(min(intra, most), block_tokens),
        )
    return [reusable[number, index] for _, number, index in turns]


def _round_to_whole_blocks(tokens: int, block_tokens: int) -> int:
    return tokens // block_tokens * block_tokens


@dataclass(frozen=True, slots=True)
class _Prompt:
    keys: Keys
    input_tokens: int
    block_tokens: int

    def count_covered(self, block: int) -> int:
        """Tokens of the prompt in one of its hashed blocks: fewer than `block_tokens` in a partial last block."""
        return min(self.block_tokens, self.input_tokens - block * self.block_tokens)


@dataclass(slots=True)
class _KnownPrompts:
    """Block key to the largest number of tokens that a prompt so far has in that block."""

    tokens_of: dict[int, int] = field(default_factory=dict)

    def add(self, prompt: _Prompt) -> int:
        """Add a prompt; returns the number of its leading tokens that were known before."""
        keys, tokens_of = prompt.keys, self.tokens_of
        depth = find_known_depth(keys, tokens_of)
        shared = 0
        if depth:
            last = int(keys[depth - 1])
            covered = prompt.count_covered(depth - 1)
            shared = (depth - 1) * prompt.block_tokens + min(covered, tokens_of[last])
            tokens_of[last] = max(covered, tokens_of[last])
        if depth < keys.size:
            tokens_of.update(dict.fromkeys(keys[depth:].tolist(), prompt.block_tokens))
            tokens_of[int(keys[-1])] = prompt.count_covered(keys.size - 1)
        return shared
