"""The common prefix of the sessions of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from runners.trace.session import Trace

AT_LEAST_SESSIONS = 2


def common_prefix(trace: Trace, most_tokens: int) -> tuple[int, ...]:
    """Hashes of the common prefix in whole blocks, up to `most_tokens`; as `follow_majority`.

    Empty where sessions share nothing, and where hashes are local to a session.
    """
    if trace.facts.hash_scope != "global":
        return ()
    size = trace.facts.block_tokens
    openings = [first.hashes[: first.input_tokens // size] for first in (one.turns[0] for one in trace.sessions)]
    return follow_majority(openings, most_tokens // size)


def follow_majority(openings: Sequence[Sequence[int]], most_blocks: int) -> tuple[int, ...]:
    """The path through the first blocks of sessions that most of them take at each block.

    It ends where fewer than AT_LEAST_SESSIONS share the next block.
    """
    prefix: list[int] = []
    while len(prefix) < most_blocks:
        depth = len(prefix)
        following = Counter(opening[depth] for opening in openings if len(opening) > depth)
        block, sessions = following.most_common(1)[0] if following else (0, 0)
        if sessions < AT_LEAST_SESSIONS:
            break
        prefix.append(block)
        openings = [opening for opening in openings if len(opening) > depth and opening[depth] == block]
    return tuple(prefix)
