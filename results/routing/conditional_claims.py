"""Whether the claims and decision points depend on a coefficient of the engine model: each judged again under every
variation of it.

Those of one variation are corrected together (Holm), as those of the run are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from results.records.code import digest_code
from results.records.errors import DAMAGED_JSON
from results.records.estimate import figure, unknown
from results.records.layout import RunLayout, digest_cells, write_indented_json
from results.report.table import Column, Table, make_table
from results.routing.loads import Load, LoadJudgement
from results.routing.read import read_planned_cells
from results.statistics.estimates import LEVEL
from results.statistics.judgement import Judgement, Outcome
from results.statistics.p_values import format_p

OPPOSITE = {Outcome.HOLDS: Outcome.FAILS, Outcome.FAILS: Outcome.HOLDS}
WORDS = {
    Outcome.HOLDS: "reproduced",
    Outcome.FAILS: "contradicted",
    Outcome.UNDECIDED: "undecided",
    Outcome.OPEN: "not testable",
}


NOT_JUDGED = "nothing to judge under this variation"
JUDGED_BY = ("measures", "records", "routing", "statistics")
"""Packages of `results` whose code makes a judgement of a cell."""


@dataclass(frozen=True, slots=True)
class ConditionalClaim:
    """One claim or decision point, at the model's own values and under each variation."""

    claim: Judgement
    varied: Mapping[str, Judgement]
    """By variation."""

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        return {name: one.outcome for name, one in self.varied.items()}

    @property
    def flips(self) -> tuple[str, ...]:
        """Variations under which the opposite holds."""
        opposite = OPPOSITE.get(self.claim.outcome)
        return tuple(name for name, outcome in self.outcomes.items() if outcome is opposite)

    @property
    def undecided(self) -> tuple[str, ...]:
        """Variations that do not decide what is decided at the model's own values."""
        if self.claim.outcome not in OPPOSITE:
            return ()
        return tuple(name for name, outcome in self.outcomes.items() if outcome not in OPPOSITE)

    @property
    def decided(self) -> tuple[str, ...]:
        """Variations that decide what is not decided at the model's own values, with the outcome."""
        if self.claim.outcome in OPPOSITE:
            return ()
        return tuple(f"{name}: {outcome}" for name, outcome in self.outcomes.items() if outcome in OPPOSITE)

    @property
    def conditional_on(self) -> tuple[str, ...]:
        """What is varied where the opposite holds; of an undecided claim, where it holds at one value and fails at
        another."""
        decided = {name: outcome for name, outcome in self.outcomes.items() if outcome.is_decided}
        turned = self.flips if self.claim.outcome.is_decided else decided if len({*decided.values()}) > 1 else ()
        return tuple(dict.fromkeys(name.partition("*")[0] for name in turned))

    @property
    def verdict(self) -> str:
        """`reproduced`, `reproduced, conditional on base_s`, or `reproduced, undecided under every variation`."""
        word = WORDS[self.claim.outcome]
        if self.conditional_on:
            return f"{word}, conditional on {', '.join(self.conditional_on)}"
        alone = self.varied and len(self.undecided) == len(self.varied)
        return f"{word}, undecided under every variation" if alone else word


class StoredClaims(msgspec.Struct):
    """The claims of one variation, kept beside its cells: an analysis of them takes as long as that of a run."""

    digest: str
    """Over the cells' records, the claims' rules and the code that judges."""
    claims: tuple[LoadJudgement, ...]
    """Claims and decision points."""


def judge_variations(
    root: Path,
    claims: Sequence[LoadJudgement],
    loads: Sequence[Load],
    judge: Callable[[str], tuple[LoadJudgement, ...]],
) -> tuple[ConditionalClaim, ...]:
    """Each of the run's claims and decision points under every variation; `judge` takes a while: those of one.

    `loads`: of the cells that vary nothing. A variation of the arrival rate changes what a load is called, not its
    labels.
    """
    variations = sorted({cell.variation for cell in read_planned_cells(root)} - {""})
    digest = _digest(root, claims) if variations else ""
    varied: dict[str, tuple[LoadJudgement, ...]] = {}
    for variation in variations:
        path = RunLayout(root).variation(variation)
        varied[variation] = _read_or_judge(path, digest, lambda: judge(variation))  # noqa: B023
    if not varied:
        return ()
    return tuple(
        ConditionalClaim(one.judgement, {name: find_same(one, own, loads) for name, own in varied.items()})
        for one in claims
    )


