"""Two runs of the same experiment side by side: two days, two hosts, two versions of the engine.

An experiment lists the numbers of a run that can be compared (`Comparable`); pairing, intervals, refusals and tables
are the same for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from results.records.count import format_count
from results.records.errors import ResultsError
from results.records.estimate import Estimate
from results.records.run_folder import RunFacts
from results.report.conditions import Condition, list_conditions
from results.report.differences import PLAN, Difference, Origin, list_differences
from results.report.matching import match_rows
from results.report.table import NOT_MEASURED
from results.statistics.estimates import LEVEL, correct_by_holm
from results.statistics.independent import (
    DISJOINT_BY_CHANCE,
    are_disjoint,
    compare_ratio,
    find_p_of_equality,
    subtract_estimates,
)
from results.statistics.judgement import Judgement, Outcome, Verdict, judged, list_some, withheld
from results.statistics.trials import MIN_PAIRED

_OF_RUN = ("config in a run", f"runs made with `--trials {MIN_PAIRED}` give a verdict")
_OPPOSITE = (
    {Verdict.HIGHER, Verdict.LOWER},
    {Outcome.HOLDS, Outcome.FAILS},
)


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run."""

    table: str
    """Title of the table that shows it: `Latencies`, `Taxes`."""
    key: Mapping[str, str]
    """Column to text, such as load, config or policy, and metric. Numbers of one key in two runs are a pair."""
    estimate: Estimate
    """The number with its interval."""
    unit: str = ""
    """As shown."""
    scale: float = 1.0
    """From the estimate's unit to the shown one."""
    ratio: bool = True
    """Compared as second / first - 1; else as second - first."""
    verdict: Verdict | None = None
    """Against the run's baseline."""
    degrees: float | None = None
    """Degrees of freedom of the estimate's interval. None = not stated, as in exports of an older version."""
    id: str = ""
    """Identifies the number in every run and version. Empty = table and key do, as in exports of an older version."""


@dataclass(frozen=True, slots=True)
class Comparable:
    """What of a run is compared with another run."""

    facts: RunFacts
    """Which run this is."""
    measures: Sequence[Measure]
    """Its numbers."""
    judgements: Sequence[Judgement] = ()
    """Its claims and criteria."""
    stated: Mapping[str, str] = field(default_factory=dict)
    """What the run chose, by name, such as its reference rates: shown side by side."""
    must_agree: Mapping[str, str] = field(default_factory=dict)
    """Name to value, such as the trace: two runs with different values are refused."""
    origin: Origin = field(default_factory=Origin)
    """How the run was made; the registry fills it in."""
    identities: Mapping[str, str] = field(default_factory=dict)
    """By the name of a judgement, what identifies it in every run and version: the claim and its load. A name that is
    missing here identifies itself (`H1`, `3`), as all do in exports of an older version."""
    loads: Mapping[str, str] = field(default_factory=dict)
    """By the name of a judgement, the loads, grid or arms that it is judged over, such as `32 req/s, 512x32`. Missing =
    its name or identity says it, or an export of an older version does not state it."""


@dataclass(frozen=True, slots=True)
class Change:
    """One number in both runs; in the unit of its `Measure`."""

    table: str
    key: Mapping[str, str]
    """In the first run."""
    key_in_second: Mapping[str, str]
    first: Estimate
    second: Estimate
    ratio: bool
    change: Estimate
    """second / first - 1 (0.1 = 10 % more in the second), or second - first."""
    verdict: Verdict | None
    """Verdict on the change."""
    withheld: str
    """Why there is no verdict; empty where there is one."""
    first_verdict: Verdict | None
    second_verdict: Verdict | None
    disjoint: bool
    """The two intervals, each over launches, share no value."""
    unit: str
    scale: float
    p: float | None
    """Two-sided, of both runs measuring the same (`find_p_of_equality`); None where a number has no interval over
    launches. A ratio to an interval that reaches 0 has no verdict, and a p."""
    p_corrected: float | None = None
    """After Holm's correction over all changes that have a p."""
    stands: bool = False
    """The change is significant after that correction."""


@dataclass(frozen=True, slots=True)
class VerdictPair:
    """One verdict, hypothesis, claim or criterion in both runs."""

    name: str
    """In the first run."""
    first: str
    second: str
    opposite: bool
    name_in_second: str
    first_why: str
    """The reason of the first outcome, or the number with its interval."""
    second_why: str


@dataclass(frozen=True, slots=True)
class Incomparable:
    """A judgement that both runs have and that asks another question in each: no pair, and never opposite."""

    name: str
    """In the first run."""
    name_in_second: str
    first: str
    """The outcome in the first run."""
    second: str
    first_at: str = ""
    """What the first is judged over, where the runs state different loads, grids or arms."""
    second_at: str = ""
    first_rule: str = ""
    """The rule of the first, where the rules differ."""
    second_rule: str = ""


