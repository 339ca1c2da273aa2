"""The claims of specs/ear (contributions C1 and C3, the failures of 3.1 to 3.3, the ablation of 5.3, migration of 5.6)
and of specs/routing_log (the order of unified, sticky, lmetric and load_only in APC and latency).

Each is judged by an interval over three launches or more, among policies under one load. A claim for which the run is
too small stays open and says what would show it. All claims of a run are then corrected together (Holm).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from results.records.estimate import Estimate, figure
from results.records.percent import format_percent
from results.routing.loads import LoadJudgement, judge_under_load, judge_whole_run, strip_load
from results.routing.metrics import metric_named
from results.routing.migrations import PolicyMigrations
from results.routing.moves import Moves
from results.routing.pairs import Pair, difference_of, pair_of
from results.routing.recomputing import AgainstRecomputing
from results.routing.scale import ENOUGH, Lack, Scale
from results.routing.specification import AFFINITY_ONLY, BASELINES, FULL, MIGRATION_ONLY
from results.statistics.estimates import proportion
from results.statistics.judgement import (
    Judgement,
    Outcome,
    Verdict,
    excluded_text,
    judged,
    leave_undecided,
    list_some,
    take_point,
)
from results.statistics.student import find_p_value
from results.statistics.trials import MIN_PAIRED

NO_TRIALS = f"no interval over {MIN_PAIRED} trials or more"
LOCALITY_WITHIN = 0.05
"""Affinity alone keeps the locality where its APC is at most this far below EAR's; the specification says `keeps`."""
TRANSFER = "transfer against recomputing"
"""Begins the name of a claim that every policy which moves KV has for itself."""
SHARES = "difference of shares"
"""`Judgement.quantity` where shares are subtracted."""
LITTLE = 0.15
"""unified gains little over LMetric where its TTFT p90 is at most this share lower: our limit, above the 13.9 % that
specs/routing_log states."""
MOST_NAMED = 4
"""Policies or sessions in a reason; of more it states the number."""
UNIFIED, LOAD_ONLY = "unified", "load_only"
"""Rows of no table of specs/ear: the policies themselves."""
LOAD_BALANCE, LMETRIC, STICKY, STATIC_PD = "load-balance", "LMetric", "sticky", "static PD-disagg"
DOMINATES = {
    "ttft_p90_s": Verdict.LOWER,
    "tpot_p90_s": Verdict.LOWER,
    "apc": Verdict.HIGHER,
    "worker_ttft_p90_max_s": Verdict.LOWER,
    "amplification": Verdict.LOWER,
}
"""The five dimensions of C3, and the better direction."""
OF_QUEUES = frozenset({"ttft_p90_s", "worker_ttft_p90_max_s", "amplification"})
"""Those that grow with the length of the replay where a policy has no steady state."""
SPECIFIED: Mapping[str, str] = {
    "C1: dispatch coupling": "8 times the trace's time under load-balance",
    "C3: EAR dominates": "of its prototype: TTFT p90 7.35 s (sticky 18.02 s), APC 79.4 % (sticky 77.2 %)",
    "3.1: load balance loses locality": "56.9 % and 77.2 %",
    "3.2: static pools meet the KV wall": "62 to 72 times",
    "3.2: static pools meet the KV wall, 6P+2D": "no number of its own; figure 4b has it beyond the wall too",
    "3.3: sticky slows every instance": "20.3 s and 10.3 s",
    "ablation: affinity only keeps locality": "77.2 % (sticky) and 79.4 %",
    "ablation: affinity only interferes": "twice the interference",
    "log: LMetric has soft affinity": "56.9 % and 54.1 % (specs/ear 3.1)",
    "log: unified keeps more than sticky": "79.4 % and 77.2 % (specs/ear 3.1)",
    "log: LMetric places like unified": "similar placements; 56.9 % and 79.4 % (specs/ear 3.1)",
    "log: unified before LMetric, TTFT p90": "8.034 s and 9.331 s, -13.9 %, of unified's predecessor",
    "log: unified gains little": "-13.9 %, of unified's predecessor",
    "log: unified before LMetric, E2E mean": "17.831 s and 18.204 s, -2.0 %, of unified's predecessor",
    "log: unified before LMetric, E2E p90": "37.073 s and 39.438 s, -6.0 %, of unified's predecessor",
    "log: LMetric before sticky": "9.331 s, and 18.02 s in specs/ear 5.2",
    "log: LMetric before load_only": "no number",
}
"""The numbers of specs/ear (1, 3.1 to 3.3, 5.2, 5.3) and specs/routing_log, by the claim's name.

The log's numbers of unified are of approach_a, which it replaced. It has none of unified itself: a gain of 2 % takes
three to five paired trials.
"""


