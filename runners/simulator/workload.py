"""What a simulation replays: the plan of a trace and the keys of its prompts' blocks, in little memory.

The trace is read session by session, and of its hashes only four to eight bytes per full block are retained: millions
of requests fit into the memory of one process.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt

from results.records.trace_lines import Turn
from results.traces.prefix_keys import compute_prefix_keys_of_each, find_known_depth
from runners.load.replay_plan import Pace, ReplayPlan, plan_replay
from runners.trace.common_prefix import follow_majority
from runners.trace.session import Session, Trace, TraceFacts

Numbers = npt.NDArray[np.int64]
WORDS_AT_ONCE = 1 << 16
"""From this many blocks on, the keys of the sessions so far are made."""


@dataclass(frozen=True, slots=True)
class BlockKeys:
    """Per turn of the plan a key for each full block of its prompt. Equal keys are equal prefixes: a key stands for a
    block and all before it."""

    keys: npt.NDArray[np.uint32]
    """Keys of all turns, one after another; above 0."""
    bounds: Numbers
    """Turn i has keys[bounds[i]:bounds[i + 1]]."""

    def __getitem__(self, index: int) -> tuple[int, ...]:
        return tuple(self.keys[self.bounds[index] : self.bounds[index + 1]].tolist())


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace as a simulation replays it."""

    facts: TraceFacts
    plan: ReplayPlan
    """Its turns have no hashes: `keys` stand for them."""
    keys: BlockKeys

    def find_common_prefix(self, most_tokens: int) -> tuple[int, ...]:
        """The keys of the prompt that `common_prefix` gives a live run; empty where sessions share nothing."""
        openings = [self.keys[session.first] for session in self.plan.sessions]
        return follow_majority(openings, most_tokens // self.facts.block_tokens)


def make_workload(facts: TraceFacts, sessions: Iterable[Session], pace: Pace) -> Workload:
    """`sessions`: in the order of arrival; the hashes of a few are held at a time."""
    words, bounds = array("q"), array("q", (0,))
    bare = tuple(_strip_sessions(facts, sessions, words, bounds))
    keys = BlockKeys(_number_words(np.frombuffer(words, dtype=np.int64)), np.frombuffer(bounds, dtype=np.int64))
    trace = Trace(facts, bare)
    return Workload(facts, plan_replay(trace, count_reusable_blocks(trace, keys), pace), keys)


def _strip_sessions(
    facts: TraceFacts, sessions: Iterable[Session], words: array[int], bounds: array[int]
) -> Iterator[Session]:
    """The sessions without hashes; a word for each full block goes to `words`, the end of each turn's to `bounds`.

    `words` is complete once all sessions are taken.
    """
    prompts: list[tuple[int, ...]] = []
    pending = 0
    for index, session in enumerate(sessions):
        scope = index if facts.hash_scope == "session" else -1
        for turn in session.turns:
            prompts.append((scope, *turn.hashes[: turn.input_tokens // facts.block_tokens]))
            blocks = len(prompts[-1]) - 1
            bounds.append(bounds[-1] + blocks)
            pending += blocks
        if pending >= WORDS_AT_ONCE:
            words.frombytes(_make_words(prompts))
            prompts, pending = [], 0
        yield replace(session, turns=tuple(_strip_turn(turn) for turn in session.turns))
    if prompts:
        words.frombytes(_make_words(prompts))


def _make_words(prompts: Sequence[tuple[int, ...]]) -> bytes:
    """The prefix keys of each, without that of its scope; at least one prompt."""
    keys = compute_prefix_keys_of_each(prompts)
    is_block = np.ones(keys.size, dtype=np.bool_)
    is_block[np.cumsum([0, *map(len, prompts[:-1])])] = False
    return keys[is_block].tobytes()


def _strip_turn(turn: Turn) -> Turn:
    return msgspec.structs.replace(turn, hashes=())


def _number_words(words: Numbers) -> npt.NDArray[np.uint32]:
    """Equal words get equal numbers from 1 on, in the order of their first appearance: neighbors in a prompt stay
    neighbors in the tables of the simulation, and in the processor's caches."""
    _, first, inverse = np.unique(words, return_index=True, return_inverse=True)
    number = np.empty(first.size, dtype=np.uint32)
    number[np.argsort(first)] = np.arange(1, first.size + 1, dtype=np.uint32)
    return number[inverse]


def count_reusable_blocks(trace: Trace, keys: BlockKeys) -> list[tuple[int, int]]:
    """As `count_reusable_tokens` for the trace's own block size, from the keys of its full blocks."""
    block = trace.facts.block_tokens
    turns = [turn for session in trace.sessions for turn in session.turns]
    most = (np.array([turn.input_tokens for turn in turns]) - 1) // block
    own = np.fromiter(_measure_own_depths(trace, keys), dtype=np.int64, count=len(turns))
    if trace.facts.hash_scope == "session":
        everywhere = own
    else:
        everywhere = _measure_known_depths(keys, np.array([turn.arrival_s for turn in turns]))
    pairs = zip((np.minimum(everywhere, most) * block).tolist(), (np.minimum(own, most) * block).tolist(), strict=True)
    return list(pairs)


def _measure_known_depths(keys: BlockKeys, arrivals_s: npt.NDArray[np.float64]) -> Numbers:
    """Per turn, how many of its leading keys a turn has that arrived earlier, in any session."""
    order = np.argsort(arrivals_s, kind="stable")
    begins, ends = keys.bounds[:-1], keys.bounds[1:]
    sizes = ends - begins
    if np.array_equal(order, np.arange(order.size)):
        seen = keys.keys
    else:
        seen = np.concatenate([keys.keys[begins[turn] : ends[turn]] for turn in order])
    first = np.zeros(seen.size + 1, dtype=np.int64)  # by key: they are numbered from 1
    positions = np.arange(seen.size)
    first[seen[::-1]] = positions[::-1]  # of several positions the last one written stays: the first in time
    known = np.concatenate(([0], np.cumsum(first[seen] < positions)))
    bounds = np.concatenate(([0], np.cumsum(sizes[order])))
    depths = np.empty_like(sizes)
    depths[order] = known[bounds[1:]] - known[bounds[:-1]]  # the known keys of a prompt are its leading ones
    return depths


def _measure_own_depths(trace: Trace, keys: BlockKeys) -> Iterator[int]:
    """The same for turns of its own session, whose turns are in the order of arrival."""
    turn = 0
    for session in trace.sessions:
        if len(session.turns) == 1:
            turn += 1
            yield 0
            continue
        seen: set[int] = set()
        for _ in session.turns:
            mine = keys.keys[keys.bounds[turn] : keys.bounds[turn + 1]]
            turn += 1
            depth = find_known_depth(mine.astype(np.uint64), seen)
            seen.update(mine[depth:].tolist())
            yield depth
