"""Was moving KV the faster way? Migrated turns against what the same turns would have taken without the KV.

Where a run has two arms of one policy, one that moves KV and one whose targets compute it again, these decide. The arms
have equal policies, parameters, pools and rules of transfer, so a trial of both is a pair. Each arm's own load decides
which turns migrate: the migrated turns of both are not the same turns, but the same rule selected them. All that were
served count, whether their transfer succeeded or not.

Without such arms the time to compute is fitted in the same cell, by least squares over the turns that were served
without a transfer: time from the pick to the first byte = base + computed prompt tokens x a + prompt tokens pending at
the instance x b. The pending tokens are in it because sessions migrate when much is pending: queueing must not be taken
for computing. A fit carries a verdict only where it explains its own turns and most migrated turns lie within their
range; its error widens the interval. Pure functions of decision records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from results.records.decisions import DecisionRecord, transfer_s
from results.records.estimate import Estimate
from results.records.percent import format_percent
from results.records.turns import RoutingCell
from results.routing.loads import load_of
from results.routing.measurements import (
    Measurements,
    collect_trials,
    compute_log_of_ratio,
    estimate_mean_interval,
    estimate_ratio_interval,
)
from results.routing.metrics import find_metric
from results.routing.migrations import Migrations, count_pending_at, measure_mean_wait
from results.statistics.estimates import Ranks, Samples, convert_to_floats
from results.statistics.judgement import Verdict, judged
from results.statistics.trials import Draws, Trial, combine

MOVES_KV = "moves_kv"
"""In a cell's `router`: whether its instances could hand KV over."""
RESERVED_OUTPUT, KNOWN = "reserved_output", "max_tokens"
"""In a cell's `router`: KV tokens counted for an answer; KNOWN = the trace's own output length."""
MIN_FIT = 30
"""Fewer turns cannot separate the time per token from that of the queue."""
MIN_R2 = 0.5
"""A fit that explains less of the variance in the time to the first byte, in any trial, carries no verdict."""
WITHIN = 0.95
"""A migrated turn above this quantile of the fitted turns' tokens is extrapolated."""
MAX_BEYOND = 0.5
"""A fit that extrapolates more than this share of the migrated turns carries no verdict."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """A turn that was served without KV from elsewhere."""

    session: str
    computed_tokens: int
    """Computed tokens of its prompt, by the engine's count."""
    pending_tokens: int
    """Prompt tokens pending at its instance when it was picked."""
    first_byte_s: float
    """From the pick to the first byte."""


PREFILL_COLUMNS = ("computed_tokens", "pending_tokens", "first_byte_s")


@dataclass(frozen=True, slots=True)
class TransferredTurn:
    """A migrated turn that found its KV at the target."""

    session: str
    external_tokens: int
    transfer_s: float
    uncached_tokens: int
    """What the target would have computed, had nothing come."""
    pending_tokens: int
    """At the target when it was picked."""
    first_byte_s: float
    """From the pick to the first byte, the transfer included."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How well one cell's fit describes its own turns, and how far it extrapolates."""

    turns: int
    """Turns that it was fitted to."""
    r2: float
    """The share of the variance of their times that it explains."""
    error_s: float
    """Standard deviation of its residual for a single turn."""
    computed_tokens: float
    """WITHIN of those turns computed fewer."""
    pending_tokens: float
    """WITHIN of them had fewer pending at their instance."""
    moved: int
    """Migrated turns that it is applied to."""
    beyond: int
    """Those that exceed either."""


@dataclass(frozen=True, slots=True)
class AgainstArm:
    """The migrated turns of a label whose KV moves, against those of the arm that computes it again."""

    other: str
    """The label of that arm."""
    migrated: int
    """Migrated turns that were served, over all trials."""
    other_migrated: int
    """The same of the other arm."""
    with_kv_s: Estimate
    """From the pick to the first byte, mean."""
    without_kv_s: Estimate
    """The same of the other arm."""
    ratio: Estimate
    """The first over the second inside a trial; geometric mean over the trials."""
    every_turn: Estimate
    """The same of the mean TTFT of all turns that both arms completed: the very same turns."""
    verdict: Verdict | None
    """Verdict on `ratio`."""


