"""Dispatch coupling (specs/ear section 2.3): slower turns keep sessions longer, more sessions make turns slower.

In a closed loop L = Lambda N (W_turn(L) + T): sessions in the system = their arrival rate x turns per session x (time a
turn is served + think time). W_turn(L) is fitted inside each cell as W + slope (L - mean L), by least squares of the
turns' service time over the sessions in the system at their send, with input and output tokens beside it so that long
turns at busy times are not taken for the coupling. Between policies the two move together by Little's law alone, so
nothing is fitted across policies. Loop gain g = Lambda N slope; a slow-down of the turns moves L by (L* - Lambda N T) /
(1 - g) times its share. That is the specification's L* / (1 - g) where T = 0: the Lambda N T sessions that pause do not
slow down.

A loop is stated only where it could be seen: no session was held back by a limit on sessions in flight (with one, L is
the limit and arrivals wait outside), and Little's law holds within LITTLE_WITHIN for what was measured on its own:
arrivals, residence, and the mean over time of the sessions in the system.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np

from results.measures.replay_numbers import UNREADABLE
from results.measures.turns import SessionTimes, Turns, measure_session_times
from results.records.estimate import Estimate, unknown
from results.records.percent import format_percent
from results.routing.measurements import (
    Measurements,
    estimate_mean_interval,
    estimate_widest_interval,
    make_trial_of_number,
)
from results.routing.metrics import find_metric
from results.routing.read import LoadedCell
from results.statistics.estimates import Ranks, Samples
from results.statistics.trials import Measured, Trial, combine, unmeasured

LITTLE_WITHIN = 0.2
"""Lambda N (W + T) may differ from the measured L by this share; beyond it the cell was in no steady state."""
MIN_TURNS = 30
"""Fewer cannot give a slope beside two covariates."""
LOOP_TERMS = ("arrivals_per_s", "turns", "service_s", "think_s", "concurrency")
"""Fields of `Loop` from which, with the slope, the loop's gain and equilibrium are computed."""
UNBOUNDED = "the loop gain may reach 1: no bound"


@dataclass(frozen=True, slots=True)
class Loop:
    """One cell's terms of L = Lambda N (W + T), as `Coupling` explains those of a policy."""

    arrivals_per_s: float
    turns: float
    service_s: float
    think_s: float
    concurrency: float
    in_system: float
    held_back: float
    session_delay_s: float


@dataclass(frozen=True, slots=True)
class Coupling:
    """One policy."""

    label: str
    arrivals_per_s: Estimate
    """Lambda: sessions per second while sessions arrive."""
    turns: Estimate
    """N: turns in a row per session; turns of sub-agents that overlap count as one."""
    service_s: Estimate
    """W: mean service time of a turn."""
    think_s: Estimate
    """T: pause per turn."""
    concurrency: Estimate
    """L: mean over turns of the sessions in the system at their send."""
    in_system: Estimate
    """The same as a mean over time while sessions arrive."""
    held_back: Estimate
    """Share of the sessions that a limit on sessions in flight held back."""
    session_delay_s: Estimate
    """Mean over all sessions of how long it held them back."""
    slope_s: Estimate
    """W'(L): seconds per turn that one more session adds."""
    loop_gain: Estimate
    """Lambda N W'(L)."""
    equilibrium: Estimate
    """L*: where the fitted W(L) meets Little's law."""
    gain: Estimate
    """1 / (1 - loop gain): the factor by which the loop amplifies a small slow-down."""
    sensitivity: Estimate
    """(L* - Lambda N T) / (1 - loop gain): sessions that a slow-down adds, per unit of it (specs/ear section 2.3)."""
    why_no_loop: str = ""
    """Why no loop gain is stated and no curve drawn, in a trial at least; empty where there is one."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Predictions over W_turn, drawn over the measured amplifications."""

    label: str
    """The policy they start from: the one with the fastest turns."""
    service_s: Samples
    kinematic: Samples
    """Wall clock over trace span if all its turns took this much longer or shorter and nothing else changed."""
    specified: Samples
    """`compute_specified_curve`, scaled to pass through that policy; NaN where the fit does not allow it."""
    reason: str
    """Why there is no specified curve; empty where there is one."""


