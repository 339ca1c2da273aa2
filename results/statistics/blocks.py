"""Configs compared over launches: y = block + config + residual, with one residual for all configs.

A block is one round in which every config is launched once, under the same arrivals and prompts. The launch is the
unit: y is one number of one launch (the logarithm of a p90, or microseconds). The residual is pooled over all configs,
so that three blocks of nine launches leave 16 degrees of freedom where one config's own differences leave two.

All configs are judged together: Dunnett's intervals against a reference (Dunnett, JASA 50, 1955) hold for every config
at once. The reference is the mean of the baseline's launches under all its names. Each comparison also has an interval
from its own differences alone, for a config whose launches vary more than the others'; that one holds by itself only.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.statistics.estimates import LEVEL, Samples

POWER = 0.8
"""Probability with which a planned comparison shows the effect that it is planned for."""
MAX_PLANNED_LAUNCHES = 200
DRAWS = 100_000
"""Of the largest |t| over all configs; the critical value that they give has a standard error of about 0.007."""
JOINT_DRAWS = 20_000
SEED = 1955
ROUNDING = 1e-12
"""A residual below this share of the largest y is rounding, not noise."""

Launches = Mapping[str, Mapping[int, float]]
"""By config and block, what the launch measured."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One config less the reference, in the unit of y."""

    difference: float
    low: float
    high: float
    """Bounds that hold for all configs of the fit together."""
    own_low: float | None
    own_high: float | None
    """Bounds of this config alone, from its differences to the reference in each block; None below two blocks."""
    p: float
    """Two-sided, corrected for all configs of the fit."""
    launches: int
    """Blocks in which both the config and the reference were measured."""


@dataclass(frozen=True, slots=True)
class BlockFit:
    """All configs at one load, in one metric."""

    sigma: float
    """Standard deviation of a launch around block + config, in the unit of y."""
    degrees: int
    """Degrees of freedom of `sigma`."""
    blocks: int
    contrasts: Mapping[str, Contrast]
    """By config, without the names of the reference."""
    covariance: Samples
    """Of the contrasts' differences, in their order."""
    repeat: Contrast | None
    """The reference's second name less its first: the A/A diagnostic, uncorrected. None where it has one name."""


def fit_blocks(launches: Launches, references: Sequence[str], level: float = LEVEL) -> BlockFit | str:
    """Compare every config with the mean of the references that were measured; a sentence where that cannot be done.

    Launches may be missing. Without any residual nothing tells chance from effect: then there is no fit.
    """
    measured = {config: by_block for config, by_block in launches.items() if by_block}
    bases = [name for name in references if name in measured]
    others = [name for name in measured if name not in references]
    if not bases:
        return f"{references[0]} was not measured"
    model = _fit([*bases, *others], measured)
    if isinstance(model, str):
        return model
    base = np.array([1 / len(bases) if name in bases else 0.0 for name in model.names])
    weights = np.array([_unit(model, name) - base for name in others]).reshape(len(others), len(model.names))
    differences, covariance = model.compare(weights)
    errors = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(errors, errors)
    critical = dunnett_critical(correlation, model.degrees, level) if others else 0.0
    contrasts: dict[str, Contrast] = {}
    for name, difference, error in zip(others, differences, errors, strict=True):
        own = _own_differences(measured[name], [measured[base] for base in bases])
        p = dunnett_p(correlation, model.degrees, difference / error)
        half = critical * float(error)
        bounds = _t_bounds(own, level)
        contrasts[name] = Contrast(difference, difference - half, difference + half, *bounds, p, own.size)
    repeat = _compare_two(model, measured, bases[0], bases[1], level) if len(bases) > 1 else None
    return BlockFit(model.sigma, model.degrees, model.blocks, contrasts, covariance, repeat)


def draw_differences(fit: BlockFit) -> Mapping[str, Samples]:
    """Draws of every contrast's difference, jointly: multivariate t around what was measured, the same each time.

    Draw k of two configs belongs together, so that a share or a sum computed draw by draw has the right spread.
    """
    rng = np.random.default_rng(SEED)
    normal = rng.standard_normal((JOINT_DRAWS, len(fit.contrasts))) @ _root(fit.covariance).T
    scale = np.sqrt(fit.degrees / rng.chisquare(fit.degrees, JOINT_DRAWS))
    return {
        name: contrast.difference + normal[:, column] * scale
        for column, (name, contrast) in enumerate(fit.contrasts.items())
    }


@dataclass(frozen=True, slots=True)
class _Model:
    names: tuple[str, ...]
    effects: Samples
    """Of each config; the first one's is 0."""
    spread: Samples
    """Covariance of the effects in units of sigma^2."""
    sigma: float
    degrees: int
    blocks: int

    def compare(self, weights: Samples) -> tuple[list[float], Samples]:
        """Of each row of weights over the effects: its value; and the covariance of the rows."""
        return list(map(float, weights @ self.effects)), self.sigma**2 * weights @ self.spread @ weights.T


def _fit(names: Sequence[str], launches: Launches) -> _Model | str:
    """Least squares."""
    blocks = sorted({block for by_block in launches.values() for block in by_block})
    cells = tuple((place, blocks.index(block)) for place, name in enumerate(names) for block in launches[name])
    geometry = _geometry(cells, len(names), len(blocks))
    if isinstance(geometry, str):
        return geometry
    design, inverse = geometry
    y = np.array([value for name in names for value in launches[name].values()])
    solution = inverse @ design.T @ y
    residual = y - design @ solution
    degrees = y.size - design.shape[1]
    sigma = math.sqrt(float(residual @ residual) / degrees)
    if sigma <= ROUNDING * float(np.abs(y).max()):
        return "all blocks agree to the last digit: nothing tells how two launches of one config differ"
    spread = np.zeros((len(names), len(names)))
    spread[1:, 1:] = inverse[len(blocks) :, len(blocks) :]
    effects = np.concatenate(([0.0], solution[len(blocks) :]))
    return _Model(tuple(names), effects, spread, sigma, degrees, len(blocks))


