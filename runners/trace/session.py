"""The internal form of a trace: sessions of turns, each with its lengths, block hashes and place in time.

Whatever file it came from, a turn is self-contained: `input_tokens` and `hashes` cover the whole prompt, history
included. Two turns share a prefix exactly as far as their hashes agree from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MAIN = ""
"""The agent of a session's own turns; sub-agents have a name."""


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What a trace's numbers mean. Every importer states all of it and refuses a file that contradicts it."""

    format: str
    """`mooncake`, `bailian`, `agentic`, or `tracon` (the project's own)."""
    source: str
    """The file's name, without its folder."""
    time_unit_s: float
    """One unit of the file's times, in seconds."""
    block_tokens: int
    """Tokens behind one hash."""
    tail_rule: Literal["ceil", "floor"]
    """Whether a partial last block has a hash (`ceil`) or not (`floor`)."""
    hash_scope: Literal["global", "session"]
    """Where equal hashes mean equal content: in the whole trace, or within one session (its sub-agents included)."""
    hashes_chained: bool
    """Whether a hash stands for its block and all before it; if not, only equal runs from the start are a prefix."""
    context_mode: Literal["self_contained"]
    """Every prompt already includes its history: nothing is ever accumulated on replay."""
    has_sessions: bool
    """False: the file has no sessions; each request is a session of one turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    agent: str
    """MAIN, or the sub-agent that sent it."""
    turn: int
    """0-based among the turns of its agent in its session."""
    arrival_s: float
    """Recorded send, in seconds since the trace began."""
    think_s: float | None
    """Recorded pause between the end of what it waited for and its send; None = the source has no such record."""
    input_tokens: int
    output_tokens: int
    hashes: tuple[int, ...]
    after: tuple[int, ...] = ()
    """Places in `Session.turns` of the turns that must have ended before this one may be sent; empty = it leaves at its
    recorded offset from the session's start."""


@dataclass(frozen=True, slots=True)
class Session:
    """Turns in the order of their recorded arrival; every `after` points to an earlier place."""

    session: str
    turns: tuple[Turn, ...]

    @property
    def arrival_s(self) -> float:
        """When it began, in seconds since the trace began."""
        return self.turns[0].arrival_s


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace in memory, sessions in the order of their arrival; the first one arrives at 0."""

    facts: TraceFacts
    sessions: tuple[Session, ...]

    @property
    def requests(self) -> int:
        return sum(len(session.turns) for session in self.sessions)

    @property
    def span_s(self) -> float:
        """From the first recorded send to the last."""
        if not self.sessions:
            return 0.0
        return max(turn.arrival_s for session in self.sessions for turn in session.turns)


def shared_hashes(one: Sequence[int], other: Sequence[int]) -> int:
    """How many hashes two prompts share from the start."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # halving: comparing slices is far faster than pairs, and prompts mostly share all or little
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
