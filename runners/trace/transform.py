"""Scales, samples, limits and re-times traces, and preserves the structure of their prefixes. Pure.

The functions from sessions to sessions stream, so that they apply to a file of any size; `scale_trace`, `sample_trace`
and `limit_trace` apply to a trace in memory.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from results.records.trace_lines import Turn
from runners.errors import RunnerError
from runners.trace.session import Session, Trace, TraceFacts

_DOMAIN = 0x6172_7269_7661_6C73  # "arrivals": separates this stream of random numbers from others


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which sessions to keep: `sessions` of them or about `share` of them, one of the two."""

    sessions: int | None = None
    share: float | None = None
    """0 to 1."""
    seed: int = 1

    def __post_init__(self) -> None:
        if (self.sessions is None) == (self.share is None):
            raise RunnerError("say how many sessions to keep", remedy="give --sessions or --share, one of the two")
        if self.share is not None and not 0 <= self.share <= 1:
            raise RunnerError(f"a share cannot be {self.share:g}", remedy="set it to a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class Limits:
    """What is left out of a session; 0 = nothing."""

    max_context_tokens: int = 0
    """Turns whose prompt and answer are longer."""
    turns: int = 0
    """Turns after the first N."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When sessions arrive."""

    sessions_per_s: float | None = None
    """None = as recorded."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Scaling:
    """Factors on lengths and times."""

    tokens: float = 1.0
    """Factor on every length. The block size is rounded to whole tokens, and lengths use the resulting factor."""
    output_tokens: float | None = None
    """Factor on output lengths; None = as `tokens`."""
    time: float = 1.0
    """Factor on arrivals and think times: 0.1 is ten times as fast."""

    def __post_init__(self) -> None:
        for name in ("tokens", "output_tokens", "time"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise RunnerError(f"the factor on {name} cannot be {value:g}", remedy="set it to a number above 0")

    def scale_facts(self, facts: TraceFacts) -> TraceFacts:
        return replace(facts, block_tokens=scale_block(facts, self.tokens))

    def scale_session(self, facts: TraceFacts, session: Session) -> Session:
        """`facts`: those before scaling."""
        block = scale_block(facts, self.tokens)
        outputs = self.output_tokens or block / facts.block_tokens
        return replace(session, turns=tuple(self._scale_turn(facts, block, outputs, turn) for turn in session.turns))

    def _scale_turn(self, facts: TraceFacts, block: int, outputs: float, turn: Turn) -> Turn:
        return msgspec.structs.replace(
            turn,
            arrival_s=turn.arrival_s * self.time,
            think_s=None if turn.think_s is None else turn.think_s * self.time,
            input_tokens=scale_input(facts, block, turn.input_tokens),
            output_tokens=max(1, round(turn.output_tokens * outputs)) if turn.output_tokens else 0,
        )


def scale_block(facts: TraceFacts, tokens: float) -> int:
    """The block size times the factor, at least 1; at least 2 where partial blocks have no hash."""
    return max(2 if facts.tail_rule == "floor" else 1, round(facts.block_tokens * tokens))


def scale_input(facts: TraceFacts, block: int, input_tokens: int) -> int:
    """Tokens with the same number of hashes at the block size `block`: a partial last block stays partial."""
    whole_blocks, tail = divmod(input_tokens, facts.block_tokens)
    if tail:
        most = block if facts.tail_rule == "ceil" else block - 1
        least = 1 if facts.tail_rule == "ceil" or not whole_blocks else 0
        tail = min(max(round(tail * block / facts.block_tokens), least), most)
    return whole_blocks * block + tail


def scale_sessions(facts: TraceFacts, sessions: Iterable[Session], scaling: Scaling) -> Iterator[Session]:
    """Scale every session. `facts`: those before scaling."""
    return (scaling.scale_session(facts, session) for session in sessions)


def limit_session(session: Session, limits: Limits) -> Session | None:
    """None where no turn remains. A turn that waited for a dropped one waits for what that one waited for."""
    waits: list[tuple[int, ...]] = []
    """Per original turn: the new indexes of the turns for which its successors wait."""
    numbers: defaultdict[str, int] = defaultdict(int)
    remaining: list[Turn] = []
    for index, turn in enumerate(session.turns):
        after = tuple(sorted({new for old in turn.after for new in waits[old]}))
        too_long = 0 < limits.max_context_tokens < turn.input_tokens + turn.output_tokens
        if too_long or 0 < limits.turns <= index:
            waits.append(after)
            continue
        waits.append((len(remaining),))
        remaining.append(msgspec.structs.replace(turn, turn=numbers[turn.agent], after=after))
        numbers[turn.agent] += 1
    return replace(session, turns=tuple(remaining)) if remaining else None


def limit_sessions(sessions: Iterable[Session], limits: Limits) -> Iterator[Session]:
    """Limit every session; the result is in the order of the new arrivals, the first at 0.

    A session whose first turn is dropped arrives later: it waits in a heap for the sessions that now precede it.
    """

    def limit_each() -> Iterator[Session]:
        waiting: list[tuple[float, int, Session]] = []
        for number, session in enumerate(sessions):
            while waiting and waiting[0][0] <= session.arrival_s:
                yield heapq.heappop(waiting)[2]
            rest = limit_session(session, limits)
            if rest is not None:
                heapq.heappush(waiting, (rest.arrival_s, number, rest))
        while waiting:
            yield heapq.heappop(waiting)[2]

    return rebase_sessions(limit_each())


def draw_names(names: Iterable[str], sessions: int, seed: int) -> frozenset[str]:
    """Draw `sessions` of the names uniformly, or all where there are fewer.

    The draw hashes each name with the seed, so a larger draw contains a smaller.
    """
    return frozenset(name for _, name in heapq.nsmallest(sessions, ((_hash_name(name, seed), name) for name in names)))


def is_sampled(name: str, share: float, seed: int) -> bool:
    """Whether a session belongs to a sample of `share` (0 to 1), by its name and the seed alone."""
    return _hash_name(name, seed) < share * 2.0**64


def rebase_sessions(sessions: Iterable[Session]) -> Iterator[Session]:
    """Shift all sessions so that the first arrives at 0."""
    begin_s: float | None = None
    for session in sessions:
        begin_s = session.arrival_s if begin_s is None else begin_s
        yield _move_session(session, session.arrival_s - begin_s) if begin_s else session


def redraw_arrivals(sessions: Iterable[Session], arrivals: Arrivals) -> Iterator[Session]:
    """Draw the arrivals of the sessions from a Poisson process, in their order; the times within a session stay.

    For traces that do not record when sessions start. Raises RunnerError for a rate that is not positive.
    """
    rate_per_s = arrivals.sessions_per_s
    if rate_per_s is None:
        yield from sessions
        return
    if not 0 < rate_per_s < float("inf"):
        raise RunnerError(f"{rate_per_s:g} sessions per second cannot arrive", remedy="set the rate above 0")
    raw = np.random.Philox(key=np.array([arrivals.seed, _DOMAIN], dtype=np.uint64))
    arrival_s = 0.0
    for index, session in enumerate(sessions):
        if index:
            uniform = ((int(raw.random_raw()) >> 11) + 1) * 2.0**-53
            arrival_s -= float(np.log(uniform)) / rate_per_s
        yield _move_session(session, arrival_s)


def scale_trace(trace: Trace, tokens: float, *, output_tokens: float | None = None, time: float = 1.0) -> Trace:
    """Multiply lengths by `tokens` (outputs by `output_tokens`) and times by `time`; shared prefixes stay shared."""
    scaling = Scaling(tokens, output_tokens, time)
    return Trace(scaling.scale_facts(trace.facts), tuple(scale_sessions(trace.facts, trace.sessions, scaling)))


def sample_trace(trace: Trace, sessions: int, seed: int) -> Trace:
    """Draw `sessions` sessions, or all where there are fewer, in their order; the first arrives at 0."""
    chosen = draw_names((session.session for session in trace.sessions), sessions, seed)
    sampled = (session for session in trace.sessions if session.session in chosen)
    return Trace(trace.facts, tuple(rebase_sessions(sampled)))


def limit_trace(trace: Trace, limits: Limits) -> Trace:
    """Apply `limit_session` to every session."""
    return Trace(trace.facts, tuple(limit_sessions(trace.sessions, limits)))


def _hash_name(name: str, seed: int) -> int:
    """A 64-bit hash of the name and the seed, equal on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "big")


def _move_session(session: Session, to_s: float) -> Session:
    begin_s = session.arrival_s
    turns = tuple(msgspec.structs.replace(turn, arrival_s=to_s + (turn.arrival_s - begin_s)) for turn in session.turns)
    return replace(session, turns=turns)
