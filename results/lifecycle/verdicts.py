"""The success criteria of specs/pd_lifecycle, each judged by a rule over numbers and their intervals.

The interval decides: a criterion holds where the whole interval agrees with it, fails where the whole of it contradicts
it, and is open otherwise, or where a number is missing. Pure functions of estimates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from results.lifecycle.fits import SLOW, Costs
from results.lifecycle.maps import BreakEven, OverheadCell, Volume
from results.lifecycle.pairs import OVERHEAD, OrderEffect
from results.lifecycle.record import LifecycleRecord
from results.statistics import Estimate, mean, unknown

RESIDUAL_BELOW = 0.05
"""1."""
R2_ABOVE = 0.95
"""3."""
_NAMED = 4
"""So many things are named, the rest counted."""


class Outcome(StrEnum):
    """What the numbers say of a criterion."""

    HOLDS = "holds"
    FAILS = "fails"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Criterion:
    """One success criterion, judged."""

    number: int
    title: str
    rule: str
    """How the numbers decide, as text."""
    outcome: Outcome
    reason: str
    """Why this outcome, in numbers."""
    measured: Estimate
    """The number the rule is about; where it is about many, the one that decided."""
    numbers: Mapping[str, Estimate] = field(default_factory=dict)
    """What it was judged by."""


def complete(records: Sequence[LifecycleRecord]) -> Criterion:
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
        reason = f"{lacking} of {len(counted)} requests lack a phase: {_lacking(counted)}"
    elif unsent and not above:
        outcome = Outcome.OPEN
        reason = f"{unsent} of {len(counted)} requests have no stamp of the client's send to hold the phases against"
    else:
        outcome = Outcome.FAILS if above else Outcome.HOLDS
        reason = (
            f"all {len(counted)} requests have all phases, in order; from the client's send to t0 up to "
            f"{_percent(outside)} of E2E (from t0 on {_percent(worst)}: the phases share their stamps)"
        )
    return Criterion(
        number=1,
        title="Breakdown is complete",
        rule=f"every counted request has all phases, and |E2E - their sum| is below {RESIDUAL_BELOW:.0%} of it, for "
        "E2E from the router's t0 and from the client's send. The phases share their stamps: from t0 the sum is E2E by "
        "definition, but for what is taken off. What can fail is a stamp that is missing or out of order, and the way "
        "from the client's send to t0, by two processes' clocks",
        outcome=outcome,
        reason=reason,
        measured=outside if outside.value is not None else worst,
        numbers={"largest residual, from t0": worst, "largest residual, from the client's send": outside},
    )


def _lacking(counted: Sequence[LifecycleRecord]) -> str:
    """The phases that are missing and why, the most frequent first."""
    found: dict[str, int] = {}
    for record in counted:
        if record.residual_share is None:
            for name, value in record.phases_ms.items():
                if value is None:
                    text = f"{name} ({record.gaps.get(name, 'not known')})"
                    found[text] = found.get(text, 0) + 1
    return _some([text for text, _ in sorted(found.items(), key=lambda item: -item[1])])


def _percent(found: Estimate) -> str:
    return "not known" if found.value is None else f"{found.value:.2%}"


def dominates(records: Sequence[LifecycleRecord], min_new_tokens: int) -> Criterion:
    """2: rdma_transfer_ms > p_prefill_ms for N >= 4k."""
    found = {
        f"C={context} N={size}": _excess(records, context, size)
        for context, size in sorted(
            {(record.config.prior_context, record.config.current_new_tokens) for record in records if record.counted}
        )
        if size >= min_new_tokens
    }
    known = {name: one for name, one in found.items() if one.low is not None and one.high is not None}
    above = [name for name, one in known.items() if one.low is not None and one.low > 0]
    below = [name for name, one in known.items() if one.high is not None and one.high < 0]
    if below:
        outcome = Outcome.FAILS
        reason = f"the transfer is shorter than the prefill at {len(below)} of {len(found)} (C, N): {_some(below)}"
    elif found and len(above) == len(found):
        outcome, reason = Outcome.HOLDS, f"the transfer is longer than the prefill at all {len(found)} (C, N)"
    else:
        outcome = Outcome.OPEN
        rest = [name for name in found if name not in above]
        reason = f"not told at {_some(rest)}" if found else f"no (C, N) with N >= {min_new_tokens} was measured"
    decided = below or [name for name in found if name not in above] or above
    shown = found[decided[0]] if decided else unknown(reason)
    return Criterion(
        number=2,
        title="Transfer dominates",
        rule=f"at every (C, N) with N >= {min_new_tokens} the interval of mean(rdma_transfer - p_prefill) lies above "
        "0; fails where one lies below",
        outcome=outcome,
        reason=f"{reason}{_example(decided, found)}",
        measured=shown,
        numbers={f"rdma_transfer - p_prefill, ms, {name}": one for name, one in found.items()},
    )


def _excess(records: Sequence[LifecycleRecord], context: int, size: int) -> Estimate:
    pairs = [
        (record.ms("rdma_transfer"), record.ms("p_prefill"))
        for record in records
        if record.counted and (record.config.prior_context, record.config.current_new_tokens) == (context, size)
    ]
    found = [moved - computed for moved, computed in pairs if moved is not None and computed is not None]
    return mean(found) if found else unknown("no request has both phases")


def _example(decided: Sequence[str], found: Mapping[str, Estimate]) -> str:
    if not decided or found[decided[0]].value is None:
        return ""
    return f"; rdma_transfer - p_prefill at {decided[0]}: {found[decided[0]].text(3)} ms"


def linear(costs: Costs) -> Criterion:
    """3: the linear model's R^2 is above 0.95."""
    r2 = costs.ordinary.r2
    if r2.value is None or r2.low is None or r2.high is None:
        outcome, reason = Outcome.OPEN, r2.reason or "there is no interval"
    elif r2.low > R2_ABOVE:
        outcome, reason = Outcome.HOLDS, f"R^2 {r2.text(4)} lies above {R2_ABOVE:g}"
    elif r2.high <= R2_ABOVE:
        outcome, reason = Outcome.FAILS, f"R^2 {r2.text(4)} does not reach above {R2_ABOVE:g}"
    else:
        outcome, reason = Outcome.OPEN, f"R^2 {r2.text(4)} straddles {R2_ABOVE:g}"
    spread = costs.spread
    if spread.medians.value is not None and spread.without_slow.value is not None:
        reason += (
            f"; not judged: {spread.medians.value:.2f} of the medians of each C, N and O, "
            f"{spread.without_slow.value:.2f} without transfers of more than {SLOW:g} times the median of their N "
            f"({spread.slow} left out)"
        )
    if spread.run_delay_ms.value is not None:
        reason += f"; a writing thread waited up to {spread.run_delay_ms.value:.3g} ms for a core"
    return Criterion(
        number=3,
        title="Bandwidth model fits",
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
    )


