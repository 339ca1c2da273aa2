"""Configs compared over launches: y = block + config + residual, with one residual for all configs.

A block is one round in which every config is launched once, under the same arrivals and prompts. The launch is the
unit: y is one number of one launch (the logarithm of a p90, or microseconds). The residual is pooled over all configs,
so that three blocks of nine launches leave 16 degrees of freedom where one config's own differences leave two.

All configs are judged together: Dunnett's intervals against a reference (Dunnett, JASA 50, 1955) hold for every config
at once. The reference is the mean of the baseline's launches under all its names. Each comparison also has two
intervals that hold by itself only: with the residual of all configs, and from its own differences alone.

Where the best config is to be found, `judge_against_best` compares every two of them (Tukey and Kramer), because the
same launches choose the best.

A config with noise of its own (a queue) is set apart: it takes no part in the residual, and its bounds come from its
own differences. Bounds for all configs at once then share the error: with k of m configs apart, Dunnett's intervals of
the others hold at 1 - (1 - level)(m - k)/m, and that of each of the k at 1 - (1 - level)/m (Bonferroni).
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.statistics.estimates import LEVEL, ROUNDING, Samples, all_agree, standard_error, student_quantile
from results.statistics.trials import MIN_PAIRED

POWER = 0.8
"""Probability with which a planned comparison shows the effect that it is planned for."""
MAX_PLANNED_LAUNCHES = 200
TO_HALVE = 4
"""Factor on the launches that about halves an interval."""
DRAWS = 100_000
"""Draws of the largest |t| over all configs; they give the critical value a standard error of about 0.007."""
JOINT_DRAWS = 20_000
SEED = 1955
LEVEL_OF_F = 0.05
NO_EIGENVALUE = 1e-12
"""Share of the largest eigenvalue; a smaller one is rounding."""

Key = TypeVar("Key", bound=Hashable)
Launches = Mapping[str, Mapping[int, float]]
"""The number that each launch measured, by config and block."""


@dataclass(frozen=True, slots=True)
class Together:
    """Bounds and p-value of one config's contrast that hold for all configs of the fit together (Dunnett)."""

    low: float
    high: float
    p: float
    """Two-sided; never 0."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """One config less the reference, in the unit of y."""

    difference: float
    low: float
    high: float
    """Bounds of this contrast by itself, with the residual of all configs."""
    own_low: float | None
    own_high: float | None
    """Bounds by itself, from its differences to the reference in each block alone; None below two blocks."""
    launches: int
    """Blocks in which both the config and the reference were measured."""
    widening: float
    """Factor on its bounds where its launches vary significantly more than the others'; else 1."""
    error: float
    """Standard error of the difference, before it is widened."""
    together: Together | None = None
    """None for the reference's second name, which is not judged."""


@dataclass(frozen=True, slots=True)
class BlockFit:
    """All configs at one load, in one metric."""

    sigma: float
    """Standard deviation of a launch around block + config, in the unit of y."""
    degrees: int
    """Degrees of freedom of `sigma`."""
    contrasts: Mapping[str, Contrast]
    """By config, without the names of the reference and the configs apart."""
    repeat: Contrast | None
    """The reference's second name less its first: the A/A diagnostic. None where it has one name."""
    cells: tuple[tuple[str, int], ...]
    """Config and block of every launch."""
    residuals: Samples
    """Of every launch: what block and config do not explain."""
    estimator: Samples
    """Contrasts x launches: a contrast's difference is its row times the launches' y."""
    apart: Mapping[str, Contrast] = field(default_factory=dict)
    """Configs with noise of their own, except those with fewer than two launches or with launches that all agree."""

    def find(self, config: str) -> Contrast | None:
        return self.contrasts.get(config) or self.apart.get(config)


