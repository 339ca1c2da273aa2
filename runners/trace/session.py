"""The internal form of a trace: sessions of turns, each with its lengths, block hashes and times.

Whatever its file format, a turn is self-contained: `input_tokens` and `hashes` cover the whole prompt, history
included. Two turns share a prefix exactly as far as their hashes agree from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

MAIN = ""
"""The agent of a session's own turns; sub-agents have a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """The meaning of a trace's numbers; an importer rejects a file that contradicts them."""

    format: str = "tracon"
    """`mooncake`, `bailian`, `agentic`, or `tracon` (the project's own)."""
    source: str
    """The file's name, without its folder."""
    time_unit_s: float = 1.0
    """One unit of the file's times, in seconds."""
    block_tokens: int
    """Tokens behind one hash."""
    tail_rule: Literal["ceil", "floor"]
    """Whether a partial last block has a hash (`ceil`) or not (`floor`)."""
    hash_scope: Literal["global", "session"]
    """Where equal hashes mean equal content: the whole trace, or one session with its sub-agents."""
    hashes_chained: bool = True
    """True: a hash stands for its block and all before it. False: only equal leading hashes form a prefix."""
    context_mode: Literal["self_contained"] = "self_contained"
    """Every prompt includes its history: a replay accumulates nothing."""
    has_sessions: bool = True
    """False: the file has no sessions; each request is a session of one turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    agent: str
    """MAIN, or the sub-agent that sent it."""
    turn: int
    """0-based among the turns of its agent in its session."""
    arrival_s: float
    """Recorded send, in seconds since the start of the trace."""
    think_s: float | None
    """Recorded pause from the end of the turns in `after` to the send; None = not recorded."""
    input_tokens: int
    output_tokens: int
    hashes: tuple[int, ...]
    after: tuple[int, ...] = ()
    """Indexes in `Session.turns` of the turns that must end before this one is sent; empty = it is sent at its recorded
    offset from the session's start."""


@dataclass(frozen=True, slots=True)
class Session:
    """Turns in the order of recorded arrival; every `after` refers to earlier turns."""

    session: str
    turns: tuple[Turn, ...]

    @property
    def arrival_s(self) -> float:
        """Seconds since the start of the trace."""
        return self.turns[0].arrival_s


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in memory: sessions in the order of arrival, the first at 0."""

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
