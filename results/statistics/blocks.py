"""Configs compared over launches with a reference, in the model of `results.statistics.block_model`.

All configs are judged together: Dunnett's intervals against a reference (Dunnett, JASA 50, 1955) hold for every config
at once. The reference is the mean of the baseline's launches under all its names. Each comparison also has two
intervals that hold by itself only: with the residual of all configs, and from its own differences alone.

Where the best config is to be found, every two of them are compared: `results.statistics.pairwise`.

A config with noise of its own (a queue) is set apart: it takes no part in the residual, and its bounds come from its
own differences. Bounds for all configs at once then share the error: with k of m configs apart, Dunnett's intervals of
the others hold at 1 - (1 - level)(m - k)/m, and that of each of the k at 1 - (1 - level)/m (Bonferroni).
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.statistics.block_model import (
    LEVEL_OF_F,
    BlockModel,
    Launches,
    compute_own_differences,
    find_connected,
    fit_model,
)
from results.statistics.estimates import (
    LEVEL,
    Samples,
    all_agree,
    compute_student_p,
    compute_student_quantile,
    standard_error,
)
from results.statistics.largest_t import SEED, compute_dunnett_critical, compute_dunnett_p, compute_symmetric_root
from results.statistics.trials import MIN_PAIRED

POWER = 0.8
"""Probability with which a planned comparison shows the effect that it is planned for."""
MAX_PLANNED_LAUNCHES = 200
TO_HALVE = 4
"""Factor on the launches that about halves an interval."""
JOINT_DRAWS = 20_000

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Together:
    """Bounds and p-value of one contrast that hold for all configs at once (Dunnett) or for every two of them."""

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
    degrees: int
    """Degrees of freedom of `low` and `high`: of the residual, or of its own differences where they set the bounds."""
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
    """Residual of every launch: what block and config do not explain."""
    estimator: Samples
    """Contrasts x launches: a contrast's difference is its row times the launches' y."""
    apart: Mapping[str, Contrast] = field(default_factory=dict)
    """Configs with noise of their own, except those with fewer than two launches or with launches that all agree."""

    def find(self, config: str) -> Contrast | None:
        return self.contrasts.get(config) or self.apart.get(config)


def fit_blocks(launches: Launches, references: Sequence[str], *, apart: Collection[str] = ()) -> BlockFit | str:
    """Compare every config with the mean of the references that were measured; a sentence says why that is impossible.

    Launches may be missing; a config that shares no block with the references or the configs beside them is left out.
    Without a residual there is no fit, because nothing separates chance from effect. Where the launches of one config
    vary more than the others' (F test, LEVEL_OF_F), its bounds are at least as wide as those from its own differences.
    `apart`: configs that take no part in the residual.
    """
    measured = {config: by_block for config, by_block in launches.items() if by_block}
    bases = [name for name in references if name in measured]
    if not bases:
        return f"{references[0]} was not measured"
    pooled = [*bases, *(name for name in measured if name not in references and name not in apart)]
    connected = max((find_connected(base, pooled, measured) for base in bases), key=len)
    if len(connected) > 1:
        pooled, bases = connected, [name for name in bases if name in connected]
    others = [name for name in pooled if name not in references]
    judged = [*others, *(name for name in measured if name not in references and name in apart)]
    model = fit_model(pooled, measured)
    if isinstance(model, str):
        return model
    reference_launches = [measured[name] for name in bases]
    contrasts, estimator = _contrast_others(model, measured, bases, others, family=len(judged))
    set_apart = {
        name: contrast
        for name in judged
        if name in apart
        and (
            contrast := contrast_config_apart(compute_own_differences(measured[name], reference_launches), len(judged))
        )
        is not None
    }
    repeat = _compare_references(model, measured, bases)
    return BlockFit(model.sigma, model.degrees, contrasts, repeat, model.cells, model.residuals, estimator, set_apart)


def _contrast_others(
    model: BlockModel, measured: Launches, bases: Sequence[str], others: Sequence[str], family: int
) -> tuple[dict[str, Contrast], Samples]:
    """Contrasts of the configs that are not apart, at their share of the family's error; and the estimator."""
    reference = np.array([1 / len(bases) if name in bases else 0.0 for name in model.names])
    weights = np.array([model.make_weights(name) - reference for name in others]).reshape(len(others), len(model.names))
    differences, covariance = model.compare(weights)
    estimator = weights @ model.estimator
    errors = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(errors, errors)
    reference_launches = [measured[name] for name in bases]
    part = len(others) / family if family else 1.0
    contrasts: dict[str, Contrast] = {}
    for name, difference, error in zip(others, differences, map(float, errors), strict=True):
        own = compute_own_differences(measured[name], reference_launches)
        rest = fit_model([other for other in model.names if other != name], measured)
        alone = _contrast_config(model, rest, difference, error, own)
        half = compute_dunnett_critical(correlation, model.degrees, 1 - (1 - LEVEL) * part) * error * alone.widening
        p = min(1.0, compute_dunnett_p(correlation, model.degrees, difference / error / alone.widening) / part)
        contrasts[name] = replace(alone, together=Together(difference - half, difference + half, p))
    return contrasts, estimator