def fit_blocks(launches: Launches, references: Sequence[str], *, apart: Collection[str] = ()) -> BlockFit | str:
    """Compare every config with the mean of the references that were measured; a sentence says why that is impossible.

    Launches may be missing. Without a residual there is no fit, because nothing separates chance from effect. Where the
    launches of one config vary more than the others' (F test, LEVEL_OF_F), its bounds are at least as wide as those
    from its own differences.
    `apart`: configs that take no part in the residual.
    """
    measured = {config: by_block for config, by_block in launches.items() if by_block}
    bases = [name for name in references if name in measured]
    judged = [name for name in measured if name not in references]
    others = [name for name in judged if name not in apart]
    if not bases:
        return f"{references[0]} was not measured"
    model = _fit([*bases, *others], measured)
    if isinstance(model, str):
        return model
    reference_launches = [measured[name] for name in bases]
    contrasts, estimator = _contrast_others(model, measured, bases, others, family=len(judged))
    set_apart = {
        name: _contrast_apart(_own_differences(measured[name], reference_launches), len(judged))
        for name in judged
        if name in apart
    }
    repeat = _compare_references(model, measured, bases)
    return BlockFit(
        model.sigma,
        model.degrees,
        contrasts,
        repeat,
        model.cells,
        model.residuals,
        estimator,
        {name: contrast for name, contrast in set_apart.items() if contrast is not None},
    )


def _contrast_others(
    model: _Model, measured: Launches, bases: Sequence[str], others: Sequence[str], family: int
) -> tuple[dict[str, Contrast], Samples]:
    """Contrasts of the configs that are not apart, at their share of the family's error; and the estimator."""
    reference = np.array([1 / len(bases) if name in bases else 0.0 for name in model.names])
    weights = np.array([_unit(model, name) - reference for name in others]).reshape(len(others), len(model.names))
    differences, covariance = model.compare(weights)
    estimator = weights @ model.estimator
    errors = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(errors, errors)
    reference_launches = [measured[name] for name in bases]
    part = len(others) / family if family else 1.0
    contrasts: dict[str, Contrast] = {}
    for name, difference, error in zip(others, differences, map(float, errors), strict=True):
        own = _own_differences(measured[name], reference_launches)
        rest = _fit([other for other in model.names if other != name], measured)
        alone = _contrast(model, rest, difference, error, own)
        half = dunnett_critical(correlation, model.degrees, 1 - (1 - LEVEL) * part) * error * alone.widening
        p = min(1.0, dunnett_p(correlation, model.degrees, difference / error / alone.widening) / part)
        contrasts[name] = replace(alone, together=Together(difference - half, difference + half, p))
    return contrasts, estimator


def _contrast_apart(own: Samples, family: int) -> Contrast | None:
    """From the differences to the reference in each block; None where they have no spread."""
    if own.size < 2 or all_agree(own) or not own.any():
        return None
    difference, degrees = float(own.mean()), own.size - 1
    error = standard_error(own)
    half = student_quantile(degrees) * error
    half_together = student_quantile(degrees, 1 - (1 - LEVEL) / family) * error
    p = min(1.0, family * 2 * float(special.stdtr(degrees, -abs(difference) / error)))
    low, high = difference - half, difference + half
    together = Together(difference - half_together, difference + half_together, p)
    return Contrast(difference, low, high, low, high, own.size, 1.0, error, together)


