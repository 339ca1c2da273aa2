"""What generated sessions have in common with each other, so that their reuse splits as stated. Pure.

All begin with the same few blocks: the shared prefix. Of the largest, in the order of their arrival, every second one
is a copy: it goes on from part of the first prompt of the one ahead, its origin. Many short copies and few long ones
give the same cross-session reuse, but not the same distance between the two bounds, since only a copy's first turn
depends on the other session: that decides how many of the largest take part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runners.errors import RunnerError
from runners.trace.shapes import Ints, Shapes
from runners.trace.statistics import Statistics

MOST_COMMON = 0.9
"""Of the shorter of the two first prompts of a copy and its origin, at most so much is common."""
PROMISED_FROM = 100
"""With fewer sessions there may be too few to copy from; then they share what they can."""
NO_ORIGIN = -1


@dataclass(frozen=True, slots=True)
class Sharing:
    """Who shares how much with whom."""

    prefix_tokens: float
    """That all begin with."""
    origins: Ints
    """Per session the number of its origin, an earlier one; NO_ORIGIN = it is no copy."""
    common_share: float
    """Of the shorter of the two first prompts, how much a copy has in common with its origin."""


def find_sharing(wanted: Statistics, shapes: Shapes, ranks: Ints) -> Sharing:
    """`ranks`: of every session, in the order of arrival. Raises RunnerError where they cannot share as much."""
    input_tokens = float(shapes.sums[ranks].sum())
    requests = int(shapes.counts[ranks].sum())
    reused = wanted.apc_bound_any * input_tokens
    prefix_tokens = wanted.shared_prefix_share * reused / requests
    cross = wanted.cross_share * reused
    first_turns = (wanted.apc_bound_any - wanted.apc_bound_intra) * input_tokens - ranks.size * prefix_tokens
    best: tuple[bool, float] | None = None
    found = Sharing(prefix_tokens, np.full(ranks.size, NO_ORIGIN, dtype=np.int64), 0.0)
    for part in np.unique(np.geomspace(1, shapes.ranks, 60).astype(int)).tolist():
        origins = _origins(ranks, part)
        copies = np.flatnonzero(origins != NO_ORIGIN)
        common = np.minimum(shapes.firsts[ranks[copies]], shapes.firsts[ranks[origins[copies]]])
        most = float((common * shapes.counts[ranks[copies]]).sum())
        if not most:
            continue
        share = cross / most
        miss = share if share > MOST_COMMON else abs(share * float(common.sum()) - max(first_turns, 0.0))
        if best is None or (share > MOST_COMMON, miss) < best:
            best = (share > MOST_COMMON, miss)
            found = Sharing(prefix_tokens, origins, min(share, MOST_COMMON))
    if cross and ranks.size >= PROMISED_FROM and (best is None or best[0]):
        raise RunnerError(
            f"sessions cannot share as much as a cross_share of {wanted.cross_share:g} takes",
            remedy="lower cross_share, or raise apc_bound_intra: more turns reuse more",
        )
    return found


def _origins(ranks: Ints, part: int) -> Ints:
    """Of the sessions of the first `part` ranks, in the order of arrival, every second has the one ahead."""
    origins = np.full(ranks.size, NO_ORIGIN, dtype=np.int64)
    taking = np.flatnonzero(ranks < part)
    pairs = taking[: taking.size // 2 * 2].reshape(-1, 2)
    origins[pairs[:, 1]] = pairs[:, 0]
    return origins