def measure_loop(turns: Turns) -> Loop | str:
    """A cell's terms, or why it has none."""
    times = measure_session_times(turns)
    service = turns.e2e_s[np.isfinite(turns.e2e_s)]
    spread = float(np.ptp(times.arrival_s)) if times.session else 0.0
    seen = turns.inflight_sessions[np.isfinite(turns.inflight_sessions)]
    if not service.size or not times.session:
        return "no turn was completed"
    if not seen.size:
        return "no turn says how many sessions were in the system"
    if len(times.session) < 2 or spread <= 0:
        return "all sessions arrived at once: there is no arrival rate"
    delay_s = _list_session_delays(turns)
    mean_s = float(service.mean())
    in_a_row = float(times.busy_s.mean()) / mean_s
    return Loop(
        arrivals_per_s=(len(times.session) - 1) / spread,
        turns=in_a_row,
        service_s=mean_s,
        think_s=float(times.idle_s.mean()) / in_a_row,
        concurrency=float(seen.mean()),
        in_system=_compute_mean_in_system(times),
        held_back=float((delay_s > 0).mean()),
        session_delay_s=float(delay_s.mean()),
    )


def _list_session_delays(turns: Turns) -> Samples:
    """Seconds by which each session with a sent turn was held back."""
    sent = np.isfinite(turns.send_s)
    by_session = dict(zip(turns.session[sent], turns.session_delay_s[sent], strict=True))
    return np.array(list(by_session.values()), dtype=np.float64)


def _compute_mean_in_system(times: SessionTimes) -> float:
    """Over the time from the first arrival to the last, which are not the same."""
    first, last = float(times.arrival_s.min()), float(times.arrival_s.max())
    ends = times.begin_s + times.residence_s
    inside = np.clip(ends, first, last) - np.clip(times.begin_s, first, last)
    return float(inside.sum()) / (last - first)


def why_no_loop(loop: Loop) -> str:
    """Why a cell shows no loop; empty where it may."""
    if loop.held_back > 0:
        return (
            f"a limit on sessions in flight held back {format_percent(loop.held_back)} of the sessions, by "
            f"{loop.session_delay_s:.2g} s on average: L is the limit"
        )
    little = loop.arrivals_per_s * loop.turns * (loop.service_s + loop.think_s)
    if abs(little - loop.in_system) <= LITTLE_WITHIN * loop.in_system:
        return ""
    return (
        f"no steady state: Lambda N (W + T) = {little:.3g}, but {loop.in_system:.3g} sessions were in the system while "
        "sessions arrived"
    )


def fit_slope(turns: Turns, group: Ranks, weights: Callable[[], Samples | str]) -> Trial | str:
    """W'(L) of one cell (s per session) with replicates over its sessions, or why there is none.

    `group`: of each turn's session; `weights`: draws x groups.
    """
    used = np.isfinite(turns.e2e_s) & np.isfinite(turns.inflight_sessions)
    n = int(used.sum())
    if n < MIN_TURNS:
        return f"{n} completed turns are too few for a slope (needs {MIN_TURNS})"
    if float(np.ptp(turns.inflight_sessions[used])) < 1:
        return "the number of sessions in the system never changed"
    beside = [column[used] for column in (turns.input_tokens, turns.output_tokens)]
    columns = [turns.inflight_sessions[used], *(column for column in beside if float(np.ptp(column)) > 0)]
    scales = [float(column.std()) for column in columns]
    design = np.stack([np.ones(n), *(column / scale for column, scale in zip(columns, scales, strict=True))], axis=1)
    groups = group[used]
    products = np.einsum("ni,nj->nij", design, design)
    answers = design * turns.e2e_s[used][:, None]

    @cache
    def draws() -> Samples | str:
        drawn = weights()
        if isinstance(drawn, str):
            return drawn
        squares, sums = (_sum_by_group(part, groups, drawn.shape[1]) for part in (products, answers))
        left = np.tensordot(drawn, squares, axes=1)
        right = np.tensordot(drawn, sums, axes=1)
        solved = np.linalg.pinv(left, hermitian=True) @ right[..., None]
        return np.asarray(solved[:, 1, 0] / scales[0], dtype=np.float64)

    solved = np.linalg.pinv(products.sum(axis=0), hermitian=True) @ answers.sum(axis=0)
    return Trial(float(solved[1] / scales[0]), n, draws)


def _sum_by_group(values: Samples, group: Ranks, groups: int) -> Samples:
    sums = np.zeros((groups, *values.shape[1:]))
    np.add.at(sums, group, values)
    return sums


def fit_couplings(measurements: Measurements, labels: Sequence[str]) -> tuple[Coupling, ...]:
    """The loop of every label, trial by trial."""
    return tuple(_fit_coupling(measurements, label) for label in labels)


