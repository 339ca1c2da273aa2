"""Launches of nine configs, drawn, and the critical values that their comparisons need."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from results.statistics.block_model import Launches
from results.statistics.estimates import Samples
from results.statistics.largest_t import compute_pairs_critical

CONFIGS = ("plain", "plain_again", "noop", "mooncake", "producer", "consumer", "nixl", "lmcache", "multi")
REFERENCES = ("plain", "plain_again")
SIGMA = 0.1
"""Of log p90 between launches: what CPU hosts at rest show (0.04 to 0.12)."""


def draw(rng: np.random.Generator, blocks: int, effects: Mapping[str, float] | None = None) -> Launches:
    """Launches of all configs, with a block effect three times the residual."""
    shift = rng.normal(0, 3 * SIGMA, blocks)
    return {
        name: {
            block: float(shift[block] + (effects or {}).get(name, 0.0) + rng.normal(0, SIGMA))
            for block in range(blocks)
        }
        for name in CONFIGS
    }


def draw_runs(rng: np.random.Generator, runs: int, blocks: int) -> Samples:
    """As `draw`, of many runs: runs x configs x blocks."""
    shift = rng.normal(0, 3 * SIGMA, (runs, 1, blocks))
    return shift + rng.normal(0, SIGMA, (runs, len(CONFIGS), blocks))


def launches_of(run: Samples) -> Launches:
    """One run of `draw_runs`."""
    return {name: dict(enumerate(row.tolist())) for name, row in zip(CONFIGS, run, strict=True)}


def equicorrelated(size: int, rho: float) -> np.ndarray:
    matrix = np.full((size, size), rho)
    np.fill_diagonal(matrix, 1.0)
    return matrix


def degrees_of(blocks: int) -> int:
    return (blocks - 1) * (len(CONFIGS) - 1)


def pairs_half(blocks: int) -> float:
    """The critical value of every two of CONFIGS in complete blocks."""
    spread = np.eye(len(CONFIGS)) / blocks
    return compute_pairs_critical(spread, degrees_of(blocks))
