"""Rules applied to numbers: the type of their outcome, and the gate of three launches in front of them.

Two launches of one config differ too. The spread within a launch does not hold that difference, so no rule that
compares configs, policies or runs may rest on it. Rules over numbers that are not sampled (completeness, residuals,
byte counts) need no gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from results.records.estimate import Estimate
from results.statistics.estimates import LEVEL, correct_by_holm
from results.statistics.p_values import format_p, state_p
from results.statistics.trials import MIN_PAIRED

TRIALS_REMEDY = f"`--trials {MIN_PAIRED}` gives a verdict"
SEVERAL = Estimate(None, reason="several numbers decide: see the reason")
"""`Judgement.measured` of a rule over more than one number; its reason begins with those that decided."""
COUNTED = Estimate(None, reason="counted, not sampled")
"""`Judgement.measured` of a rule over counts."""
MOST_DEGRADED = 0.25
"""Largest share of degraded launches of a config or policy; above it the others decide nothing."""
OTHER_LENGTHS = "completions had other lengths than asked for"
"""Ends the reason of a cell that is degraded because the engine changed lengths, not because the client fell behind."""
LENGTHS_REMEDY = "run again on an engine that keeps the lengths asked for (prompts of token ids, `ignore_eos`)"


class Verdict(StrEnum):
    """On which side of no effect the interval is."""

    HIGHER = "higher"
    LOWER = "lower"
    NOT_DISTINGUISHABLE = "not distinguishable"
    """The interval covers no effect."""


class Outcome(StrEnum):
    """Outcome of a rule applied to numbers: a hypothesis, a claim, a criterion, an objective or a decision point."""

    HOLDS = "holds"
    """The whole interval, or every count, agrees with the claim."""
    FAILS = "fails"
    """The whole interval, or a count, contradicts it."""
    UNDECIDED = "undecided"
    """The numbers allow both, or too few launches gave them."""
    OPEN = "open"
    """There is no number to judge: not measured, or not defined (a share of a tax that is not above zero)."""

    @property
    def is_decided(self) -> bool:
        """HOLDS or FAILS."""
        return self in (Outcome.HOLDS, Outcome.FAILS)


@dataclass(frozen=True, slots=True)
class Judgement:
    name: str
    """Short and unique among its kind: `H1`, `3`, `D5`, `no thrashing`."""
    claim: str
    """What holds or fails."""
    rule: str
    """How the numbers decide."""
    outcome: Outcome
    """`holds`, `fails`, `undecided` or `open`."""
    reason: str
    """Why this outcome, in numbers."""
    measured: Estimate = SEVERAL
    """The number that decided. Fractions: 0.45 = 45 %, 0.07 = 7 pp."""
    numbers: Mapping[str, Estimate] = field(default_factory=dict)
    """What `measured` was computed from, or what else was considered."""
    quantity: str = ""
    """What `measured` is; empty where the rule says it."""
    label: str = ""
    """What kind of outcome: the cost that dominates, the direction of a gap; may be empty."""
    prior: str = ""
    """What the specification expects or chooses by default, and how the run compares; may be empty."""
    p: float | None = None
    """Two-sided: one less the level up to which the interval still decides. None where there is no interval."""
    p_corrected: float | None = None
    """After Holm's correction over all rules that were judged with it; None where it was judged by itself."""
    alone: Outcome | None = None
    """The outcome before the correction, where `p_corrected` decided `outcome`."""
    point: str = ""
    """What the rule says of the values alone, with the specification's own number where it states one; may be empty."""
    needs: str = ""
    """What a run must have to judge a rule that this one leaves open; empty where `reason` says it."""


def list_some(texts: Sequence[str], most: int = 4) -> str:
    """The first `most` texts, and how many more there are."""
    more = f"; and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


def leave_undecided(measured: Estimate) -> Outcome:
    """OPEN where there is no number, UNDECIDED where there is one that does not decide."""
    return Outcome.OPEN if measured.value is None else Outcome.UNDECIDED


def explain_few_launches(launches: int, of: str = "config", remedy: str = TRIALS_REMEDY) -> str:
    """Why this many launches per `of` (config, policy, engine) give no verdict, and what would; empty where they do."""
    if launches >= MIN_PAIRED:
        return ""
    count = "one launch" if launches == 1 else f"{launches} launches"
    return f"{count} per {of}: two launches of one {of} differ too; {remedy}"


def is_too_degraded(degraded: int, launches: int) -> bool:
    """Whether several launches are degraded, and more than MOST_DEGRADED: what they measure may take the client's CPU.

    A single degraded launch may be the host's fault.
    """
    return degraded > 1 and degraded > MOST_DEGRADED * launches


def name_degraded_remedy(reasons: Iterable[str], client_remedy: str) -> str:
    """What gives cells that are not degraded, by the reasons of those that are. `client_remedy`: for a slow client."""
    causes = [cause for reason in reasons for cause in reason.split("; ")]
    are_lengths = {cause.endswith(OTHER_LENGTHS) for cause in causes}
    remedies = (client_remedy if False in are_lengths else "", LENGTHS_REMEDY if True in are_lengths else "")
    return "; ".join(filter(None, remedies))


