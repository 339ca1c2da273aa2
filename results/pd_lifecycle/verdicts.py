"""The success criteria of specs/pd_lifecycle, each judged by a rule over numbers and their intervals.

The interval decides: a criterion holds where the whole interval agrees with it and fails where the whole of it
contradicts it. It is undecided otherwise, and open where a number is missing. What compares times stays undecided below
three launches of each engine, whatever the numbers within a launch are, and its intervals are over the launches from
there on. Stamps and bytes are counted: they need one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

from results.pd_lifecycle.by_launch import Size, measure_log_ratios, read_size, split_launches
from results.pd_lifecycle.cost_model import SLOW, Costs
from results.pd_lifecycle.overheads import (
    COMBINED_ENGINE,
    BreakEven,
    OverheadCell,
    is_judged_over_launches,
    judge_signs,
    judge_signs_by_point,
)
from results.pd_lifecycle.paired_requests import OVERHEAD, OrderEffect
from results.pd_lifecycle.phases import count_missing_phases
from results.pd_lifecycle.volumes import Volume
from results.records.estimate import Estimate, unknown
from results.records.events import RESIDUAL_BELOW
from results.records.lifecycle import LifecycleRecord
from results.records.percent import format_percent
from results.statistics.estimates import LEVEL, correct_by_holm, divide, mean
from results.statistics.judgement import (
    Judgement,
    Outcome,
    describe_excluded,
    explain_few_launches,
    find_excluded_above,
    leave_undecided,
    list_some,
)
from results.statistics.launch_fit import fit_sizes
from results.statistics.student import find_p_of_rule, find_p_value
from results.statistics.trials import MIN_PAIRED

R2_ABOVE = 0.95
"""Criterion 3."""


def judge_completeness(records: Sequence[LifecycleRecord]) -> Judgement:
    """1: all phases sum to E2E (residual < 5 %)."""
    counted = [record for record in records if record.counted]
    own = [abs(record.residual_share) for record in counted if record.residual_share is not None]
    client = [abs(record.client_residual_share) for record in counted if record.client_residual_share is not None]
    worst = Estimate(max(own), n=len(own)) if own else unknown("no request has all of its phases")
    outside = Estimate(max(client), n=len(client)) if client else unknown("no request has all phases and its send")
    lacking, unsent = len(counted) - len(own), len(own) - len(client)
    above = [value for value in (*own, *client) if value >= RESIDUAL_BELOW]
    if not counted:
        outcome, reason = Outcome.OPEN, "no request counts"
    elif lacking:
        outcome = Outcome.FAILS
        phases = [f"{name} ({why})" for (name, why), _ in count_missing_phases(counted).most_common()]
        reason = f"{lacking} of {len(counted)} requests miss a phase: {list_some(phases)}"
    elif unsent and not above:
        outcome = Outcome.UNDECIDED
        reason = f"{unsent} of {len(counted)} requests have no stamp of the client's send"
    else:
        outcome = Outcome.FAILS if above else Outcome.HOLDS
        reason = (
            f"all {len(counted)} requests have all phases, in order; from the client's send to t0 up to "
            f"{_format_percent(outside)} of E2E (from t0 on {_format_percent(worst)}: the phases share their stamps)"
        )
    return Judgement(
        name="1",
        claim="Breakdown is complete",
        rule=f"every counted request has all phases, and |E2E - their sum| is below {format_percent(RESIDUAL_BELOW)} "
        "of it, for E2E from the router's t0 and from the client's send. The phases share their stamps: from t0 the "
        "sum is E2E by definition, apart from a subtracted half step. What can fail: a stamp is missing or out of "
        "order, or the time from the client's send to t0, by the clocks of two processes, is too long",
        outcome=outcome,
        reason=reason,
        measured=outside if outside.value is not None else worst,
        numbers={"largest residual, from t0": worst, "largest residual, from the client's send": outside},
    )


def require_launches(within: Judgement, launches: int, known: int | None = None) -> Judgement:
    """The criterion; below three launches of each engine it is undecided, and its own reason follows.

    known: launches that have its numbers; None = all.
    """
    few = explain_few_launches(launches, "engine")
    if not few and known is not None and known < MIN_PAIRED:
        few = f"{known} of {launches} launches have its numbers: a verdict needs {MIN_PAIRED}"
    if not few or within.outcome is Outcome.OPEN:
        return within
    spread = "Within the launch" if launches == 1 else "Within the launches"
    return replace(within, outcome=Outcome.UNDECIDED, reason=f"{few}. {spread}: {within.reason}", p=None)


def _append_point(point: str, reason: str) -> str:
    """The reason by the intervals, then what the specification's rule gives for the values alone; "" = no value."""
    return f"{reason}; by the point alone: {point}" if point else reason


