"""What depends on C and N together: the overhead over a combined instance, and how many bytes are moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from results.lifecycle.pairs import (
    OVERHEAD,
    PAIRED,
    TTFT,
    Balanced,
    Lengths,
    balanced,
    between_lengths,
    differ,
    inflation,
    over_lengths,
    paired_values,
    widened,
)
from results.lifecycle.record import LifecycleRecord
from results.lifecycle.regression import least_squares
from results.statistics import LEVEL, Estimate, holm, unknown

MIN_POINTS = 4
"""Transfers that a slope with an interval needs."""


@dataclass(frozen=True, slots=True)
class OverheadCell:
    """One (C, N), over all output lengths: TTFT does not depend on them. See results.lifecycle.pairs."""

    prior_context: int
    new_tokens: int
    overhead_ms: Estimate
    """pdsep_ttft - colo_ttft, mean of the pairs, both orders alike."""
    pdsep_ttft_ms: Estimate
    colo_ttft_ms: Estimate
    relative: float | None
    """overhead / colo_ttft, of the means."""
    told: int | None = None
    """1: surely slower than the combined instance, -1: faster, all (C, N) being asked (Holm); None: not told."""
    p: float | None = None
    """Of no overhead, of this (C, N) alone."""
    lengths_differ: bool = False
    """The output lengths surely differ: the interval is over their means."""
    lengths_f: float | None = None
    """Spread of the overhead between output lengths over that within them."""


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where along N the overhead changes its sign at one C."""

    prior_context: int
    new_tokens: Estimate
    """By interpolation over log2 N; its bounds are the N next to it whose signs are told."""
    slower_above: bool | None
    """Larger N are slower than the combined instance; False: smaller ones are. None: no single threshold."""
    signs: tuple[int, ...]
    """Those that are told, along N."""
    text: str


@dataclass(frozen=True, slots=True)
class Volume:
    """The bytes that were moved for one N, over C."""

    new_tokens: int
    bytes_by_context: tuple[tuple[int, float], ...]
    """C to median bytes."""
    bytes_per_token: float
    slope: Estimate
    """Bytes more per token of prior context."""
    spread_bytes: float
    """Largest less smallest median."""
    block_bytes: float | None
    """One block of the KV cache, all layers."""
    of_expected: float | None
    """Median bytes over N x the model's KV per token; None = that is not known."""
    kv_bytes: float | None = None
    """N x the model's KV per token."""
    operations_by_context: tuple[tuple[int, float | None], ...] = ()
    """C to the median number of write operations."""


def sizes_of(records: Sequence[LifecycleRecord]) -> tuple[tuple[LifecycleRecord, ...], ...]:
    """The counted records of every (C, N) that has one, by C and N."""
    groups: dict[tuple[int, int], list[LifecycleRecord]] = {}
    for record in records:
        if record.counted:
            key = record.config.prior_context, record.config.current_new_tokens
            groups.setdefault(key, []).append(record)
    return tuple(tuple(groups[key]) for key in sorted(groups))


def overhead_map(records: Sequence[LifecycleRecord]) -> tuple[OverheadCell, ...]:
    """A cell for every (C, N) with a counted record, by C and N."""
    sizes = sizes_of(records)
    if not sizes:
        return ()
    lengths = [between_lengths(*paired_values(own, OVERHEAD)) for own in sizes]
    apart = differ(lengths)
    found = {name: _over_grid(sizes, name, apart) for name in PAIRED}
    corrected = holm([one.p for one in found[OVERHEAD]])
    cells = zip(sizes, *found.values(), corrected, lengths, apart, strict=True)
    return tuple(_cell(*cell) for cell in cells)


def _over_grid(sizes: Sequence[Sequence[LifecycleRecord]], name: str, apart: Sequence[bool]) -> list[Balanced]:
    """One number at every (C, N), its interval as wide as the spread between output lengths makes it."""
    pairs = [paired_values(own, name) for own in sizes]
    by = inflation([between_lengths(*one) for one in pairs])
    return [
        over_lengths(*one) if differs else widened(balanced(*one[:2]), by)
        for one, differs in zip(pairs, apart, strict=True)
    ]


def _cell(
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
        overhead.mean if value is not None else unknown(_why(own, OVERHEAD)),
        ttft.mean if ttft.mean.value is not None else unknown(_why(own, TTFT)),
        combined.mean if theirs is not None else unknown(_why(own, OVERHEAD)),
        value / theirs if value is not None and theirs else None,
        told=(1 if value > 0 else -1) if value is not None and corrected < 1 - LEVEL else None,
        p=overhead.p if known else None,
        lengths_differ=apart,
        lengths_f=lengths.f,
    )


