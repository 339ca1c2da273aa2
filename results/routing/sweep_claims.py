"""The questions of specs/ear 5.5 that compare loads or settings: skew, KV pool, and EAR's two thresholds.

Does sticky fall behind EAR as the trace becomes more skewed; do static pools fall behind EAR as the KV pool shrinks;
is there a best threshold between one too eager and one too strict? Each trial gives one trend over the sweep, and the
spread of the trends over the trials gives the interval. The arrival rate has no claim here: C3 is judged at each rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from results.records.count import format_count
from results.records.estimate import Estimate, unknown
from results.records.percent import format_percent
from results.routing.claim_rules import NO_TRIALS, gate_claim, judge_direction
from results.routing.loads import Load, LoadJudgement, judge_whole_run
from results.routing.measurements import Measurements, estimate_ratio_interval
from results.routing.metrics import find_metric
from results.routing.scale import Lack, Scale
from results.routing.specification import FULL, Setting
from results.routing.verdicts import STATIC_PD, STICKY, Arms
from results.statistics.estimates import Samples
from results.statistics.judgement import SEVERAL, Judgement, Outcome, Verdict, judged, leave_undecided
from results.statistics.student import find_p_value
from results.statistics.trials import Measured, combine

TTFT_P90 = "ttft_p90_s"
MIN_SETTINGS = 3
"""Fewer values of a threshold have none between two others."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class TrendClaim:
    """A claim that a policy's TTFT p90, as a multiple of EAR's, rises or falls over a sweep of the load."""

    id: str
    """As of `LoadJudgement.what`."""
    name: str
    claim: str
    row: str
    """Row of Arms.labels; it is compared with FULL."""
    axis: str
    """Axis of `name_load`: what alone differs between the loads."""
    expected: Verdict
    over: str
    """What the trend is over, for the rule."""
    position: Callable[[Load, object], float | None]
    """Position of a load, by its value of the axis; None = it has no position."""
    show: Callable[[float], str]


def _find_skew(load: Load, _value: object) -> float | None:
    return load.top_share


def _find_pool(_load: Load, value: object) -> float | None:
    return float(np.log2(value / GIB)) if isinstance(value, int) else None


TRENDS = (
    TrendClaim(
        "skew",
        "5.5: skew widens sticky's distance to EAR",
        "sticky's TTFT p90, as a multiple of EAR's, rises with the share of the input that 1 % of the sessions have",
        STICKY, "trace", Verdict.HIGHER, "from the least to the most skewed trace",
        _find_skew, lambda share: f"{format_percent(share)} in 1 % of the sessions",
    ),
    TrendClaim(
        "kv-pool",
        "5.5: a smaller KV pool slows static pools",
        "static PD-disaggregation's TTFT p90, as a multiple of EAR's, falls as the KV pool of an instance grows",
        STATIC_PD, "kv_cache_memory_bytes", Verdict.LOWER, "from the smallest to the largest KV pool",
        _find_pool, lambda size: f"{2 ** size:.3g} GiB",
    ),
)  # fmt: skip


def judge_sweeps(
    loads: Sequence[Load], arms: Sequence[Arms], settings: Sequence[Setting], measurements: Measurements
) -> tuple[LoadJudgement, ...]:
    """Each claim whose sweep was run.

    `arms`: of each load, in the same order; `settings`: as `list_threshold_settings`.
    """
    swept = {one: _list_points(one, loads, arms, measurements) for one in TRENDS}
    trends = (
        judge_whole_run(one.id, _judge_trend(one, points, measurements), "; ".join(point.load for point in points))
        for one, points in swept.items()
        if len(points) > 1
    )
    return (*trends, *_judge_thresholds(loads, arms, settings, measurements))


@dataclass(frozen=True, slots=True)
class _Point:
    """One load of a sweep."""

    at: float
    labels: tuple[str, str]
    """The policy's and EAR's."""
    scale: Scale = field(compare=False)
    load: str = field(compare=False)
    """`Load.id`."""

    @property
    def why_left_out(self) -> str:
        """Queues that grow as long as the replay lasts make a ratio a function of its length; empty = it has one."""
        return self.scale.lacks_steady_state(*self.labels).reason