def _format_percent(estimate: Estimate) -> str:
    return "unknown" if estimate.value is None else format_percent(estimate.value, 2)


def judge_dominance(records: Sequence[LifecycleRecord], min_new_tokens: int) -> Judgement:
    """2: rdma_transfer_ms > p_prefill_ms for N >= 4k."""
    measured, p_values = _measure_dominance(records)
    measured = _list_without_ratio(records) | dict(measured)
    sizes = {size: f"C={size[0]} N={size[1]}" for size in sorted(measured) if size[1] >= min_new_tokens}
    ratios = {name: measured[size] for size, name in sizes.items()}
    known = {name: one for name, one in ratios.items() if one.low is not None and one.high is not None}
    above = [name for name, one in known.items() if one.low is not None and one.low > 1]
    rest = [name for name in ratios if name not in above]
    p_of = {name: p_values[size] for size, name in sizes.items() if size in p_values}
    corrected = dict(zip(p_of, correct_by_holm(list(p_of.values())), strict=True))
    below = [
        name
        for name, one in known.items()
        if one.high is not None and one.high < 1 and corrected.get(name, 0.0) < 1 - LEVEL
    ]
    if below:
        outcome = Outcome.FAILS
        share = f"{len(below)} of {len(ratios)} (C, N)"
        reason = f"the transfer is shorter than the prefill at {share}: {list_some(below)}"
    elif ratios and not rest:
        outcome, reason = Outcome.HOLDS, f"the transfer is longer than the prefill at all {len(ratios)} (C, N)"
    else:
        outcome = Outcome.UNDECIDED if any(one.value is not None for one in ratios.values()) else Outcome.OPEN
        missing = f"no (C, N) with N >= {min_new_tokens} was measured"
        reason = _explain_undecided({name: ratios[name] for name in rest}) if ratios else missing
    decided = below or rest or above
    shown = ratios[decided[0]] if decided else unknown(reason)
    values = [one.value for one in ratios.values() if one.value is not None]
    longer = sum(value > 1 for value in values)
    met = "met" if longer == len(ratios) else "not met"
    point = f"{met}, longer at {longer} of {len(ratios)} (C, N)" if values else ""
    return Judgement(
        name="2",
        claim="Transfer dominates",
        rule=f"at every (C, N) with N >= {min_new_tokens} the interval of the median rdma_transfer / p_prefill lies "
        "above 1; fails where one lies below, all (C, N) tested (Holm). From three launches on it is over the "
        "launches; within one, over the cells of the output lengths",
        outcome=outcome,
        reason=_append_point(point, f"{reason}{_describe_example(decided, ratios)}"),
        measured=shown,
        numbers={f"rdma_transfer / p_prefill, {name}": one for name, one in ratios.items()},
        p=_find_p_of_all(ratios, p_of, corrected, below),
    )


def _explain_undecided(ratios: Mapping[str, Estimate]) -> str:
    """What the intervals exclude that are not above 1, and why a (C, N) has none."""
    unsure = [name for name, one in ratios.items() if one.low is not None]
    blank = [name for name in ratios if name not in unsure]
    parts = []
    if unsure:
        excluded = _exclude_at_each("differences", [ratios[name] for name in unsure], none=1.0)
        parts.append(f"not significant at {list_some(unsure)}{excluded}")
    if blank:
        parts.append(f"no interval at {list_some(blank)}: {ratios[blank[0]].reason or 'not measured'}")
    return "; ".join(parts)