@dataclass(frozen=True, slots=True)
class PairClaim:
    """A claim about one metric of two policies: which is above the other, or that one is not far below."""

    id: str
    """Stays the same when the name changes: `tracon compare` pairs claims of two runs by it."""
    name: str
    claim: str
    first: str
    second: str
    """Rows of Arms.labels."""
    metric: str
    expected: Verdict | None = None
    """Of the first against the second; None = the first is at most `within` below."""
    within: float = 0.0
    """As in `_judge_within`."""
    find_lack: Callable[[Scale, str, str], Lack] | None = None
    """By the run's scale and both labels; None = a time takes the instances alone, APC nothing."""


COUPLING = PairClaim(
    "dispatch-coupling", "C1: dispatch coupling",
    "under load-balance the replay takes a larger multiple of the trace's time than under EAR",
    LOAD_BALANCE, FULL, "amplification", Verdict.HIGHER, find_lack=Scale.lacks_loop,
)  # fmt: skip
LOCALITY = PairClaim(
    "locality", "3.1: load balance loses locality", "LMetric's APC is lower than sticky's",
    LMETRIC, STICKY, "apc", Verdict.LOWER,
)  # fmt: skip
INTERFERENCE = PairClaim(
    "interference", "3.3: sticky slows every instance",
    "the median instance's TTFT p90 is higher under sticky than under unified",
    STICKY, UNIFIED, "worker_ttft_p90_median_s", Verdict.HIGHER,
    find_lack=lambda scale, *labels: scale.lacks or scale.lacks_loop(*labels),
)  # fmt: skip
ABLATION = (
    PairClaim("affinity-only-locality", "ablation: affinity only keeps locality",
              "without migration APC is that of EAR",
              AFFINITY_ONLY, FULL, "apc", within=LOCALITY_WITHIN),
    PairClaim("affinity-only-interference", "ablation: affinity only interferes",
              "without migration the median instance's TTFT p90 is higher than EAR's",
              AFFINITY_ONLY, FULL, "worker_ttft_p90_median_s", Verdict.HIGHER, find_lack=INTERFERENCE.find_lack),
    PairClaim("migration-only-locality", "ablation: migration only loses locality",
              "without affinity APC is lower than EAR's",
              MIGRATION_ONLY, FULL, "apc", Verdict.LOWER),
)  # fmt: skip
ORDER = (
    PairClaim("soft-affinity", "log: LMetric has soft affinity",
              "LMetric's APC is higher than load_only's, as it counts uncached tokens",
              LMETRIC, LOAD_ONLY, "apc", Verdict.HIGHER),
    PairClaim("unified-sticky-apc", "log: unified keeps more than sticky", "unified's APC is higher than sticky's",
              UNIFIED, STICKY, "apc", Verdict.HIGHER),
    PairClaim("unified-lmetric-ttft-p90", "log: unified before LMetric, TTFT p90",
              "unified's TTFT p90 is lower than LMetric's",
              UNIFIED, LMETRIC, "ttft_p90_s", Verdict.LOWER),
    PairClaim("unified-lmetric-e2e-mean", "log: unified before LMetric, E2E mean",
              "unified's mean E2E is lower than LMetric's",
              UNIFIED, LMETRIC, "e2e_mean_s", Verdict.LOWER),
    PairClaim("unified-lmetric-e2e-p90", "log: unified before LMetric, E2E p90",
              "unified's E2E p90 is lower than LMetric's",
              UNIFIED, LMETRIC, "e2e_p90_s", Verdict.LOWER),
    PairClaim("lmetric-sticky-ttft-p90", "log: LMetric before sticky", "LMetric's TTFT p90 is lower than sticky's",
              LMETRIC, STICKY, "ttft_p90_s", Verdict.LOWER),
    PairClaim("lmetric-load-only-ttft-p90", "log: LMetric before load_only",
              "LMetric's TTFT p90 is lower than load_only's",
              LMETRIC, LOAD_ONLY, "ttft_p90_s", Verdict.LOWER),
    PairClaim("lmetric-like-unified-apc", "log: LMetric places like unified",
              f"LMetric's APC is at most {100 * LOCALITY_WITHIN:g} points below unified's",
              LMETRIC, UNIFIED, "apc", within=LOCALITY_WITHIN),
    PairClaim("unified-lmetric-gains-little", "log: unified gains little",
              f"unified's TTFT p90 is at most {format_percent(LITTLE)} lower than LMetric's",
              UNIFIED, LMETRIC, "ttft_p90_s", within=LITTLE,
              find_lack=lambda scale, *labels: scale.lacks_instances or scale.lacks_steady_state(*labels)),
)  # fmt: skip
"""Of specs/routing_log: the order of policies (sticky's APC above LMetric's, the step between, is the claim of 3.1),
then that LMetric finds by itself most of what unified's affinity gives.

Which of two is slower on this trace is the log's claim, and its trace has an end: the order needs no steady state.
"""
KEEP_SESSIONS = frozenset({STICKY, UNIFIED, FULL, AFFINITY_ONLY, MIGRATION_ONLY})
"""Rows of Arms.labels whose policies do nothing of their own where every session has one turn."""


