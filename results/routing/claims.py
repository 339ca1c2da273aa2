"""The claims of specs/ear: contributions C1 and C3, the failures of 3.1 to 3.3, the ablation of 5.3, migration (5.6).

Each is judged by an interval over three launches or more, and all of a run are corrected for one another (Holm). What
this many instances on shared cores cannot show stays open, with what would show it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from results.routing.load import LoadedCell
from results.routing.metrics import metric_named
from results.routing.moves import Moves
from results.routing.pairs import Pair, difference_of, pair_of
from results.routing.recomputing import AgainstRecomputing
from results.routing.specification import AFFINITY_ONLY, BASELINES, FULL, MIGRATION_ONLY
from results.statistics.estimates import LEVEL, Estimate
from results.statistics.judgement import (
    SEVERAL,
    Judgement,
    Outcome,
    Verdict,
    correct_together,
    judged,
    leave_undecided,
    withheld,
)
from results.statistics.trials import MIN_PAIRED

NO_TRIALS = f"no interval over {MIN_PAIRED} trials or more"
LOCALITY_WITHIN = 0.05
"""Affinity alone keeps the locality where its APC is at most so far below EAR's: the specification says `keeps`."""
UNIFIED = "unified"
LOAD_BALANCE, LMETRIC, STICKY, STATIC_PD = "load-balance", "LMetric", "sticky", "static PD-disagg"
DOMINATES = {
    "ttft_p90_s": Verdict.LOWER,
    "tpot_p90_s": Verdict.LOWER,
    "apc": Verdict.HIGHER,
    "worker_ttft_p90_max_s": Verdict.LOWER,
    "amplification": Verdict.LOWER,
}
"""The five dimensions of C3, and what is better."""
TOO_SMALL = "not testable at this scale"
MIN_INSTANCES = 8
MIN_HOT_PER_INSTANCE = 4
MIN_TURNS = 10


@dataclass(frozen=True, slots=True)
class Scale:
    """What a run had for a claim about instances that hot sessions fill."""

    instances: int
    shares_cores: bool
    """The instances are CPU builds of the engine on one host."""
    hot_sessions: int
    """The fewest sessions that have half of the input tokens."""
    hot_turns: float
    """The median number of their turns."""
    max_inflight_sessions: int
    """0 = no limit."""

    @property
    def lacks(self) -> str:
        """What is missing for such a claim, with what it takes; empty where nothing is."""
        shared = " that share a host's cores" if self.shares_cores else ""
        hot = MIN_HOT_PER_INSTANCE * self.instances
        missing = (
            (
                self.shares_cores or self.instances < MIN_INSTANCES,
                f"{self.instances} instances{shared} (it takes {MIN_INSTANCES} or more with compute of their own)",
            ),
            (
                self.hot_sessions < hot,
                f"{self.hot_sessions} sessions have half of the input ({MIN_HOT_PER_INSTANCE} or more per instance)",
            ),
            (self.hot_turns < MIN_TURNS, f"these have {self.hot_turns:g} turns each ({MIN_TURNS} or more)"),
            (
                self.max_inflight_sessions > 0,
                f"at most {self.max_inflight_sessions} sessions are in flight (no limit)",
            ),
        )
        return "; ".join(text for is_missing, text in missing if is_missing)