def _judge_trend(one: TrendClaim, points: Sequence[_Point], measurements: Measurements) -> Judgement:
    """`points`: at least two."""
    ratios = {point: measurements.log_ratio(*point.labels, find_metric(TTFT_P90)) for point in points}
    steady = {point: ratio for point, ratio in ratios.items() if ratio.trials and not point.why_left_out}
    left_out = [point for point in points if point not in steady]
    trend = _measure_trend(steady)
    judgement = judge_direction(one.name, one.claim, (trend, 1.0), one.expected)
    steps = {one.show(point.at): estimate_ratio_interval(ratio) for point, ratio in steady.items()}
    deciding = f"{judgement.reason}: {trend.text(3)} times {one.over}" if len(steady) > 1 else judgement.reason
    parts = [deciding, *(f"{estimate.text(3)} times at {where}" for where, estimate in steps.items())]
    parts += [f"no ratio at {one.show(each.at)}: {each.why_left_out or ratios[each].reason}" for each in left_out]
    judgement = replace(
        judgement, rule=_state_rule(one), reason="; ".join(parts), numbers=steps, quantity=f"factor {one.over}"
    )
    scale = points[0].scale
    few = scale.lacks_instances or scale.lacks_sessions
    if few or len(steady) < 2 or (left_out and judgement.outcome is Outcome.FAILS):
        # Open by the data, it stays in the family: the ratios of all loads say whether there is an interval.
        p = find_p_value(_measure_trend(ratios), 1.0) if judgement.p is None else judgement.p
        return gate_claim(replace(judgement, p=p), few or Lack(judgement.reason, needs=scale.sustained))
    return judgement


def _state_rule(one: TrendClaim) -> str:
    return (
        f"a line through the logarithms of the ratio in each trial; holds where its change {one.over} is "
        f"distinguishably {one.expected} (as a factor, above or below 1), fails where it is the opposite. A load "
        "without a steady state has no ratio: it is left out, and then the claim may hold and not fail"
    )


def _list_points(
    one: TrendClaim, loads: Sequence[Load], arms: Sequence[Arms], measurements: Measurements
) -> list[_Point]:
    """The most loads that ran both policies and differ in the axis alone, by their positions, each position once."""
    groups: dict[tuple[object, ...], dict[float, _Point]] = {}
    for load, own in zip(loads, arms, strict=True):
        labels = own.labels.get(one.row, ""), own.labels.get(FULL, "")
        if not all(labels):
            continue
        named = dict(measurements.load(labels[0]))
        at = one.position(load, named.pop(one.axis))
        if at is not None:
            groups.setdefault(tuple(named.values()), {}).setdefault(at, _Point(at, labels, own.scale, load.id))
    points = max(groups.values(), key=len, default={})
    return [points[at] for at in sorted(points)]


def _measure_trend(ratios: Mapping[_Point, Measured]) -> Estimate:
    """The factor over the sweep; unknown below two loads."""
    if len(ratios) < 2:
        return unknown("fewer than two loads have a ratio")
    return estimate_ratio_interval(_fit_trend([point.at for point in ratios], list(ratios.values())))


def _fit_trend(at: Sequence[float], measured: Sequence[Measured]) -> Measured:
    """In each trial the change of a least-squares line from the first position to the last."""
    positions = np.array(at)
    off_center = positions - positions.mean()
    weights = off_center * np.ptp(positions) / (off_center**2).sum()

    def fit(*values: Samples) -> Samples:
        return np.asarray(weights @ np.stack(values))

    return combine(fit, *measured)


