"""The claims of specs/ear.md 5.3 and 5.6 about migration, each judged by an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from results.routing.moves import Moves
from results.routing.pairs import Pair, difference_of, pair_of
from results.routing.recomputing import AgainstRecomputing
from results.routing.specified_tables import AFFINITY_ONLY, FULL, MIGRATION_ONLY, PaperRow
from results.statistics.estimates import Estimate
from results.statistics.judgement import Judgement, Outcome, Verdict, judged, leave_undecided
from results.statistics.trials import MIN_PAIRED

NO_TRIALS = f"no interval over {MIN_PAIRED} trials or more"
LOCALITY_WITHIN = 0.05
"""Affinity alone keeps the locality where its APC is at most so far below EAR's: the specification says `keeps`."""


def judge_claims(rows: Sequence[PaperRow], pairs: Sequence[Pair], moves: Moves) -> tuple[Judgement, ...]:
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


def _faster(one: AgainstRecomputing) -> Judgement:
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


def _locality(found: Estimate) -> Judgement:
    if found.low is None or found.high is None or judged(found) is None:
        outcome, reason = leave_undecided(found), found.reason or NO_TRIALS
    elif found.low >= -LOCALITY_WITHIN:
        outcome, reason = Outcome.HOLDS, f"at most {max(-found.low, 0.0):.1%} below"
    elif found.high < -LOCALITY_WITHIN:
        outcome, reason = Outcome.FAILS, f"at least {-found.high:.1%} below"
    else:
        outcome, reason = Outcome.UNDECIDED, "the interval allows both"
    return Judgement(
        "ablation: affinity only keeps locality",
        "without migration APC is that of EAR",
        f"holds where the interval of the difference is above -{LOCALITY_WITHIN:.0%}, fails where it is below",
        outcome,
        reason,
        found,
    )


def _directed(name: str, claim: str, found: Estimate, verdict: Verdict | None, expected: Verdict) -> Judgement:
    if verdict is None:
        outcome, reason = leave_undecided(found), found.reason or NO_TRIALS
    elif verdict == Verdict.NOT_DISTINGUISHABLE:
        outcome, reason = Outcome.UNDECIDED, "the interval allows both"
    else:
        outcome = Outcome.HOLDS if verdict == expected else Outcome.FAILS
        reason = f"distinguishably {verdict}"
    rule = f"holds where it is distinguishably {expected} (times: their ratio), fails where it is the opposite"
    return Judgement(name, claim, rule, outcome, reason, found)


def _thrash(label: str, found: Estimate, sessions: Sequence[str]) -> Judgement:
    if found.value is None:
        outcome, reason = Outcome.OPEN, found.reason or "not measured"
    elif sessions:
        outcome = Outcome.FAILS
        reason = f"{len(sessions)} sessions did: {', '.join(sessions[:5])}{', ...' if len(sessions) > 5 else ''}"
    else:
        outcome = Outcome.HOLDS
        reason = f"none of {found.n} migrated sessions did; the cooldown gate refuses it: this checks the gate alone"
    claim = "no session migrates again within its cooldown"
    rule = "holds where none did; fails where a single one did"
    return Judgement(f"no thrashing: {label}", claim, rule, outcome, reason, found)
