"""Percentiles, their intervals, and bootstrap replicates of them. Pure functions of arrays.

Percentile: Hyndman and Fan's type 7, numpy's default: linear between the two order statistics around rank (n - 1) p.

Interval of one percentile: order statistics, distribution-free. X(l) bounds the p-quantile from below when
P(Bin(n, p) < l) <= alpha / 2, X(u) from above when P(Bin(n, p) >= u) <= alpha / 2 (David and Nagaraja, Order
Statistics, section 7.1). Where n is too small for a bound, that bound is None and the reason names the n it needs.

Replicates for comparisons: percentile bootstrap over contiguous blocks, because neighboring requests share a queue and
neighboring steps share a batch. It holds what varies inside the two cells, not what varies between two launches.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import special  # not scipy.stats, which takes two seconds to import

from results.records.estimate import Estimate, unknown
from results.records.percent import format_percent

LEVEL = 0.95
"""Confidence of every interval that states no other."""
DRAWS = 2000
"""Bootstrap replicates."""
ROUNDING = 1e-12
"""Differences below this share of the largest value are rounding, not noise."""
ALL_AGREE = "all repeats agree to the last digit: nothing tells by how much two of them differ"
"""Why such numbers have no interval: one of zero width, away from zero, would promise certainty."""
BINOMIAL = "binomial"
"""`Estimate.basis` of a proportion."""
MAX_BLOCKS = 256
MAX_BINS = 256

Samples = npt.NDArray[np.float64]
Ranks = npt.NDArray[np.int64]


def correct_by_holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Each p-value corrected for all of them being tested (Holm, 1979): below a level, the difference stands at it."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    corrected = np.empty(p.size)
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(p.size, 0, -1) * p[order]))
    return tuple(corrected.tolist())


def divide(part: float | None, whole: float | None) -> float | None:
    """part / whole; None where one of them is unknown, or the whole is 0."""
    return None if part is None or not whole else part / whole


def all_agree(values: npt.ArrayLike) -> bool:
    """Whether numbers have no spread beyond rounding, and are not all zero: no repeat shows a difference then."""
    array = clean(values)
    return bool(array.any()) and bool(np.ptp(array) <= ROUNDING * np.abs(array).max())


def clean(values: npt.ArrayLike) -> Samples:
    """The finite values, as float64, in their order."""
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]


def convert_to_floats(values: Iterable[float | None]) -> Samples:
    """The values in their order; None becomes NaN, which `clean` leaves out."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def percentile(values: npt.ArrayLike, p: float) -> Estimate:
    """The p-quantile (0 < p < 1) of `values` (missing = NaN, ignored) with its order-statistic interval."""
    return percentiles(values, (p,))[0]


def percentiles(values: npt.ArrayLike, points: Sequence[float]) -> tuple[Estimate, ...]:
    """As `percentile`, for several p at the price of one sort."""
    ordered = np.sort(clean(values))
    if ordered.size == 0:
        return tuple(unknown("no samples") for _ in points)
    values_at = np.quantile(ordered, points)
    return tuple(_bracket_percentile(ordered, p, float(value)) for p, value in zip(points, values_at, strict=True))


def _bracket_percentile(ordered: Samples, p: float, value: float) -> Estimate:
    n = int(ordered.size)
    low_rank, high_rank = find_order_statistic_ranks(n, p)
    return Estimate(  # interpolation may put the value of a handful of samples just outside its bounds: widen them
        value=value,
        low=min(float(ordered[low_rank - 1]), value) if low_rank is not None else None,
        high=max(float(ordered[high_rank - 1]), value) if high_rank is not None else None,
        n=n,
        reason=None if low_rank is not None and high_rank is not None else too_small(n, p),
    )