def name_remedy(launched: int) -> str:
    """What gives a verdict where a config has too few launches, in a run that plans this many of each."""
    if launched < MIN_PAIRED:
        return TRIALS_REMEDY
    failed = "`tracon retry`, then `tracon resume`, measures those that failed, a new run those that are degraded"
    return f"the run plans {launched}: {failed}"


def withheld(estimate: Estimate, of: str = "config", remedy: str = TRIALS_REMEDY) -> str:
    """Why no verdict may rest on this estimate; empty where one may."""
    if estimate.value is None:
        return estimate.reason or "not measured"
    few = explain_few_launches(estimate.launches, of, remedy)
    if few:
        return f"{few} ({estimate.reason})" if estimate.reason else few
    if estimate.low is None or estimate.high is None:
        return estimate.reason or "there is no interval"
    return ""


def withhold_bounds(estimate: Estimate, remedy: str = TRIALS_REMEDY) -> Estimate:
    """The estimate as a rule may use it: without bounds, and with the reason, where no verdict may rest on it."""
    why = withheld(estimate, remedy=remedy)
    return replace(estimate, low=None, high=None, reason=why) if why else estimate


def take_point(estimate: Estimate) -> Estimate:
    """The value as if it were certain, for a rule that knows neither intervals nor launches."""
    if estimate.value is None:
        return estimate
    launches = max(estimate.launches, MIN_PAIRED)
    return replace(estimate, low=estimate.value, high=estimate.value, launches=launches, reason=None)


def correct_together(judgements: Sequence[Judgement], *, undefined: int = 0) -> tuple[Judgement, ...]:
    """Each judgement after Holm's correction over all that have a p: one that holds or fails must survive it.

    `undefined`: how many of those without a p belong to the family although the data leave their number undefined.
    They count with p = 1; otherwise the family, and with it the correction, would depend on the data.
    """
    known = [one.p for one in judgements if one.p is not None]
    count = len(known) + undefined
    corrected = iter(correct_by_holm([*known, *[1.0] * undefined]))
    return tuple(one if one.p is None else _require_survival(one, one.p, next(corrected), count) for one in judgements)


def _require_survival(judgement: Judgement, p: float, corrected: float, count: int) -> Judgement:
    if not judgement.outcome.is_decided:
        return replace(judgement, p_corrected=corrected)
    numbers = f"{state_p(p)}, {format_p(corrected)} after Holm over {count}"
    judged_alone = replace(judgement, p_corrected=corrected, alone=judgement.outcome)
    if corrected <= 1 - LEVEL:
        return replace(judged_alone, reason=f"{judgement.reason} ({numbers})")
    alone = "by itself it" if p <= 1 - LEVEL else "one of the comparisons that may decide it"
    reason = f"{alone} {judgement.outcome}, corrected it does not ({numbers}): {judgement.reason}"
    return replace(judged_alone, outcome=Outcome.UNDECIDED, label="", reason=reason)


def find_excluded_above(estimate: Estimate, none: float = 0.0) -> float | None:
    """The upper bound of an interval over launches that covers no effect: larger effects are excluded; else None.

    None too where the interval has no width: launches that agree to the last digit exclude nothing.
    """
    if withheld(estimate) or estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return None
    return estimate.high if estimate.low <= none <= estimate.high else None


def describe_excluded(
    estimate: Estimate, *, none: float = 0.0, of: str = "effects", unit: str = "%", both_sides: bool = False
) -> str:
    """Which effects an interval that covers no effect excludes: `effects above 12.0 % are excluded`; else empty.

    `none`: as in `judged`; a ratio's effect is a share of 1. `of`: what is estimated, in the plural. `unit`: begins
    with `%`, `pp` of a difference of fractions, or `ms` of one in seconds. `both_sides`: `effects below -5.0 % and
    above +12.0 % are excluded`, where an effect may have either sign.
    """
    high = find_excluded_above(estimate, none)
    if high is None or estimate.low is None:
        return ""
    scale = 1e3 if unit.startswith("ms") else 100.0
    low, high = (scale * (bound - none) for bound in (estimate.low, high))
    limits = f"below {low:+.1f} {unit} and above {high:+.1f} {unit}" if both_sides else f"above {high:.1f} {unit}"
    return f"{of} {limits} are excluded"


def judged(estimate: Estimate, none: float = 0.0) -> Verdict | None:
    """On which side of `none` the interval is: 0 for a difference, 1 for a ratio.

    None where `withheld` gives a reason.
    """
    if withheld(estimate) or estimate.low is None or estimate.high is None:
        return None
    if estimate.low > none:
        return Verdict.HIGHER
    return Verdict.LOWER if estimate.high < none else Verdict.NOT_DISTINGUISHABLE
