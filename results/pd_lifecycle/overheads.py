"""The TTFT overhead over a combined engine by C and N, and where it changes its sign.

Two engines are such a baseline: the decode engine alone, which carries the connector, and a plain one without it. From
three launches on, the launch is the unit: per (C, N) and launch the logarithm of the median ratio of both TTFTs, its
spread over launches pooled over all (C, N) (results.statistics.launch_fit). Means of milliseconds stand beside it.
Below three launches the bounds are the spread within the launch (results.pd_lifecycle.paired_requests).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean

import msgspec
import numpy as np

from results.pd_lifecycle.by_launch import RatioOf, Size, measure_log_ratios, read_size, split_launches
from results.pd_lifecycle.paired_requests import (
    PAIRED,
    PAIRED_WITH_PLAIN,
    Balanced,
    Lengths,
    average_lengths,
    balance_orders,
    balance_pairs,
    collect_pairs,
    compare_output_lengths,
    estimate_variance_inflation,
    judge_length_differences,
    widen_interval,
)
from results.records.estimate import Estimate, unknown
from results.records.lifecycle import LifecycleRecord
from results.statistics.estimates import LEVEL, correct_by_holm, cut_bounds, divide
from results.statistics.launch_fit import (
    LaunchSpread,
    SizeFit,
    estimate_mean_over_launches,
    estimate_slope_over_launches,
    fit_sizes,
)
from results.statistics.trials import MIN_PAIRED

SIGN_FIELD = "sign"
"""Name of the sign in aggregate.json and in the numbers of figure 4."""
NAMED_EFFECT = 0.10
"""Share of TTFT, for which launches are planned: never for the effect that was observed."""
HANDOVER_ARM = "handover"
COMBINED_ENGINE, PLAIN_ENGINE = "combined engine with the connector", "plain combined engine"
"""What a handover is compared with: the decode engine alone, and an engine without a connector."""

NOT_MEASURED = unknown("not measured")

OrderOf = Callable[[LifecycleRecord], bool | None]
"""Which of its two orders a repetition had; None = unknown."""


class OverheadCell(msgspec.Struct, frozen=True):
    """One (C, N) over all output lengths, on which TTFT does not depend."""

    prior_context: int
    new_tokens: int
    overhead_ms: Estimate
    """pdsep_ttft - colo_ttft: mean of the pairs, both orders weighted equally."""
    pdsep_ttft_ms: Estimate
    """TTFT of the handover."""
    colo_ttft_ms: Estimate
    """TTFT of the combined engine."""
    relative: float | None
    """overhead / colo_ttft, from the means."""
    sign: int | None = None
    """1: slower than the combined engine, -1: faster, significant over all (C, N) (Holm); None: not significant."""
    p: float | None = None
    """p-value of zero overhead at this (C, N) alone."""
    lengths_differ: bool = False
    """The output lengths differ significantly: the interval is over their means."""
    lengths_f: float | None = None
    """Variance of the overhead between output lengths over the variance within them."""
    change: Estimate = NOT_MEASURED
    """TTFT over that of the combined engine, less 1, from medians; from three launches on it decides the sign."""
    median_ms: float | None = None
    """Median of the paired differences; beside the mean, which few slow repetitions move."""
    baseline: str = COMBINED_ENGINE
    """The combined engine that it is compared with."""


@dataclass(frozen=True, slots=True)
class GridOverhead:
    """How one arm's TTFT differs from another's over the whole grid, C and N held fixed."""

    arm: str
    """What is compared."""
    baseline: str
    """What it is compared with."""
    change: Estimate
    """Relative: 0.2 = 20 % longer; the mean over the (C, N) that every launch measured."""
    sizes: int
    """(C, N) in the mean."""
    spread: LaunchSpread | None = None
    """Spread of the logarithm of the ratio; None where launches give none."""
    per_launch: Estimate | None = None
    """Relative change of the ratio from one launch to the next: its interval excludes 0 where the position of a launch
    drives the result. None below three launches."""
    median: Estimate = NOT_MEASURED
    """As `change`, of the median over the same (C, N) in each launch, which no single (C, N) moves far."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The change of sign along N at one C."""

    prior_context: int
    new_tokens: Estimate
    """By interpolation over log2 N; its bounds are the neighboring N with significant signs."""
    slower_above: bool | None
    """True: larger N are slower than the combined instance; False: smaller N are. None: no single threshold."""
    signs: tuple[int, ...]
    """Significant signs, along N."""
    text: str
    """The same in words."""