def judge_against_best(launches: Launches, best: str) -> Mapping[str, Together] | str:
    """Every config less `best`, with bounds that hold for every two configs at once; or why there are none.

    The same launches choose the best one, so the intervals must cover the difference of any two (Tukey, 1953; Kramer,
    Biometrics 12, 1956, for unequal numbers of launches): if no two configs differ, with 95 % none is distinguishable
    from the best. Configs whose launches vary significantly more than the others' are apart and share the error as in
    `fit_blocks`: with k of m apart, the bounds of the others hold at 1 - (1 - level)(m - k)/m, and those of a pair with
    one of the k at 1 - (1 - level)/m: beside its noise, which of the others is the best matters little. Few launches do
    not show every config that varies more, so bounds are at least as wide as a pair's own differences make them, by
    itself. Configs without a launch are left out, as are those apart whose differences have no spread.
    """
    measured = {config: by_block for config, by_block in launches.items() if by_block}
    if best not in measured:
        return f"{best} was not measured"
    names = [best, *(name for name in measured if name != best)]
    whole = _fit(names, measured)
    if isinstance(whole, str):
        return whole
    apart = find_noisy(measured)
    pooled = [name for name in names if name not in apart]
    model = _fit(pooled, measured) if apart else whole
    together: dict[str, Together] = {}
    for name in names[1:]:
        if isinstance(model, _Model) and best in pooled and name in pooled:
            own = _own_differences(measured[name], [measured[best]])
            together[name] = _contrast_pair(model, name, best, own, len(pooled) / len(names))
        else:
            alone = _contrast_apart(_own_differences(measured[name], [measured[best]]), len(names))
            if alone is not None and alone.together is not None:
                together[name] = alone.together
    return together


def _contrast_pair(model: _Model, name: str, best: str, own: Samples, part: float) -> Together:
    """`own`: the config less the best in each block; `part`: of the family's error that the model's pairs share."""
    (difference,), variance = model.compare(np.array([_unit(model, name) - _unit(model, best)]))
    error = math.sqrt(float(variance[0, 0]))
    half = pairs_critical(model.spread, model.degrees, 1 - (1 - LEVEL) * part) * error
    p = min(1.0, pairs_p(model.spread, model.degrees, difference / error) / part)
    low, high = difference - half, difference + half
    if own.size < 2 or not own.any():
        return Together(low, high, p)
    middle, own_half = float(own.mean()), student_quantile(own.size - 1) * standard_error(own)
    return Together(min(low, middle - own_half), max(high, middle + own_half), p)


def find_noisy(launches: Launches) -> list[str]:
    """Configs whose launches vary significantly more than the others', one after another, the most significant first.

    F test of what a config adds to the squared residuals, at LEVEL_OF_F over all configs (Bonferroni).
    """
    measured = {config: by_block for config, by_block in launches.items() if by_block}
    noisy: list[str] = []
    model = _fit(tuple(measured), measured)
    while isinstance(model, _Model) and len(model.names) > 2:
        p, name = min((_test_noise(model, name, measured), name) for name in model.names)
        if p >= LEVEL_OF_F / len(measured):
            break
        noisy.append(name)
        model = _fit([other for other in model.names if other != name], measured)
    return noisy


def _test_noise(model: _Model, name: str, measured: Launches) -> float:
    """The p-value of a config's launches varying as the others do; 1 where these do not tell."""
    rest = _fit([other for other in model.names if other != name], measured)
    if isinstance(rest, str) or model.degrees <= rest.degrees:
        return 1.0
    degrees = model.degrees - rest.degrees
    added = model.sigma**2 * model.degrees - rest.sigma**2 * rest.degrees
    return float(special.fdtrc(degrees, rest.degrees, max(added, 0.0) / degrees / rest.sigma**2))