@dataclass(frozen=True, slots=True)
class Arms:
    """The labels measured under one load, for the claims."""

    labels: Mapping[str, str]
    """Row of tables 5.2 and 5.3, UNIFIED or LOAD_ONLY, to the label measured for it; empty = none."""
    scale: Scale
    uneven: Mapping[str, str] = field(default_factory=dict)
    """Split of static pools that is not the specification's (`6P+2D`), to the label measured for it."""
    load: str = ""
    """`Load.text`."""

    @property
    def measured(self) -> tuple[str, ...]:
        """The labels, each once."""
        return tuple(dict.fromkeys(filter(None, (*self.labels.values(), *self.uneven.values()))))


def judge_claims(loads: Sequence[Arms], pairs: Sequence[Pair], moves: Moves) -> tuple[LoadJudgement, ...]:
    """Every claim whose arms were run, under each load by itself; not yet corrected together."""
    migrating = [row for row in moves.migrations if not row.why_none]
    thrashing = [_judge_thrashing(migrating)] if migrating else []
    paper = [
        judge_under_load(what, claim, arms.measured, arms.load)
        for arms in loads
        for what, claim in _judge_paper(arms, pairs)
    ]
    transfers = (
        LoadJudgement(f"{TRANSFER}: {strip_load(row.label)}", (row.label,), _judge_transfer(row, loads))
        for row in moves.recomputing
    )
    return (*paper, *transfers, *(judge_whole_run("no thrashing", one) for one in thrashing))