def find_same(claim: LoadJudgement, varied: Sequence[LoadJudgement], loads: Sequence[Load]) -> Judgement:
    """The same claim under the same load, of one variation; open where its cells do not show it."""
    judged = [one for one in varied if one.what == claim.what]
    matches = [one for one in judged if _touch_loads(one, loads) == _touch_loads(claim, loads)]
    if len(matches) == 1:
        return matches[0].judgement
    reason = "its load has no judgement of its own under this variation" if judged else NOT_JUDGED
    own = claim.judgement
    return Judgement(own.name, own.claim, own.rule, Outcome.OPEN, reason, unknown(reason))


def _touch_loads(one: LoadJudgement, loads: Sequence[Load]) -> list[Load]:
    """Those under which a label of the judgement is measured where nothing is varied; none for the whole run's."""
    return [load for load in loads if any(label in load.labels for label in one.labels)]


def _read_or_judge(
    path: Path, digest: str, judge: Callable[[], tuple[LoadJudgement, ...]]
) -> tuple[LoadJudgement, ...]:
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=StoredClaims)
    except (OSError, *DAMAGED_JSON):
        stored = StoredClaims("", ())
    if stored.digest == digest:
        return stored.claims
    claims = judge()
    write_indented_json(path, StoredClaims(digest, claims))
    return claims


def _digest(root: Path, claims: Sequence[LoadJudgement]) -> str:
    """Over all cells' records, the claims' rules and the code that judges: a changed gate changes no rule's text."""
    digest = hashlib.sha256(msgspec.json.encode([(one.judgement.name, one.judgement.rule) for one in claims]))
    digest.update(digest_cells(root).encode())
    digest.update(digest_code(Path(__file__).parents[1], JUDGED_BY).encode())
    return digest.hexdigest()


def _describe_measured(one: ConditionalClaim) -> str | None:
    """The number that decided, with its interval; None where several did, or none is known."""
    measured = one.claim.measured
    if measured.value is None:
        return None
    return f"{measured.text(3)}{f' ({one.claim.quantity})' if one.claim.quantity else ''}"


def _describe_range(one: ConditionalClaim) -> str | None:
    """The lowest and the highest value under a variation."""
    known = {name: own.measured.value for name, own in one.varied.items() if own.measured.value is not None}
    if not known:
        return None
    ends = (min(known, key=known.__getitem__), max(known, key=known.__getitem__))
    return " to ".join(f"{figure(known[name], 3)} ({name})" for name in ends)


def _describe_p(one: ConditionalClaim) -> str | None:
    """After Holm: at the model's own values, and the largest under a variation."""
    own = one.claim.p_corrected
    varied = {name: each.p_corrected for name, each in one.varied.items() if each.p_corrected is not None}
    if own is None or not varied:
        return None if own is None else format_p(own)
    last = max(varied, key=varied.__getitem__)
    return f"{format_p(own)}, largest {format_p(varied[last])} ({last})"


_COLUMNS: tuple[Column[ConditionalClaim], ...] = (
    Column("claim", lambda one: one.claim.name),
    Column("at the model's values", lambda one: str(one.claim.outcome)),
    Column("measured", _describe_measured),
    Column("over the variations", _describe_range),
    Column("p after Holm", _describe_p),
    Column("verdict", lambda one: one.verdict),
    Column("opposite at", lambda one: ", ".join(one.flips) or None),
    Column("not decided at", lambda one: ", ".join(one.undecided) or None),
    Column("decided only at", lambda one: ", ".join(one.decided) or None),
)


def make_conditional_table(claims: Sequence[ConditionalClaim]) -> Table:
    note = (
        "`base_s*1.3`: every cell simulated again with this coefficient 30 % higher, all others as the model has them; "
        "`engine=NAME`: with that engine model. Conditional: under a variation the opposite holds, or an undecided "
        "claim holds under one and fails under another. The claims of one variation are corrected together. Measured: "
        "the number that decides, with its interval; none where several do. Over the variations: its lowest and "
        "highest value, whose intervals are in verdicts.json. A claim is undecided where p after Holm is above "
        f"{1 - LEVEL:.2g}."
    )
    return make_table("Claims over the coefficients of the engine model", _COLUMNS, claims, note)