def draw_differences(fits: Mapping[Key, BlockFit]) -> dict[Key, dict[str, Samples]]:
    """Draw every contrast of every fit jointly, around the measured value; the draws are the same each time.

    The fits are of one metric at several loads. A launch that measured them all left a residual at each, and these
    correlate: their covariance, estimated over all configs, is that of the draws, together with the share of plain in
    every contrast. So draw k of all contrasts belongs together, within a load and across loads; a share, a sum, a step
    or a slope computed draw by draw has the right spread. A single contrast is Student's t with its fit's degrees of
    freedom; with the same degrees at all loads, so is every linear combination. A config apart is drawn by itself,
    because its correlation across loads is not known; its interval is wider than necessary.
    """
    if not fits:
        return {}
    all_cells = {cell for fit in fits.values() for cell in fit.cells}
    launches = {cell: column for column, cell in enumerate(sorted(all_cells))}
    residuals = np.zeros((len(fits), len(launches)))
    estimators: list[Samples] = []
    for row, fit in enumerate(fits.values()):
        columns = [launches[cell] for cell in fit.cells]
        residuals[row, columns] = fit.residuals
        estimator = np.zeros((len(fit.contrasts), len(launches)))
        estimator[:, columns] = fit.estimator
        estimators.append(estimator)
    degrees = np.array([fit.degrees for fit in fits.values()])
    between_loads = residuals @ residuals.T / np.sqrt(np.outer(degrees, degrees))
    load = np.repeat(np.arange(len(fits)), [len(estimator) for estimator in estimators])
    estimator = np.vstack(estimators)
    covariance = between_loads[np.ix_(load, load)] * (estimator @ estimator.T)
    rng = np.random.default_rng(SEED)
    normal = rng.standard_normal((JOINT_DRAWS, len(estimator))) @ _root(covariance).T
    chance = rng.random(JOINT_DRAWS)  # one for all fits: they share the error of sigma
    drawn: dict[Key, dict[str, Samples]] = {}
    column = 0
    for key, fit in fits.items():
        scale = _draw_scale(chance.tobytes(), fit.degrees)
        drawn[key] = {}
        for name, contrast in fit.contrasts.items():
            drawn[key][name] = contrast.difference + normal[:, column] * scale * contrast.widening
            column += 1
    for key, fit in fits.items():
        for name, contrast in fit.apart.items():
            drawn[key][name] = contrast.difference + contrast.error * rng.standard_t(contrast.launches - 1, JOINT_DRAWS)
    return drawn


@functools.lru_cache(maxsize=16)
def _draw_scale(chance: bytes, degrees: int) -> Samples:
    """What makes Student's t of normal draws; cached, as loads and metrics share it: chi-square quantiles are slow."""
    scale: Samples = np.sqrt(degrees / special.chdtri(degrees, np.frombuffer(chance)))
    return scale


@dataclass(frozen=True, slots=True)
class _Model:
    names: tuple[str, ...]
    effects: Samples
    """Of each config; the first one's is 0."""
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


def _fit(names: Sequence[str], launches: Launches) -> _Model | str:
    blocks = sorted({block for by_block in launches.values() for block in by_block})
    cells = tuple((config, blocks.index(block)) for config, name in enumerate(names) for block in launches[name])
    geometry = _geometry(cells, len(names), len(blocks))
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
    return _Model(tuple(names), effects, spread, sigma, degrees, launches_of_y, residuals, estimator)


@functools.lru_cache(maxsize=256)
def _geometry(cells: tuple[tuple[int, int], ...], configs: int, blocks: int) -> tuple[Samples, Samples] | str:
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


def _unit(model: _Model, name: str) -> Samples:
    return np.array([1.0 if other == name else 0.0 for other in model.names])


def _compare_references(model: _Model, launches: Launches, bases: Sequence[str]) -> Contrast | None:
    if len(bases) < 2:
        return None
    first, second = bases[:2]
    (difference,), variance = model.compare(np.array([_unit(model, second) - _unit(model, first)]))
    own = _own_differences(launches[second], [launches[first]])
    return _contrast(model, model, difference, math.sqrt(float(variance[0, 0])), own)


def _own_differences(config: Mapping[int, float], references: Sequence[Mapping[int, float]]) -> Samples:
    """The config less the mean of the references, in each block that has both."""
    return np.array(
        [
            value - float(np.mean([launches[block] for launches in references if block in launches]))
            for block, value in config.items()
            if any(block in launches for launches in references)
        ]
    )


