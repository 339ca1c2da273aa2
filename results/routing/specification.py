"""The rows of the specification's own tables (specs/ear.md 5.2 to 5.5), and its claims about migration (5.3, 5.6).

Policies are known by their names and parameters, never by a label. A row that was not run stays, with no numbers. Each
claim is judged by an interval.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from results.routing.moves import Moves
from results.routing.pairs import Pair, difference_of, pair_of
from results.routing.recomputing import AgainstRecomputing
from results.statistics.estimates import Estimate
from results.statistics.judgement import Judgement, Outcome, Verdict, judged, leave_undecided
from results.statistics.trials import MIN_PAIRED

EAR = "ear"
FULL, AFFINITY_ONLY, MIGRATION_ONLY = "EAR", "EAR (affinity only)", "EAR (migration only)"
BASELINES: Mapping[str, str] = {
    "load-balance": "round_robin",
    "LMetric": "lmetric",
    "kvcache+load": "kv_linear",
    "sticky": "sticky",
    "static PD-disagg": "static_pd",
}
"""Rows of table 5.2 to the policies that they are."""
NO_TRIALS = f"no interval over {MIN_PAIRED} trials or more"
LOCALITY_WITHIN = 0.05
"""Affinity alone keeps the locality where its APC is at most so far below EAR's: the specification says `keeps`."""


@dataclass(frozen=True, slots=True)
class SpecifiedRow:
    """A row of a table of the specification."""

    name: str
    label: str
    """What was measured for it; empty = nothing was, or several settings of which none is the row's own."""
    others: tuple[str, ...] = ()
    """Further settings of the same policy in this run."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the grid of figure 9."""

    hot_tokens: float
    cooldown_s: float
    label: str


def ear_part(policy: str, parameters: Mapping[str, object]) -> str:
    """FULL, AFFINITY_ONLY or MIGRATION_ONLY; empty for anything else."""
    if policy != EAR:
        return ""
    affinity, migration = (parameters.get(name, True) is True for name in ("affinity", "migration"))
    return {(True, True): FULL, (True, False): AFFINITY_ONLY, (False, True): MIGRATION_ONLY}.get(
        (affinity, migration), ""
    )


def end_to_end_rows(
    policies: Mapping[str, str], parameters: Mapping[str, Mapping[str, object]], even: Collection[str] = ()
) -> tuple[SpecifiedRow, ...]:
    """Table 5.2; `policies` (label to policy) in the order of tables. `even`: labels with as many instances to prefill
    as to decode, which is the specification's static PD-disaggregation."""
    rows = []
    for name, policy in BASELINES.items():
        labels = [label for label, own in policies.items() if own == policy]
        specified = [label for label in labels if label in even]
        rows.append(_specified_row(name, labels, specified if len(specified) == 1 else []))
    return (*rows, ablation_rows(policies, parameters)[-1])


def ablation_rows(
    policies: Mapping[str, str], parameters: Mapping[str, Mapping[str, object]]
) -> tuple[SpecifiedRow, ...]:
    """Table 5.3. Of several full settings, the one with the thresholds of the ablated ones, else none."""
    parts: dict[str, list[str]] = {AFFINITY_ONLY: [], MIGRATION_ONLY: [], FULL: []}
    for label, policy in policies.items():
        parts.get(ear_part(policy, parameters.get(label, {})), []).append(label)
    ablated = [_thresholds_of(parameters[label]) for name in (MIGRATION_ONLY, AFFINITY_ONLY) for label in parts[name]]
    whole = [label for label in parts[FULL] if _thresholds_of(parameters[label]) in ablated[:1]]
    return (
        _specified_row(AFFINITY_ONLY, parts[AFFINITY_ONLY]),
        _specified_row(MIGRATION_ONLY, parts[MIGRATION_ONLY]),
        _specified_row(FULL, parts[FULL], whole),
    )


def _specified_row(name: str, labels: Sequence[str], specified: Sequence[str] = ()) -> SpecifiedRow:
    """`specified`: settings that are the specification's own. Without any, none of several settings is: no numbers."""
    if not specified and len(labels) != 1:
        return SpecifiedRow(name, "", tuple(labels))
    label = specified[0] if specified else labels[0]
    return SpecifiedRow(name, label, tuple(other for other in labels if other != label))


def _thresholds_of(parameters: Mapping[str, object]) -> tuple[object, object]:
    return parameters.get("hot_tokens"), parameters.get("cooldown_s")


