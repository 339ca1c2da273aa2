"""The common prefix of the sessions of a trace."""

from __future__ import annotations

from collections import Counter

from runners.trace.session import Trace

AT_LEAST_SESSIONS = 2


def common_prefix(trace: Trace, most_tokens: int) -> tuple[int, ...]:
    """Hashes of the common prefix in whole blocks, up to `most_tokens`.

    At each block it follows the majority of the sessions on the path, until fewer than AT_LEAST_SESSIONS share it.
    Empty where sessions share nothing, and where hashes are local to a session.
    """
    if trace.facts.hash_scope != "global":
        return ()
    size = trace.facts.block_tokens
    openings = [first.hashes[: first.input_tokens // size] for first in (one.turns[0] for one in trace.sessions)]
    prefix: list[int] = []
    while (len(prefix) + 1) * size <= most_tokens:
        depth = len(prefix)
        following = Counter(opening[depth] for opening in openings if len(opening) > depth)
        block, sessions = following.most_common(1)[0] if following else (0, 0)
        if sessions < AT_LEAST_SESSIONS:
            break
        prefix.append(block)
        openings = [opening for opening in openings if len(opening) > depth and opening[depth] == block]
    return tuple(prefix)