def _judge_paper(arms: Arms, pairs: Sequence[Pair]) -> Iterator[tuple[str, Judgement]]:
    """Each claim by its id."""
    labels, scale = {**arms.labels, **arms.uneven}, arms.scale

    def judge_run(*claims: PairClaim) -> Iterator[tuple[str, Judgement]]:
        run = (one for one in claims if labels.get(one.first) and labels.get(one.second))
        return ((one.id, _judge_pair(one, labels, pairs, scale)) for one in run)

    yield from judge_run(COUPLING)
    if labels.get(FULL) and _runs_enough(arms, BASELINES, 1):
        by_plan = bool(scale.lacks_instances or scale.lacks_sessions)
        yield "ear-dominates", gate_claim(_judge_dominance(labels, pairs, scale), scale.lacks, by_plan=by_plan)
    yield from judge_run(LOCALITY, *_list_pools(arms), INTERFERENCE)
    if labels.get(FULL) and _runs_enough(arms, (AFFINITY_ONLY, MIGRATION_ONLY), 0):
        yield from ((one.id, _judge_pair(one, labels, pairs, scale)) for one in ABLATION)
    yield from judge_run(*ORDER)


def _list_pools(arms: Arms) -> Iterator[PairClaim]:
    """The claim about static pools, for each split of them."""
    for row in (STATIC_PD, *arms.uneven):
        if row == STATIC_PD and arms.labels.get(row) in arms.uneven.values():
            continue  # the only static pools of the run, and of another split
        split = "" if row == STATIC_PD else f", {row}"
        yield PairClaim(
            f"kv-wall{split}",
            f"3.2: static pools meet the KV wall{split}",
            f"static PD-disaggregation's TTFT p50{split and f' ({row})'} is higher than load-balance's",
            row, LOAD_BALANCE, "ttft_p50_s", Verdict.HIGHER, find_lack=Scale.lacks_loop,
        )  # fmt: skip


def _judge_pair(one: PairClaim, labels: Mapping[str, str], pairs: Sequence[Pair], scale: Scale) -> Judgement:
    """Also where a policy was not run: then it is open."""
    first, second = labels.get(one.first, ""), labels.get(one.second, "")
    tested = _compare(pairs, first, second, one.metric)
    if one.expected is None:
        judgement = _judge_within(one.name, one.claim, tested, one.within)
    else:
        judgement = judge_direction(one.name, one.claim, tested, one.expected, share=one.metric == "apc")
    one_turn = scale.lacks_sessions if KEEP_SESSIONS.intersection((one.first, one.second)) else ENOUGH
    lacks = ENOUGH if one.metric == "apc" else scale.lacks_instances
    if one.find_lack is not None:
        lacks = one.find_lack(scale, first, second)
    return gate_claim(judgement, one_turn or lacks, by_plan=bool(scale.lacks_instances or one_turn))


def _runs_enough(arms: Arms, rows: Collection[str], least: int) -> bool:
    """Whether a claim over these rows is shown: under one load of several, only where all of them were run."""
    return sum(bool(arms.labels.get(name)) for name in rows) >= (len(rows) if arms.load else least)


def _compare(pairs: Sequence[Pair], first: str, second: str, name: str) -> tuple[Estimate, float]:
    """The number to test, and its value under no effect: the ratio of times and 1, or the difference and 0."""
    row = pair_of(pairs, first, second, name) if first and second else None
    if row is None:
        return difference_of(pairs, first, second, name), 0.0
    return (row.difference, 0.0) if row.ratio is None else (row.ratio, 1.0)