def _find_p_of_all(
    ratios: Mapping[str, Estimate],
    p_values: Mapping[str, float],
    corrected: Mapping[str, float],
    contradict: Sequence[str],
) -> float | None:
    """The p-value of a ratio above 1 at every size: the largest of the sizes' own, 1 where a size is not above.

    Contradicted by a size, that size's after Holm over all. None where a size has none: the claim has no number.
    """
    against = [corrected[name] for name in contradict if name in corrected]
    if against:
        return min(against)
    if not ratios or len(p_values) < len(ratios):
        return None
    return max(p if (ratios[name].value or 0.0) > 1 else 1.0 for name, p in p_values.items())


def _list_without_ratio(records: Sequence[LifecycleRecord]) -> dict[Size, Estimate]:
    """Every (C, N) with a counted request, and why it has no ratio: a rule about all of them needs it at each."""
    sizes: dict[Size, Estimate] = {}
    for record in records:
        if record.counted:
            why = next((record.gaps[name] for name in ("rdma_transfer", "p_prefill") if name in record.gaps), None)
            sizes.setdefault(read_size(record), unknown(why or "not measured"))
    return sizes


def _measure_dominance(records: Sequence[LifecycleRecord]) -> tuple[Mapping[Size, Estimate], Mapping[Size, float]]:
    """Median rdma_transfer / p_prefill of every (C, N), and over launches the p of its being 1."""
    logs = measure_log_ratios(records, _transfer_over_prefill)
    if len(split_launches(records)) >= MIN_PAIRED:
        return _measure_over_launches(logs)
    cells: dict[Size, dict[tuple[int, int], list[LifecycleRecord]]] = {}
    for record in records:
        config = record.config
        own = cells.setdefault((config.prior_context, config.current_new_tokens), {})
        own.setdefault((record.trial, config.output_length), []).append(record)
    logarithms = {size: mean([_find_median_log(own) for own in cells[size].values()]) for size in logs}
    return {size: one.transform(math.exp) for size, one in logarithms.items()}, {}


def _measure_over_launches(
    logs: Mapping[Size, Mapping[int, float]],
) -> tuple[Mapping[Size, Estimate], Mapping[Size, float]]:
    """As `_measure_dominance`; a (C, N) that a launch lacks has no interval, whatever its repetitions are."""
    fit = fit_sizes(logs)
    why = fit if isinstance(fit, str) else "not measured in every launch"
    estimates = {
        size: Estimate(fmean(own.values()), n=len(own), reason=why, launches=len(own)) for size, own in logs.items()
    }
    p_values: Mapping[Size, float] = {}
    if not isinstance(fit, str):
        estimates |= fit.estimates
        p_values = fit.p
    return {size: one.transform(math.exp) for size, one in estimates.items()}, p_values


def _find_median_log(records: Sequence[LifecycleRecord]) -> float:
    """The median of one cell; NaN without a counted repetition, which a mean leaves out."""
    by_launch = measure_log_ratios(records, _transfer_over_prefill).values()
    return next((value for own in by_launch for value in own.values()), math.nan)


def _transfer_over_prefill(record: LifecycleRecord) -> float | None:
    return divide(record.ms("rdma_transfer"), record.ms("p_prefill"))


def _describe_example(decided: Sequence[str], ratios: Mapping[str, Estimate]) -> str:
    if not decided or ratios[decided[0]].value is None:
        return ""
    return f"; rdma_transfer / p_prefill at {decided[0]}: {ratios[decided[0]].text(3)}"


