"""The specification's own tables and claims (specs/ear.md 5.2 to 5.6): its rows, found among what a run measured.

Policies are known by their names and parameters, never by a label. A row that was not run stays, with no numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from results.routing.measure import judged
from results.routing.moves import Moves
from results.routing.pairs import Pair, difference_of, pair_of
from results.routing.recomputing import AgainstRecomputing
from results.statistics import Estimate
from results.tax import Verdict
from results.trials import MIN_PAIRED
from results.verdicts import Outcome

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
class PaperRow:
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


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of the specification about migration, judged by an interval."""

    name: str
    claim: str
    rule: str
    outcome: Outcome
    measured: Estimate
    reason: str


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
) -> tuple[PaperRow, ...]:
    """Table 5.2; `policies` (label to policy) in the order of tables. `even`: labels with as many instances to prefill
    as to decode, which is the specification's static PD-disaggregation."""
    found = []
    for name, policy in BASELINES.items():
        labels = [label for label, own in policies.items() if own == policy]
        own = [label for label in labels if label in even]
        alone = len(labels) > 1 and len(own) == 1
        found.append(
            PaperRow(name, own[0], tuple(one for one in labels if one != own[0])) if alone else _row(name, labels)
        )
    return (*found, ablation_rows(policies, parameters)[-1])


def ablation_rows(policies: Mapping[str, str], parameters: Mapping[str, Mapping[str, object]]) -> tuple[PaperRow, ...]:
    """Table 5.3. Of several full settings, the one with the thresholds of the ablated ones, else none."""
    parts: dict[str, list[str]] = {AFFINITY_ONLY: [], MIGRATION_ONLY: [], FULL: []}
    for label, policy in policies.items():
        parts.get(ear_part(policy, parameters.get(label, {})), []).append(label)
    ablated = [_thresholds(parameters[label]) for name in (MIGRATION_ONLY, AFFINITY_ONLY) for label in parts[name]]
    whole = [label for label in parts[FULL] if _thresholds(parameters[label]) in ablated[:1]]
    if whole:
        parts[FULL].remove(whole[0])
        full = PaperRow(FULL, whole[0], tuple(parts[FULL]))
    else:
        full = _row(FULL, parts[FULL])
    return (*(_row(name, parts[name]) for name in (AFFINITY_ONLY, MIGRATION_ONLY)), full)


def _row(name: str, labels: Sequence[str]) -> PaperRow:
    """Of several settings of one policy none is the specification's: no numbers then."""
    return PaperRow(name, labels[0]) if len(labels) == 1 else PaperRow(name, "", tuple(labels))


def _thresholds(parameters: Mapping[str, object]) -> tuple[object, object]:
    return parameters.get("hot_tokens"), parameters.get("cooldown_s")


def sensitivity(policies: Mapping[str, str], parameters: Mapping[str, Mapping[str, object]]) -> tuple[Setting, ...]:
    """The settings of the whole EAR that differ in T_hot and T_cool alone; empty where fewer than two were run."""
    groups: dict[tuple[tuple[str, str], ...], list[Setting]] = {}
    for label, policy in policies.items():
        own = parameters.get(label, {})
        hot, cool = _thresholds(own)
        if ear_part(policy, own) == FULL and isinstance(hot, int | float) and isinstance(cool, int | float):
            rest = tuple(sorted((k, repr(v)) for k, v in own.items() if k not in ("hot_tokens", "cooldown_s")))
            groups.setdefault(rest, []).append(Setting(float(hot), float(cool), label))
    most = max(groups.values(), key=len, default=[])
    return tuple(sorted(most, key=lambda one: (one.hot_tokens, one.cooldown_s))) if len(most) > 1 else ()