def _fit_coupling(measurements: Measurements, label: str) -> Coupling:
    loops: dict[int, Loop] = {}
    slopes: dict[int, Trial] = {}
    why: dict[str, None] = {}
    readable = list(measurements.turns(label))
    no_loop = [UNREADABLE] * (len(measurements.cells(label)) - len(readable))
    for trial, turns, group in readable:
        loop, slope = measure_loop(turns), fit_slope(turns, group, measurements.weights)
        why |= dict.fromkeys(reason for reason in (loop, slope) if isinstance(reason, str))
        no_loop.append(loop if isinstance(loop, str) else why_no_loop(loop))
        if isinstance(loop, Loop):
            loops[trial] = loop
        if isinstance(slope, Trial):
            slopes[trial] = slope
    reason = "; ".join(why) or ("" if loops else f"{label} has no turn records that count")
    terms = {
        field.name: measurements.withhold(
            Measured({trial: _repeat_value(getattr(loop, field.name)) for trial, loop in loops.items()}, reason), label
        )
        for field in fields(Loop)
    }
    slope_s = measurements.withhold(Measured(slopes, reason) if slopes else unmeasured(reason), label)
    loop_terms = [terms[name] for name in LOOP_TERMS]
    invalid = _summarize_reasons(no_loop)
    loop_gain = (
        unknown(invalid) if invalid else estimate_widest_interval(combine(_compute_loop_gain, *loop_terms, slope_s))
    )
    gain = compute_gain(loop_gain)
    return Coupling(
        label=label,
        **{name: _estimate_alone(term) for name, term in terms.items()},
        slope_s=estimate_widest_interval(slope_s),
        loop_gain=loop_gain,
        equilibrium=_estimate_settled(combine(_compute_equilibrium, *loop_terms, slope_s), gain),
        gain=gain,
        sensitivity=_estimate_settled(combine(_compute_sensitivity, *loop_terms, slope_s), gain),
        why_no_loop=invalid,
    )


def _summarize_reasons(reasons: Sequence[str]) -> str:
    """The first reason, and in how many trials there is one; empty where there is none."""
    known = [reason for reason in reasons if reason]
    if not known:
        return ""
    return known[0] if len(reasons) == 1 else f"{known[0]} (so in {len(known)} of {len(reasons)} trials)"


def _repeat_value(value: float) -> Trial:
    """A number of a whole cell, the same in every draw of the resampled slope."""
    return Trial(value, 1, lambda: np.array([value]))


def _estimate_alone(term: Measured) -> Estimate:
    """The term by itself: it was not resampled, so only trials give it an interval."""
    trials = {number: make_trial_of_number(trial.value) for number, trial in term.trials.items()}
    return estimate_mean_interval(replace(term, trials=trials))


def _estimate_settled(measured: Measured, gain: Estimate) -> Estimate:
    """A number that only a loop with an equilibrium has, with no upper bound where the loop's gain has none."""
    if gain.value is None or not all(np.isfinite(trial.value) for trial in measured.trials.values()):
        return unknown(gain.reason or "a trial has no equilibrium")
    settled = estimate_widest_interval(measured)
    return settled if gain.high is not None else replace(settled, high=None, reason=gain.reason)


def _compute_loop_gain(arrivals: Samples, turns: Samples, *others: Samples) -> Samples:
    return arrivals * turns * others[-1]


def _compute_equilibrium(
    arrivals: Samples, turns: Samples, service: Samples, think: Samples, at: Samples, slope: Samples
) -> Samples:
    """L* of W(L) = service + slope (L - at); NaN where the loop gain is 1 or more."""
    flow = arrivals * turns
    return _divide_by_rest(flow * (service - slope * at + think), 1 - flow * slope)


def _compute_sensitivity(
    arrivals: Samples, turns: Samples, service: Samples, think: Samples, at: Samples, slope: Samples
) -> Samples:
    """The derivative of L* by the share by which turns slow down."""
    flow = arrivals * turns
    served = _compute_equilibrium(arrivals, turns, service, think, at, slope) - flow * think
    return _divide_by_rest(served, 1 - flow * slope)


def _divide_by_rest(top: Samples, rest: Samples) -> Samples:
    """NaN where a loop gain leaves no rest above zero."""
    return np.where(rest > 0, top / np.where(rest > 0, rest, 1.0), np.nan)


