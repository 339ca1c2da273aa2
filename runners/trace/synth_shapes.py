"""Finds the lengths of sessions and turns that meet several statistics together. Pure and deterministic.

Sessions are ranked from the largest to the smallest, with at most RANKS ranks. The skew fixes the input tokens of each
session, the percentiles fix the lengths of all requests, and the bound fixes the number of turns, since a session
reuses all but its new tokens. The search alternates: it maps lengths to the percentiles by their rank, scales them to
the sums of the sessions, and repeats; a remaining error changes the number of turns.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runners.trace.workload_statistics import Floats, Statistics, compute_request_quantiles, compute_session_mass

Ints = NDArray[np.int64]

RANKS = 1000
"""Maximum number of ranks; a smaller trace has one rank per session, so that it meets the statistics too."""
GROWTH_PER_TURN = 0.12
"""Relative growth of a session's prompts per turn; the last is at most MOST_GROWTH times the first."""
MOST_GROWTH = 8.0
_LENGTH_EXPONENT = 0.35
"""Start of the search: a session with k times the input has prompts k ** 0.35 times as long."""
_ROUNDS = 12
_FITS = 6
_BISECTIONS = 11
_MOST_TURNS = 64.0


@dataclass(frozen=True, slots=True)
class Shapes:
    """The turns of each rank and their lengths."""

    starts: Ints
    """Start of each rank in `lengths`; one more entry than ranks."""
    lengths: Floats
    """Input tokens of each turn, ascending within a session."""

    @property
    def ranks(self) -> int:
        return self.starts.size - 1

    @property
    def counts(self) -> Ints:
        """Turns of each rank's session."""
        return np.asarray(np.diff(self.starts))

    @property
    def firsts(self) -> Floats:
        """Input tokens of each rank's first turn."""
        return np.asarray(self.lengths[self.starts[:-1]])

    @property
    def sums(self) -> Floats:
        """Input tokens of each rank's session."""
        return np.asarray(np.add.reduceat(self.lengths, self.starts[:-1]))

    def list_turn_lengths(self, rank: int) -> Floats:
        """Input tokens of each turn."""
        return self.lengths[self.starts[rank] : self.starts[rank + 1]]

    @property
    def mean_tokens(self) -> float:
        """Input tokens per request."""
        return float(self.lengths.mean())


@functools.lru_cache(maxsize=8)
def find_shapes(target: Statistics, sessions: int) -> Shapes:
    """The shapes closest to the statistics, for a trace of this many sessions; cached, as traces of all seeds share
    them."""
    ranks = min(sessions, RANKS)
    masses = np.diff(compute_session_mass(target, np.arange(ranks + 1) / ranks))
    new_share = 1 - target.apc_bound_intra
    low, high = 1.0, _MOST_TURNS
    for _ in range(_BISECTIONS):
        middle = float(np.sqrt(low * high))
        starts, lengths = _fit_shapes(target, masses, middle)
        if lengths[starts[1:] - 1].sum() / lengths.sum() > new_share:
            low = middle
        else:
            high = middle
    starts, lengths = _fit_shapes(target, masses, high)
    return Shapes(starts, lengths)


def _fit_shapes(target: Statistics, masses: Floats, mean_turns: float) -> tuple[Ints, Floats]:
    """(starts, lengths) for a mean number of turns per session."""
    means = masses**_LENGTH_EXPONENT
    turns = masses / means
    for _ in range(_ROUNDS):
        counts = _round_turns(turns, mean_turns)
        starts = np.concatenate(([0], np.cumsum(counts)))
        lengths = _fit_lengths(target, masses, counts, means)
        sums = np.add.reduceat(lengths, starts[:-1])
        means = sums / counts
        turns = counts * (masses / masses.sum() * sums.sum() / sums) ** 0.7
    return starts, lengths


def _round_turns(turns: Floats, mean_turns: float) -> Ints:
    """Round `turns` to whole numbers of at least 1, about in proportion, with the mean `mean_turns`."""
    low, high = 1e-6, 1e9
    for _ in range(60):
        factor = float(np.sqrt(low * high))
        if np.maximum(1, np.rint(turns / turns.mean() * factor)).mean() < mean_turns:
            low = factor
        else:
            high = factor
    return np.asarray(np.maximum(1, np.rint(turns / turns.mean() * high)), dtype=np.int64)


def _fit_lengths(target: Statistics, masses: Floats, counts: Ints, means: Floats) -> Floats:
    """Lengths of all turns: they follow the stated percentiles, and nearly the shares of the sessions."""
    owner = np.repeat(np.arange(counts.size), counts)
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    lengths = means[owner] * _make_length_profile(counts, owner, starts)
    stated = compute_request_quantiles(target, (np.arange(owner.size) + 0.5) / owner.size)
    for _ in range(_FITS):
        order = np.argsort(lengths, kind="stable")
        lengths[order] = stated
        sums = np.add.reduceat(lengths, starts)
        lengths *= np.sqrt(masses / masses.sum() * sums.sum() / sums)[owner]
    return lengths


def _make_length_profile(counts: Ints, owner: Ints, starts: Ints) -> Floats:
    """Length of each turn over the mean of its session: a straight line over the turns."""
    growth = np.minimum(1 + GROWTH_PER_TURN * (counts - 1), MOST_GROWTH)
    position = (np.arange(owner.size) - starts[owner]) / np.maximum(counts - 1, 1)[owner]
    return np.asarray((1 + (growth[owner] - 1) * position) / ((1 + growth[owner]) / 2))
