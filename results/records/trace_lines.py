"""A trace in the project's own form, `trace.jsonl`: a header, a session a line, and a last line with their counts."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

TRACE_VERSION = 1
"""`TraceHeader.tracon_trace`."""
MAIN = ""
"""The agent of a session's own turns; sub-agents have a name."""
MAX_HASH = (1 << 63) - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
HashId = Annotated[int, msgspec.Meta(ge=0, le=MAX_HASH)]


class StatedFacts(msgspec.Struct, forbid_unknown_fields=True):
    """The meaning of a trace's numbers."""

    block_tokens: Positive
    """Tokens behind one hash."""
    tail_rule: Literal["ceil", "floor"]
    """Whether a partial last block has a hash (`ceil`) or not (`floor`)."""
    hash_scope: Literal["global", "session"]
    """Where equal hashes mean equal content: the whole trace, or one session with its sub-agents."""
    hashes_chained: bool
    """True: a hash stands for its block and all before it. False: only equal leading hashes form a prefix."""
    has_sessions: bool
    """False: the file has no sessions; each request is a session of one turn."""


class TraceHeader(msgspec.Struct, forbid_unknown_fields=True):
    """The first line."""

    tracon_trace: int
    """Version of the file."""
    origin: str
    """Format and name of the source, without its folder."""
    facts: StatedFacts
    """The meaning of the numbers."""


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One request."""

    arrival_s: float
    """Recorded send, in seconds since the start of the trace."""
    input_tokens: int
    """Tokens of its prompt, history included."""
    output_tokens: int
    """Tokens of its answer, as recorded."""
    hashes: tuple[HashId, ...]
    """One for each block of its prompt, as StatedFacts has them."""
    agent: str = MAIN
    """Empty = the session itself, else the sub-agent that sent it."""
    turn: int = 0
    """0-based among the turns of its agent in its session."""
    think_s: float | None = None
    """Recorded pause from the end of the turns in `after` to the send; None = not recorded."""
    after: tuple[int, ...] = ()
    """Indexes in the session of the turns that must end before this one is sent; empty = it is sent at its recorded
    offset from the session's start."""


class PackedTurn(Turn, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A turn as the file has it: without the hashes that it shares with an earlier one."""

    shared: tuple[Annotated[int, msgspec.Meta(ge=0)], Positive] | None = None
    """`[index, n]`: the first n hashes of that earlier turn of the session come before `hashes`."""


class LineCounts(msgspec.Struct, forbid_unknown_fields=True):
    """What the file holds."""

    sessions: Count
    """Lines before this one, without the header."""
    requests: Count
    """Turns of all sessions."""


class TraceLine(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A session, or the end."""

    session: str = ""
    """Its name; empty = the end."""
    turns: list[PackedTurn] = []
    """In the order of recorded arrival; every `after` refers to earlier turns."""
    end: LineCounts | None = None
    """Counts of the last line; None = the line is a session."""
