"""The TTFT overhead over a combined instance by C and N, and where it changes its sign."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import msgspec

from results.pd_lifecycle.pairs import (
    OVERHEAD,
    PAIRED,
    TTFT,
    Balanced,
    Lengths,
    average_lengths,
    balance_orders,
    collect_pairs,
    compare_output_lengths,
    variance_inflation,
    which_lengths_differ,
    widen_interval,
)
from results.records.lifecycle import LifecycleRecord
from results.statistics.estimates import LEVEL, Estimate, holm, unknown

SIGN_FIELD = "told"
"""Name of the sign in aggregate.json and in the numbers of figure 4."""


class OverheadCell(msgspec.Struct, frozen=True, rename={"sign": SIGN_FIELD}):
    """One (C, N) over all output lengths, on which TTFT does not depend. See results.pd_lifecycle.pairs."""

    prior_context: int
    new_tokens: int
    overhead_ms: Estimate
    """pdsep_ttft - colo_ttft: mean of the pairs, both orders weighted equally."""
    pdsep_ttft_ms: Estimate
    colo_ttft_ms: Estimate
    relative: float | None
    """overhead / colo_ttft, from the means."""
    sign: int | None = None
    """1: slower than the combined instance, -1: faster, significant over all (C, N) (Holm); None: not significant."""
    p: float | None = None
    """p-value of zero overhead at this (C, N) alone."""
    lengths_differ: bool = False
    """The output lengths differ significantly: the interval is over their means."""
    lengths_f: float | None = None
    """Variance of the overhead between output lengths over the variance within them."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The change of sign along N at one C."""

    prior_context: int
    new_tokens: Estimate
    """By interpolation over log2 N; its bounds are the neighbouring N with significant signs."""
    slower_above: bool | None
    """True: larger N are slower than the combined instance; False: smaller N are. None: no single threshold."""
    signs: tuple[int, ...]
    """Significant signs, along N."""
    text: str


def group_by_size(records: Sequence[LifecycleRecord]) -> tuple[tuple[LifecycleRecord, ...], ...]:
    """The counted records, grouped and sorted by (C, N)."""
    counted = sorted((record for record in records if record.counted), key=_size_of)
    return tuple(tuple(own) for _, own in groupby(counted, key=_size_of))


def _size_of(record: LifecycleRecord) -> tuple[int, int]:
    return record.config.prior_context, record.config.current_new_tokens


def measure_overheads(records: Sequence[LifecycleRecord]) -> tuple[OverheadCell, ...]:
    """A cell for every (C, N) with a counted record, by C and N."""
    sizes = group_by_size(records)
    if not sizes:
        return ()
    lengths = [compare_output_lengths(*collect_pairs(own, OVERHEAD)) for own in sizes]
    apart = which_lengths_differ(lengths)
    balanced = {name: _balance_sizes(sizes, name, apart) for name in PAIRED}
    corrected = holm([one.p for one in balanced[OVERHEAD]])
    cells = zip(sizes, *balanced.values(), corrected, lengths, apart, strict=True)
    return tuple(_overhead_cell(*cell) for cell in cells)


def _balance_sizes(sizes: Sequence[Sequence[LifecycleRecord]], name: str, apart: Sequence[bool]) -> list[Balanced]:
    """One number at every (C, N); the spread between output lengths widens its interval."""
    pairs = [collect_pairs(own, name) for own in sizes]
    by = variance_inflation([compare_output_lengths(*one) for one in pairs])
    return [
        average_lengths(*one) if differs else widen_interval(balance_orders(*one[:2]), by)
        for one, differs in zip(pairs, apart, strict=True)
    ]


def _overhead_cell(
    own: Sequence[LifecycleRecord],
    overhead: Balanced,
    ttft: Balanced,
    combined: Balanced,
    corrected: float,
    lengths: Lengths,
    apart: bool,
) -> OverheadCell:
    config, value = own[0].config, overhead.mean.value
    theirs = combined.mean.value
    known = value is not None and overhead.mean.high is not None
    return OverheadCell(
        config.prior_context,
        config.current_new_tokens,
        overhead.mean if value is not None else unknown(_why_unknown(own, OVERHEAD)),
        ttft.mean if ttft.mean.value is not None else unknown(_why_unknown(own, TTFT)),
        combined.mean if theirs is not None else unknown(_why_unknown(own, OVERHEAD)),
        value / theirs if value is not None and theirs else None,
        sign=(1 if value > 0 else -1) if value is not None and corrected < 1 - LEVEL else None,
        p=overhead.p if known else None,
        lengths_differ=apart,
        lengths_f=lengths.f,
    )


def _why_unknown(own: Sequence[LifecycleRecord], name: str) -> str:
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
    between = [cell for cell in row if before.new_tokens <= cell.new_tokens <= after.new_tokens]
    crossing = next(_interpolate_crossing(*pair) for pair in pairwise(between) if _changes_sign(*pair))
    low, high = before.new_tokens, after.new_tokens
    estimate = Estimate(crossing, float(low), float(high), len(between), basis="significant signs")
    slower_above = after.sign == 1
    where = "from" if slower_above else "up to"
    text = f"slower {where} about {crossing:.0f} new tokens (significant signs at {low} and {high})"
    return BreakEven(context, estimate, slower_above, signs, text)


def _changes_sign(left: OverheadCell, right: OverheadCell) -> bool:
    return (left.overhead_ms.value or 0.0) * (right.overhead_ms.value or 0.0) <= 0


def _interpolate_crossing(left: OverheadCell, right: OverheadCell) -> float:
    first, last = left.overhead_ms.value or 0.0, right.overhead_ms.value or 0.0
    share = first / (first - last) if first != last else 0.5
    low, high = math.log2(left.new_tokens), math.log2(right.new_tokens)
    return float(2 ** (low + share * (high - low)))