def _contrast(model: _Model, rest: _Model | str, difference: float, error: float, own: Samples) -> Contrast:
    """`rest`: the fit of the other configs, against which this one's spread is tested."""
    half = student_quantile(model.degrees) * error
    if own.size < 2:
        return Contrast(difference, difference - half, difference + half, None, None, own.size, 1.0, error)
    own_error = standard_error(own)
    own_half = student_quantile(own.size - 1) * own_error
    widening = 1.0
    if isinstance(rest, _Model):
        ratio = (own_error / (error * rest.sigma / model.sigma)) ** 2
        if special.fdtrc(own.size - 1, rest.degrees, ratio) < LEVEL_OF_F:
            widening = max(own_half / half, 1.0)
    half *= widening
    own_low, own_high = difference - own_half, difference + own_half
    return Contrast(difference, difference - half, difference + half, own_low, own_high, own.size, widening, error)


def dunnett_critical(correlation: Samples, degrees: int, level: float = LEVEL) -> float:
    """The c with P(max |t| <= c) = level, over t values of this correlation that share one estimate of sigma."""
    return float(_draw_largest_t(correlation, degrees)[math.ceil(level * DRAWS) - 1])


def dunnett_p(correlation: Samples, degrees: int, t: float) -> float:
    """P(max |t'| >= |t|) where there is no effect; never 0."""
    return _share_beyond(_draw_largest_t(correlation, degrees), t)


def _share_beyond(largest: Samples, t: float) -> float:
    beyond = largest.size - int(np.searchsorted(largest, abs(t), side="left"))
    return (beyond + 1) / (largest.size + 1)


def pairs_critical(spread: Samples, degrees: int, level: float = LEVEL) -> float:
    """The c with P(|t| <= c for every two of them) = level, over effects with this covariance in units of sigma^2."""
    return float(_draw_largest_pair(spread, degrees)[math.ceil(level * DRAWS) - 1])


def pairs_p(spread: Samples, degrees: int, t: float) -> float:
    """P(the largest |t'| of any two >= |t|) where no two differ; never 0."""
    return _share_beyond(_draw_largest_pair(spread, degrees), t)


def sigma_without(fit: BlockFit, covariate: Launches) -> float | None:
    """Sigma of the fit with a covariate of the launches: of y = block + config + slope x covariate + residual.

    By the residuals of both (Frisch and Waugh, Econometrica 1, 1933). None where a launch of the fit has no covariate,
    where the covariate does not vary beyond block and config, or where no degree of freedom is left.
    """
    values: dict[str, dict[int, float]] = {}
    for config, block in fit.cells:
        value = covariate.get(config, {}).get(block)
        if value is None:
            return None
        values.setdefault(config, {})[block] = value
    model = _fit(list(values), values)
    if isinstance(model, str) or fit.degrees < 2:
        return None
    slope = float(fit.residuals @ model.residuals) / float(model.residuals @ model.residuals)
    left = fit.residuals - slope * model.residuals
    return math.sqrt(float(left @ left) / (fit.degrees - 1))


def detectable_effect(sigma: float, launches: int, configs: int, *, references: int = 2, level: float = LEVEL) -> float:
    """The smallest difference that n launches per config and name of the reference detect with probability POWER.

    (c + t_power) x sigma x sqrt((1 + 1 / references) / n), in the unit of sigma. For planning only: a measured
    difference is judged by its interval.
    """
    degrees = (launches - 1) * (configs + references - 1)
    if degrees < 1:
        return math.inf
    critical = dunnett_critical(_planned_correlation(configs, references), degrees, level)
    quantile = float(special.stdtrit(degrees, POWER))
    return (critical + quantile) * sigma * math.sqrt((1 + 1 / references) / launches)


def launches_for(effect: float, sigma: float, configs: int, *, references: int = 2, level: float = LEVEL) -> int | None:
    """The fewest launches per config that detect this difference; None above MAX_PLANNED_LAUNCHES."""
    return _find_fewest(
        effect, lambda count: detectable_effect(sigma, count, configs, references=references, level=level)
    )


