"""The claims of specs/ear (contributions C1 and C3, the failures of 3.1 to 3.3, the ablation of 5.3, the service time
of 5.4, migration of 5.6) and of specs/routing_log (the order of unified, sticky, lmetric, load_only and the linear cost
in APC and latency).

Each is judged by an interval over three launches or more, among policies under one load. A claim for which the run is
too small stays open and says what would show it. All claims of a run are then corrected together (Holm).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from results.records.estimate import Estimate
from results.records.percent import format_percent
from results.routing.claim_rules import compare_policies, gate_claim, judge_direction, judge_within
from results.routing.dominance import DOMINANCES, judge_dominance
from results.routing.loads import LoadJudgement, judge_under_load, judge_whole_run, strip_load
from results.routing.migrations import PolicyMigrations
from results.routing.moves import Moves
from results.routing.pairs import Pair
from results.routing.recomputing import AgainstRecomputing
from results.routing.scale import ENOUGH, Lack, Scale
from results.routing.specification import AFFINITY_ONLY, BASELINES, FULL, MIGRATION_ONLY
from results.statistics.estimates import proportion
from results.statistics.judgement import Judgement, Outcome, Verdict, list_some

LOCALITY_WITHIN = 0.05
"""Affinity alone keeps the locality where its APC is at most this far below EAR's; the specification says `keeps`."""
TRANSFER = "transfer against recomputing"
"""Begins the name of a claim that every policy which moves KV has for itself."""
THRASHING = "no thrashing"
"""One claim about all policies that migrate, under all loads."""
LITTLE = 0.15
"""unified gains little over LMetric where its TTFT p90 is at most this share lower: our limit, above the 13.9 % that
specs/routing_log states."""
MOST_NAMED = 4
"""Policies or sessions in a reason; of more it states the number."""
UNIFIED, LOAD_ONLY = "unified", "load_only"
"""Rows of no table of specs/ear: the policies themselves."""
LOAD_BALANCE, LMETRIC, LINEAR = "load-balance", "LMetric", "kvcache+load"
STICKY, STATIC_PD = "sticky", "static PD-disagg"


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
    """Verdict expected of the first against the second; None = the first is at most `within` below."""
    within: float = 0.0
    """As in `judge_within`."""
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
    PairClaim("lmetric-linear-ttft-p90", "log: LMetric before linear, TTFT p90",
              "LMetric's TTFT p90 is lower than that of the linear cost (kvcache+load)",
              LMETRIC, LINEAR, "ttft_p90_s", Verdict.LOWER),
    PairClaim("lmetric-linear-e2e-p90", "log: LMetric before linear, E2E p90",
              "LMetric's E2E p90 is lower than that of the linear cost (kvcache+load)",
              LMETRIC, LINEAR, "e2e_p90_s", Verdict.LOWER),
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
"""Claims of specs/routing_log: the order of policies (3.1 has the step between, sticky's APC above LMetric's), then
that LMetric finds by itself most of what unified's affinity gives.

Which of two is slower on this trace is the log's claim, and its trace has an end: the order needs no steady state.
"""
KV_WALL = "ttft_p50_s"
"""The metric of static pools in 3.2."""
JUDGED = frozenset(
    {KV_WALL}
    | {one.metric for one in (COUPLING, LOCALITY, INTERFERENCE, *ABLATION, *ORDER)}
    | {metric for one in DOMINANCES for metric in one.better}
)
"""Metrics that the claims compare two policies in."""
_OF_BASELINES = frozenset(one.id for one in DOMINANCES)
"""Claims over every baseline that the run has."""
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
    baselines = [", ".join(name for name in BASELINES if arms.labels.get(name)) for arms in loads]
    paper = [
        judge_under_load(what, claim, arms.measured, arms.load, own if what in _OF_BASELINES else "")
        for arms, own in zip(loads, baselines, strict=True)
        for what, claim in _judge_paper(arms, pairs)
    ]
    transfers = (
        LoadJudgement(f"{TRANSFER}: {strip_load(row.label)}", (row.label,), _judge_transfer(row, loads))
        for row in moves.recomputing
    )
    return (*paper, *transfers, *(judge_whole_run(THRASHING, one) for one in thrashing))


def _judge_paper(arms: Arms, pairs: Sequence[Pair]) -> Iterator[tuple[str, Judgement]]:
    """Each claim by its id."""
    labels, scale = {**arms.labels, **arms.uneven}, arms.scale

    def judge_run(*claims: PairClaim) -> Iterator[tuple[str, Judgement]]:
        run = (one for one in claims if labels.get(one.first) and labels.get(one.second))
        return ((one.id, _judge_pair(one, labels, pairs, scale)) for one in run)

    yield from judge_run(COUPLING)
    if labels.get(FULL) and _runs_enough(arms, BASELINES, 1):
        for one in DOMINANCES:
            judgement = judge_dominance(one, labels, pairs, scale)
            yield one.id, gate_claim(judgement, one.find_scale_lack(scale))
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
            row, LOAD_BALANCE, KV_WALL, Verdict.HIGHER, find_lack=Scale.lacks_loop,
        )  # fmt: skip


def _judge_pair(one: PairClaim, labels: Mapping[str, str], pairs: Sequence[Pair], scale: Scale) -> Judgement:
    """Also where a policy was not run: then it is open."""
    first, second = labels.get(one.first, ""), labels.get(one.second, "")
    tested = compare_policies(pairs, first, second, one.metric)
    lack = _find_lack(one, scale, first, second)
    if one.expected is None:
        judgement = judge_within(one.name, one.claim, tested, one.within, is_tested=not lack)
    else:
        share = one.metric == "apc"
        judgement = judge_direction(one.name, one.claim, tested, one.expected, share=share, is_tested=not lack)
    return gate_claim(judgement, lack)


def _find_lack(one: PairClaim, scale: Scale, first: str, second: str) -> Lack:
    """Why the run does not suffice for the claim about these labels."""
    if one_turn := scale.lacks_sessions if KEEP_SESSIONS.intersection((one.first, one.second)) else ENOUGH:
        return one_turn
    if one.find_lack is not None:
        return one.find_lack(scale, first, second)
    return ENOUGH if one.metric == "apc" else scale.lacks_instances


def _runs_enough(arms: Arms, rows: Collection[str], least: int) -> bool:
    """Whether a claim over these rows is shown: under one load of several, only where all of them were run."""
    return sum(bool(arms.labels.get(name)) for name in rows) >= (len(rows) if arms.load else least)


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
        THRASHING,
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
