"""Traces made smaller, faster or sparser, with the structure of their prefixes kept. Pure.

Each change is a function from sessions to sessions that streams, so that a file of any size can be changed; `scale`,
`sample` and `limit` do the same to a trace in memory.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace

import numpy as np

from runners.errors import RunnerError
from runners.trace.session import Session, Trace, TraceFacts, Turn

_DOMAIN = 0x6172_7269_7661_6C73  # "arrivals": keeps this stream of random numbers apart from others


@dataclass(frozen=True, slots=True)
class Scaling:
    """Factors on lengths and times."""

    tokens: float = 1.0
    """On every length; the block size becomes a whole number of tokens, and lengths follow the factor it really got."""
    output_tokens: float | None = None
    """On output lengths; None = as `tokens`."""
    time: float = 1.0
    """On arrivals and think times: 0.1 is ten times as fast."""

    def __post_init__(self) -> None:
        for name in ("tokens", "output_tokens", "time"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise RunnerError(f"the factor on {name} cannot be {value:g}", remedy="give a number above 0")

    def facts(self, facts: TraceFacts) -> TraceFacts:
        """What the scaled trace's numbers mean."""
        return replace(facts, block_tokens=scaled_block(facts, self.tokens))

    def session(self, facts: TraceFacts, session: Session) -> Session:
        """`facts`: those before scaling."""
        block = scaled_block(facts, self.tokens)
        outputs = self.output_tokens or block / facts.block_tokens
        return replace(session, turns=tuple(self._turn(facts, block, outputs, turn) for turn in session.turns))

    def _turn(self, facts: TraceFacts, block: int, outputs: float, turn: Turn) -> Turn:
        return replace(
            turn,
            arrival_s=turn.arrival_s * self.time,
            think_s=None if turn.think_s is None else turn.think_s * self.time,
            input_tokens=scaled_input(facts, block, turn.input_tokens),
            output_tokens=max(1, round(turn.output_tokens * outputs)) if turn.output_tokens else 0,
        )


def scaled_block(facts: TraceFacts, tokens: float) -> int:
    """The block size times the factor, at least 1; 2 where partial blocks have no hash, or none could be partial."""
    return max(2 if facts.tail_rule == "floor" else 1, round(facts.block_tokens * tokens))


def scaled_input(facts: TraceFacts, block: int, input_tokens: int) -> int:
    """The same number of hashes at the block size `block`: whole blocks stay whole, a partial one stays partial."""
    whole, tail = divmod(input_tokens, facts.block_tokens)
    if tail:
        most = block if facts.tail_rule == "ceil" else block - 1
        least = 1 if facts.tail_rule == "ceil" or not whole else 0
        tail = min(max(round(tail * block / facts.block_tokens), least), most)
    return whole * block + tail


def scaled_sessions(facts: TraceFacts, sessions: Iterable[Session], scaling: Scaling) -> Iterator[Session]:
    """Every session scaled; `facts` are those before."""
    return (scaling.session(facts, session) for session in sessions)


def limited(session: Session, *, max_context_tokens: int = 0, turns: int = 0) -> Session | None:
    """The session without the turns whose prompt and answer exceed `max_context_tokens`, and with its first `turns`
    turns at most (0 = no limit); None where nothing is left.

    A turn that waited for one that is left out waits for what that one waited for.
    """
    waits: list[tuple[int, ...]] = []
    """Per turn, kept or not: the kept places that whoever waits for it has to wait for."""
    numbers: defaultdict[str, int] = defaultdict(int)
    kept: list[Turn] = []
    for place, turn in enumerate(session.turns):
        after = tuple(sorted({new for old in turn.after for new in waits[old]}))
        too_long = max_context_tokens and turn.input_tokens + turn.output_tokens > max_context_tokens
        if too_long or (turns and place >= turns):
            waits.append(after)
            continue
        waits.append((len(kept),))
        kept.append(replace(turn, turn=numbers[turn.agent], after=after))
        numbers[turn.agent] += 1
    return replace(session, turns=tuple(kept)) if kept else None