@dataclass(frozen=True, slots=True)
class AgainstRecomputing:
    """The migrated turns of one label, over its trials: means over the turns whose tokens were counted."""

    label: str
    prefill_s_per_token: Estimate
    """As fitted to the turns that were not moved."""
    compute_s: Estimate
    """That times the tokens that came: what they would have taken alone, without any queue."""
    transfer_s: Estimate
    """From the router's start of a transfer until the KV had arrived."""
    with_kv_s: Estimate
    """From the pick to the first byte, as it was."""
    without_kv_s: Estimate
    """The same as fitted, had the target computed what came, behind the same queue."""
    difference_s: Estimate
    """with - without: below zero the transfer was the faster way. The interval is widened by the fits' mean error."""
    verdict: Verdict | None
    """Verdict on the difference; None where `withheld`, or there is no interval over trials."""
    fits: tuple[Fit, ...] = ()
    """By trial."""
    withheld: str = ""
    """Why the fits carry no verdict; empty where they may."""
    arm: AgainstArm | None = None
    """The comparison inside the trials; None where the run has no such arm."""


NAMES = ("prefill_s_per_token", "compute_s", "transfer_s", "with_kv_s", "without_kv_s", "difference_s")


def find_recomputing_arms(records: Iterable[RoutingCell]) -> dict[str, str]:
    """Labels that move KV, to the label that differs in moving none and in nothing else."""
    return _pair_arms(records, {True: True, False: False}, MOVES_KV, RESERVED_OUTPUT)


def find_knowing_arms(records: Iterable[RoutingCell]) -> dict[str, str]:
    """Labels that reserve KV for the known output length, to the label that differs in reserving none."""
    return _pair_arms(records, {KNOWN: True, 0: False}, RESERVED_OUTPUT, MOVES_KV)


def _pair_arms(
    records: Iterable[RoutingCell], sides: Mapping[object, bool], differs: str, equal: str
) -> dict[str, str]:
    """Labels on the true side to those on the other, of the same load; `differs`, `equal`: keys of a cell's router."""
    known: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for record in records:
        side = sides.get(record.router.get(differs))
        if side is not None:
            roles = sorted(engine.role for engine in record.engines)
            transfer = sorted((record.router.get("transfer") or {}).items())
            beside = record.router.get(equal), load_of(record)
            common = repr((record.policy, sorted(record.parameters.items()), roles, transfer, beside))
            known[side].setdefault(common, record.label)
    return {label: known[False][common] for common, label in known[True].items() if common in known[False]}


def compare_with_arm(
    label: str,
    other: str,
    migrations: Mapping[str, Mapping[int, Migrations]],
    measurements: Measurements,
) -> AgainstArm:
    """`migrations`: by label and trial."""
    moving, recomputing = (
        measurements.withhold(
            collect_trials(
                {
                    trial: measure_mean_wait(cell.events, measurements)
                    for trial, cell in migrations.get(name, {}).items()
                },
                f"no migrated turn of {name} was served",
            ),
            name,
        )
        for name in (label, other)
    )
    ratio = estimate_ratio_interval(combine(compute_log_of_ratio, moving, recomputing))
    return AgainstArm(
        other=other,
        migrated=sum(one.n for one in moving.trials.values()),
        other_migrated=sum(one.n for one in recomputing.trials.values()),
        with_kv_s=estimate_mean_interval(moving),
        without_kv_s=estimate_mean_interval(recomputing),
        ratio=ratio,
        every_turn=estimate_ratio_interval(measurements.log_ratio(label, other, find_metric("ttft_mean_s"))),
        verdict=judged(ratio, 1.0),
    )


def find_prefills(records: Iterable[DecisionRecord]) -> tuple[Prefill, ...]:
    """The turns from which the time per computed prompt token is fitted."""
    turns = []
    for record in records:
        outcome, decision = record.outcome, record.decision
        if outcome is None or outcome.status != "ok" or outcome.transfer is not None or decision.prefill:
            continue
        pending = count_pending_at(record, decision.instance)
        if None in (outcome.first_byte_s, outcome.prompt_tokens, outcome.cached_tokens, pending):
            continue
        computed = (outcome.prompt_tokens or 0) - (outcome.cached_tokens or 0)
        turns.append(Prefill(record.request.session, computed, pending or 0, outcome.first_byte_s or 0.0))
    return tuple(turns)