def gate_claim(claim: Judgement, lacks: Lack, *, by_plan: bool = False) -> Judgement:
    """A claim that the run is too small for is open, whatever its numbers say.

    It stays in the family that is corrected together, as one that decides at no level (p = 1): the size of the family
    must not depend on the data. `by_plan`: the run's instances or its trace rule it out, so that it was never in the
    family.
    """
    if not lacks:
        return claim
    p = None if by_plan or claim.p is None else 1.0
    return replace(claim, outcome=Outcome.OPEN, reason=lacks.reason, label=lacks.label, p=p, needs=lacks.needs)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """EAR against one baseline in one dimension of C3."""

    text: str
    measured: Estimate
    none: float
    """The value under no effect: as `_compare` returns it."""
    good: Verdict
    is_unsteady: bool
    """It depends on the length of the replay, and is not compared."""

    @property
    def is_better(self) -> bool | None:
        """None = not distinguishable."""
        verdict = judged(self.measured, self.none)
        return None if verdict in (None, Verdict.NOT_DISTINGUISHABLE) else verdict == self.good

    @property
    def p(self) -> float | None:
        return find_p_value(self.measured, self.none)

    @property
    def excluded(self) -> str:
        """The effects that its interval excludes; empty where it does not cover no effect."""
        return _name_excluded((self.measured, self.none), share=not self.none)

    def show(self) -> str:
        by = f"{self.measured.text(3)} times" if self.none else self.measured.points()
        return f"{self.text} {by}"


def _compare_with_baselines(labels: Mapping[str, str], pairs: Sequence[Pair], scale: Scale) -> Iterator[_Comparison]:
    full = labels[FULL]
    for name in BASELINES:
        if not labels.get(name):
            continue
        for metric, good in DOMINATES.items():
            is_unsteady = metric in OF_QUEUES and bool(scale.lacks_steady_state(full, labels[name]))
            text = f"{metric_named(metric).title} against {name}"
            yield _Comparison(text, *_compare(pairs, full, labels[name], metric), good, is_unsteady)


def _judge_dominance(labels: Mapping[str, str], pairs: Sequence[Pair], scale: Scale) -> Judgement:
    """C3 holds where every comparison does (its p is the largest), and fails where one is the opposite.

    A time that depends on the length of the replay is not compared.
    """
    full = labels[FULL]
    missing = [name for name in BASELINES if not labels.get(name)]
    every = tuple(_compare_with_baselines(labels, pairs, scale))
    known, unsteady = [one for one in every if not one.is_unsteady], [one for one in every if one.is_unsteady]
    better, worse, level = ([one for one in known if one.is_better is side] for side in (True, False, None))
    p_values = [p for one in known if (p := one.p) is not None]
    lack = scale.lacks_steady_state(full, *filter(None, map(labels.get, BASELINES)))
    reason = f"better in {len(better)}, worse in {len(worse)}, not distinguishable in {len(level)} comparisons"
    excluded = [f"{one.text}: {one.excluded}" for one in level if one.excluded]
    reason += f" ({list_some(excluded, most=2)})" if excluded else ""
    if unsteady:
        reason += f"; {len(unsteady)} not compared, as they depend on the length of the replay ({lack.reason})"
    outcome, tested, needs = Outcome.UNDECIDED, max(p_values, default=None), ""
    if missing:
        outcome, reason, tested = Outcome.OPEN, f"not in this run: {', '.join(missing)}; {reason}", None
        needs = f"{', '.join(missing)} in the same run"
    elif worse:
        least = min(p for one in worse if (p := one.p) is not None)
        outcome, tested = Outcome.FAILS, min(1.0, least * (len(p_values) + len(unsteady)))
    elif unsteady:
        outcome, tested, needs = Outcome.OPEN, None if tested is None else 1.0, lack.needs
    elif better and not level:
        outcome = Outcome.HOLDS
    if outcome != Outcome.OPEN:
        reason = "; ".join((*_show_deciding(better, worse, level), reason))
    points = [judged(take_point(one.measured), one.none) == one.good for one in known if one.measured.value is not None]
    name, count = "C3: EAR dominates", len(BASELINES) * len(DOMINATES)
    shown = f"better in {sum(points)} of {count} comparisons"
    return Judgement(
        name,
        "EAR is better than all five baselines in TTFT, TPOT, APC, the worst instance's TTFT p90 and wall clock",
        "holds where all 25 comparisons are distinguishably better, fails where one is distinguishably worse",
        outcome,
        reason,
        p=tested,
        point="" if missing or unsteady or not points else _state_point(name, sum(points) == count, shown),
        needs=needs,
    )


