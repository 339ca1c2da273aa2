"""How far chance alone takes the largest |t| of several contrasts that share one estimate of sigma.

By simulation: Dunnett's contrasts with a reference, and those of every two effects (Tukey and Kramer).
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np

from results.statistics.estimates import LEVEL, Samples

DRAWS = 100_000
"""Draws of the largest |t| over all configs; they give the critical value a standard error of about 0.007."""
SEED = 1955
NO_EIGENVALUE = 1e-12
"""Share of the largest eigenvalue; a smaller one is rounding."""


def compute_dunnett_critical(correlation: Samples, degrees: int, level: float = LEVEL) -> float:
    """The c with P(max |t| <= c) = level, over t values of this correlation that share one estimate of sigma."""
    return float(_draw_largest_t(correlation, degrees)[math.ceil(level * DRAWS) - 1])


def compute_dunnett_p(correlation: Samples, degrees: int, t: float) -> float:
    """P(max |t'| >= |t|) where there is no effect; never 0."""
    return _compute_share_beyond(_draw_largest_t(correlation, degrees), t)


def compute_pairs_critical(spread: Samples, degrees: int, level: float = LEVEL) -> float:
    """The c with P(|t| <= c for every two of them) = level, over effects with this covariance in units of sigma^2."""
    return float(_draw_largest_t(spread, degrees, pairs=True)[math.ceil(level * DRAWS) - 1])


def compute_pairs_p(spread: Samples, degrees: int, t: float) -> float:
    """P(the largest |t'| of any two >= |t|) where no two differ; never 0."""
    return _compute_share_beyond(_draw_largest_t(spread, degrees, pairs=True), t)


def _compute_share_beyond(largest: Samples, t: float) -> float:
    beyond = largest.size - int(np.searchsorted(largest, abs(t), side="left"))
    return (beyond + 1) / (largest.size + 1)


def _draw_largest_t(covariance: Samples, degrees: int, *, pairs: bool = False) -> Samples:
    """Sorted draws of the largest |t| of effects, or of the differences of any two: the same ones in every process."""
    return _sample_largest_t(np.round(covariance, 6).tobytes(), degrees, pairs)


@functools.lru_cache(maxsize=64)
def _sample_largest_t(covariance: bytes, degrees: int, pairs: bool) -> Samples:
    return np.sort(_sample_largest_normal(covariance, pairs) / _draw_sigma(degrees))


@functools.lru_cache(maxsize=32)
def _sample_largest_normal(flat: bytes, pairs: bool) -> Samples:
    size = math.isqrt(np.frombuffer(flat).size)
    covariance = np.frombuffer(flat).reshape(size, size)
    drawn = np.random.default_rng(SEED).standard_normal((DRAWS, size)) @ compute_symmetric_root(covariance).T
    if not pairs:
        return np.asarray(np.abs(drawn).max(axis=1), dtype=np.float64)
    largest: Samples = np.zeros(DRAWS)
    for first, second in itertools.combinations(range(size), 2):
        error = math.sqrt(covariance[first, first] + covariance[second, second] - 2 * covariance[first, second])
        np.maximum(largest, np.abs(drawn[:, first] - drawn[:, second]) / error, out=largest)
    return largest


def _draw_sigma(degrees: int) -> Samples:
    """Estimates of a sigma of 1."""
    drawn: Samples = np.sqrt(np.random.default_rng([SEED, degrees]).chisquare(degrees, DRAWS) / degrees)
    return drawn


def compute_symmetric_root(covariance: Samples) -> Samples:
    """The symmetric square root: it alone is unique, so that every processor gives the same draws.

    Eigenvectors of equal eigenvalues can be any basis of their space, and an eigenvalue that is 0 up to rounding has a
    root of about 1e-9: both differ between processors.
    """
    values, vectors = np.linalg.eigh(covariance)
    known = np.where(values > NO_EIGENVALUE * values[-1], values, 0.0) if values.size else values
    return np.asarray((vectors * np.sqrt(known)) @ vectors.T, dtype=np.float64)