def _find_fewest(effect: float, detectable: Callable[[int], float]) -> int | None:
    """The fewest launches whose detectable effect, which falls with their number, is at most this one."""
    counts = range(MIN_PAIRED, MAX_PLANNED_LAUNCHES + 1)
    index = bisect.bisect_left(counts, -effect, key=lambda count: -detectable(count))
    return counts[index] if index < len(counts) else None


def detectable_pair(sigma: float, launches: int, configs: int) -> float:
    """As `detectable_effect`, of any two of the configs, judged as `judge_against_best` does."""
    degrees = (launches - 1) * (configs - 1)
    if degrees < 1:
        return math.inf
    quantile = float(special.stdtrit(degrees, POWER))
    return (pairs_critical(np.eye(configs), degrees) + quantile) * sigma * math.sqrt(2 / launches)


def launches_for_pair(effect: float, sigma: float, configs: int) -> int | None:
    """The fewest launches per config that detect this difference of two; None above MAX_PLANNED_LAUNCHES."""
    return _find_fewest(effect, lambda count: detectable_pair(sigma, count, configs))


def _planned_correlation(configs: int, references: int) -> Samples:
    correlation = np.full((configs, configs), 1 / (references + 1))
    np.fill_diagonal(correlation, 1.0)
    return correlation


def _draw_largest_t(correlation: Samples, degrees: int) -> Samples:
    """Sorted draws of the largest |t|: the same ones in every process."""
    return _largest_t(np.round(correlation, 6).tobytes(), degrees)


@functools.lru_cache(maxsize=32)
def _largest_t(correlation: bytes, degrees: int) -> Samples:
    return np.sort(_largest_normal(correlation) / _draw_sigma(degrees))


def _draw_sigma(degrees: int) -> Samples:
    """Estimates of a sigma of 1."""
    drawn: Samples = np.sqrt(np.random.default_rng([SEED, degrees]).chisquare(degrees, DRAWS) / degrees)
    return drawn


def _draw_largest_pair(spread: Samples, degrees: int) -> Samples:
    """Sorted draws of the largest |t| of any two effects: the same ones in every process."""
    return _largest_pair_t(np.round(spread, 6).tobytes(), degrees)


@functools.lru_cache(maxsize=32)
def _largest_pair_t(spread: bytes, degrees: int) -> Samples:
    return np.sort(_largest_pair_normal(spread) / _draw_sigma(degrees))


@functools.lru_cache(maxsize=16)
def _largest_pair_normal(spread: bytes) -> Samples:
    flat = np.frombuffer(spread)
    covariance = flat.reshape(math.isqrt(flat.size), -1)
    drawn = np.random.default_rng(SEED).standard_normal((DRAWS, len(covariance))) @ _root(covariance)
    largest: Samples = np.zeros(DRAWS)
    for first, second in itertools.combinations(range(len(covariance)), 2):
        error = math.sqrt(covariance[first, first] + covariance[second, second] - 2 * covariance[first, second])
        np.maximum(largest, np.abs(drawn[:, first] - drawn[:, second]) / error, out=largest)
    return largest


@functools.lru_cache(maxsize=16)
def _largest_normal(correlation: bytes) -> Samples:
    flat = np.frombuffer(correlation)
    size = math.isqrt(flat.size)
    normal = np.random.default_rng(SEED).standard_normal((DRAWS, size)) @ _root(flat.reshape(size, size)).T
    largest: Samples = np.abs(normal).max(axis=1)
    return largest


def _root(covariance: Samples) -> Samples:
    """The symmetric square root: it alone is unique, so that every processor gives the same draws.

    Eigenvectors of equal eigenvalues can be any basis of their space, and an eigenvalue that is 0 up to rounding has a
    root of about 1e-9: both differ between processors.
    """
    values, vectors = np.linalg.eigh(covariance)
    known = np.where(values > NO_EIGENVALUE * values[-1], values, 0.0) if values.size else values
    return np.asarray((vectors * np.sqrt(known)) @ vectors.T, dtype=np.float64)