def group_by_size(records: Sequence[LifecycleRecord]) -> tuple[tuple[LifecycleRecord, ...], ...]:
    """The counted records, grouped and sorted by (C, N)."""
    counted = sorted((record for record in records if record.counted), key=read_size)
    return tuple(tuple(own) for _, own in groupby(counted, key=read_size))


def measure_overheads(records: Sequence[LifecycleRecord], *, plain: bool = False) -> tuple[OverheadCell, ...]:
    """A cell for every (C, N) with a counted record, by C and N. plain: over the plain combined engine."""
    sizes = group_by_size(records)
    if not sizes:
        return ()
    names = PAIRED_WITH_PLAIN if plain else PAIRED
    lengths = [compare_output_lengths(*collect_pairs(own, names[0], plain=plain)) for own in sizes]
    apart = judge_length_differences(lengths)
    balanced = [_balance_sizes(sizes, name, apart, plain=plain) for name in names]
    corrected = correct_by_holm([one.p for one in balanced[0]])
    rows = zip(sizes, *balanced, corrected, lengths, apart, strict=True)
    cells = [_make_overhead_cell(names, *row) for row in rows]
    logs = measure_log_ratios(records, *_compare_with(plain=plain))
    trials = tuple(split_launches(records))
    fit = fit_sizes(logs) if len(trials) > 1 else "one launch of each engine"
    judged = (
        _estimate_over_launches(cell, own, names, logs, fit, trials) for cell, own in zip(cells, sizes, strict=True)
    )
    return tuple(
        msgspec.structs.replace(
            one, pdsep_ttft_ms=cut_bounds(one.pdsep_ttft_ms), colo_ttft_ms=cut_bounds(one.colo_ttft_ms)
        )
        for one in judged
    )


def measure_grid_overheads(records: Sequence[LifecycleRecord]) -> tuple[GridOverhead, ...]:
    """The handover over both combined engines, and the combined engine with the connector over the plain one."""
    compared: tuple[tuple[str, str, RatioOf, OrderOf], ...] = (
        (HANDOVER_ARM, PLAIN_ENGINE, *_compare_with(plain=True)),
        (HANDOVER_ARM, COMBINED_ENGINE, *_compare_with(plain=False)),
        (COMBINED_ENGINE, PLAIN_ENGINE, lambda one: divide(one.colo.ttft_ms, one.plain.ttft_ms), _read_order),
    )
    return tuple(
        _measure_grid_overhead(arm, baseline, measure_log_ratios(records, ratio_of, order_of))
        for arm, baseline, ratio_of, order_of in compared
    )


def _measure_grid_overhead(arm: str, baseline: str, logs: Mapping[Size, Mapping[int, float]]) -> GridOverhead:
    if not logs:
        return GridOverhead(arm, baseline, NOT_MEASURED, 0)
    fit = fit_sizes(logs)
    if isinstance(fit, SizeFit):
        slope, overall = (one.transform(math.expm1) for one in (estimate_slope_over_launches(logs), fit.overall))
        median = estimate_mean_over_launches(_take_medians([logs[size] for size in fit.estimates])).transform(
            math.expm1
        )
        return GridOverhead(arm, baseline, overall, len(fit.estimates), fit.spread, slope, median)
    launches = {launch for own in logs.values() for launch in own}
    value = fmean(value for own in logs.values() for value in own.values())
    middle = float(np.median([fmean(own.values()) for own in logs.values()]))
    change, median = (Estimate(math.expm1(one), reason=fit, launches=len(launches)) for one in (value, middle))
    return GridOverhead(arm, baseline, change, len(logs), median=median)


def _take_medians(logs: Sequence[Mapping[int, float]]) -> list[float]:
    """Median of each launch, over (C, N) that all launches measured."""
    return [float(np.median([own[launch] for own in logs])) for launch in sorted(logs[0])]