def find_transferred_turns(records: Iterable[DecisionRecord]) -> tuple[TransferredTurn, ...]:
    """The migrated turns whose transfer's time and tokens are known."""
    turns = []
    for record in records:
        outcome = record.outcome
        if outcome is None or outcome.transfer is None or outcome.transfer.purpose != "migration":
            continue
        took, came = transfer_s(outcome.transfer), outcome.transfer.external_tokens
        pending = count_pending_at(record, record.decision.instance)
        if not came or None in (took, pending, outcome.first_byte_s, outcome.prompt_tokens, outcome.cached_tokens):
            continue
        uncached = (outcome.prompt_tokens or 0) - max((outcome.cached_tokens or 0) - came, 0)
        session, first_byte_s = record.request.session, outcome.first_byte_s or 0.0
        turns.append(TransferredTurn(session, came, took or 0.0, uncached, pending or 0, first_byte_s))
    return tuple(turns)


def compare_with_recomputing(
    label: str,
    cells: Mapping[int, tuple[Sequence[Prefill], Sequence[TransferredTurn]]],
    measurements: Measurements,
    arm: AgainstArm | None = None,
) -> AgainstRecomputing | None:
    """`cells`: by trial. None where no migration brought KV whose tokens are counted, and there is no arm to compare
    with."""
    own = {trial: cell for trial, cell in cells.items() if cell[1]}
    if not own and arm is None:
        return None
    computed = {trial: fit_times(*cell, measurements) for trial, cell in own.items()}
    why = "; ".join(dict.fromkeys(reason for reason in computed.values() if isinstance(reason, str)))
    why = why or "no migration brought KV whose tokens are counted"
    fitted = {trial: times for trial, times in computed.items() if not isinstance(times, str)}
    by_name = {name: collect_trials({trial: times[name] for trial, times in fitted.items()}, why) for name in NAMES}
    values = {name: estimate_mean_interval(measurements.withhold(one, label)) for name, one in by_name.items()}
    fits = tuple(describe_fit(*own[trial]) for trial in fitted)
    values["difference_s"] = _widen_by_error(values["difference_s"], fits)
    withheld = explain_withheld(fits)
    verdict = None if withheld else judged(values["difference_s"])
    return AgainstRecomputing(label, **values, verdict=verdict, fits=fits, withheld=withheld, arm=arm)


def _widen_by_error(difference: Estimate, fits: Sequence[Fit]) -> Estimate:
    """By the fits' mean error of a turn: a fit may miss all the migrated turns by as much as its own."""
    if difference.low is None or difference.high is None or not fits:
        return difference
    error_s = float(np.mean([fit.error_s for fit in fits]))
    return replace(difference, low=difference.low - error_s, high=difference.high + error_s)


def explain_withheld(fits: Sequence[Fit]) -> str:
    """Why these fits carry no verdict; empty where they may."""
    if not fits:
        return ""
    reasons = []
    least = min(fit.r2 for fit in fits)
    if least < MIN_R2:
        reasons.append(f"the fit explains {format_percent(least)} of the variance (needs {format_percent(MIN_R2)})")
    beyond, moved = sum(fit.beyond for fit in fits), sum(fit.moved for fit in fits)
    if beyond > MAX_BEYOND * moved:
        reasons.append(f"{beyond} of {moved} migrated turns lie beyond the turns it was fitted to")
    return "; ".join(reasons)


def describe_fit(computed: Sequence[Prefill], moved: Sequence[TransferredTurn]) -> Fit:
    """Describe the least squares of `fit_times` for one cell with MIN_FIT turns or more."""
    tokens, pending, took_s = (_read_column(computed, name) for name in PREFILL_COLUMNS)
    terms = np.column_stack([np.ones(tokens.size), tokens, pending])
    left = took_s - terms @ np.linalg.lstsq(terms, took_s, rcond=None)[0]
    spread = float(((took_s - took_s.mean()) ** 2).sum())
    high = float(np.quantile(tokens, WITHIN)), float(np.quantile(pending, WITHIN))
    beyond = sum(one.uncached_tokens > high[0] or one.pending_tokens > high[1] for one in moved)
    return Fit(
        turns=len(computed),
        r2=1 - float((left**2).sum()) / spread if spread > 0 else 0.0,
        error_s=float(np.sqrt((left**2).sum() / (tokens.size - terms.shape[1]))),
        computed_tokens=high[0],
        pending_tokens=high[1],
        moved=len(moved),
        beyond=beyond,
    )


