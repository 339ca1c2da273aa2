"""The internal form of a trace: sessions of turns (`results.records.trace_lines.Turn`), and their rules.

Whatever its file format, a turn is self-contained: `input_tokens` and `hashes` cover the whole prompt, history
included. Two turns share a prefix exactly as far as their hashes agree from the start.

The rules hold for every session, whatever its format. Each `..._fault` returns the broken rule as text, or "".
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from results.records.trace_lines import Turn

MAX_CHAINED_ID = 1 << 27
"""Larger ids are not checked for chaining; the table takes 4 bytes per id."""
_UNSEEN, _SHIFT = 0, 2
"""In the table of predecessors, which stores each id plus _SHIFT: zeros take no memory before they are written."""
MAX_SESSION_HASHES = 1 << 26
"""Over all turns of a session: half a GiB. Turns that share hashes take few bytes in a file."""
START = -1
"""Predecessor of a prompt's first hash."""


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


def count_shared_hashes(one: Sequence[int], other: Sequence[int]) -> int:
    """How many hashes two prompts share from the start."""
    low, high = 0, min(len(one), len(other))
    while low < high:  # halving: comparing slices is far faster than pairs, and prompts mostly share all or little
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def count_expected_hashes(tail_rule: str, block_tokens: int, input_tokens: int) -> int:
    return -(-input_tokens // block_tokens) if tail_rule == "ceil" else input_tokens // block_tokens


def find_hash_count_fault(facts: TraceFacts, input_tokens: int, hashes: int) -> str:
    expected = count_expected_hashes(facts.tail_rule, facts.block_tokens, input_tokens)
    if hashes == expected:
        return ""
    rounded = "up" if facts.tail_rule == "ceil" else "down"
    return (
        f"{input_tokens} input tokens have {hashes} hashes, not {expected} "
        f"(one per block of {facts.block_tokens} tokens, rounded {rounded})"
    )


def find_session_fault(facts: TraceFacts, session: Session) -> str:
    if not session.session:
        return "a session has no name"
    if not session.turns:
        return f"session {session.session} has no turns"
    if sum(len(turn.hashes) for turn in session.turns) > MAX_SESSION_HASHES:
        return f"session {session.session} has more than {MAX_SESSION_HASHES} hashes over its turns"
    numbers: defaultdict[str, int] = defaultdict(int)
    before_s = session.turns[0].arrival_s
    for index, turn in enumerate(session.turns):
        fault = (
            _find_length_fault(facts, turn)
            or _find_time_fault(turn, before_s)
            or _find_order_fault(turn, index, numbers)
        )
        if fault:
            return f"session {session.session}, turns[{index}]: {fault}"
        before_s = turn.arrival_s
        numbers[turn.agent] += 1
    return ""


def _find_length_fault(facts: TraceFacts, turn: Turn) -> str:
    if turn.input_tokens < 1:
        return f"a prompt has {turn.input_tokens} tokens"
    if turn.output_tokens < 0:
        return f"an answer has {turn.output_tokens} tokens"
    return find_hash_count_fault(facts, turn.input_tokens, len(turn.hashes))


def _find_time_fault(turn: Turn, before_s: float) -> str:
    if not math.isfinite(turn.arrival_s) or turn.arrival_s < 0:
        return f"it arrives at {turn.arrival_s} s"
    if turn.arrival_s < before_s:
        return f"it arrives at {turn.arrival_s} s, before the turn ahead of it ({before_s} s)"
    if turn.think_s is not None and not (math.isfinite(turn.think_s) and turn.think_s >= 0):
        return f"its think time is {turn.think_s} s"
    return ""


def _find_order_fault(turn: Turn, index: int, numbers: defaultdict[str, int]) -> str:
    if turn.turn != numbers[turn.agent]:
        return f"it is turn {turn.turn} of agent {turn.agent!r}, not {numbers[turn.agent]}"
    if any(not 0 <= waited < index for waited in turn.after):
        return f"it waits for {list(turn.after)}, not only for turns ahead of it"
    if len(set(turn.after)) != len(turn.after):
        return f"it waits twice for one turn: {list(turn.after)}"
    return ""


class Chain:
    """Checks whether hashes are chained (a hash stands for its block and all before it): then each id has one fixed
    predecessor, and no id occurs twice in a prompt. For ids numbered from 0 or 1 without large gaps."""

    def __init__(self) -> None:
        self._before = np.zeros(1024, dtype=np.int32)

    def find_fault(self, hashes: NDArray[np.int64], ahead: int = START) -> str:
        """How this prompt contradicts the prompts before it. Ids from MAX_CHAINED_ID on are not checked.

        `hashes` may be the rest of a prompt whose beginning is already checked; `ahead` is the hash before it.
        """
        if not hashes.size:
            return ""
        top = int(hashes.max())
        if top >= MAX_CHAINED_ID:
            return ""
        if top >= self._before.size:
            grown = np.zeros(min(max(top + 1, 2 * self._before.size), MAX_CHAINED_ID), dtype=np.int32)
            grown[: self._before.size] = self._before
            self._before = grown
        before = np.concatenate((np.array([ahead]), hashes[:-1])).astype(np.int32) + np.int32(_SHIFT)
        known = self._before[hashes]
        wrong = np.flatnonzero((known != _UNSEEN) & (known != before))
        if wrong.size:
            index = int(wrong[0])
            return (
                f"hash {int(hashes[index])} follows {_name_hash(int(before[index]) - _SHIFT)} here and "
                f"{_name_hash(int(known[index]) - _SHIFT)} before: a hash stands for its block and all before it"
            )
        self._before[hashes] = before
        twice = np.flatnonzero(self._before[hashes] != before)
        return f"hash {int(hashes[twice[0]])} comes twice in one prompt" if twice.size else ""


def _name_hash(hash_id: int) -> str:
    return "nothing" if hash_id == START else f"hash {hash_id}"