@functools.lru_cache(maxsize=256)
def _geometry(cells: tuple[tuple[int, int], ...], configs: int, blocks: int) -> tuple[Samples, Samples] | str:
    """Design matrix X of these (config, block) cells and the inverse of X'X; metrics and loads share them."""
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


def _unit(model: _Model, name: str) -> Samples:
    return np.array([1.0 if other == name else 0.0 for other in model.names])


def _compare_two(model: _Model, launches: Launches, first: str, second: str, level: float) -> Contrast:
    (difference,), variance = model.compare(np.array([_unit(model, second) - _unit(model, first)]))
    error = math.sqrt(float(variance[0, 0]))
    half = float(special.stdtrit(model.degrees, (1 + level) / 2)) * error
    own = _own_differences(launches[second], [launches[first]])
    p = float(2 * special.stdtr(model.degrees, -abs(difference / error)))
    return Contrast(difference, difference - half, difference + half, *_t_bounds(own, level), p, own.size)


def _own_differences(ours: Mapping[int, float], bases: Sequence[Mapping[int, float]]) -> Samples:
    """The config less the mean of the bases, in each block that has both."""
    return np.array(
        [
            value - float(np.mean([base[block] for base in bases if block in base]))
            for block, value in ours.items()
            if any(block in base for base in bases)
        ]
    )


def _t_bounds(values: Samples, level: float) -> tuple[float | None, float | None]:
    """Student's t bounds of their mean."""
    if values.size < 2:
        return None, None
    half = float(special.stdtrit(values.size - 1, (1 + level) / 2)) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return float(values.mean()) - half, float(values.mean()) + half


def dunnett_critical(correlation: Samples, degrees: int, level: float = LEVEL) -> float:
    """The c with P(max |t| <= c) = level, over t values of this correlation that share one estimate of sigma."""
    return float(_draw_largest_t(correlation, degrees)[math.ceil(level * DRAWS) - 1])


def dunnett_p(correlation: Samples, degrees: int, t: float) -> float:
    """P(max |t'| >= |t|) where there is no effect; never 0."""
    largest = _draw_largest_t(correlation, degrees)
    beyond = largest.size - int(np.searchsorted(largest, abs(t), side="left"))
    return (beyond + 1) / (largest.size + 1)


def detectable_effect(
    sigma: float, launches: int, configs: int, *, references: int = 2, level: float = LEVEL, power: float = POWER
) -> float:
    """The smallest difference that n launches per config and name of the reference show with this power.

    (c + t_power) x sigma x sqrt((1 + 1 / references) / n), in the unit of sigma. For planning only: what was measured
    is judged by its interval.
    """
    degrees = (launches - 1) * (configs + references - 1)
    if degrees < 1:
        return math.inf
    critical = dunnett_critical(_planned_correlation(configs, references), degrees, level)
    quantile = float(special.stdtrit(degrees, power))
    return (critical + quantile) * sigma * math.sqrt((1 + 1 / references) / launches)


def launches_for(effect: float, sigma: float, configs: int, *, references: int = 2) -> int | None:
    """The fewest launches per config that show this difference; None above MAX_PLANNED_LAUNCHES."""
    counts = range(2, MAX_PLANNED_LAUNCHES + 1)
    place = bisect.bisect_left(
        counts, -effect, key=lambda count: -detectable_effect(sigma, count, configs, references=references)
    )
    return counts[place] if place < len(counts) else None


def pool_sigma(fits: Sequence[BlockFit]) -> float | None:
    """Sigma over several fits, weighted by their degrees of freedom; None where there is none."""
    degrees = sum(fit.degrees for fit in fits)
    return math.sqrt(sum(fit.degrees * fit.sigma**2 for fit in fits) / degrees) if degrees else None


def _planned_correlation(configs: int, references: int) -> Samples:
    correlation = np.full((configs, configs), 1 / (references + 1))
    np.fill_diagonal(correlation, 1.0)
    return correlation


def _draw_largest_t(correlation: Samples, degrees: int) -> Samples:
    """Sorted draws of the largest |t|: the same ones in every process."""
    return _largest_t(np.round(correlation, 6).tobytes(), degrees)


@functools.lru_cache(maxsize=256)
def _largest_t(correlation: bytes, degrees: int) -> Samples:
    chi = np.random.default_rng([SEED, degrees]).chisquare(degrees, DRAWS)
    return np.sort(_largest_normal(correlation) / np.sqrt(chi / degrees))


@functools.lru_cache(maxsize=64)
def _largest_normal(correlation: bytes) -> Samples:
    flat = np.frombuffer(correlation)
    size = math.isqrt(flat.size)
    normal = np.random.default_rng(SEED).standard_normal((DRAWS, size)) @ _root(flat.reshape(size, size)).T
    largest: Samples = np.abs(normal).max(axis=1)
    return largest


def _root(covariance: Samples) -> Samples:
    """R with R R' = covariance, which may be singular."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.clip(values, 0.0, None)), dtype=np.float64)
