"""How long sessions and their turns are, found so that several stated statistics hold at once. Pure and deterministic.

Sessions stand in a row from the largest to the smallest, at most RANKS of them. The stated skew fixes the input tokens
of each, the stated percentiles the lengths of all requests together, and the stated bound, since a session reuses all
but what is new in it, how many turns there are. Those are met by turns: lengths are mapped to the stated percentiles by
their rank, scaled to the sessions' sums, and mapped again; what lengths cannot meet moves the number of turns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runners.trace.statistics import Floats, Statistics, request_quantile, session_mass

Ints = NDArray[np.int64]

RANKS = 1000
"""At most; a trace of fewer sessions has as many ranks as sessions, so that it too keeps the statistics."""
GROWTH_PER_TURN = 0.12
"""A session's last prompt is so much longer than its first, per turn, up to MOST_GROWTH times."""
MOST_GROWTH = 8.0
_LENGTH_EXPONENT = 0.35
"""Where the search begins: a session with k times the input has k ** 0.35 times as long prompts."""
_ROUNDS = 12
_FITS = 6
_BISECTIONS = 11
_MOST_TURNS = 64.0


@dataclass(frozen=True, slots=True)
class Shapes:
    """Of each rank: its turns and their lengths."""

    starts: Ints
    """Where a rank's lengths begin in `lengths`; one more entry than ranks."""
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
        """Input tokens of its first turn."""
        return np.asarray(self.lengths[self.starts[:-1]])

    @property
    def sums(self) -> Floats:
        """Input tokens of each rank's session."""
        return np.asarray(np.add.reduceat(self.lengths, self.starts[:-1]))

    def turns(self, rank: int) -> Floats:
        """Input tokens of each turn."""
        return self.lengths[self.starts[rank] : self.starts[rank + 1]]

    @property
    def mean_tokens(self) -> float:
        """Input tokens per request."""
        return float(self.lengths.mean())


def find_shapes(wanted: Statistics, sessions: int) -> Shapes:
    """Shapes that come as close to the statistics as they allow, for a trace of so many sessions."""
    ranks = min(sessions, RANKS)
    masses = np.diff(session_mass(wanted, np.arange(ranks + 1) / ranks))
    new_share = 1 - wanted.apc_bound_intra
    low, high = 1.0, _MOST_TURNS
    for _ in range(_BISECTIONS):
        middle = float(np.sqrt(low * high))
        starts, lengths = _fit(wanted, masses, middle)
        if lengths[starts[1:] - 1].sum() / lengths.sum() > new_share:
            low = middle
        else:
            high = middle
    starts, lengths = _fit(wanted, masses, high)
    return Shapes(starts, lengths)


def _fit(wanted: Statistics, masses: Floats, mean_turns: float) -> tuple[Ints, Floats]:
    """(starts, lengths) for a mean number of turns per session."""
    means = masses**_LENGTH_EXPONENT
    turns = masses / means
    for _ in range(_ROUNDS):
        counts = _whole_turns(turns, mean_turns)
        starts = np.concatenate(([0], np.cumsum(counts)))
        lengths = _lengths(wanted, masses, counts, means)
        sums = np.add.reduceat(lengths, starts[:-1])
        means = sums / counts
        turns = counts * (masses / masses.sum() * sums.sum() / sums) ** 0.7
    return starts, lengths


def _whole_turns(turns: Floats, mean_turns: float) -> Ints:
    """Whole numbers, at least 1, in about the proportions of `turns`, with that mean."""
    low, high = 1e-6, 1e9
    for _ in range(60):
        factor = float(np.sqrt(low * high))
        if np.maximum(1, np.rint(turns / turns.mean() * factor)).mean() < mean_turns:
            low = factor
        else:
            high = factor
    return np.asarray(np.maximum(1, np.rint(turns / turns.mean() * high)), dtype=np.int64)


def _lengths(wanted: Statistics, masses: Floats, counts: Ints, means: Floats) -> Floats:
    """Lengths of all turns: by rank those of the stated percentiles, by session nearly its share of the whole."""
    owner = np.repeat(np.arange(counts.size), counts)
    starts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    lengths = means[owner] * _profile(counts, owner, starts)
    stated = request_quantile(wanted, (np.arange(owner.size) + 0.5) / owner.size)
    for _ in range(_FITS):
        order = np.argsort(lengths, kind="stable")
        lengths[order] = stated
        sums = np.add.reduceat(lengths, starts)
        lengths *= np.sqrt(masses / masses.sum() * sums.sum() / sums)[owner]
    return lengths


def _profile(counts: Ints, owner: Ints, starts: Ints) -> Floats:
    """Each turn's length over the mean of its session: a straight line."""
    growth = np.minimum(1 + GROWTH_PER_TURN * (counts - 1), MOST_GROWTH)
    place = (np.arange(owner.size) - starts[owner]) / np.maximum(counts - 1, 1)[owner]
    return np.asarray((1 + (growth[owner] - 1) * place) / ((1 + growth[owner]) / 2))