def _compare_with(*, plain: bool) -> tuple[RatioOf, OrderOf]:
    """The ratio of the TTFTs of a repetition, and whether the combined engine's request came first."""
    if plain:
        return lambda record: divide(record.client_ttft_ms, record.plain.ttft_ms), lambda record: record.plain.first
    return lambda record: divide(record.client_ttft_ms, record.colo.ttft_ms), lambda record: record.colo.first


def _read_order(record: LifecycleRecord) -> bool | None:
    """Which of the two orders of its launch a repetition had: the second reverses the first, and so these two."""
    return record.colo.first


def _estimate_over_launches(
    cell: OverheadCell,
    own: Sequence[LifecycleRecord],
    names: Sequence[str],
    logs: Mapping[Size, Mapping[int, float]],
    fit: SizeFit[Size] | str,
    trials: Sequence[int],
) -> OverheadCell:
    """The cell; from three launches on its numbers and its sign are theirs, or it has no sign."""
    size, plain = (cell.prior_context, cell.new_tokens), cell.baseline == PLAIN_ENGINE
    if len(trials) >= MIN_PAIRED:
        launches = split_launches(own)
        each = [launches.get(trial, ()) for trial in trials]
        overhead, ttft, alone = (
            estimate_mean_over_launches([balance_pairs(one, name, plain=plain).mean.value for one in each])
            for name in names
        )
        cell = msgspec.structs.replace(
            cell, overhead_ms=_choose_estimate(overhead, cell.overhead_ms),
            pdsep_ttft_ms=_choose_estimate(ttft, cell.pdsep_ttft_ms),
            colo_ttft_ms=_choose_estimate(alone, cell.colo_ttft_ms),
            relative=divide(overhead.value, alone.value), sign=None, p=None,
        )  # fmt: skip
    if isinstance(fit, str) or size not in fit.estimates:
        why = fit if isinstance(fit, str) else "not measured in every launch"
        known = logs.get(size, {})
        value = math.expm1(fmean(known.values())) if known else None
        change = Estimate(value, n=len(known), reason=why, launches=len(known))
        return msgspec.structs.replace(cell, change=change)
    corrected = dict(zip(fit.p, correct_by_holm(list(fit.p.values())), strict=True))
    change, decided = fit.estimates[size].transform(math.expm1), corrected[size] < 1 - LEVEL
    above = 1 if (change.value or 0.0) > 0 else -1
    return msgspec.structs.replace(cell, change=change, p=fit.p[size], sign=above if decided else None)


def _choose_estimate(over_launches: Estimate, within: Estimate) -> Estimate:
    """The estimate over launches; where nothing was measured, the one that says why."""
    return within if over_launches.value is None else over_launches


def _balance_sizes(
    sizes: Sequence[Sequence[LifecycleRecord]], name: str, apart: Sequence[bool], *, plain: bool
) -> list[Balanced]:
    """One number at every (C, N); the spread between output lengths widens its interval."""
    pairs = [collect_pairs(own, name, plain=plain) for own in sizes]
    by = estimate_variance_inflation([compare_output_lengths(*one) for one in pairs])
    return [
        average_lengths(*one) if differs else widen_interval(balance_orders(*one[:2]), by)
        for one, differs in zip(pairs, apart, strict=True)
    ]


def _make_overhead_cell(
    names: Sequence[str],
    own: Sequence[LifecycleRecord],
    overhead: Balanced,
    ttft: Balanced,
    combined: Balanced,
    corrected: float,
    lengths: Lengths,
    apart: bool,
) -> OverheadCell:
    config, value, alone = own[0].config, overhead.mean.value, combined.mean.value
    known = value is not None and overhead.mean.high is not None
    plain = names == PAIRED_WITH_PLAIN
    differences = collect_pairs(own, names[0], plain=plain)[0]
    return OverheadCell(
        config.prior_context,
        config.current_new_tokens,
        overhead.mean if value is not None else unknown(_explain_unknown(own, names[0])),
        ttft.mean if ttft.mean.value is not None else unknown(_explain_unknown(own, names[1])),
        combined.mean if alone is not None else unknown(_explain_unknown(own, names[0])),
        divide(value, alone),
        sign=(1 if value > 0 else -1) if value is not None and corrected < 1 - LEVEL else None,
        p=overhead.p if known else None,
        lengths_differ=apart,
        lengths_f=lengths.f,
        median_ms=float(np.median(differences)) if differences.size else None,
        baseline=PLAIN_ENGINE if plain else COMBINED_ENGINE,
    )


