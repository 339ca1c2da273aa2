"""Every number of every policy, trial by trial, with replicates over sessions: what all comparisons are computed from.

The pair is the trial: in it every policy replays the same sessions with the same prompts on fresh engines, so policies
are compared inside a trial, turn by turn (`TurnRecord.index`). From three trials on the spread over trials gives the
interval. With fewer, sessions are resampled: a draw takes the same sessions with the same multiplicities in every cell
of the run, so that what a long session costs everywhere is drawn once for both sides of a difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from urllib.parse import unquote

import numpy as np

from results.measures.latency import Mask
from results.measures.replay_numbers import UNREADABLE
from results.measures.turns import Turns
from results.records.count import format_count
from results.records.estimate import Estimate
from results.routing.loads import name_load
from results.routing.metrics import (
    Metric,
    compute_value_over_turns,
    count_fewest_samples,
    find_turns_with,
    replicate_metric,
    replicate_ratios,
)
from results.routing.read import LoadedCell
from results.routing.summary import RoutedSummary
from results.statistics.estimates import (
    DRAWS,
    Ranks,
    Samples,
    compute_student_quantile,
    compute_weighted_quantiles,
    count_samples_needed,
    cut_bounds,
    resample,
    standard_error,
    too_small,
)
from results.statistics.judgement import is_too_degraded, name_degraded_remedy
from results.statistics.trials import MIN_PAIRED, Draws, Measured, Trial, combine, estimate, resampled, unmeasured

MIN_SESSIONS = 8
"""Fewer cannot be resampled: the draws would be a handful of values."""
MAX_GROUPS = 1024
"""More sessions than this are resampled in groups of neighbors in name order."""
LEAST_SPREAD = 0.5
"""Standard deviation over trials, in sessions, that a count of sessions has at least: see `estimate_count_interval`."""
RESAMPLED = "sessions resampled"
"""How the `basis` of an interval begins that fewer than three trials gave."""
_SEED = 20260101
COMPLETE = "complete"
"""`stop_reason` of a replay that ended by itself."""
UNKNOWN_WHERE_TURNS_WERE_LOST = frozenset({"amplification"})
"""Metrics without a value in a trial that lost turns. The other trials are no sample of all, so they give no
interval."""
EARLY_REMEDY = "a higher `replay.max_duration_s` or a lower load (`replay.time_scale`) lets it end"
CLIENT_REMEDY = "run again with a core left for the client, or at a lower load (`replay.time_scale`)"

Replicates = Callable[[Ranks, Samples], Samples]
"""From the rows' groups of sessions and the weights of the groups (draws x groups) to a value per draw."""
_Key = tuple[str, int, str, bytes]
"""Label, trial, name of the metric, and the bits of the mask of turns."""


@dataclass(frozen=True, slots=True)
class _Cell:
    summary: RoutedSummary
    turns: Turns | None
    group: Ranks
    """The group of each turn's session."""