def incremental(found: Sequence[Volume]) -> Criterion:
    """4: bytes_transferred does not depend on prior_context for fixed N, and is what N new tokens take."""
    told = [one for one in found if len(one.bytes_by_context) > 1]
    blind = [one for one in told if one.block_bytes is None and one.spread_bytes > 0]
    differ = [one for one in told if one.block_bytes is not None and one.spread_bytes > one.block_bytes]
    wrong = [one for one in told if _off_by(one) > (one.block_bytes or 0.0)]
    unsized = [one for one in told if one.kv_bytes is None]
    if not told:
        outcome, reason = Outcome.OPEN, "no N was measured at two values of C"
    elif differ:
        outcome, reason = Outcome.FAILS, _some([_differs(one) for one in differ])
    elif wrong:
        outcome = Outcome.FAILS
        ratios = [f"N={one.new_tokens}: {one.of_expected or 0.0:.1%}" for one in wrong]
        reason = f"constant over C, but not what N new tokens take by the model's configuration: {_some(ratios)} of it"
    elif blind:
        outcome = Outcome.OPEN
        reason = f"the bytes of a block are not known at N = {_some([str(one.new_tokens) for one in blind])}"
    elif unsized:
        outcome = Outcome.OPEN
        reason = (
            "constant over C, size not checked: what a token's KV takes by the model's configuration is not known at "
            f"N = {_some([str(one.new_tokens) for one in unsized])}; {_some([_agrees(one) for one in told])}"
        )
    else:
        outcome = Outcome.HOLDS
        reason = f"at each of {len(told)} N, over up to {max(len(one.bytes_by_context) for one in told)} values of C"
        reason += f", the bytes agree within a block: {_some([_agrees(one) for one in told])}"
    shown = next(iter(differ or told), None)
    return Criterion(
        number=4,
        title="Incremental verified",
        rule="for every N the median bytes at all C lie within one block of each other, and within one block of N x "
        "the model's KV bytes per token; fails where they do not, open where the latter is not known",
        outcome=outcome,
        reason=reason,
        measured=shown.slope if shown is not None else unknown(reason),
        numbers={f"bytes per token of C, N={one.new_tokens}": one.slope for one in told},
    )