@dataclass(frozen=True, slots=True)
class OneSided:
    """Numbers of a table that one run alone has."""

    run: str
    """`first` or `second`."""
    table: str
    of: str
    """Their keys without the last part, which is the metric."""
    numbers: int


@dataclass(frozen=True, slots=True)
class Comparison:
    first: RunFacts
    second: RunFacts
    changes: tuple[Change, ...]
    family: int
    """How many changes have a p: those whose two numbers have an interval over launches. They are judged together."""
    verdicts: tuple[VerdictPair, ...]
    """Outcomes of the judgements that ask one question, and those verdicts of single numbers that are opposite."""
    incomparable: tuple[Incomparable, ...]
    """The judgements in both runs that do not."""
    stated: tuple[tuple[str, str, str], ...]
    """Name, first, second."""
    differences: tuple[Difference, ...]
    only_first: tuple[str, ...]
    """Numbers of the first run alone."""
    only_second: tuple[str, ...]
    judged_only_first: tuple[str, ...]
    """Judgements of the first run alone, each with its outcome."""
    judged_only_second: tuple[str, ...]
    one_sided: tuple[OneSided, ...]
    """`only_first` and `only_second`, counted."""
    conditions: tuple[Condition, ...]
    """What of the runs' origin differs, with what that means for the numbers."""

    @property
    def opposite(self) -> tuple[VerdictPair, ...]:
        return tuple(one for one in self.verdicts if one.opposite)

    @property
    def disjoint(self) -> tuple[Change, ...]:
        return tuple(one for one in self.changes if one.disjoint)

    @property
    def disjoint_by_chance(self) -> float:
        """How many pairs of intervals are disjoint between equal runs, on average."""
        return self.family * DISJOINT_BY_CHANCE

    @property
    def standing(self) -> tuple[Change, ...]:
        return tuple(one for one in self.changes if one.stands)

    @property
    def answer(self) -> str:
        if not self.family:
            return "No number has an interval over launches on both sides."
        count, verb = len(self.standing), "stands" if len(self.standing) == 1 else "stand"
        differences = format_count(self.family, "difference", "differences")
        return f"Over {differences} {count} {verb} after Holm's correction."


def require_same_experiment(first: RunFacts, second: RunFacts) -> None:
    """Raises ResultsError unless the two runs are known to be of one experiment."""
    for facts in (first, second):
        if not facts.experiment:
            raise ResultsError(
                f"run {facts.run} does not say which experiment it is: plan.json is missing or damaged",
                remedy="restore plan.json from a copy of the run",
            )
    if first.experiment != second.experiment:
        raise ResultsError(
            f"run {first.run} is of {first.experiment}, run {second.run} of {second.experiment}",
            remedy="compare two runs of one experiment; `tracon list` shows what each run is",
        )


def compare(first: Comparable, second: Comparable) -> Comparison:
    """Raises ResultsError where the runs share no number, or differ in what they must agree in."""
    for name, before in first.must_agree.items():
        after = second.must_agree.get(name, "")
        if before != after:
            raise ResultsError(
                f"runs {first.facts.run} and {second.facts.run} differ in {name}: {before or 'unknown'} and "
                f"{after or 'unknown'}; a difference of their numbers would say nothing",
                remedy=f"compare runs of one {name}",
            )
    measures = match_rows(first.measures, second.measures, (_identify, _identify), _name_measure)
    changes = _correct_changes([_compare_measure(*pair) for pair in measures.pairs])
    _require_common(first, second, changes)
    judgements = match_rows(
        first.judgements, second.judgements, (_identify_by(first), _identify_by(second)), lambda one: one.name
    )
    unlike = [_find_incomparable(*pair, (first.loads, second.loads)) for pair in judgements.pairs]
    differences = list_differences(first.origin, second.origin)
    return Comparison(
        first=first.facts,
        second=second.facts,
        changes=changes,
        family=sum(one.p is not None for one in changes),
        verdicts=(
            *(_pair_judgements(*pair) for pair, one in zip(judgements.pairs, unlike, strict=True) if one is None),
            *_find_opposite(measures.pairs, changes),
        ),
        incomparable=tuple(one for one in unlike if one is not None),
        stated=tuple(
            (name, first.stated.get(name, ""), second.stated.get(name, ""))
            for name in dict.fromkeys((*first.stated, *second.stated))
        ),
        differences=differences,
        only_first=tuple(map(_name_measure, measures.only_first)),
        only_second=tuple(map(_name_measure, measures.only_second)),
        judged_only_first=tuple(map(_name_outcome, judgements.only_first)),
        judged_only_second=tuple(map(_name_outcome, judgements.only_second)),
        one_sided=(*_count_one_sided("first", measures.only_first), *_count_one_sided("second", measures.only_second)),
        conditions=list_conditions(first.facts, second.facts, first.origin, second.origin, differences),
    )