@functools.lru_cache(maxsize=4096)
def find_order_statistic_ranks(n: int, p: float) -> tuple[int | None, int | None]:
    """Ranks (1-based) of the order statistics that bound the p-quantile; None where n is too small for that bound."""
    tail = (1 - LEVEL) / 2
    reach = 10 * math.sqrt(n * p * (1 - p)) + 10  # the binomial has no weight beyond ten standard deviations
    ranks = np.arange(max(math.floor(n * p - reach), 0), min(math.ceil(n * p + reach), n) + 1)
    below = special.bdtr(ranks.astype(np.float64), n, p)  # P(Bin(n, p) <= rank)
    low = int(ranks[np.searchsorted(below, tail, side="left")])
    high = int(ranks[np.searchsorted(below, 1 - tail, side="left")]) + 1
    return (low if low >= 1 else None), (high if high <= n else None)


def count_samples_needed(p: float) -> int:
    """The smallest n at which both bounds of the p-quantile exist."""
    tail = (1 - LEVEL) / 2
    return math.ceil(max(math.log(tail) / math.log(p), math.log(tail) / math.log1p(-p)))


def too_small(n: int, p: float) -> str:
    interval = f"{format_percent(LEVEL)} interval of p{p * 100:g}"
    return f"{n} samples are too few for a {interval} (needs {count_samples_needed(p)})"


def compute_student_quantile(degrees: float, level: float = LEVEL) -> float:
    """Half the width of an interval at this level, in standard errors."""
    return float(special.stdtrit(degrees, (1 + level) / 2))


def compute_student_p(value: float, error: float, degrees: float) -> float:
    """Two-sided p of a zero value, from its standard error."""
    return float(2 * special.stdtr(degrees, -abs(value) / error))


def compute_student_interval(
    value: float,
    error: float,
    degrees: float,
    n: int,
    *,
    level: float = LEVEL,
    reason: str | None = None,
    basis: str | None = None,
    launches: int = 1,
) -> Estimate:
    """A value with Student's t interval, from its standard error and its degrees of freedom."""
    half = compute_student_quantile(degrees, level) * error
    return Estimate(value, value - half, value + half, n, reason, basis, launches)


def mean(values: npt.ArrayLike) -> Estimate:
    """The mean with Student's t interval."""
    array = clean(values)
    n = int(array.size)
    if n == 0:
        return unknown("no samples")
    value = float(array.mean())
    if n == 1:
        return Estimate(value=value, n=1, reason="one sample has no interval")
    return compute_student_interval(value, standard_error(array), n - 1, n)


def standard_error(values: Samples) -> float:
    """Standard error of the mean of two values or more."""
    return float(values.std(ddof=1)) / math.sqrt(values.size)


def cut_bounds(estimate: Estimate, most: float = math.inf) -> Estimate:
    """With the bounds cut at 0 and at `most`, of what cannot be outside: a time, a count, or a share (most = 1).

    Student's t over few values reaches beyond. A value that is itself outside keeps its bounds.
    """
    if estimate.value is None or not 0 <= estimate.value <= most or estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(estimate.low, 0.0), high=min(estimate.high, most))


def bound_sigma(variance: float, degrees: float) -> tuple[float, float]:
    """Chi-square bounds of a standard deviation, from the variance of normal residuals and its degrees of freedom."""
    tails = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    low, high = (math.sqrt(variance * degrees / special.chdtri(degrees, tail)) for tail in tails)
    return low, high


def proportion(part: int, whole: int, reason: str) -> Estimate:
    """part / whole with its exact binomial interval, right for independent cases (Clopper and Pearson, 1934).

    Its width is never zero: 5 of 5 gives [0.48, 1]. `reason`: why there is no proportion where `whole` is 0.
    """
    if not whole:
        return unknown(reason)
    tail = (1 - LEVEL) / 2
    low = float(special.betaincinv(part, whole - part + 1, tail)) if part else 0.0
    high = float(special.betaincinv(part + 1, whole - part, 1 - tail)) if part < whole else 1.0
    return Estimate(part / whole, low, high, whole, basis=BINOMIAL)


def bound_draws(draws: Samples, level: float = LEVEL) -> tuple[float, float]:
    """The bounds between which this share of the draws lies, symmetric in probability; NaN where none is finite."""
    finite = clean(draws)  # a draw of sessions may leave one side without a value
    if not finite.size:
        return math.nan, math.nan
    low, high = np.quantile(finite, ((1 - level) / 2, (1 + level) / 2))
    return float(low), float(high)