def _judge_thresholds(
    loads: Sequence[Load], arms: Sequence[Arms], settings: Sequence[Setting], measurements: Measurements
) -> Iterator[LoadJudgement]:
    """One claim for each threshold that has at least MIN_SETTINGS values, over the values of the other."""
    grid = {(one.hot_tokens, one.cooldown_s): one.label for one in settings}
    own = next((pair for pair in zip(loads, arms, strict=True) if {*grid.values()} & {*pair[0].labels}), None)
    if own is None:
        return
    load, scale = own[0], own[1].scale
    over = f"{', '.join(f'{hot:g} x {cooldown:g} s' for hot, cooldown in sorted(grid))}; {load.id}"
    for axis, name in enumerate(("hot_tokens", "cooldown_s")):
        rows: dict[float, dict[float, str]] = {}
        for key, label in grid.items():
            rows.setdefault(key[axis], {})[key[1 - axis]] = label
        if len(rows) >= MIN_SETTINGS:
            judgement = _judge_optimum(name, rows, measurements)
            few = scale.lacks_instances or scale.lacks_sessions
            lack = few or scale.lacks_steady_state(*grid.values())
            yield judge_whole_run(f"best {name}", gate_claim(judgement, lack), over)


def _judge_optimum(name: str, rows: Mapping[float, Mapping[float, str]], measurements: Measurements) -> Judgement:
    """Whether a value between the lowest and the highest one is better than both. `rows`: value to the labels by the
    value of the other threshold."""
    values = sorted(rows)
    ends, between = (values[0], values[-1]), values[1:-1]
    ratios = {(end, mid): _compare_values(rows[end], rows[mid], measurements) for mid in between for end in ends}
    sides = {key: judged(ratio, 1.0) for key, ratio in ratios.items()}
    p_values = {key: find_p_value(ratio, 1.0) for key, ratio in ratios.items()}
    best = [mid for mid in between if all(sides[end, mid] == Verdict.HIGHER for end in ends)]
    extreme = [end for end in ends if all(sides[end, mid] == Verdict.LOWER for mid in between)]
    numbers = {f"{end:g} against {mid:g}": ratio for (end, mid), ratio in ratios.items()}
    outcome, deciding = Outcome.UNDECIDED, list(p_values)
    reason = "no value between them is distinguishably better than both, and neither end than all of them"
    if extreme:
        outcome, deciding = Outcome.FAILS, [(extreme[0], mid) for mid in between]
        reason = f"{extreme[0]:g} is distinguishably better than every value between"
    elif best:
        outcome, deciding = Outcome.HOLDS, [(end, best[0]) for end in ends]
        reason = f"{best[0]:g} is distinguishably better than both ends"
    shown = ", ".join(f"{where} {ratio.text(3)} times" for where, ratio in numbers.items())
    known = [p for key in deciding if (p := p_values[key]) is not None]
    if not known:
        outcome, reason = leave_undecided(next(iter(ratios.values()))), NO_TRIALS
    return Judgement(
        f"5.5: {name} has a best value between too eager and too strict",
        f"a {name} between the lowest and the highest one has a lower TTFT p90 than both",
        "ratio of TTFT p90, geometric mean over the other threshold's values; holds where both ends are "
        f"distinguishably above one of {format_count(len(between), 'value', 'values')} between, fails where an end is "
        "distinguishably below all of them",
        outcome,
        f"{reason}: {shown}",
        SEVERAL,
        numbers=numbers,
        # the largest of those that had to agree, for as many as might have
        p=min(1.0, max(known) * max(len(between), len(ends))) if known else None,
    )


def _compare_values(first: Mapping[float, str], second: Mapping[float, str], measurements: Measurements) -> Estimate:
    """The ratio of TTFT p90 at two values of a threshold: in each trial the mean over the other one's common values."""
    metric, common = find_metric(TTFT_P90), sorted(first.keys() & second)
    if not common:
        return unknown("the two never ran with the same value of the other threshold")
    parts = [measurements.log_ratio(first[other], second[other], metric) for other in common]
    return estimate_ratio_interval(combine(_average, *parts))


def _average(*values: Samples) -> Samples:
    return np.asarray(np.mean(np.stack(values), axis=0))