def _why(own: Sequence[LifecycleRecord], name: str) -> str:
    return next((record.gaps[name] for record in own if name in record.gaps), "not measured")


def break_evens(cells: Sequence[OverheadCell]) -> tuple[BreakEven, ...]:
    """One per C that has a cell with an overhead."""
    contexts = sorted({cell.prior_context for cell in cells if cell.overhead_ms.value is not None})
    return tuple(
        _break_even(context, [cell for cell in cells if cell.prior_context == context]) for context in contexts
    )


def _break_even(context: int, row: Sequence[OverheadCell]) -> BreakEven:
    row = [cell for cell in row if cell.overhead_ms.value is not None]
    told = [cell for cell in row if cell.told is not None]
    signs = tuple(cell.told for cell in told if cell.told is not None)
    turns = [pair for pair in pairwise(told) if pair[0].told != pair[1].told]
    if not told:
        return BreakEven(context, unknown("no sign is told"), None, signs, "no sign is told")
    if not turns:
        text = "slower at every N whose sign is told" if signs[0] > 0 else "faster at every N whose sign is told"
        return BreakEven(context, unknown(text), None, signs, text)
    if len(turns) > 1:
        text = f"the sign changes {len(turns)} times along N"
        return BreakEven(context, unknown(text), None, signs, text)
    (before, after), *_ = turns
    between = [cell for cell in row if before.new_tokens <= cell.new_tokens <= after.new_tokens]
    crossing = next(_crossing(left, right) for left, right in pairwise(between) if _opposite(left, right))
    found = Estimate(crossing, float(before.new_tokens), float(after.new_tokens), len(between), basis="told signs")
    slower_above = after.told == 1
    where = "from" if slower_above else "up to"
    text = f"slower {where} about {crossing:.0f} new tokens (told between {before.new_tokens} and {after.new_tokens})"
    return BreakEven(context, found, slower_above, signs, text)


def _opposite(left: OverheadCell, right: OverheadCell) -> bool:
    return (left.overhead_ms.value or 0.0) * (right.overhead_ms.value or 0.0) <= 0


def _crossing(left: OverheadCell, right: OverheadCell) -> float:
    first, last = left.overhead_ms.value or 0.0, right.overhead_ms.value or 0.0
    share = first / (first - last) if first != last else 0.5
    low, high = math.log2(left.new_tokens), math.log2(right.new_tokens)
    return float(2 ** (low + share * (high - low)))


def volumes(records: Sequence[LifecycleRecord]) -> tuple[Volume, ...]:
    """A row per N with counted transfers, by N."""
    counted = [record for record in records if record.counted and record.transfer_detail.bytes_transferred]
    sizes = sorted({record.config.current_new_tokens for record in counted})
    return tuple(
        _volume(size, [record for record in counted if record.config.current_new_tokens == size]) for size in sizes
    )


def _volume(size: int, own: Sequence[LifecycleRecord]) -> Volume:
    moved = np.array([record.transfer_detail.bytes_transferred for record in own], dtype=np.float64)
    context = np.array([record.config.prior_context for record in own], dtype=np.float64)
    medians = tuple((int(one), float(np.median(moved[context == one]))) for one in np.unique(context))
    if len(medians) < 2 or len(own) < MIN_POINTS:
        slope = unknown(f"{len(medians)} values of C and {len(own)} transfers: no slope", len(own))
    else:
        centred = moved - np.median(moved)  # equal sizes give a slope of 0, not of what float64 leaves of them
        slope = least_squares([context], centred, np.ones(moved.size))[1]
    per_block = [
        record.transfer_detail.bytes_transferred / record.transfer_detail.num_blocks
        for record in own
        if record.transfer_detail.num_blocks and record.transfer_detail.bytes_transferred
    ]
    per_token = [record.counts.kv_bytes_per_token for record in own if record.counts.kv_bytes_per_token]
    expected = size * float(np.median(per_token)) if per_token else None
    return Volume(
        new_tokens=size,
        bytes_by_context=medians,
        bytes_per_token=float(np.median(moved)) / size,
        slope=slope,
        spread_bytes=max(value for _, value in medians) - min(value for _, value in medians),
        block_bytes=float(np.median(per_block)) if per_block else None,
        of_expected=float(np.median(moved)) / expected if expected else None,
        kv_bytes=expected,
        operations_by_context=tuple((one, _operations(own, one)) for one, _ in medians),
    )


def _operations(own: Sequence[LifecycleRecord], context: int) -> float | None:
    counts = [
        record.transfer_detail.num_rdma_ops
        for record in own
        if record.config.prior_context == context and record.transfer_detail.num_rdma_ops is not None
    ]
    return float(np.median(counts)) if counts else None
