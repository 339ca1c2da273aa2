"""C3 of specs/ear: EAR against five baselines in five dimensions, and the judgement of all 25 comparisons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from results.records.estimate import Estimate
from results.routing.claim_rules import compare_policies, name_excluded, state_point
from results.routing.metrics import metric_named
from results.routing.pairs import Pair
from results.routing.scale import Scale
from results.routing.specification import BASELINES, FULL
from results.statistics.judgement import Judgement, Outcome, Verdict, judged, list_some, take_point
from results.statistics.student import find_p_value

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


@dataclass(frozen=True, slots=True)
class _Comparison:
    """EAR against one baseline in one dimension of C3."""

    text: str
    measured: Estimate
    none: float
    """The value under no effect: as `compare_policies` returns it."""
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
        return name_excluded((self.measured, self.none), share=not self.none)

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
            yield _Comparison(text, *compare_policies(pairs, full, labels[name], metric), good, is_unsteady)


def judge_ear_dominance(labels: Mapping[str, str], pairs: Sequence[Pair], scale: Scale) -> Judgement:
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
        point="" if missing or unsteady or not points else state_point(name, sum(points) == count, shown),
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
