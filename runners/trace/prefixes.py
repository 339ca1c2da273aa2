"""What the turns of one session share with each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.traces.keys import Keys, known_depth, prefix_keys
from results.traces.reuse import NO_BRANCHES, FirstUse, first_use
from runners.trace.session import Session


@dataclass(frozen=True, slots=True)
class SessionPrefixes:
    """One session's own reuse, and what it hands on to be compared with other sessions."""

    intra_tokens: int
    """Input tokens whose whole prefix, in blocks of the trace, an earlier turn of the session had."""
    blocks: int
    """Different blocks it uses."""
    first_uses: tuple[tuple[int, FirstUse], ...]
    """Of each turn that brings new blocks: its place in the session, and those blocks."""


def session_prefixes(session: Session, block_tokens: int) -> SessionPrefixes:
    """Turns count in their order; a block is reused where its whole prefix is. Sub-agents are part of the session."""
    alone = len(session.turns) == 1
    user_of: dict[int, int] = {}  # key to the place of the turn that used it first
    depths: list[int] = []
    parents: list[int] = []
    brought: list[Keys] = []
    for place, turn in enumerate(session.turns):
        keys = prefix_keys(turn.hashes)
        depth = known_depth(keys, user_of)
        parents.append(user_of[int(keys[depth - 1])] if depth else -1)
        depths.append(depth)
        brought.append(keys[depth:].copy() if depth else keys)  # not a view, which would keep the whole prompt's keys
        if not alone:
            user_of.update(dict.fromkeys(brought[-1].tolist(), place))
    branches = _branches(depths, parents)
    uses = tuple(
        (
            place,
            first_use(
                keys,
                block_tokens,
                min(turn.input_tokens - (len(turn.hashes) - 1) * block_tokens, block_tokens),
                np.array(branches[place], dtype=np.int64) if place in branches else NO_BRANCHES,
            ),
        )
        for place, (turn, keys) in enumerate(zip(session.turns, brought, strict=True))
        if keys.size
    )
    intra_tokens = sum(
        min(depth * block_tokens, turn.input_tokens) for depth, turn in zip(depths, session.turns, strict=True)
    )
    return SessionPrefixes(intra_tokens, sum(keys.size for keys in brought), uses)


def _branches(depths: Sequence[int], parents: Sequence[int]) -> Mapping[int, list[tuple[int, int]]]:
    """By place of a turn: how many of the blocks it brought others go on from, and how many turns do."""
    turns = [1] * len(parents)
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for place in range(len(parents) - 1, -1, -1):  # a parent comes before its children
        parent = parents[place]
        if parent >= 0:
            turns[parent] += turns[place]
            found[parent].append((depths[place] - depths[parent], turns[place]))
    return found
