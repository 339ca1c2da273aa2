"""The reuse between the turns of one session."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.traces.cross_session_reuse import NO_BRANCHES, FirstUse, make_first_use
from results.traces.prefix_keys import Keys, find_known_depth, prefix_keys
from runners.trace.session import Session


@dataclass(frozen=True, slots=True)
class SessionPrefixes:
    """The reuse within one session, and its new blocks for the comparison with other sessions."""

    intra_tokens: int
    """Input tokens whose whole prefix, in blocks of the trace, is in an earlier turn of the session."""
    blocks: int
    """Distinct blocks."""
    first_uses: tuple[tuple[int, FirstUse], ...]
    """(index of the turn, its new blocks) for each turn with new blocks."""


def session_prefixes(session: Session, block_tokens: int) -> SessionPrefixes:
    """Compare each turn with all turns before it, sub-agents included. A block is reused where its whole prefix is."""
    alone = len(session.turns) == 1
    user_of: dict[int, int] = {}  # key to the index of the turn that used it first
    depths: list[int] = []
    parents: list[int] = []
    new_keys: list[Keys] = []
    for index, turn in enumerate(session.turns):
        keys = prefix_keys(turn.hashes)
        depth = find_known_depth(keys, user_of)
        parents.append(user_of[int(keys[depth - 1])] if depth else -1)
        depths.append(depth)
        new_keys.append(keys[depth:].copy() if depth else keys)  # a view would hold the keys of the whole prompt
        if not alone:
            user_of.update(dict.fromkeys(new_keys[-1].tolist(), index))
    branches = _find_branches(depths, parents)
    uses = tuple(
        (
            index,
            make_first_use(
                keys,
                block_tokens,
                min(turn.input_tokens - (len(turn.hashes) - 1) * block_tokens, block_tokens),
                np.array(branches[index], dtype=np.int64) if index in branches else NO_BRANCHES,
            ),
        )
        for index, (turn, keys) in enumerate(zip(session.turns, new_keys, strict=True))
        if keys.size
    )
    intra_tokens = sum(
        min(depth * block_tokens, turn.input_tokens) for depth, turn in zip(depths, session.turns, strict=True)
    )
    return SessionPrefixes(intra_tokens, sum(keys.size for keys in new_keys), uses)


def _find_branches(depths: Sequence[int], parents: Sequence[int]) -> Mapping[int, list[tuple[int, int]]]:
    """By index of a turn: (number of its new blocks that a later turn continues, number of those turns)."""
    turns = [1] * len(parents)
    branches: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for index in range(len(parents) - 1, -1, -1):  # a parent comes before its children
        parent = parents[index]
        if parent >= 0:
            turns[parent] += turns[index]
            branches[parent].append((depths[index] - depths[parent], turns[index]))
    return branches
