"""Decides which blocks generated sessions share, so that their reuse splits as stated. Pure.

All sessions begin with the same few blocks: the shared prefix. Among the largest sessions, by arrival, every second one
is a copy: it continues part of the first prompt of the session before it, its origin. Many short copies and few long
ones give the same cross-session reuse, but a different distance between the two bounds, since only the first turn of a
copy depends on the other session. That distance decides how many of the largest sessions take part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runners.errors import RunnerError
from runners.trace.synth_shapes import Ints, Shapes
from runners.trace.workload_statistics import Statistics

MOST_COMMON = 0.9
"""Maximum common share of the shorter of the first prompts of a copy and its origin."""
PROMISED_FROM = 100
"""Fewer sessions may have too few origins; then they share as much as possible, without an error."""
NO_ORIGIN = -1


@dataclass(frozen=True, slots=True)
class Sharing:
    prefix_tokens: float
    """Length of the shared prefix."""
    origins: Ints
    """Per session the number of its origin, an earlier session; NO_ORIGIN = no copy."""
    common_share: float
    """Common share of the shorter of the first prompts of a copy and its origin."""


def find_sharing(target: Statistics, shapes: Shapes, ranks: Ints) -> Sharing:
    """`ranks`: of every session, by arrival. Raises RunnerError where the stated sharing is impossible."""
    input_tokens = float(shapes.sums[ranks].sum())
    requests = int(shapes.counts[ranks].sum())
    reused = target.apc_bound_any * input_tokens
    prefix_tokens = target.shared_prefix_share * reused / requests
    cross = target.cross_share * reused
    first_turns = (target.apc_bound_any - target.apc_bound_intra) * input_tokens - ranks.size * prefix_tokens
    best: tuple[bool, float] | None = None
    sharing = Sharing(prefix_tokens, np.full(ranks.size, NO_ORIGIN, dtype=np.int64), 0.0)
    for part in np.unique(np.geomspace(1, shapes.ranks, 60).astype(int)).tolist():
        origins = _choose_origins(ranks, part)
        copies = np.flatnonzero(origins != NO_ORIGIN)
        common = np.minimum(shapes.firsts[ranks[copies]], shapes.firsts[ranks[origins[copies]]])
        most = float((common * shapes.counts[ranks[copies]]).sum())
        if not most:
            continue
        share = cross / most
        miss = share if share > MOST_COMMON else abs(share * float(common.sum()) - max(first_turns, 0.0))
        if best is None or (share > MOST_COMMON, miss) < best:
            best = (share > MOST_COMMON, miss)
            sharing = Sharing(prefix_tokens, origins, min(share, MOST_COMMON))
    if cross and ranks.size >= PROMISED_FROM and (best is None or best[0]):
        raise RunnerError(
            f"sessions cannot share as much as a cross_share of {target.cross_share:g} takes",
            remedy="lower cross_share, or raise apc_bound_intra: more turns reuse more",
        )
    return sharing


def _choose_origins(ranks: Ints, part: int) -> Ints:
    """Every second session of the first `part` ranks, by arrival, has the session before it as its origin."""
    origins = np.full(ranks.size, NO_ORIGIN, dtype=np.int64)
    taking = np.flatnonzero(ranks < part)
    pairs = taking[: taking.size // 2 * 2].reshape(-1, 2)
    origins[pairs[:, 1]] = pairs[:, 0]
    return origins