def _show_deciding(
    better: Sequence[_Comparison], worse: Sequence[_Comparison], level: Sequence[_Comparison]
) -> Iterator[str]:
    """The comparisons that decide C3, with their intervals."""
    if worse:
        yield f"worse: {list_some([one.show() for one in worse])}"
    elif level:
        first = next((one for one in level if one.p is not None), level[0])
        yield f"not distinguishable, among others: {first.show()}"
    elif better:
        yield f"the least clear: {max(better, key=lambda one: one.p or 0.0).show()}"


def _state_point(name: str, holds: bool, shown: str) -> str:
    """What the value alone says of a claim, beside what the specification states."""
    specified = f" (specified: {SPECIFIED[name]})" if name in SPECIFIED else ""
    return f"{Outcome.HOLDS if holds else Outcome.FAILS}: {shown}{specified}"


def _judge_transfer(row: AgainstRecomputing, loads: Sequence[Arms]) -> Judgement:
    """Judge by the arm that recomputes, where the run has it; else by the fit, where that carries a verdict."""
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
    name = f"{TRANSFER}: {row.label}"
    judgement = judge_direction(name, claim, (measured, none), Verdict.LOWER)
    if row.arm is None or not loads:
        return judgement
    # The fit is of single turns. Two arms differ by their queues too, and one that collapses makes the other look good.
    scale = next((arms.scale for arms in loads if row.label in arms.labels.values()), loads[0].scale)
    return gate_claim(judgement, scale.lacks_steady_state(row.label, row.arm.other))


def _judge_within(name: str, claim: str, tested: tuple[Estimate, float], within: float) -> Judgement:
    """That a number is not below no effect by more than `within` (of a ratio: this share); `tested`: as `_compare`."""
    measured, none = tested
    limit = none - within
    from_limit = measured.transform(lambda value: value / limit if none else value - limit)
    verdict = judged(from_limit, none)
    text = f"{measured.text(3)} times" if none else measured.points()
    point = ""
    if measured.value is not None:
        point = _state_point(name, measured.value >= limit, _show_value(tested, share=not none))
    if verdict is None or measured.low is None or measured.high is None:
        outcome, reason = leave_undecided(measured), measured.reason or NO_TRIALS
    elif verdict == Verdict.HIGHER:
        below = f"at most {format_percent(none - measured.low, 1)} below" if measured.low < none else "not below"
        outcome, reason = Outcome.HOLDS, f"{below}: {text}"
    elif verdict == Verdict.LOWER:
        outcome, reason = Outcome.FAILS, f"at least {format_percent(none - measured.high, 1)} below: {text}"
    else:
        outcome, reason = Outcome.UNDECIDED, _allow_both(tested, share=not none, text=text)
    of, above = ("ratio", figure(limit, 2)) if none else ("difference", f"-{format_percent(within)}")
    return Judgement(
        name,
        claim,
        f"holds where the interval of the {of} is above {above}, fails where it is below",
        outcome,
        reason,
        measured,
        quantity="ratio" if none else SHARES,
        p=find_p_value(from_limit, none),
        point=point,
    )


def judge_direction(
    name: str, claim: str, tested: tuple[Estimate, float], expected: Verdict, *, share: bool = False
) -> Judgement:
    """`tested`: as `_compare` returns it; `share`: it is a difference of shares."""
    measured, none = tested
    verdict = judged(measured, none)
    if verdict is None:
        outcome, reason = leave_undecided(measured), measured.reason or NO_TRIALS
    elif verdict == Verdict.NOT_DISTINGUISHABLE:
        outcome, reason = Outcome.UNDECIDED, _allow_both(tested, share)
    else:
        outcome = Outcome.HOLDS if verdict == expected else Outcome.FAILS
        reason = f"distinguishably {verdict}" + (f": {measured.points()}" if share else "")
    rule = f"holds where it is distinguishably {expected} (times: their ratio), fails where it is the opposite"
    quantity = "ratio" if none else SHARES if share else "difference in seconds" if measured.value is not None else ""
    p, point = find_p_value(measured, none), _describe_point(name, tested, expected, share)
    return Judgement(name, claim, rule, outcome, reason, measured, quantity=quantity, p=p, point=point)