def limited_sessions(sessions: Iterable[Session], *, max_context_tokens: int = 0, turns: int = 0) -> Iterator[Session]:
    """Every session limited, in the order of their new arrivals; the first one at 0.

    A session that lost its first turn arrives later: it is held back until the others have caught up.
    """

    def kept() -> Iterator[Session]:
        waiting: list[tuple[float, int, Session]] = []
        for number, session in enumerate(sessions):
            while waiting and waiting[0][0] <= session.arrival_s:
                yield heapq.heappop(waiting)[2]
            rest = limited(session, max_context_tokens=max_context_tokens, turns=turns)
            if rest is not None:
                heapq.heappush(waiting, (rest.arrival_s, number, rest))
        while waiting:
            yield heapq.heappop(waiting)[2]

    return rebased(kept())


def drawn(names: Iterable[str], sessions: int, seed: int) -> frozenset[str]:
    """`sessions` of the names, each as likely as any other; a name's luck is its own, so a larger draw holds a smaller.

    All where there are fewer.
    """
    return frozenset(name for _, name in heapq.nsmallest(sessions, ((_luck(name, seed), name) for name in names)))


def lucky(name: str, share: float, seed: int) -> bool:
    """Whether a session belongs to a sample of `share` (0 to 1) of them; by its name and the seed alone."""
    return _luck(name, seed) < share * 2.0**64


def rebased(sessions: Iterable[Session]) -> Iterator[Session]:
    """The same, earlier: the first one arrives at 0."""
    begin_s: float | None = None
    for session in sessions:
        begin_s = session.arrival_s if begin_s is None else begin_s
        yield _moved(session, session.arrival_s - begin_s) if begin_s else session


def arriving(sessions: Iterable[Session], sessions_per_s: float, seed: int) -> Iterator[Session]:
    """The same sessions as a Poisson process of that rate, in their order; inside a session nothing changes.

    For traces that do not say when a session began. Raises RunnerError for a rate that cannot be.
    """
    if not 0 < sessions_per_s < float("inf"):
        raise RunnerError(f"{sessions_per_s:g} sessions per second cannot arrive", remedy="give a number above 0")
    raw = np.random.Philox(key=np.array([seed, _DOMAIN], dtype=np.uint64))
    arrival_s = 0.0
    for place, session in enumerate(sessions):
        if place:
            uniform = ((int(raw.random_raw()) >> 11) + 1) * 2.0**-53
            arrival_s -= float(np.log(uniform)) / sessions_per_s
        yield _moved(session, arrival_s)


def scale(trace: Trace, tokens: float, *, output_tokens: float | None = None, time: float = 1.0) -> Trace:
    """Lengths times `tokens` (outputs times `output_tokens`), times times `time`; prefixes are shared as before."""
    scaling = Scaling(tokens, output_tokens, time)
    return Trace(scaling.facts(trace.facts), tuple(scaled_sessions(trace.facts, trace.sessions, scaling)))


def sample(trace: Trace, sessions: int, seed: int) -> Trace:
    """`sessions` of them at random, in their order, the first one arriving at 0; all where there are fewer."""
    chosen = drawn((session.session for session in trace.sessions), sessions, seed)
    return Trace(trace.facts, tuple(rebased(_chosen(trace.sessions, chosen))))


def limit(trace: Trace, *, max_context_tokens: int = 0, turns: int = 0) -> Trace:
    """Without turns that are too long, and with the first `turns` of each session (0 = no limit); see `limited`."""
    return Trace(
        trace.facts, tuple(limited_sessions(trace.sessions, max_context_tokens=max_context_tokens, turns=turns))
    )


def _chosen(sessions: Iterable[Session], names: Set[str]) -> Iterator[Session]:
    return (session for session in sessions if session.session in names)


def _luck(name: str, seed: int) -> int:
    """64 bits of the name and the seed, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "big")


def _moved(session: Session, to_s: float) -> Session:
    begin_s = session.arrival_s
    turns = tuple(replace(turn, arrival_s=to_s + (turn.arrival_s - begin_s)) for turn in session.turns)
    return replace(session, turns=turns)