def judge_linearity(costs: Costs) -> Judgement:
    """3: the linear model's R^2 is above 0.95."""
    r2 = costs.ordinary.r2
    if r2.value is None or r2.low is None or r2.high is None:
        outcome, reason = leave_undecided(r2), r2.reason or "there is no interval"
    elif r2.low > R2_ABOVE:
        outcome, reason = Outcome.HOLDS, f"R^2 {r2.text(4)} lies above {R2_ABOVE:g}"
    elif r2.high <= R2_ABOVE:
        outcome, reason = Outcome.FAILS, f"R^2 {r2.text(4)} does not reach above {R2_ABOVE:g}"
    else:
        outcome, reason = Outcome.UNDECIDED, f"R^2 {r2.text(4)} straddles {R2_ABOVE:g}"
    if r2.value is not None:
        reason = _append_point(f"{'met' if r2.value > R2_ABOVE else 'not met'}, R^2 {r2.value:.4f}", reason)
    spread = costs.spread
    if spread.medians.value is not None and spread.without_slow.value is not None:
        reason += (
            f"; not judged: {spread.medians.value:.2f} of the medians of each C, N and O, "
            f"{spread.without_slow.value:.2f} without transfers of more than {SLOW:g} times the median of their N "
            f"({spread.slow} left out)"
        )
    if spread.run_delay_ms.value is not None:
        reason += f"; a writing thread waited up to {spread.run_delay_ms.value:.3g} ms for a core"
    return Judgement(
        name="3",
        claim="Bandwidth model fits",
        rule=f"the interval of R^2 of the ordinary least squares fit of rdma_transfer_ms over bytes lies above "
        f"{R2_ABOVE:g}; fails where all of it lies at or below",
        outcome=outcome,
        reason=reason,
        measured=r2,
        numbers={
            "R^2 of the weighted fit": costs.relative.r2,
            "R^2 of the medians of each C, N and O": spread.medians,
            f"R^2 without transfers of more than {SLOW:g} times the median of their N": spread.without_slow,
            "alpha, ms": costs.relative.alpha_ms,
            "longest wait of a writing thread for a core, ms": spread.run_delay_ms,
        },
        p=find_p_value(r2, R2_ABOVE),
    )


def list_unsized(records: Sequence[LifecycleRecord]) -> tuple[Size, ...]:
    """The (C, N) of counted requests of which none has its bytes, and whose N was measured at several C."""
    sized: dict[Size, bool] = {}
    for record in records:
        if record.counted:
            size = read_size(record)
            sized[size] = sized.get(size, False) or bool(record.transfer_detail.bytes_transferred)
    contexts = Counter(new_tokens for _, new_tokens in sized)
    return tuple(size for size in sorted(sized) if not sized[size] and contexts[size[1]] > 1)


def judge_increment(volumes: Sequence[Volume], without: Sequence[Size] = ()) -> Judgement:
    """4: bytes_transferred does not depend on prior_context for fixed N, and is what N new tokens take.

    without: as `list_unsized`; a rule about all C needs the bytes at each.
    """
    comparable = [one for one in volumes if len(one.bytes_by_context) > 1]
    blind = [
        one for one in comparable if one.block_bytes is None and max(one.spread_bytes, _measure_largest_error(one)) > 0
    ]
    differ = [one for one in comparable if one.block_bytes is not None and one.spread_bytes > one.block_bytes]
    wrong = [one for one in comparable if one.block_bytes is not None and _measure_largest_error(one) > one.block_bytes]
    unsized = [one for one in comparable if one.kv_bytes is None]
    agreement = list_some([_describe_agreement(one) for one in comparable])
    missing = f"no bytes were counted at {list_some([f'C={size[0]} N={size[1]}' for size in without])}"
    if not comparable:
        outcome, reason = Outcome.OPEN, missing if without else "no N was measured at two values of C"
    elif differ:
        outcome, reason = Outcome.FAILS, list_some([_spread_text(one) for one in differ])
    elif wrong:
        outcome = Outcome.FAILS
        ratios = list_some([f"N={one.new_tokens}: {format_percent(one.of_expected or 0.0, 1)}" for one in wrong])
        reason = f"constant over C, but not the KV size of N new tokens by the model's configuration: {ratios} of it"
    elif blind:
        outcome = Outcome.UNDECIDED
        reason = f"the bytes of a block are unknown at N = {list_some([str(one.new_tokens) for one in blind])}"
    elif unsized:
        outcome = Outcome.UNDECIDED
        reason = (
            "constant over C, size not checked: the KV bytes of a token by the model's configuration are unknown at "
            f"N = {list_some([str(one.new_tokens) for one in unsized])}; {agreement}"
        )
    elif without:
        outcome, reason = Outcome.UNDECIDED, f"{missing}; elsewhere they are constant over C: {agreement}"
    else:
        outcome = Outcome.HOLDS
        contexts = max(len(one.bytes_by_context) for one in comparable)
        reason = f"at each of {len(comparable)} N, over up to {contexts} values of C, the bytes agree within a block: "
        reason += agreement
    unsure = {new_tokens for _, new_tokens in without}
    alone = (one.new_tokens for one in volumes if len(one.bytes_by_context) == 1)
    left_out = [str(new_tokens) for new_tokens in alone if new_tokens not in unsure]
    if comparable and left_out:
        reason = f"N = {', '.join(left_out)} left out, measured at one C; {reason}"
    shown = next(iter(differ or comparable), None)
    return Judgement(
        name="4",
        claim="Incremental verified",
        rule="for every N with several C the median bytes at all C lie within one block of each other, and of N x "
        "the model's KV bytes per token; fails where they do not; undecided where those KV bytes are unknown, or where "
        "the answer depends on the bytes of a block and these are unknown",
        outcome=outcome,
        reason=reason,
        measured=shown.slope if shown is not None else unknown(reason),
        numbers={f"bytes per token of C, N={one.new_tokens}": one.slope for one in volumes},
    )