def threshold_settings(
    policies: Mapping[str, str], parameters: Mapping[str, Mapping[str, object]]
) -> tuple[Setting, ...]:
    """The settings of the whole EAR that differ in T_hot and T_cool alone; empty where fewer than two were run."""
    groups: dict[tuple[tuple[str, str], ...], list[Setting]] = {}
    for label, policy in policies.items():
        own = parameters.get(label, {})
        hot, cool = _thresholds_of(own)
        if ear_part(policy, own) == FULL and isinstance(hot, int | float) and isinstance(cool, int | float):
            rest = tuple(sorted((k, repr(v)) for k, v in own.items() if k not in ("hot_tokens", "cooldown_s")))
            groups.setdefault(rest, []).append(Setting(float(hot), float(cool), label))
    most = max(groups.values(), key=len, default=[])
    return tuple(sorted(most, key=lambda one: (one.hot_tokens, one.cooldown_s))) if len(most) > 1 else ()


def judge_claims(rows: Sequence[SpecifiedRow], pairs: Sequence[Pair], moves: Moves) -> tuple[Judgement, ...]:
    """What 5.3 and 5.6 expect, each judged; `rows` of table 5.3."""
    labels = {row.name: row.label for row in rows}
    affinity, migration, full = (labels.get(name, "") for name in (AFFINITY_ONLY, MIGRATION_ONLY, FULL))
    ablation = [
        _judge_locality(difference_of(pairs, affinity, full, "apc")),
        _judge_direction(
            "ablation: affinity only interferes",
            "without migration the median instance's TTFT p90 is higher than EAR's",
            *_compare_parts(pairs, affinity, full, "worker_ttft_p90_median_s"),
            Verdict.HIGHER,
        ),
        _judge_direction(
            "ablation: migration only loses locality",
            "without affinity APC is lower than EAR's",
            *_compare_parts(pairs, migration, full, "apc"),
            Verdict.LOWER,
        ),
    ]
    thrash = [
        _judge_thrashing(row.label, row.values["thrash_rate"], row.thrashed)
        for row in moves.migrations
        if not row.why_none
    ]
    return (*(ablation if full else ()), *thrash, *(_judge_transfer(row) for row in moves.recomputing))


def _compare_parts(pairs: Sequence[Pair], first: str, second: str, name: str) -> tuple[Estimate, Verdict | None]:
    """What is judged of two labels, the ratio of times or else the difference, and its verdict."""
    row = pair_of(pairs, first, second, name) if first and second else None
    if row is None:
        return difference_of(pairs, first, second, name), None
    return row.ratio or row.difference, row.verdict


def _judge_transfer(row: AgainstRecomputing) -> Judgement:
    """By the arm that recomputes, where the run has it; else by the fit, where that carries a verdict."""
    claim = "migrated turns begin sooner than if the target had computed what came"
    measured, verdict = replace(row.difference_s, reason=row.withheld or row.difference_s.reason), row.verdict
    if row.arm is not None:
        claim = f"{claim}: against {row.arm.other}"
        measured, verdict = row.arm.ratio, row.arm.verdict
    return _judge_direction(f"transfer against recomputing: {row.label}", claim, measured, verdict, Verdict.LOWER)


def _judge_locality(difference: Estimate) -> Judgement:
    if difference.low is None or difference.high is None or judged(difference) is None:
        outcome, reason = leave_undecided(difference), difference.reason or NO_TRIALS
    elif difference.low >= -LOCALITY_WITHIN:
        outcome, reason = Outcome.HOLDS, f"at most {max(-difference.low, 0.0):.1%} below"
    elif difference.high < -LOCALITY_WITHIN:
        outcome, reason = Outcome.FAILS, f"at least {-difference.high:.1%} below"
    else:
        outcome, reason = Outcome.UNDECIDED, "the interval allows both"
    return Judgement(
        "ablation: affinity only keeps locality",
        "without migration APC is that of EAR",
        f"holds where the interval of the difference is above -{LOCALITY_WITHIN:.0%}, fails where it is below",
        outcome,
        reason,
        difference,
    )


def _judge_direction(
    name: str, claim: str, measured: Estimate, verdict: Verdict | None, expected: Verdict
) -> Judgement:
    if verdict is None:
        outcome, reason = leave_undecided(measured), measured.reason or NO_TRIALS
    elif verdict == Verdict.NOT_DISTINGUISHABLE:
        outcome, reason = Outcome.UNDECIDED, "the interval allows both"
    else:
        outcome = Outcome.HOLDS if verdict == expected else Outcome.FAILS
        reason = f"distinguishably {verdict}"
    rule = f"holds where it is distinguishably {expected} (times: their ratio), fails where it is the opposite"
    return Judgement(name, claim, rule, outcome, reason, measured)


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