def _off_by(one: Volume) -> float:
    """Bytes between what was moved at some C and what N new tokens take; 0 where the latter is not known."""
    return 0.0 if one.kv_bytes is None else max(abs(moved - one.kv_bytes) for _, moved in one.bytes_by_context)


def _differs(one: Volume) -> str:
    blocks = one.spread_bytes / one.block_bytes if one.block_bytes else 0.0
    return f"N={one.new_tokens}: from {_least(one):.0f} to {_most(one):.0f} bytes, {blocks:.1f} blocks"


def _agrees(one: Volume) -> str:
    expected = "" if one.of_expected is None else f" ({one.of_expected:.1%} of the model's)"
    return f"N={one.new_tokens}: {one.bytes_per_token:.0f} bytes per token{expected}, spread {one.spread_bytes:.0f}"


def _least(one: Volume) -> float:
    return min(count for _, count in one.bytes_by_context)


def _most(one: Volume) -> float:
    return max(count for _, count in one.bytes_by_context)


def quantified(
    cells: Sequence[OverheadCell], found: Sequence[BreakEven], effects: Sequence[OrderEffect] = ()
) -> Criterion:
    """5: a clear threshold (N, C) where the overhead exceeds co-located execution."""
    order = next((one.effect_ms for one in effects if one.name == OVERHEAD and one.prior_context is None), None)
    told = [cell for cell in cells if cell.told is not None]
    located = [one for one in found if one.slower_above is not None]
    tangled = [one for one in found if sum(a != b for a, b in zip(one.signs, one.signs[1:], strict=False)) > 1]
    if not any(cell.overhead_ms.value is not None for cell in cells):
        outcome, reason = Outcome.OPEN, _first_reason(cells)
    elif tangled:
        outcome = Outcome.FAILS
        reason = f"no single threshold: {_some([f'C={one.prior_context}: {one.text}' for one in tangled])}"
    elif located:
        outcome = Outcome.HOLDS
        reason = _some([f"C={one.prior_context}: {one.text}" for one in located])
    elif told and len({cell.told for cell in told}) > 1:
        outcome = Outcome.HOLDS
        reason = _some([f"C={one.prior_context}: {one.text}" for one in found])
    else:
        outcome = Outcome.OPEN
        reason = _one_sign(cells, told)
    first = located[0].new_tokens if located else (cells[0].overhead_ms if cells else unknown(reason))
    return Criterion(
        number=5,
        title="Overhead quantified",
        rule="the sign of mean(pdsep_ttft - colo_ttft), both orders of a pair alike, is told on both sides of a "
        "threshold, along N or along C; fails where it changes more than once along N; open where one sign is told "
        "everywhere (a threshold, if there is one, lies outside of what was measured) or none is. A sign is told where "
        "zero is rejected at 5% for all (C, N) together (Holm); the intervals are those of single (C, N), and as wide "
        "as the spread between output lengths makes them",
        outcome=outcome,
        reason=f"{reason}{_in_order(order)}",
        measured=first,
        numbers={
            **{f"overhead, ms, C={cell.prior_context} N={cell.new_tokens}": cell.overhead_ms for cell in cells},
            **({} if order is None else {"overhead, combined first less handover first, ms": order}),
        },
    )


def _in_order(order: Estimate | None) -> str:
    if order is None:
        return ""
    if order.value is None:
        return f"; {order.reason}"
    return f"; order effect, cancelled here (combined first less handover first): {order.text(3)} ms"


def _first_reason(cells: Sequence[OverheadCell]) -> str:
    return next((cell.overhead_ms.reason for cell in cells if cell.overhead_ms.reason), "") or "no request counts"


def _one_sign(cells: Sequence[OverheadCell], told: Sequence[OverheadCell]) -> str:
    if not told:
        return f"no sign is told at any of {len(cells)} (C, N)"
    word = "slower" if told[0].told == 1 else "faster"
    values = [cell.overhead_ms.value for cell in told if cell.overhead_ms.value is not None]
    return (
        f"{word} than the combined instance at {len(told)} of {len(cells)} (C, N), by {min(map(abs, values)):.3g} to "
        f"{max(map(abs, values)):.3g} ms, and nowhere told to be otherwise: no threshold inside what was measured"
    )


def _some(texts: Sequence[str]) -> str:
    more = f"; and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return "; ".join(texts[:_NAMED]) + more