def _measure_largest_error(one: Volume) -> float:
    """Largest difference in bytes to the KV size of N new tokens, over C; 0 where that size is unknown."""
    return 0.0 if one.kv_bytes is None else max(abs(moved - one.kv_bytes) for _, moved in one.bytes_by_context)


def _spread_text(one: Volume) -> str:
    moved = [count for _, count in one.bytes_by_context]
    blocks = one.spread_blocks or 0.0
    return f"N={one.new_tokens}: from {min(moved):.0f} to {max(moved):.0f} bytes, {blocks:.1f} blocks"


def _describe_agreement(one: Volume) -> str:
    expected = "" if one.of_expected is None else f" ({format_percent(one.of_expected, 1)} of the model's)"
    return f"N={one.new_tokens}: {one.bytes_per_token:.0f} bytes per token{expected}, spread {one.spread_bytes:.0f}"


def judge_overhead(
    cells: Sequence[OverheadCell], break_evens: Sequence[BreakEven], effects: Sequence[OrderEffect] = ()
) -> Judgement:
    """5: a clear threshold (N, C) where the overhead exceeds co-located execution, on one of the combined engines."""
    baseline = cells[0].baseline if cells else COMBINED_ENGINE
    order = next((one.effect_ms for one in effects if one.name == OVERHEAD and one.prior_context is None), None)
    located = [one for one in break_evens if one.slower_above is not None]
    tested = any(cell.p is not None for cell in cells)
    outcome = _decide_threshold(cells)
    if outcome is Outcome.OPEN:
        reason = next((cell.overhead_ms.reason for cell in cells if cell.overhead_ms.reason), "no request counts")
    elif outcome is Outcome.FAILS:
        reason = f"no single threshold: {list_some(_list_tangles(cells))}"
    elif outcome is Outcome.HOLDS:
        reason = list_some([f"C={one.prior_context}: {one.text}" for one in located or break_evens])
    else:
        reason = _explain_no_threshold(cells, [cell for cell in cells if cell.sign is not None])
        reason += _exclude_at_each("overheads", [cell.change for cell in cells if cell.sign is None])
    first = located[0].new_tokens if located else (cells[0].overhead_ms if cells else unknown(reason))
    return Judgement(
        name="5" if baseline == COMBINED_ENGINE else "5 plain",
        claim=f"Overhead quantified, over the {baseline}",
        rule="the sign of pdsep_ttft - colo_ttft, both orders of a pair weighted equally, is significant on both sides "
        "of a threshold, along N or along C; fails where it changes more than once along one N or C; undecided where "
        "no sign is significant or all are equal (a threshold, if any, lies outside the measured range). A sign is "
        "significant where no overhead is rejected at 5 % for all (C, N) together (Holm): from three launches on by "
        "the ratio of medians over the launches, within one by the mean difference, widened by the spread between "
        "output lengths",
        outcome=outcome,
        reason=f"{_append_point(_describe_threshold_by_point(cells), reason)}{_describe_order(order)}",
        measured=first,
        numbers={
            **{f"overhead, ms, C={cell.prior_context} N={cell.new_tokens}": cell.overhead_ms for cell in cells},
            **{f"relative, C={cell.prior_context} N={cell.new_tokens}": cell.change for cell in cells},
            **({} if order is None else {"overhead, combined first less handover first, ms": order}),
        },
        p=find_p_of_rule(lambda level: _decide_threshold(judge_signs(cells, level))) if tested else None,
    )