def compute_gain(loop_gain: Estimate) -> Estimate:
    """1 / (1 - g), which rises with g: the bounds of g give its own."""
    if loop_gain.value is None:
        return loop_gain
    if loop_gain.value >= 1:
        return unknown(f"the loop gain is {loop_gain.value:.2f}: 1 or more has no equilibrium", loop_gain.n)
    low, high = (None if bound is None or bound >= 1 else 1 / (1 - bound) for bound in (loop_gain.low, loop_gain.high))
    lost = UNBOUNDED if loop_gain.high is not None and high is None else loop_gain.reason
    return replace(loop_gain, value=1 / (1 - loop_gain.value), low=low, high=high, reason=lost)


def predict_wall_s(times: SessionTimes, slower: float, cap: int) -> float:
    """When the last session ends if every turn takes `slower` times as long: each session waits for its turns and its
    think time as before, and at most `cap` sessions (0 = any number) are in the system, the first come first."""
    stay = times.busy_s * slower + times.idle_s
    if not cap:
        return float((times.arrival_s + stay).max(initial=0.0))
    order = np.argsort(times.arrival_s, kind="stable")
    ends: list[float] = []
    last = 0.0
    for index in order:
        begin = float(times.arrival_s[index])
        if len(ends) >= cap:
            begin = max(begin, heapq.heappop(ends))
        end = begin + float(stay[index])
        heapq.heappush(ends, end)
        last = max(last, end)
    return last


def predict_curve(
    measurements: Measurements, couplings: Sequence[Coupling], cells: Mapping[tuple[str, int], LoadedCell]
) -> Curve | str:
    """The predictions under one load, from its policy with the fastest turns, over the range of all; or why there are
    none."""
    amplification = find_metric("amplification")
    known = {
        row.label: row.service_s.value
        for row in couplings
        if row.service_s.value is not None and measurements.get(row.label, amplification).trials
    }
    if not known:
        return "no policy has both a service time and an amplification"
    label = min(known, key=lambda name: known[name])
    means = [
        mean for name in known for _, turns, _ in measurements.turns(name) if (mean := _compute_mean_service_s(turns))
    ]
    at = np.linspace(0.85 * min(means), 1.15 * max(means), 60)
    walls = [
        _predict_amplification(turns, cells[label, trial], own, at)
        for trial, turns, _ in measurements.turns(label)
        if trial in measurements.get(label, amplification).trials and (own := _compute_mean_service_s(turns))
    ]
    if not walls:
        return "no policy has both a service time and an amplification"
    kinematic = np.mean(np.stack(walls), axis=0)
    row = next(row for row in couplings if row.label == label)
    shape = compute_specified_curve(row, at)
    if isinstance(shape, str):
        return Curve(label, at, kinematic, np.full(at.size, np.nan), shape)
    here = float(np.interp(known[label], at, shape))
    base = estimate_mean_interval(measurements.get(label, amplification)).value or 1.0
    return Curve(label, at, kinematic, base * shape / here, "")


def _compute_mean_service_s(turns: Turns) -> float | None:
    served = turns.e2e_s[np.isfinite(turns.e2e_s)]
    return float(served.mean()) if served.size else None


def _predict_amplification(turns: Turns, cell: LoadedCell, own: float, at: Samples) -> Samples:
    """Amplification of one cell at other service times; the rest of its wall clock stays as it was."""
    times = measure_session_times(turns)
    replay = cell.record.replay
    cap = int(replay.get("max_inflight_sessions") or 0)
    span, wall = float(replay["trace_span_s"]), float(replay["wall_clock_s"])
    beside = wall - predict_wall_s(times, 1.0, cap)
    return np.array([(predict_wall_s(times, value / own, cap) + beside) / span for value in at])


def compute_specified_curve(row: Coupling, at: Samples) -> Samples | str:
    """(L - Lambda N T) / (1 - Lambda N W'(L)) at each W_turn, with the row's whole fitted W(L) scaled; or why there is
    none.

    W = (1 + e)(w0 + slope L) and L = Lambda N (W + T) give 1 + e, and the slope there is (1 + e) slope.
    """
    if row.why_no_loop:
        return row.why_no_loop
    terms = (row.arrivals_per_s, row.turns, row.service_s, row.think_s, row.concurrency, row.slope_s)
    if any(term.value is None for term in terms):
        return next(term.reason for term in terms if term.value is None) or "the loop was not fitted"
    arrivals, turns, service, think, sessions, slope = (float(term.value or 0.0) for term in terms)
    empty = service - slope * sessions
    if slope <= 0 or empty <= 0:
        return f"the fitted slope ({slope:.3g} s per session) gives no feedback to draw"
    flow = arrivals * turns
    scaled = at / (empty + slope * flow * (at + think))
    return _divide_by_rest(flow * at, 1 - flow * slope * scaled)