def _explain_unknown(own: Sequence[LifecycleRecord], name: str) -> str:
    return next((record.gaps[name] for record in own if name in record.gaps), "not measured")


def find_break_evens(cells: Sequence[OverheadCell]) -> tuple[BreakEven, ...]:
    contexts = sorted({cell.prior_context for cell in cells if cell.overhead_ms.value is not None})
    return tuple(
        _find_break_even(context, [cell for cell in cells if cell.prior_context == context]) for context in contexts
    )


def _find_break_even(context: int, row: Sequence[OverheadCell]) -> BreakEven:
    row = [cell for cell in row if cell.overhead_ms.value is not None]
    decided = [cell for cell in row if cell.sign is not None]
    signs = tuple(cell.sign for cell in decided if cell.sign is not None)
    turns = [pair for pair in pairwise(decided) if pair[0].sign != pair[1].sign]
    if not decided:
        return BreakEven(context, unknown("no sign is significant"), None, signs, "no sign is significant")
    if not turns:
        text = f"{'slower' if signs[0] > 0 else 'faster'} at every N with a significant sign"
        return BreakEven(context, unknown(text), None, signs, text)
    if len(turns) > 1:
        text = f"the sign changes {len(turns)} times along N"
        return BreakEven(context, unknown(text), None, signs, text)
    (before, after), *_ = turns
    between = [
        cell
        for cell in row
        if before.new_tokens <= cell.new_tokens <= after.new_tokens
        and is_judged_over_launches(cell) == is_judged_over_launches(before)  # ratios and milliseconds give no line
    ]
    crossings = (_interpolate_crossing(*pair) for pair in pairwise(between) if _changes_sign(*pair))
    crossing = next(crossings, math.sqrt(before.new_tokens * after.new_tokens))
    low, high = before.new_tokens, after.new_tokens
    estimate = Estimate(crossing, float(low), float(high), len(between), basis="significant signs")
    slower_above = after.sign == 1
    where = "from" if slower_above else "up to"
    text = f"slower {where} about {crossing:.0f} new tokens (significant signs at {low} and {high})"
    return BreakEven(context, estimate, slower_above, signs, text)


def is_judged_over_launches(cell: OverheadCell) -> bool:
    """Whether `change`, the ratio of medians, gives the sign; else the mean of milliseconds does."""
    return cell.change.value is not None and cell.change.launches >= MIN_PAIRED


def _choose_signed_number(cell: OverheadCell) -> float:
    """The number whose sign is judged: over launches the logarithm of the ratio of medians, within one milliseconds."""
    if cell.change.value is not None and is_judged_over_launches(cell):
        return math.log1p(cell.change.value)
    return cell.overhead_ms.value or 0.0


def _changes_sign(left: OverheadCell, right: OverheadCell) -> bool:
    return _choose_signed_number(left) * _choose_signed_number(right) <= 0


def _interpolate_crossing(left: OverheadCell, right: OverheadCell) -> float:
    first, last = _choose_signed_number(left), _choose_signed_number(right)
    share = first / (first - last) if first != last else 0.5
    low, high = math.log2(left.new_tokens), math.log2(right.new_tokens)
    return float(2 ** (low + share * (high - low)))


def judge_signs(cells: Sequence[OverheadCell], level: float) -> list[OverheadCell]:
    """The cells with the signs that are significant at this level, all (C, N) tested (Holm)."""
    tested = [cell for cell in cells if cell.p is not None]
    corrected = correct_by_holm([cell.p for cell in tested if cell.p is not None])
    decided = {id(cell) for cell, p in zip(tested, corrected, strict=True) if p < 1 - level}
    return [
        msgspec.structs.replace(
            cell, sign=(1 if _choose_signed_number(cell) > 0 else -1) if id(cell) in decided else None
        )
        for cell in cells
    ]


def judge_signs_by_point(cells: Sequence[OverheadCell]) -> list[OverheadCell]:
    """The measured cells with the signs of their values alone, whatever the intervals."""
    return [
        msgspec.structs.replace(cell, sign=1 if _choose_signed_number(cell) > 0 else -1)
        for cell in cells
        if cell.overhead_ms.value is not None
    ]