def contrast_config_apart(own: Samples, family: int) -> Contrast | None:
    """One of `family` configs, from its differences to the reference in each block; None where they have no spread."""
    if own.size < 2 or all_agree(own) or not own.any():
        return None
    difference, degrees = float(own.mean()), own.size - 1
    error = standard_error(own)
    half = compute_student_quantile(degrees) * error
    half_together = compute_student_quantile(degrees, 1 - (1 - LEVEL) / family) * error
    p = min(1.0, family * compute_student_p(difference, error, degrees))
    low, high = difference - half, difference + half
    together = Together(difference - half_together, difference + half_together, p)
    return Contrast(difference, low, high, low, high, own.size, 1.0, error, degrees, together)


def _compare_references(model: BlockModel, launches: Launches, bases: Sequence[str]) -> Contrast | None:
    if len(bases) < 2:
        return None
    first, second = bases[:2]
    (difference,), variance = model.compare(np.array([model.make_weights(second) - model.make_weights(first)]))
    own = compute_own_differences(launches[second], [launches[first]])
    return _contrast_config(model, model, difference, math.sqrt(float(variance[0, 0])), own)


def _contrast_config(
    model: BlockModel, rest: BlockModel | str, difference: float, error: float, own: Samples
) -> Contrast:
    """`rest`: the fit of the other configs, against which this one's spread is tested."""
    half = compute_student_quantile(model.degrees) * error
    if own.size < 2:
        low, high = difference - half, difference + half
        return Contrast(difference, low, high, None, None, own.size, 1.0, error, model.degrees)
    own_error = standard_error(own)
    own_half = compute_student_quantile(own.size - 1) * own_error
    widening = 1.0
    if isinstance(rest, BlockModel):
        ratio = (own_error / (error * rest.sigma / model.sigma)) ** 2
        if special.fdtrc(own.size - 1, rest.degrees, ratio) < LEVEL_OF_F:
            widening = max(own_half / half, 1.0)
    half *= widening
    degrees = own.size - 1 if widening > 1 else model.degrees
    low, high, own_low, own_high = (difference + by for by in (-half, half, -own_half, own_half))
    return Contrast(difference, low, high, own_low, own_high, own.size, widening, error, degrees)


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
    normal = rng.standard_normal((JOINT_DRAWS, len(estimator))) @ compute_symmetric_root(covariance).T
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


def estimate_sigma_without(fit: BlockFit, covariate: Launches) -> float | None:
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
    model = fit_model(list(values), values)
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
    critical = compute_dunnett_critical(_make_planned_correlation(configs, references), degrees, level)
    quantile = float(special.stdtrit(degrees, POWER))
    return (critical + quantile) * sigma * math.sqrt((1 + 1 / references) / launches)


def find_launches_for(
    effect: float, sigma: float, configs: int, *, references: int = 2, level: float = LEVEL
) -> int | None:
    """The fewest launches per config that detect this difference; None above MAX_PLANNED_LAUNCHES."""
    return find_fewest_launches(
        effect, lambda count: detectable_effect(sigma, count, configs, references=references, level=level)
    )


def find_fewest_launches(effect: float, detectable: Callable[[int], float]) -> int | None:
    """The fewest launches whose detectable effect, which falls with their number, is at most this one."""
    counts = range(MIN_PAIRED, MAX_PLANNED_LAUNCHES + 1)
    index = bisect.bisect_left(counts, -effect, key=lambda count: -detectable(count))
    return counts[index] if index < len(counts) else None


def show_count(launches: int | None) -> str:
    """The count of `find_fewest_launches`: `12`, or `more than 200`."""
    return f"more than {MAX_PLANNED_LAUNCHES}" if launches is None else str(launches)


def _make_planned_correlation(configs: int, references: int) -> Samples:
    correlation = np.full((configs, configs), 1 / (references + 1))
    np.fill_diagonal(correlation, 1.0)
    return correlation