def fit_times(
    computed: Sequence[Prefill], moved: Sequence[TransferredTurn], measurements: Measurements
) -> Mapping[str, Trial] | str:
    """NAMES of one cell; or why nothing can be said."""
    if len(computed) < MIN_FIT:
        return f"{len(computed)} turns were served without KV from elsewhere (needs {MIN_FIT})"
    whole = _fit_draws(computed, moved, np.zeros(len(computed) + len(moved), dtype=np.int64), np.ones((1, 1)))
    if not np.isfinite(whole["prefill_s_per_token"][0]):
        return "turns that computed more tokens did not take longer: there is no time per token"
    sessions = [*(one.session for one in computed), *(one.session for one in moved)]
    fitted: list[Mapping[str, Samples]] = []  # once: group and weights are the same for all of NAMES

    def fit_draws(group: Ranks, weights: Samples) -> Mapping[str, Samples]:
        if not fitted:
            fitted.append(_fit_draws(computed, moved, group, weights))
        return fitted[0]

    def make_draws_of(name: str) -> Draws:
        return measurements.replicate_rows(sessions, lambda group, weights: fit_draws(group, weights)[name])

    return {name: Trial(float(whole[name][0]), len(moved), make_draws_of(name)) for name in NAMES}


def _fit_draws(
    computed: Sequence[Prefill], moved: Sequence[TransferredTurn], group: Ranks, weights: Samples
) -> Mapping[str, Samples]:
    """NAMES in each draw of the groups; NaN where a draw tells no time per token above 0, or has no migrated turn."""
    first, second = group[: len(computed)], group[len(computed) :]
    tokens, pending, took_s = (_read_column(computed, name) for name in PREFILL_COLUMNS)
    middle = float(tokens.mean()), float(pending.mean()), float(took_s.mean())  # squares of large numbers lose digits
    x, p, y = tokens - middle[0], pending - middle[1], took_s - middle[2]

    def summed(terms: Samples, of: Ranks = first) -> Samples:
        return np.asarray(weights @ np.bincount(of, weights=terms, minlength=weights.shape[1]), dtype=np.float64)

    with np.errstate(divide="ignore", invalid="ignore"):
        n = summed(np.ones_like(x))
        sx, sp, sy = summed(x) / n, summed(p) / n, summed(y) / n
        xx, pp, xp = summed(x * x) - n * sx * sx, summed(p * p) - n * sp * sp, summed(x * p) - n * sx * sp
        xy, py = summed(x * y) - n * sx * sy, summed(p * y) - n * sp * sy
        shared = np.where(pp > 0, xp / pp, 0.0)  # nothing is held where the same was always pending
        left = xx - shared * xp
        per_token = (xy - shared * py) / left
        per_token = np.where((left > 1e-9 * xx) & (per_token > 0), per_token, np.nan)
        per_pending = np.where(pp > 0, (py - per_token * xp) / pp, 0.0)
        count = summed(np.ones(len(moved)), second)
        came, spent, uncached, waiting, seen = (
            summed(_read_column(moved, name), second) / count
            for name in ("external_tokens", "transfer_s", "uncached_tokens", "pending_tokens", "first_byte_s")
        )
        base = middle[2] + sy - per_token * (sx + middle[0]) - per_pending * (sp + middle[1])
        without = base + per_token * uncached + per_pending * waiting
    return {
        "prefill_s_per_token": per_token,
        "compute_s": per_token * came,
        "transfer_s": spent,
        "with_kv_s": seen,
        "without_kv_s": without,
        "difference_s": seen - without,
    }


def _read_column(rows: Sequence[Prefill] | Sequence[TransferredTurn], name: str) -> Samples:
    return convert_to_floats(getattr(row, name) for row in rows)
