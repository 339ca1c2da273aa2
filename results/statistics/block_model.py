"""The model of configs launched in blocks: y = block + config + residual, with one residual for all configs.

A block is one round in which every config is launched once, under the same arrivals and prompts. The launch is the
unit: y is one number of one launch (the logarithm of a p90, or microseconds). The residual is pooled over all configs,
so that three blocks of nine launches leave 16 degrees of freedom where one config's own differences leave two.

A config whose launches vary more than the others' does not fit in: `find_noisy` names it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.statistics.estimates import ROUNDING, Samples

LEVEL_OF_F = 0.05

Launches = Mapping[str, Mapping[int, float]]
"""The number that each launch measured, by config and block."""


@dataclass(frozen=True, slots=True)
class BlockModel:
    """The model, fitted."""

    names: tuple[str, ...]
    effects: Samples
    """Effect of each config; the first one's is 0."""
    spread: Samples
    """Covariance of the effects in units of sigma^2."""
    sigma: float
    degrees: int
    cells: tuple[tuple[str, int], ...]
    residuals: Samples
    estimator: Samples
    """Configs x launches: an effect is its row times y."""

    def compare(self, weights: Samples) -> tuple[list[float], Samples]:
        """The weighted sum of the effects for each row of weights, and the covariance of these sums."""
        return list(map(float, weights @ self.effects)), self.sigma**2 * weights @ self.spread @ weights.T

    def make_weights(self, name: str) -> Samples:
        """For `compare`: one config's effect alone."""
        return np.array([1.0 if other == name else 0.0 for other in self.names])


def fit_model(names: Sequence[str], launches: Launches) -> BlockModel | str:
    """Fit these configs by least squares, effects against the first one; a sentence says why that is impossible."""
    blocks = sorted({block for name in names for block in launches[name]})
    cells = tuple((config, blocks.index(block)) for config, name in enumerate(names) for block in launches[name])
    geometry = _compute_geometry(cells, len(names), len(blocks))
    if isinstance(geometry, str):
        return geometry
    design, inverse = geometry
    y = np.array([value for name in names for value in launches[name].values()])
    solver = inverse @ design.T
    solution = solver @ y
    residuals = y - design @ solution
    degrees = y.size - design.shape[1]
    sigma = math.sqrt(float(residuals @ residuals) / degrees)
    if sigma <= ROUNDING * float(np.abs(y).max()):
        return "all blocks agree to the last digit: nothing tells how two launches of one config differ"
    spread = np.zeros((len(names), len(names)))
    spread[1:, 1:] = inverse[len(blocks) :, len(blocks) :]
    effects = np.concatenate(([0.0], solution[len(blocks) :]))
    estimator = np.vstack((np.zeros(y.size), solver[len(blocks) :]))
    launches_of_y = tuple((name, block) for name in names for block in launches[name])
    return BlockModel(tuple(names), effects, spread, sigma, degrees, launches_of_y, residuals, estimator)


@functools.lru_cache(maxsize=256)
def _compute_geometry(cells: tuple[tuple[int, int], ...], configs: int, blocks: int) -> tuple[Samples, Samples] | str:
    """Design matrix X of these (config, block) cells and the inverse of X'X; cached, as metrics and loads share it."""
    design: Samples = np.zeros((len(cells), blocks + configs - 1))
    for row, (config, block) in enumerate(cells):
        design[row, block] = 1.0
        if config:
            design[row, blocks + config - 1] = 1.0
    if np.linalg.matrix_rank(design) < design.shape[1]:
        return "a config shares no block with the others"
    if design.shape[0] == design.shape[1]:
        return "one launch per config: nothing tells how two launches of one config differ"
    return design, np.asarray(np.linalg.inv(design.T @ design), dtype=np.float64)


def find_connected(first: str, names: Sequence[str], launches: Launches) -> list[str]:
    """Those of the names that blocks connect with the first config, directly or through others, itself among them.

    Nothing compares it with the rest.
    """
    connected, blocks = {first}, set(launches[first])
    while more := {name for name in names if name not in connected and not blocks.isdisjoint(launches[name])}:
        connected |= more
        blocks.update(*(launches[name] for name in more))
    return [name for name in names if name in connected]


def compute_own_differences(config: Mapping[int, float], references: Sequence[Mapping[int, float]]) -> Samples:
    """The config less the mean of the references, in each block that has both."""
    return np.array(
        [
            value - float(np.mean([launches[block] for launches in references if block in launches]))
            for block, value in config.items()
            if any(block in launches for launches in references)
        ]
    )


def find_noisy(launches: Launches) -> list[str]:
    """Configs whose launches vary significantly more than the others', one after another, the most significant first.

    F test of what a config adds to the squared residuals, at LEVEL_OF_F over all configs (Bonferroni).
    """
    measured = {config: by_block for config, by_block in launches.items() if by_block}
    noisy: list[str] = []
    model = fit_model(tuple(measured), measured)
    while isinstance(model, BlockModel) and len(model.names) > 2:
        p, name = min((_test_noise(model, name, measured), name) for name in model.names)
        if p >= LEVEL_OF_F / len(measured):
            break
        noisy.append(name)
        model = fit_model([other for other in model.names if other != name], measured)
    return noisy


def _test_noise(model: BlockModel, name: str, measured: Launches) -> float:
    """The p-value of a config's launches varying as the others do; 1 where these do not tell."""
    rest = fit_model([other for other in model.names if other != name], measured)
    if isinstance(rest, str) or model.degrees <= rest.degrees:
        return 1.0
    degrees = model.degrees - rest.degrees
    added = model.sigma**2 * model.degrees - rest.sigma**2 * rest.degrees
    return float(special.fdtrc(degrees, rest.degrees, max(added, 0.0) / degrees / rest.sigma**2))