def measure_scale(cells: Sequence[LoadedCell], engine_kind: str) -> Scale:
    """Of a run's cells, which replay one trace on as many instances."""
    turns = next((cell.turns for cell in cells if cell.turns is not None), None)
    instances = max((len(cell.record.engines) for cell in cells), default=0)
    cap = max((int(cell.record.replay.get("max_inflight_sessions") or 0) for cell in cells), default=0)
    if turns is None or not turns.index.size:
        return Scale(instances, engine_kind == "cpu", 0, 0.0, cap)
    _, of_session, counts = np.unique(turns.session, return_inverse=True, return_counts=True)
    tokens = np.bincount(of_session, weights=turns.input_tokens)
    largest_first = np.argsort(-tokens, kind="stable")
    hot = 1 + int(np.searchsorted(np.cumsum(tokens[largest_first]), tokens.sum() / 2))
    return Scale(instances, engine_kind == "cpu", hot, float(np.median(counts[largest_first[:hot]])), cap)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A judged claim before the correction."""

    judgement: Judgement
    p: float | None
    """Two-sided, of what the claim is held against; None = it was not tested."""


def judge_claims(labels: Mapping[str, str], pairs: Sequence[Pair], moves: Moves, scale: Scale) -> tuple[Judgement, ...]:
    """Every claim whose arms were run. `labels`: what was measured for a row of tables 5.2 and 5.3, and for UNIFIED."""
    thrash = [
        _judge_thrashing(row.label, row.values["thrash_rate"], row.thrashed)
        for row in moves.migrations
        if not row.why_none
    ]
    tested = [*_judge_paper(labels, pairs, scale), *(_judge_transfer(row) for row in moves.recomputing)]
    return (*_correct_claims(tested), *thrash)


def _judge_paper(labels: Mapping[str, str], pairs: Sequence[Pair], scale: Scale) -> Iterable[_Claim]:
    def compare(name: str, claim: str, first: str, second: str, metric: str, expected: Verdict) -> Iterable[_Claim]:
        if labels.get(first) and labels.get(second):
            yield _judge_direction(name, claim, _compare(pairs, labels[first], labels[second], metric), expected)

    full = labels.get(FULL, "")
    yield from compare(
        "C1: dispatch coupling",
        "under load-balance the replay takes a larger multiple of the trace's time than under EAR",
        LOAD_BALANCE, FULL, "amplification", Verdict.HIGHER,
    )  # fmt: skip
    if full and any(labels.get(name) for name in BASELINES):
        yield _gate_by_scale(_judge_dominance(labels, pairs), scale)
    yield from compare(
        "3.1: load balance loses locality", "LMetric's APC is lower than sticky's",
        LMETRIC, STICKY, "apc", Verdict.LOWER,
    )  # fmt: skip
    yield from compare(
        "3.2: static pools meet the KV wall", "static PD-disaggregation's TTFT p50 is higher than load-balance's",
        STATIC_PD, LOAD_BALANCE, "ttft_p50_s", Verdict.HIGHER,
    )  # fmt: skip
    for claim in compare(
        "3.3: sticky slows every instance", "the median instance's TTFT p90 is higher under sticky than under unified",
        STICKY, UNIFIED, "worker_ttft_p90_median_s", Verdict.HIGHER,
    ):  # fmt: skip
        yield _gate_by_scale(claim, scale)
    if full:
        yield from _judge_ablation(labels, pairs, scale)


def _judge_ablation(labels: Mapping[str, str], pairs: Sequence[Pair], scale: Scale) -> Iterable[_Claim]:
    affinity, migration, full = (labels.get(name, "") for name in (AFFINITY_ONLY, MIGRATION_ONLY, FULL))
    yield _judge_locality(difference_of(pairs, affinity, full, "apc"))
    yield _gate_by_scale(
        _judge_direction(
            "ablation: affinity only interferes",
            "without migration the median instance's TTFT p90 is higher than EAR's",
            _compare(pairs, affinity, full, "worker_ttft_p90_median_s"),
            Verdict.HIGHER,
        ),
        scale,
    )
    yield _judge_direction(
        "ablation: migration only loses locality",
        "without affinity APC is lower than EAR's",
        _compare(pairs, migration, full, "apc"),
        Verdict.LOWER,
    )


def _compare(pairs: Sequence[Pair], first: str, second: str, name: str) -> tuple[Estimate, float]:
    """What is judged of two labels, and what it is held against: the ratio of times and 1, or the difference and 0."""
    row = pair_of(pairs, first, second, name) if first and second else None
    if row is None:
        return difference_of(pairs, first, second, name), 0.0
    return (row.difference, 0.0) if row.ratio is None else (row.ratio, 1.0)


def find_p_value(estimate: Estimate, none: float) -> float | None:
    """Two-sided, of the value being `none`, from its Student interval over launches.

    Of a ratio (none = 1) by logarithms. None where no verdict may rest on the estimate.
    """
    if withheld(estimate) or estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    points = [estimate.low, estimate.value, estimate.high]
    low, value, high = [math.log(point) for point in points] if none == 1.0 else [point - none for point in points]
    freedom = estimate.launches - 1
    error = (high - low) / 2 / float(special.stdtrit(freedom, (1 + LEVEL) / 2))
    if error <= 0:  # only the signs tell (sign test)
        return 2.0 ** (1 - estimate.launches) if value else 1.0
    return float(2 * special.stdtr(freedom, -abs(value) / error))


def _correct_claims(claims: Sequence[_Claim]) -> list[Judgement]:
    """Holm over the tested ones: what does not stand after it is undecided."""
    return list(correct_together([replace(claim.judgement, p=claim.p) for claim in claims]))


def _gate_by_scale(claim: _Claim, scale: Scale) -> _Claim:
    """A claim that the run is too small for is open, whatever its numbers say."""
    if not scale.lacks:
        return claim
    return _Claim(replace(claim.judgement, outcome=Outcome.OPEN, reason=scale.lacks, label=TOO_SMALL), None)


def _judge_dominance(labels: Mapping[str, str], pairs: Sequence[Pair]) -> _Claim:
    """C3 holds where every comparison does (its p is the largest), and fails where one is the opposite."""
    full = labels[FULL]
    missing = [name for name in BASELINES if not labels.get(name)]
    better, worse, level = list[str](), list[str](), list[str]()
    p_values, p_worse = list[float](), list[float]()
    for name in BASELINES:
        if not labels.get(name):
            continue
        for metric, good in DOMINATES.items():
            measured, none = _compare(pairs, full, labels[name], metric)
            verdict, p = judged(measured, none), find_p_value(measured, none)
            text = f"{metric_named(metric).title} against {name}"
            if verdict is None or verdict == Verdict.NOT_DISTINGUISHABLE:
                level.append(text)
            else:
                (better if verdict == good else worse).append(text)
            p_values += [] if p is None else [p]
            p_worse += [] if p is None or text not in worse else [p]
    reason = f"better in {len(better)}, worse in {len(worse)}, not distinguishable in {len(level)} comparisons"
    reason += f"; worse: {', '.join(worse)}" if worse else ""
    outcome, tested = Outcome.UNDECIDED, max(p_values, default=None)
    if missing:
        outcome, reason, tested = Outcome.OPEN, f"not in this run: {', '.join(missing)}; {reason}", None
    elif worse:
        outcome, tested = Outcome.FAILS, min(1.0, min(p_worse) * len(p_values))
    elif better and not level:
        outcome = Outcome.HOLDS
    return _Claim(
        Judgement(
            "C3: EAR dominates",
            "EAR is better than all five baselines in TTFT, TPOT, APC, the worst instance's TTFT p90 and wall clock",
            "holds where all 25 comparisons are distinguishably better, fails where one is distinguishably worse",
            outcome,
            reason,
            SEVERAL,
        ),
        tested,
    )


def _judge_transfer(row: AgainstRecomputing) -> _Claim:
    """By the arm that recomputes, where the run has it; else by the fit, where that carries a verdict."""
    claim = "migrated turns begin sooner than if the target had computed what came"
    measured, none, verdict = (
        replace(row.difference_s, reason=row.withheld or row.difference_s.reason),
        0.0,
        row.verdict,
    )
    if row.arm is not None:
        claim = f"{claim}: against {row.arm.other}"
        measured, none, verdict = row.arm.ratio, 1.0, row.arm.verdict
    if verdict is None:
        measured = replace(measured, low=None, high=None)
    name = f"transfer against recomputing: {row.label}"
    return _judge_direction(name, claim, (measured, none), Verdict.LOWER)


def _judge_locality(difference: Estimate) -> _Claim:
    if difference.low is None or difference.high is None or judged(difference) is None:
        outcome, reason = leave_undecided(difference), difference.reason or NO_TRIALS
    elif difference.low >= -LOCALITY_WITHIN:
        outcome, reason = Outcome.HOLDS, f"at most {max(-difference.low, 0.0):.1%} below"
    elif difference.high < -LOCALITY_WITHIN:
        outcome, reason = Outcome.FAILS, f"at least {-difference.high:.1%} below"
    else:
        outcome, reason = Outcome.UNDECIDED, "the interval allows both"
    judgement = Judgement(
        "ablation: affinity only keeps locality",
        "without migration APC is that of EAR",
        f"holds where the interval of the difference is above -{LOCALITY_WITHIN:.0%}, fails where it is below",
        outcome,
        reason,
        difference,
    )
    return _Claim(judgement, find_p_value(difference, -LOCALITY_WITHIN))


def _judge_direction(name: str, claim: str, tested: tuple[Estimate, float], expected: Verdict) -> _Claim:
    """`tested`: the number, and what it is held against."""
    measured, none = tested
    verdict = judged(measured, none)
    if verdict is None:
        outcome, reason = leave_undecided(measured), measured.reason or NO_TRIALS
    elif verdict == Verdict.NOT_DISTINGUISHABLE:
        outcome, reason = Outcome.UNDECIDED, "the interval allows both"
    else:
        outcome = Outcome.HOLDS if verdict == expected else Outcome.FAILS
        reason = f"distinguishably {verdict}"
    rule = f"holds where it is distinguishably {expected} (times: their ratio), fails where it is the opposite"
    return _Claim(Judgement(name, claim, rule, outcome, reason, measured), find_p_value(measured, none))


def _judge_thrashing(label: str, rate: Estimate, sessions: Sequence[str]) -> Judgement:
    if rate.value is None:
        outcome, reason = Outcome.OPEN, rate.reason or "not measured"
    elif sessions:
        outcome = Outcome.FAILS
        reason = f"{len(sessions)} sessions did: {', '.join(sessions[:5])}{', ...' if len(sessions) > 5 else ''}"
    else:
        outcome = Outcome.HOLDS
        reason = f"none of {rate.n} migrated sessions did; the cooldown gate refuses it: this checks the gate alone"
    claim = "no session migrates again within its cooldown"
    rule = "holds where none did; fails where a single one did"
    return Judgement(f"no thrashing: {label}", claim, rule, outcome, reason, rate)
