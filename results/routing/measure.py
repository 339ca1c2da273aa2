"""Every number of every policy, trial by trial, with replicates over sessions: what all comparisons are computed from.

The pair is the trial: in it every policy replays the same sessions with the same prompts on fresh engines, so policies
are compared inside a trial, turn by turn (`TurnRecord.index`). From three trials on the spread over trials gives the
interval. With fewer, sessions are resampled: a draw takes the same sessions with the same multiplicities in every cell
of the run, so that what a long session costs everywhere is drawn once for both sides of a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from urllib.parse import unquote

import numpy as np

from results.measures.turns import Mask, Turns
from results.records.frames import Gap
from results.routing.load import LoadedCell
from results.routing.metrics import Metric
from results.routing.points import fewest, has, means, point_value, quantile_of, replicates
from results.routing.summary import RoutedSummary
from results.statistics.estimates import (
    DRAWS,
    LEVEL,
    Estimate,
    Ranks,
    Samples,
    resample,
    samples_needed,
    too_small,
    weighted_quantiles,
)
from results.statistics.trials import MIN_PAIRED, Measured, Trial, combine, estimate, resampled, unmeasured

MIN_SESSIONS = 8
"""Fewer cannot be resampled: the draws would be a handful of values."""
MAX_GROUPS = 1024
"""More sessions than this are resampled in groups of neighbours by name."""
RESAMPLED = "sessions resampled"
"""How the `basis` of an interval begins that fewer than three trials gave."""
_SEED = 20260101


@dataclass(frozen=True, slots=True)
class _Cell:
    summary: RoutedSummary
    turns: Turns | None
    group: Ranks
    """Of each turn's session."""