def _require_common(first: Comparable, second: Comparable, changes: Sequence[Change]) -> None:
    if any(one.change.value is not None for one in changes):
        return
    reasons = tuple(dict.fromkeys(one.change.reason for one in changes if one.change.reason))
    settings = [one.what for one in list_differences(first.origin, second.origin) if one.where == PLAN]
    why = f" ({list_some(reasons, most=2)})" if reasons else ""
    why += f"; settings that differ: {list_some(settings)}" if settings else ""
    raise ResultsError(
        f"runs {first.facts.run} and {second.facts.run} have no cell in common: nothing was measured in both under "
        f"the same load and name{why}",
        remedy="compare runs of one profile and preset",
    )


def _identify(measure: Measure) -> str:
    return measure.id


def _name_measure(measure: Measure) -> str:
    return f"{measure.table}: {', '.join(measure.key.values())}"


def _identify_by(run: Comparable) -> Callable[[Judgement], str]:
    """A judgement without an identity, beside those of a run that has some, is identified by its name."""
    return lambda one: run.identities.get(one.name, one.name if run.identities else "")


def _name_outcome(judgement: Judgement) -> str:
    return f"{judgement.name}: {judgement.outcome}"


def _count_one_sided(run: str, measures: Sequence[Measure]) -> Iterator[OneSided]:
    counts = Counter((one.table, ", ".join(tuple(one.key.values())[:-1])) for one in measures)
    return (OneSided(run, table, of, numbers) for (table, of), numbers in counts.items())


def _compare_measure(first: Measure, second: Measure) -> Change:
    relate = compare_ratio if first.ratio else subtract_estimates
    change = relate(first.estimate, second.estimate)
    over_launches = min(first.estimate.launches, second.estimate.launches) >= MIN_PAIRED
    degrees = first.degrees, second.degrees
    return Change(
        table=first.table,
        key=first.key,
        key_in_second=second.key,
        first=first.estimate,
        second=second.estimate,
        ratio=first.ratio,
        change=change,
        verdict=judged(change),
        withheld=withheld(change, *_OF_RUN),
        first_verdict=first.verdict,
        second_verdict=second.verdict,
        disjoint=over_launches and are_disjoint(first.estimate, second.estimate),
        unit=first.unit,
        scale=first.scale,
        p=find_p_of_equality(first.estimate, second.estimate, degrees) if over_launches else None,
    )


def _correct_changes(changes: Sequence[Change]) -> tuple[Change, ...]:
    corrected = iter(correct_by_holm([one.p for one in changes if one.p is not None]))
    return tuple(one if one.p is None else _apply_correction(one, next(corrected)) for one in changes)


def _apply_correction(change: Change, corrected: float) -> Change:
    return replace(change, p_corrected=corrected, stands=corrected <= 1 - LEVEL)


def _find_incomparable(
    first: Judgement, second: Judgement, loads: tuple[Mapping[str, str], Mapping[str, str]]
) -> Incomparable | None:
    """None where both ask one question. What only one of them states of its loads is taken as the other's."""
    at = loads[0].get(first.name, ""), loads[1].get(second.name, "")
    if not all(at) or at[0] == at[1]:
        at = "", ""
    rules = ("", "") if first.rule == second.rule else (first.rule, second.rule)
    if not any((*at, *rules)):
        return None
    return Incomparable(first.name, second.name, str(first.outcome), str(second.outcome), *at, *rules)


def _pair_judgements(first: Judgement, second: Judgement) -> VerdictPair:
    opposite = {first.outcome, second.outcome} in _OPPOSITE
    outcomes = str(first.outcome), str(second.outcome)
    return VerdictPair(first.name, *outcomes, opposite, second.name, first.reason, second.reason)


def _find_opposite(measures: Sequence[tuple[Measure, Measure]], changes: Sequence[Change]) -> list[VerdictPair]:
    pairs = []
    for (first, second), one in zip(measures, changes, strict=True):
        if {one.first_verdict, one.second_verdict} in _OPPOSITE:
            numbers = format_estimate(one.first, one), format_estimate(one.second, one)
            verdicts = str(one.first_verdict), str(one.second_verdict)
            pairs.append(VerdictPair(_name_measure(first), *verdicts, True, _name_measure(second), *numbers))
    return pairs


def format_estimate(estimate: Estimate, change: Change) -> str:
    if change.unit == "%":
        return estimate.percent()
    text = estimate.text(4, change.scale)
    return f"{text} {change.unit}".strip() if estimate.value is not None else NOT_MEASURED


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as data, in the units of the experiment's own files; `scale` leads to the shown unit."""
    data: dict[str, Any] = msgspec.to_builtins(comparison)
    for side in ("first", "second"):
        data[side] = {name: data[side][name] for name in ("run", "experiment", "profile", "preset", "seed", "versions")}
    columns = ("name", "first", "second")
    del data["one_sided"]  # counts of `only_first` and `only_second`
    data["disjoint"] = len(comparison.disjoint)
    data["disjoint_by_chance"] = comparison.disjoint_by_chance
    data["standing"] = len(comparison.standing)
    data["answer"] = comparison.answer
    data["stated"] = [dict(zip(columns, row, strict=True)) for row in comparison.stated]
    return data