def _describe_threshold_by_point(cells: Sequence[OverheadCell]) -> str:
    points = judge_signs_by_point(cells)
    one_sign = len({cell.sign for cell in points}) < 2
    texts = {
        Outcome.HOLDS: "met, both signs occur and meet once",
        Outcome.FAILS: "not met, the sign changes more than once",
        Outcome.UNDECIDED: f"not met, {'one sign at every (C, N)' if one_sign else 'no C and no N has both signs'}",
    }
    return texts.get(_decide_threshold(points), "")


def _decide_threshold(cells: Sequence[OverheadCell]) -> Outcome:
    """By the significant signs alone. Two signs that no line along N or C has both of show no threshold."""
    if not any(cell.overhead_ms.value is not None for cell in cells):
        return Outcome.OPEN
    turns = _count_turns(cells).values()
    if any(count > 1 for count in turns):
        return Outcome.FAILS
    return Outcome.HOLDS if any(turns) else Outcome.UNDECIDED


def _exclude_at_each(of: str, estimates: Sequence[Estimate], none: float = 0.0) -> str:
    """What every interval over launches that covers no effect excludes by itself; empty without such an interval.

    `of`: as in `describe_excluded`.
    """
    covering = [one for one in estimates if find_excluded_above(one, none) is not None]
    if not covering:
        return ""
    low, high = min(one.low or 0.0 for one in covering), max(one.high or 0.0 for one in covering)
    text = describe_excluded(replace(covering[0], low=low, high=high), none=none, of=of, both_sides=True)
    return f"; {text} at each of {len(covering)} (C, N) by itself"


def _list_tangles(cells: Sequence[OverheadCell]) -> list[str]:
    """The C along whose N, and the N along whose C, the sign changes more than once."""
    return [
        f"{line}: the sign changes {count} times along {axis}"
        for (line, axis), count in _count_turns(cells).items()
        if count > 1
    ]


def _count_turns(cells: Sequence[OverheadCell]) -> Mapping[tuple[str, str], int]:
    """How often the significant sign changes along N at each C, and along C at each N."""
    lines: dict[tuple[str, str], list[int]] = {}
    for cell in sorted(cells, key=lambda one: (one.prior_context, one.new_tokens)):
        if cell.sign is not None:
            lines.setdefault((f"C={cell.prior_context}", "N"), []).append(cell.sign)
            lines.setdefault((f"N={cell.new_tokens}", "C"), []).append(cell.sign)
    return {line: sum(a != b for a, b in pairwise(signs)) for line, signs in lines.items()}


def _describe_order(order: Estimate | None) -> str:
    if order is None:
        return ""
    if order.value is None:
        return f"; {order.reason}"
    return f"; order effect, cancelled here (combined first minus handover first): {order.text(3)} ms"


def _explain_no_threshold(cells: Sequence[OverheadCell], decided: Sequence[OverheadCell]) -> str:
    if not decided:
        return f"no sign is significant at any of {len(cells)} (C, N)"
    slower = sum(cell.sign == 1 for cell in decided)
    if 0 < slower < len(decided):
        return (
            f"slower than the {decided[0].baseline} at {slower} and faster at {len(decided) - slower} of {len(cells)} "
            "(C, N), but no C and no N has both: the threshold is not located"
        )
    word = "slower" if decided[0].sign == 1 else "faster"
    return (
        f"{word} than the {decided[0].baseline} at {len(decided)} of {len(cells)} (C, N), {_describe_range(decided)}, "
        "and nowhere significantly the opposite: no threshold in the measured range"
    )


def _describe_range(decided: Sequence[OverheadCell]) -> str:
    """From the least to the largest of the numbers whose signs decided; a mean in ms may have the opposite sign."""
    changes = [abs(cell.change.value) for cell in decided if is_judged_over_launches(cell) and cell.change.value]
    if changes:
        return f"by {format_percent(min(changes))} to {format_percent(max(changes))} (ratio of medians)"
    values = [abs(cell.overhead_ms.value) for cell in decided if cell.overhead_ms.value is not None]
    return f"by {min(values):.3g} to {max(values):.3g} ms"