class Measurements:
    """The measured cells of a run by label and trial; those whose client fell behind are left out, with the reason."""

    def __init__(self, cells: Sequence[LoadedCell], summaries: Sequence[RoutedSummary]) -> None:
        names = sorted({str(name) for cell in cells if cell.turns is not None for name in cell.turns.session})
        per_group = max(-(-len(names) // MAX_GROUPS), 1)
        self._group = {name: index // per_group for index, name in enumerate(names)}
        self.sessions = len(names)
        self._why: dict[str, dict[str, None]] = {}
        self._cells: dict[str, dict[int, _Cell]] = {}
        self._loads: dict[str, dict[str, object]] = {}
        odd = find_odd_cells(cells)
        for cell, summary in zip(cells, summaries, strict=True):
            trials = self._cells.setdefault(summary.label, {})
            self._loads.setdefault(summary.label, name_load(cell.record))
            why = f"degraded: {cell.degraded}" if cell.degraded else odd.get(cell.path, "")
            if why:
                self._why.setdefault(summary.label, {})[f"trial {summary.trial} is {why}"] = None
                continue
            sessions = () if cell.turns is None else cell.turns.session
            group = np.array([self._group[str(name)] for name in sessions], dtype=np.int64)
            trials[summary.trial] = _Cell(summary, cell.turns, group)
        self.selected = {label: why for label in self._cells if (why := _explain_selection(label, cells))}
        """Labels whose trials that count may be the faster ones, with the reason: they have no interval."""
        self._values: dict[tuple[str, str], Measured] = {}
        """By label and name of the metric."""
        self._trials: dict[_Key, Trial] = {}
        self._memory: dict[_Key, Samples] = {}
        self._differences: dict[tuple[str, str, str, Callable[..., Samples]], Measured] = {}

    @property
    def trials(self) -> int:
        """The most trials that any policy has."""
        return max((len(trials) for trials in self._cells.values()), default=0)

    def cells(self, label: str) -> Mapping[int, RoutedSummary]:
        """The label's cells that count, by trial."""
        return {trial: cell.summary for trial, cell in self._cells.get(label, {}).items()}

    def load(self, label: str) -> Mapping[str, object]:
        """What the label was measured under, as `name_load`."""
        return self._loads[label]

    def turns(self, label: str) -> Iterator[tuple[int, Turns, Ranks]]:
        """The label's trials with their turns and each turn's group of sessions; unreadable ones are left out."""
        for trial, cell in sorted(self._cells.get(label, {}).items()):
            if cell.turns is not None:
                yield trial, cell.turns, cell.group

    def get(self, label: str, metric: Metric) -> Measured:
        """The metric in every trial of the label."""
        key = label, metric.name
        if key not in self._values:
            self._values[key] = self._measure(label, metric)
        return self._values[key]

    def _measure(self, label: str, metric: Metric) -> Measured:
        def measure(trial: int) -> Trial | str:
            cell = self._cells[label][trial]
            if not metric.series or cell.turns is None:
                return _read_summary(cell.summary, metric)
            return self._measure_turns(cell, metric, np.ones(cell.turns.index.size, dtype=np.bool_))

        trials = self._cells.get(label, {})
        measured = _try_trials(trials, self._why.get(label, {}), measure)
        if not measured.trials and not measured.reason:
            return unmeasured(f"{label} was not measured")
        lacking = len(trials) - len(measured.trials)
        if metric.name in UNKNOWN_WHERE_TURNS_WERE_LOST and measured.trials and lacking:
            measured = replace(measured, no_interval=f"{lacking} of {len(trials)} trials have none: {measured.reason}")
        return self.withhold(measured, label)

    def withhold(self, measured: Measured, *labels: str) -> Measured:
        """The number of these labels, without an interval where one of them is among `selected`."""
        why = next((self.selected[label] for label in labels if label in self.selected), "")
        return replace(measured, no_interval=why) if why and measured.trials else measured

    def difference(self, first: str, second: str, metric: Metric) -> Measured:
        """first - second in every trial that has both; of latencies, over the turns that both completed."""
        return self._compare_once(first, second, metric, np.subtract)

    def log_ratio(self, first: str, second: str, metric: Metric) -> Measured:
        """log(first / second), as `difference`: of a metric that is a time or a ratio of times."""
        return self._compare_once(first, second, metric, compute_log_of_ratio)

    def _compare_once(self, first: str, second: str, metric: Metric, compute: Callable[..., Samples]) -> Measured:
        """Computed once for two labels, whichever way round they are asked for: `compute` only changes its sign."""
        key = first, second, metric.name, compute
        if key not in self._differences:
            turned = self._differences.get((second, first, metric.name, compute))
            own = self._compare(first, second, metric, compute) if turned is None else combine(_negate_values, turned)
            self._differences[key] = own
        return self._differences[key]

    def _compare(self, first: str, second: str, metric: Metric, compute: Callable[..., Samples]) -> Measured:
        if not metric.series:
            return combine(compute, self.get(first, metric), self.get(second, metric))

        def compare(trial: int) -> Trial | str:
            cells = self._cells[first][trial], self._cells[second][trial]
            masks = self._find_common_turns(*cells, metric)
            sides = [self._measure_turns(cell, metric, mask) for cell, mask in zip(cells, masks, strict=True)]
            for reason in sides:
                if isinstance(reason, str):
                    return reason
            measured = (Measured({trial: side}) for side in sides if isinstance(side, Trial))
            compared = combine(compute, *measured).trials[trial]
            return compared if math.isfinite(compared.value) else "a time of zero has no ratio"

        return self._measure_by_trial(first, second, compare)

    def turn_by_turn(self, first: str, second: str, series: str, statistic: str) -> Measured:
        """Over the turns both completed, each against itself: `median` of first - second, or `faster`, the share of
        turns that first served in less time."""

        def compare(trial: int) -> Trial | str:
            one, other = self._cells[first][trial], self._cells[second][trial]
            if one.turns is None or other.turns is None:
                return UNREADABLE
            mask, other_mask = self._find_common_turns(one, other, _make_mean_metric(series))
            change = one.turns.series(series)[mask] - other.turns.series(series)[other_mask]
            group = one.group[mask]
            if not change.size:
                return "no turn was completed by both"
            if statistic == "median":
                draws = self._draws(lambda weights: compute_weighted_quantiles(change, 0.5, group, weights))
                return Trial(float(np.median(change)), change.size, draws)
            faster = (change < 0).astype(np.float64)
            draws = self._draws(lambda weights: replicate_ratios(faster, np.ones(faster.size), group, weights))
            return Trial(float(faster.mean()), change.size, draws)

        return self._measure_by_trial(first, second, compare)

    def common_turns(self, first: str, second: str, series: str) -> tuple[int, int]:
        """Turns that both completed, and turns that only one did, over all trials that have both."""
        both = lost = 0
        for trial in self._shared(first, second):
            cells = self._cells[first][trial], self._cells[second][trial]
            masks = self._find_common_turns(*cells, _make_mean_metric(series))
            both += int(masks[0].sum())
            for cell, mask in zip(cells, masks, strict=True):
                if cell.turns is not None:
                    lost += int(np.isfinite(cell.turns.series(series)).sum()) - int(mask.sum())
        return both, lost

    def weights(self) -> Samples | str:
        """Multiplicities of each group of sessions (draws x groups), or why sessions cannot be resampled."""
        if self.sessions < MIN_SESSIONS:
            return f"{self.sessions} sessions are too few to resample (needs {MIN_SESSIONS})"
        return self._weights

    @cached_property
    def _weights(self) -> Samples:
        return resample(max(self._group.values()) + 1, DRAWS, np.random.default_rng(_SEED))

    def _draws(self, replicate: Callable[[Samples], Samples | str]) -> Draws:
        def draws() -> Samples | str:
            weights = self.weights()
            return weights if isinstance(weights, str) else replicate(weights)

        return draws

    def replicate_rows(self, sessions: Sequence[str], replicates: Replicates) -> Draws:
        """Draws over rows of these sessions, such as picks of a decision log. Names are quoted as in a header."""

        def draws() -> Samples | str:
            group = [self._group.get(unquote(name)) for name in sessions]
            if self.sessions >= MIN_SESSIONS and None in group:
                unnamed = group.count(None)
                return f"{unnamed} of {len(group)} are of sessions that the turn records do not name"
            return self._draws(lambda weights: replicates(np.array(group, dtype=np.int64), weights))()

        return draws

    def measure_ratio_of_rows(self, sessions: Sequence[str], top: Samples, bottom: Samples) -> Trial | None:
        """sum(top) / sum(bottom) over the rows that have both; None where sum(bottom) is not above 0."""
        known = np.isfinite(top) & np.isfinite(bottom)
        above, below = top[known], bottom[known]
        if not below.sum() > 0:
            return None
        own = list(compress(sessions, known))
        draws = self.replicate_rows(own, lambda group, weights: replicate_ratios(above, below, group, weights))
        return Trial(float(above.sum() / below.sum()), int(known.sum()), draws)

    def measure_mean_of_rows(self, sessions: Sequence[str], values: Samples) -> Trial | None:
        """Over the rows that have a value; None where none has."""
        return self.measure_ratio_of_rows(sessions, values, np.ones(values.size))

    def measure_quantile_of_rows(self, sessions: Sequence[str], values: Samples, p: float) -> Trial | None:
        """The p-quantile of the rows that have a value; None where none has."""
        known = np.isfinite(values)
        measured, n = values[known], int(known.sum())
        if not n:
            return None
        own = list(compress(sessions, known))
        draws = self.replicate_rows(own, lambda group, weights: compute_weighted_quantiles(measured, p, group, weights))
        if n < count_samples_needed(p):
            return Trial(float(np.quantile(measured, p)), n, lambda: too_small(n, p))
        return Trial(float(np.quantile(measured, p)), n, draws)

    def _shared(self, first: str, second: str) -> list[int]:
        return sorted(set(self._cells.get(first, {})) & set(self._cells.get(second, {})))

    def _measure_by_trial(self, first: str, second: str, compute: Callable[[int], Trial | str]) -> Measured:
        shared = self._shared(first, second)
        why = dict.fromkeys(reason for name in (first, second) for reason in self._why.get(name, {}))
        if not shared:
            return unmeasured("; ".join(why) or f"no trial has both {first} and {second}")
        return self.withhold(_try_trials(shared, why, compute), first, second)

    def _find_common_turns(self, one: _Cell, other: _Cell, metric: Metric) -> tuple[Mask, Mask]:
        """Which turns of each are also in the other, by index; none where the records of one cannot be read."""
        if one.turns is None or other.turns is None:
            return np.zeros(one.group.size, dtype=np.bool_), np.zeros(other.group.size, dtype=np.bool_)
        mask, other_mask = find_turns_with(metric, one.turns), find_turns_with(metric, other.turns)
        if np.array_equal(one.turns.index, other.turns.index):
            return mask & other_mask, mask & other_mask
        common = np.intersect1d(one.turns.index[mask], other.turns.index[other_mask], assume_unique=True)
        return mask & np.isin(one.turns.index, common), other_mask & np.isin(other.turns.index, common)

    def _measure_turns(self, cell: _Cell, metric: Metric, where: Mask) -> Trial | str:
        """The metric over some of a cell's turns."""
        if cell.turns is None:
            return UNREADABLE
        used = where & find_turns_with(metric, cell.turns)
        if not used.any():
            return f"no turn of {cell.summary.label} has a {metric.title}"
        key = (cell.summary.label, cell.summary.trial, metric.name, np.packbits(used).tobytes())
        if key not in self._trials:
            self._trials[key] = self._compute_trial(cell.turns, cell.group, metric, used, key)
        return self._trials[key]

    def _compute_trial(self, turns: Turns, group: Ranks, metric: Metric, used: Mask, key: _Key) -> Trial:
        behind, size = count_fewest_samples(metric, turns, used), used.size

        def replicate(weights: Samples) -> Samples | str:
            if metric.quantile and behind < count_samples_needed(metric.quantile):
                return too_small(behind, metric.quantile)
            if key not in self._memory:
                bits = np.frombuffer(key[3], np.uint8)  # kept instead of the mask
                own = np.unpackbits(bits, count=size).astype(np.bool_)
                self._memory[key] = replicate_metric(metric, turns, own, group, weights)
            return self._memory[key]

        return Trial(compute_value_over_turns(metric, turns, used), int(used.sum()), self._draws(replicate))


def _negate_values(values: Samples) -> Samples:
    """The other sign; of 0, which stays without one."""
    return 0.0 - values


def _make_mean_metric(series: str) -> Metric:
    return Metric("", "", "s", False, series, "mean")


def _explain_selection(label: str, cells: Sequence[LoadedCell]) -> str:
    """Why this label's trials that count may be the faster ones; empty where nothing shows it.

    A replay that ended early was too slow itself, and takes no part.
    """
    own = [cell for cell in cells if cell.record.label == label]
    early = sum(cell.record.replay.get("stop_reason", COMPLETE) != COMPLETE for cell in own)
    late = sum(bool(cell.degraded) for cell in own)
    if early:
        what = f"in {early} of {len(own)} trials of {label} the replay ended early, and the others are the faster ones"
        return f"{what}; {EARLY_REMEDY}"
    if is_too_degraded(late, len(own)):
        what = f"{late} of {len(own)} trials of {label} are degraded, and the others may be the faster ones"
        return f"{what}; {name_degraded_remedy((cell.degraded for cell in own if cell.degraded), CLIENT_REMEDY)}"
    return ""


def _try_trials(trials: Iterable[int], why: Mapping[str, None], compute: Callable[[int], Trial | str]) -> Measured:
    """The trials that have the number; `why` and the reasons of the others are its reason."""
    computed = {trial: compute(trial) for trial in trials}
    reasons = dict.fromkeys((*why, *(reason for reason in computed.values() if isinstance(reason, str))))
    known = {trial: number for trial, number in computed.items() if isinstance(number, Trial)}
    return Measured(known, "; ".join(reasons))


def _read_summary(summary: RoutedSummary, metric: Metric) -> Trial | str:
    estimated = summary.estimate(metric.name)
    if estimated.value is None:
        return f"{summary.label}, trial {summary.trial}: {estimated.reason or 'not measured'}"
    return make_trial_of_number(estimated.value, max(estimated.n, 1))


def make_trial_of_number(value: float, n: int = 1) -> Trial:
    """A number of a whole cell."""
    return Trial(value, n, lambda: f"one number per trial: an interval needs {MIN_PAIRED} trials")


def collect_trials(by_trial: Mapping[int, Trial | None], why: str) -> Measured:
    """The trials that have the number. `why`: the reason where none has."""
    known = {trial: number for trial, number in by_trial.items() if number is not None}
    return Measured(known) if known else unmeasured(why)


def compute_log_of_ratio(ours: Samples, theirs: Samples) -> Samples:
    """log(ours / theirs); NaN where one of them is not above zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logarithms = np.log(ours / theirs)
    return np.asarray(np.where(np.isfinite(logarithms), logarithms, np.nan), dtype=np.float64)


def find_odd_cells(cells: Sequence[LoadedCell]) -> dict[str, str]:
    """By path, cells that differ in trace or seed from the first of their trial: nothing can be paired with them."""
    first: dict[tuple[int, str], tuple[object, object]] = {}
    odd: dict[str, str] = {}
    for cell in cells:
        sent = cell.record.trace.get("sha256"), cell.record.replay_seed
        if first.setdefault((cell.record.trial, str(cell.record.trace.get("name") or "")), sent) != sent:
            odd[cell.path] = "of another trace or seed than the trial's first cell"
    return odd


def estimate_mean_interval(measured: Measured) -> Estimate:
    """The mean over the trials with its interval; `basis` says what the interval covers."""
    mean = estimate(measured)
    return mean if mean.low is None else replace(mean, basis=_describe_basis(measured))


def estimate_ratio_interval(measured: Measured) -> Estimate:
    """The geometric mean over the trials of ratios whose logarithms these are, with the interval of the logarithms.

    One slow trial widens the interval of a ratio far less than that of a difference. Source: docs/analysis.md.
    """
    return estimate_mean_interval(measured).transform(math.exp)


def estimate_level_interval(measured: Measured, most: float = math.inf) -> Estimate:
    """As `estimate_mean_interval`, with the bounds cut at 0 and at `most`: 1 for a share of a whole."""
    return cut_bounds(estimate_mean_interval(measured), most)


def estimate_count_interval(measured: Measured) -> Estimate:
    """As `estimate_level_interval`, of a count as a share of `Trial.n`, with a spread of at least half a session.

    Counts that are equal in every trial have no spread and so no interval, although they are as sure as a count can be:
    one that moves by a single session between trials has a standard deviation of up to half a session, and is often
    equal in all of a few trials. With that deviation as the least one the interval covers the mean of such a count in
    95 of 100 runs (up to 20 trials). The trial is the unit. An exact binomial interval over the sessions of all trials
    (Clopper and Pearson) would be too narrow: the sessions of a trial follow one another, so that 67 sessions on one
    instance may be one decision. What only one trial in many does, no interval over a few trials can show.
    """
    mean, values = estimate_mean_interval(measured), measured.values
    if mean.value is None or values.size < MIN_PAIRED or measured.no_interval:
        return estimate_level_interval(measured, most=1.0)
    coarsest = min(trial.n for trial in measured.trials.values())
    error = max(standard_error(values), LEAST_SPREAD / coarsest / math.sqrt(values.size))
    half = compute_student_quantile(values.size - 1) * error
    low, high = max(mean.value - half, 0.0), min(mean.value + half, 1.0)
    return replace(mean, low=low, high=high, reason=measured.reason or None, basis=_describe_basis(measured))


def estimate_widest_interval(measured: Measured) -> Estimate:
    """As `estimate_mean_interval`, for a number that the choice of sessions shifts in every trial alike (a slope).

    From three trials on it reaches as far as the wider of both intervals on each side.
    """
    mean = estimate_mean_interval(measured)
    if len(measured.trials) < MIN_PAIRED:
        return mean
    by_sessions = resampled(measured)
    if mean.low is None or mean.high is None or by_sessions.low is None or by_sessions.high is None:
        return mean
    covered = f"the wider of {_describe_basis(measured)} and {_describe_resampling(measured)}"
    return replace(mean, low=min(mean.low, by_sessions.low), high=max(mean.high, by_sessions.high), basis=covered)


def _describe_basis(measured: Measured) -> str:
    """What the interval covers."""
    count = len(measured.trials)
    return f"over {count} trials" if count >= MIN_PAIRED else _describe_resampling(measured)


def _describe_resampling(measured: Measured) -> str:
    return f"{RESAMPLED}, {format_count(len(measured.trials), 'trial', 'trials')}"