class Measurements:
    """The measured cells of a run by label and trial; those whose client fell behind are kept out, with the reason."""

    def __init__(self, cells: Sequence[LoadedCell], summaries: Sequence[RoutedSummary]) -> None:
        names = sorted({str(name) for cell in cells if cell.turns is not None for name in cell.turns.session})
        per_group = max(-(-len(names) // MAX_GROUPS), 1)
        self._group = {name: place // per_group for place, name in enumerate(names)}
        self.sessions = len(names)
        self._why: dict[str, dict[str, None]] = {}
        self._cells: dict[str, dict[int, _Cell]] = {}
        odd = odd_cells(cells)
        for cell, summary in zip(cells, summaries, strict=True):
            trials = self._cells.setdefault(summary.label, {})
            why = f"degraded: {cell.degraded}" if cell.degraded else odd.get(cell.path, "")
            if why:
                self._why.setdefault(summary.label, {})[f"trial {summary.trial} is {why}"] = None
                continue
            trials[summary.trial] = _Cell(summary, cell.turns, self._groups_of(cell.turns))
        self._memory: dict[tuple[str, int, str, bytes], Samples] = {}

    def _groups_of(self, turns: Turns | None) -> Ranks:
        found = () if turns is None else (self._group[str(name)] for name in turns.session)
        return np.fromiter(found, dtype=np.int64)

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label that has a cell, in the order of their names."""
        return tuple(sorted(self._cells))

    @property
    def trials(self) -> int:
        """The most trials that any policy has."""
        return max((len(found) for found in self._cells.values()), default=0)

    def cells(self, label: str) -> Mapping[int, RoutedSummary]:
        """The label's cells that count, by trial."""
        return {trial: cell.summary for trial, cell in self._cells.get(label, {}).items()}

    def turns(self, label: str) -> Iterator[tuple[int, Turns, Ranks]]:
        """The label's trials with their turns and each turn's group of sessions; unreadable ones are left out."""
        for trial, cell in sorted(self._cells.get(label, {}).items()):
            if cell.turns is not None:
                yield trial, cell.turns, cell.group

    def get(self, label: str, metric: Metric) -> Measured:
        """The metric in every trial of the label."""
        found: dict[int, Trial] = {}
        why = dict(self._why.get(label, {}))
        for trial, cell in self._cells.get(label, {}).items():
            if metric.series and cell.turns is not None:
                one = self._of_turns(cell, metric, np.ones(cell.turns.index.size, dtype=np.bool_))
            else:
                one = _of_cell(cell.summary, metric)
            if isinstance(one, str):
                why[one] = None
            else:
                found[trial] = one
        return Measured(found, "; ".join(why) or ("" if found else f"{label} was not measured"))

    def difference(self, first: str, second: str, metric: Metric) -> Measured:
        """first - second in every trial that has both; of latencies, over the turns that both completed."""
        return self._compared(first, second, metric, np.subtract)

    def log_ratio(self, first: str, second: str, metric: Metric) -> Measured:
        """log(first / second), as `difference`: of a metric that is a time or a ratio of times."""
        return self._compared(first, second, metric, log_of_ratio)

    def _compared(self, first: str, second: str, metric: Metric, compute: Callable[..., Samples]) -> Measured:
        if not metric.series:
            return combine(compute, self.get(first, metric), self.get(second, metric))

        def compare(trial: int) -> Trial | str:
            mine, other = self._cells[first][trial], self._cells[second][trial]
            ours, theirs = self._common(mine, other, metric)
            pair = self._of_turns(mine, metric, ours), self._of_turns(other, metric, theirs)
            return _of_both(compute, *pair)

        return self._by_trial(first, second, compare)

    def turn_by_turn(self, first: str, second: str, series: str, of: str) -> Measured:
        """Over the turns both completed, each against itself: `median` of first - second, or `faster`, the share of
        turns that first served in less time."""

        def compare(trial: int) -> Trial | str:
            mine, other = self._cells[first][trial], self._cells[second][trial]
            if mine.turns is None or other.turns is None:
                return "the turn records cannot be read"
            ours, theirs = self._common(mine, other, Metric("", "", "s", False, series, "mean"))
            change = mine.turns.series(series)[ours] - other.turns.series(series)[theirs]
            group = mine.group[ours]
            if not change.size:
                return "no turn was completed by both"
            if of == "median":
                draws = self._drawn(lambda weights: weighted_quantiles(change, 0.5, group, weights))
                return Trial(float(np.median(change)), change.size, draws)
            faster = (change < 0).astype(np.float64)
            return Trial(float(faster.mean()), change.size, self._drawn(lambda weights: means(faster, group, weights)))

        return self._by_trial(first, second, compare)

    def common_turns(self, first: str, second: str, series: str) -> tuple[int, int]:
        """Turns that both completed, and turns that only one did, over all trials that have both."""
        both = lost = 0
        for trial in self._shared(first, second):
            mine, other = self._cells[first][trial], self._cells[second][trial]
            ours, theirs = self._common(mine, other, Metric("", "", "s", False, series, "mean"))
            both += int(ours.sum())
            lost += sum(
                int(np.isfinite(cell.turns.series(series)).sum()) - int(used.sum())
                for cell, used in ((mine, ours), (other, theirs))
                if cell.turns is not None
            )
        return both, lost

    def groups(self, sessions: Sequence[str]) -> Ranks | str:
        """The group of each of these sessions, as headers name them; or why they cannot be resampled."""
        found = [self._group.get(unquote(name)) for name in sessions]
        strange = found.count(None)
        if strange:
            return f"{strange} of {len(found)} are of sessions that the turn records do not name"
        return np.array(found, dtype=np.int64)

    def weights(self) -> Samples | str:
        """Multiplicities of each group of sessions (draws x groups), or why sessions cannot be resampled."""
        if self.sessions < MIN_SESSIONS:
            return f"{self.sessions} sessions are too few to resample (needs {MIN_SESSIONS})"
        return self._weights

    @cached_property
    def _weights(self) -> Samples:
        return resample(max(self._group.values()) + 1, DRAWS, np.random.default_rng(_SEED))

    def _drawn(self, replicates: Callable[[Samples], Samples]) -> Callable[[], Samples | str]:
        def draws() -> Samples | str:
            weights = self.weights()
            return weights if isinstance(weights, str) else replicates(weights)

        return draws

    def _shared(self, first: str, second: str) -> list[int]:
        return sorted(set(self._cells.get(first, {})) & set(self._cells.get(second, {})))

    def _by_trial(self, first: str, second: str, compute: Callable[[int], Trial | str]) -> Measured:
        shared = self._shared(first, second)
        why = dict.fromkeys(reason for name in (first, second) for reason in self._why.get(name, {}))
        if not shared:
            return unmeasured("; ".join(why) or f"no trial has both {first} and {second}")
        found: dict[int, Trial] = {}
        for trial in shared:
            one = compute(trial)
            if isinstance(one, str):
                why[one] = None
            else:
                found[trial] = one
        return Measured(found, "; ".join(why))

    def _common(self, mine: _Cell, other: _Cell, metric: Metric) -> tuple[Mask, Mask]:
        """Which turns of each are also in the other, by index; none where the records of one cannot be read."""
        if mine.turns is None or other.turns is None:
            return np.zeros(mine.group.size, dtype=np.bool_), np.zeros(other.group.size, dtype=np.bool_)
        ours, theirs = has(mine.turns, metric), has(other.turns, metric)
        if np.array_equal(mine.turns.index, other.turns.index):
            return ours & theirs, ours & theirs
        common = np.intersect1d(mine.turns.index[ours], other.turns.index[theirs], assume_unique=True)
        return ours & np.isin(mine.turns.index, common), theirs & np.isin(other.turns.index, common)

    def _of_turns(self, cell: _Cell, metric: Metric, where: Mask) -> Trial | str:
        """The metric over some of a cell's turns."""
        if cell.turns is None:
            return "the turn records cannot be read"
        used = where & has(cell.turns, metric)
        n = int(used.sum())
        if not n:
            return f"no turn of {cell.summary.label} has a {metric.title}"
        point, behind = quantile_of(metric), fewest(cell.turns, metric, used)
        key = (cell.summary.label, cell.summary.trial, metric.name, np.packbits(used).tobytes())
        turns, group = cell.turns, cell.group

        def draws() -> Samples | str:
            weights = self.weights()
            if isinstance(weights, str):
                return weights
            if point and behind < samples_needed(point):
                return too_small(behind, point)
            if key not in self._memory:
                self._memory[key] = replicates(turns, metric, used, group, weights)
            return self._memory[key]

        return Trial(point_value(turns, metric, used), n, draws)


def _of_cell(summary: RoutedSummary, metric: Metric) -> Trial | str:
    found = summary.estimate(metric.name)
    if found.value is None:
        return f"{summary.label}, trial {summary.trial}: {found.reason or 'not measured'}"
    return Trial(found.value, max(found.n, 1), lambda: f"one number per trial: an interval needs {MIN_PAIRED} trials")


def log_of_ratio(ours: Samples, theirs: Samples) -> Samples:
    """log(ours / theirs); NaN where one of them is not above zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(ours / theirs)
    return np.asarray(np.where(np.isfinite(found), found, np.nan), dtype=np.float64)


def _of_both(compute: Callable[..., Samples], ours: Trial | str, theirs: Trial | str) -> Trial | str:
    if isinstance(ours, str) or isinstance(theirs, str):
        return ours if isinstance(ours, str) else str(theirs)
    value = float(compute(np.array([ours.value]), np.array([theirs.value]))[0])
    if not math.isfinite(value):
        return "a time of zero has no ratio"

    def draws() -> Samples | str:
        mine, other = ours.draws(), theirs.draws()
        if isinstance(mine, str) or isinstance(other, str):
            return mine if isinstance(mine, str) else str(other)
        return compute(mine, other)

    return Trial(value, min(ours.n, theirs.n), draws)


def odd_cells(cells: Sequence[LoadedCell]) -> dict[str, str]:
    """Cells that did not replay what the first cell of their trial did: nothing can be paired with them."""
    first: dict[int, tuple[object, object]] = {}
    found: dict[str, str] = {}
    for cell in cells:
        sent = cell.record.trace.get("sha256"), cell.record.seed
        if first.setdefault(cell.record.trial, sent) != sent:
            found[cell.path] = "of another trace or seed than the trial's first cell"
    return found


def odd_gaps(cells: Sequence[LoadedCell]) -> tuple[Gap, ...]:
    """The same, as gaps."""
    return tuple(Gap(path, f"is {why}; it is not compared") for path, why in odd_cells(cells).items())


def interval(measured: Measured, level: float = LEVEL) -> Estimate:
    """The mean over the trials with its interval; `basis` says what the interval covers."""
    found = estimate(measured, level)
    return found if found.low is None else replace(found, basis=basis(measured))


def ratio_interval(measured: Measured) -> Estimate:
    """The geometric mean over the trials of ratios whose logarithms these are, with the interval of the logarithms.

    One slow trial widens the interval of a ratio far less than that of a difference. Source: docs/analysis.md.
    """
    found = interval(measured)
    value, low, high = (None if part is None else math.exp(part) for part in (found.value, found.low, found.high))
    return replace(found, value=value, low=low, high=high)


def level_interval(measured: Measured, most: float = math.inf) -> Estimate:
    """As `interval`, of what cannot be below 0 or above `most`: 1 for a share of a whole."""
    found = interval(measured)
    if found.low is None or found.high is None:
        return found
    return replace(found, low=max(found.low, 0.0), high=min(found.high, most))


def widest(measured: Measured) -> Estimate:
    """As `interval`, for a number that the choice of sessions shifts in every trial alike, such as a fitted slope.

    From three trials on it reaches as far as the wider of both intervals on each side.
    """
    found = interval(measured)
    if len(measured.trials) < MIN_PAIRED:
        return found
    both = [found, resampled(measured)]
    lows, highs = ([bound for one in both if (bound := getattr(one, side)) is not None] for side in ("low", "high"))
    if len(lows) < len(both) or len(highs) < len(both):
        return found
    covered = f"the wider of {basis(measured)} and {_by_sessions(measured)}"
    return replace(found, low=min(lows), high=max(highs), basis=covered)


def basis(measured: Measured) -> str:
    """What the interval covers."""
    count = len(measured.trials)
    return f"over {count} trials" if count >= MIN_PAIRED else _by_sessions(measured)


def _by_sessions(measured: Measured) -> str:
    count = len(measured.trials)
    return f"{RESAMPLED}, {count} {'trial' if count == 1 else 'trials'}"
