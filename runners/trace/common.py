"""The prefix that most sessions of a trace begin with."""

from __future__ import annotations

from collections import Counter

from runners.trace.session import Trace

AT_LEAST_SESSIONS = 2


def common_prefix(trace: Trace, most_tokens: int) -> tuple[int, ...]:
    """Hashes of the longest beginning, in whole blocks and within `most_tokens`, on the path that most sessions take.

    At each block the one that most of the sessions so far go on with is taken, until fewer than AT_LEAST_SESSIONS share
    it. Empty where sessions share nothing, and always where hashes mean something within a session only.
    """
    if trace.facts.hash_scope != "global":
        return ()
    size = trace.facts.block_tokens
    openings = [first.hashes[: first.input_tokens // size] for first in (one.turns[0] for one in trace.sessions)]
    found: list[int] = []
    while (len(found) + 1) * size <= most_tokens:
        depth = len(found)
        following = Counter(opening[depth] for opening in openings if len(opening) > depth)
        block, sessions = following.most_common(1)[0] if following else (0, 0)
        if sessions < AT_LEAST_SESSIONS:
            break
        found.append(block)
        openings = [opening for opening in openings if len(opening) > depth and opening[depth] == block]
    return tuple(found)