def bootstrap_quantiles(values: Samples, p: float, draws: int, rng: np.random.Generator) -> Samples:
    """`draws` bootstrap replicates of the p-quantile of a series in time order, resampling contiguous blocks.

    Blocks hold about n^(1/3) values (at most MAX_BLOCKS blocks). A replicate draws as many blocks as there are, with
    replacement; its quantile is read from block counts over at most MAX_BINS rank bins: the cost does not grow with n.
    """
    n = int(values.size)
    length = max(math.ceil(n ** (1 / 3)), math.ceil(n / MAX_BLOCKS))
    block = np.arange(n) // length
    return compute_weighted_quantiles(values, p, block, resample(int(block[-1]) + 1, draws, rng))


def resample(groups: int, draws: int, rng: np.random.Generator) -> Samples:
    """How often each of `groups` is drawn when as many are drawn with replacement (draws x groups)."""
    chosen = rng.integers(0, groups, (draws, groups)) + groups * np.arange(draws)[:, None]
    return np.bincount(chosen.ravel(), minlength=draws * groups).reshape(draws, groups).astype(np.float64)


def compute_weighted_quantiles(values: Samples, p: float, group: Ranks, weights: Samples) -> Samples:
    """The p-quantile of each replicate: `weights` (draws x groups) says how often the values of each group count.

    NaN where a replicate draws no group that has a value.
    """
    edges, counts = _group_counts(values, p, group, weights.shape[1])
    cumulative = np.cumsum(weights @ counts, axis=1)
    empty = cumulative[:, -1] < 0.5
    cumulative[empty] += 1.0  # any rank will do: the value read there is replaced by NaN
    position = p * (cumulative[:, -1] - 1)
    ordered = np.sort(values)
    below = _pick_at_rank(ordered, edges, cumulative, np.floor(position))
    above = _pick_at_rank(ordered, edges, cumulative, np.ceil(position))
    quantiles = below + (above - below) * (position - np.floor(position))
    return np.asarray(np.where(empty, np.nan, quantiles), dtype=np.float64)


def _group_counts(values: Samples, p: float, group: Ranks, groups: int) -> tuple[Ranks, Samples]:
    """Edges of the rank bins (k + 1) and how many of each group's samples fall into each bin (groups x k)."""
    edges = _rank_bins(int(values.size), p)
    bins = edges.size - 1
    bin_of_rank = np.repeat(np.arange(bins), np.diff(edges))
    flat = np.bincount(group[np.argsort(values, kind="stable")] * bins + bin_of_rank, minlength=groups * bins)
    return edges, flat.reshape(groups, bins).astype(np.float64)


def _pick_at_rank(ordered: Samples, edges: Ranks, cumulative: Samples, rank: Samples) -> Samples:
    """The value at each replicate's (0-based) rank; inside a bin of several values, in proportion."""
    bins = (cumulative > rank[:, None]).argmax(axis=1)
    rows = np.arange(bins.size)
    before = np.where(bins > 0, cumulative[rows, bins - 1], 0.0)
    share = (rank - before) / (cumulative[rows, bins] - before)
    values: Samples = ordered[(edges[bins] + share * np.diff(edges)[bins]).astype(np.int64)]
    return values


def _rank_bins(n: int, p: float) -> Ranks:
    """Edges of the rank bins: each rank alone where n allows it, else fine around p and coarse far from it."""
    if n <= MAX_BINS:
        return np.arange(n + 1)
    spread = 5 * math.sqrt(p * (1 - p) * max(n, 1) * max(n ** (1 / 3), n / MAX_BLOCKS))
    center = p * n
    fine = np.linspace(max(center - spread, 0), min(center + spread, n), MAX_BINS - 64)
    coarse = np.linspace(0, n, 65)
    return np.unique(np.concatenate((fine, coarse)).round().astype(np.int64))