def claims(rows: Sequence[PaperRow], pairs: Sequence[Pair], moves: Moves) -> tuple[Claim, ...]:
    """What 5.3 and 5.6 expect, each judged; `rows` of table 5.3."""
    labels = {row.name: row.label for row in rows}
    affinity, migration, full = (labels.get(name, "") for name in (AFFINITY_ONLY, MIGRATION_ONLY, FULL))
    ablation = [
        _locality(difference_of(pairs, affinity, full, "apc")),
        _directed(
            "ablation: affinity only interferes",
            "without migration the median instance's TTFT p90 is higher than EAR's",
            *_compared(pairs, affinity, full, "worker_ttft_p90_median_s"),
            Verdict.HIGHER,
        ),
        _directed(
            "ablation: migration only loses locality",
            "without affinity APC is lower than EAR's",
            *_compared(pairs, migration, full, "apc"),
            Verdict.LOWER,
        ),
    ]
    thrash = [
        _thrash(one.label, one.values["thrash_rate"], one.thrashed) for one in moves.migrations if not one.why_none
    ]
    return (*(ablation if full else ()), *thrash, *(_faster(one) for one in moves.recomputing))


def _compared(pairs: Sequence[Pair], first: str, second: str, name: str) -> tuple[Estimate, Verdict | None]:
    """What is judged of two labels, the ratio of times or else the difference, and its verdict."""
    row = pair_of(pairs, first, second, name) if first and second else None
    if row is None:
        return difference_of(pairs, first, second, name), None
    return row.ratio or row.difference, row.verdict


def _faster(one: AgainstRecomputing) -> Claim:
    """By the arm that recomputes, where the run has it; else by the fit, where that carries a verdict."""
    claim = "migrated turns begin sooner than if the target had computed what came"
    if one.arm is not None:
        return _directed(
            f"transfer against recomputing: {one.label}",
            f"{claim}: against {one.arm.other}",
            one.arm.ratio,
            one.arm.verdict,
            Verdict.LOWER,
        )
    found = one.difference_s if not one.withheld else replace(one.difference_s, reason=one.withheld)
    return _directed(f"transfer against recomputing: {one.label}", claim, found, one.verdict, Verdict.LOWER)


def _locality(found: Estimate) -> Claim:
    if found.low is None or found.high is None or judged(found) is None:
        outcome, reason = Outcome.UNDECIDED, found.reason or NO_TRIALS
    elif found.low >= -LOCALITY_WITHIN:
        outcome, reason = Outcome.SUPPORTED, f"at most {max(-found.low, 0.0):.1%} below"
    elif found.high < -LOCALITY_WITHIN:
        outcome, reason = Outcome.REFUTED, f"at least {-found.high:.1%} below"
    else:
        outcome, reason = Outcome.UNDECIDED, "the interval allows both"
    return Claim(
        "ablation: affinity only keeps locality",
        "without migration APC is that of EAR",
        f"supported where the interval of the difference lies above -{LOCALITY_WITHIN:.0%}, refuted where below",
        outcome,
        found,
        reason,
    )


def _directed(name: str, claim: str, found: Estimate, verdict: Verdict | None, expected: Verdict) -> Claim:
    if verdict is None:
        outcome, reason = Outcome.UNDECIDED, found.reason or NO_TRIALS
    elif verdict == Verdict.NOT_DISTINGUISHABLE:
        outcome, reason = Outcome.UNDECIDED, "the interval allows both"
    else:
        outcome = Outcome.SUPPORTED if verdict == expected else Outcome.REFUTED
        reason = f"distinguishably {verdict}"
    rule = f"supported where it is distinguishably {expected} (times: their ratio), refuted where it is the opposite"
    return Claim(name, claim, rule, outcome, found, reason)


def _thrash(label: str, found: Estimate, sessions: Sequence[str]) -> Claim:
    if found.value is None:
        outcome, reason = Outcome.UNDECIDED, found.reason or "not measured"
    elif sessions:
        outcome = Outcome.REFUTED
        reason = f"{len(sessions)} sessions did: {', '.join(sessions[:5])}{', ...' if len(sessions) > 5 else ''}"
    else:
        outcome = Outcome.SUPPORTED
        reason = f"none of {found.n} migrated sessions did; the cooldown gate refuses it: this checks the gate alone"
    claim = "no session migrates again within its cooldown"
    return Claim(
        f"no thrashing: {label}", claim, "supported where none did; a single one refutes it", outcome, found, reason
    )