def _allow_both(tested: tuple[Estimate, float], share: bool, text: str = "") -> str:
    """Why a claim is undecided: what its interval excludes, else `text`; `share`: as in `judge_direction`."""
    why = _name_excluded(tested, share) or text
    return f"the interval allows both: {why}" if why else "the trials agree to the last digit: an interval has no width"


def _name_excluded(tested: tuple[Estimate, float], share: bool) -> str:
    """Of a claim in either direction; empty where the interval does not cover no effect."""
    measured, none = tested
    return excluded_text(measured, none=none, unit="%" if none else "pp" if share else "ms", both_sides=True)


def _describe_point(name: str, tested: tuple[Estimate, float], expected: Verdict, share: bool) -> str:
    """As `judge_direction`, by the value alone; empty without one."""
    measured, none = tested
    if measured.value is None:
        return ""
    return _state_point(name, judged(take_point(measured), none) == expected, _show_value(tested, share))


def _show_value(tested: tuple[Estimate, float], share: bool) -> str:
    """Without its interval; `share`: as in `judge_direction`."""
    measured, none = tested
    if share or measured.value is None:
        return replace(measured, low=None, high=None).points()
    return f"{figure(measured.value, 3)} times" if none else f"{1e3 * measured.value:+.1f} ms"


def _judge_thrashing(migrating: Sequence[PolicyMigrations]) -> Judgement:
    """One claim about all policies with migrations: it names those that do not agree, and those without a number."""
    rates = {row.label: row.values["thrash_rate"] for row in migrating}
    measured = _pool_shares(rates.values())
    thrashed = [f"under {row.label} {_list_sessions(row.thrashed)}" for row in migrating if row.thrashed]
    calm = [row.label for row in migrating if not row.thrashed and rates[row.label].value is not None]
    if thrashed:
        others = f"; under {_list_policies(calm)} none did" if calm else ""
        outcome, reason = Outcome.FAILS, f"of {measured.n} migrated sessions some did: {'; '.join(thrashed)}{others}"
    elif calm:
        outcome = Outcome.HOLDS
        reason = (
            f"none of {measured.n} migrated sessions did, under {_list_policies(calm)}; the cooldown gate refuses it: "
            "this checks the gate alone"
        )
    else:
        outcome, reason = Outcome.OPEN, ""
    unknown_of = [f"{label} ({rate.reason or 'not measured'})" for label, rate in rates.items() if rate.value is None]
    not_counted = f"not counted: {list_some(unknown_of)}" if unknown_of else ""
    return Judgement(
        "no thrashing",
        "no session migrates again within its cooldown",
        "holds where none did, under any policy; fails where a single one did",
        outcome,
        "; ".join(filter(None, (reason, not_counted))),
        measured,
        numbers=rates,
        quantity="share of them that did",
    )


def _pool_shares(shares: Iterable[Estimate]) -> Estimate:
    """One share of the cases of all that are known, with its exact binomial interval."""
    known = [(one.value, one.n) for one in shares if one.value is not None]
    return proportion(sum(round(value * n) for value, n in known), sum(n for _, n in known), "no policy has it")


def _list_policies(labels: Sequence[str]) -> str:
    """Their names, which may hold commas, or how many they are where that is shorter."""
    return " and ".join(labels) if len(labels) <= MOST_NAMED else f"{len(labels)} policies"


def _list_sessions(sessions: Sequence[str]) -> str:
    rest = f" and {len(sessions) - MOST_NAMED} more" if len(sessions) > MOST_NAMED else ""
    return f"{', '.join(sessions[:MOST_NAMED])}{rest}"
