"""Claims of specs/ear that EAR is better than each of five baselines: C3 in five dimensions, 5.4 in two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from results.records.estimate import Estimate
from results.routing.claim_rules import compare_policies, name_excluded, state_point
from results.routing.metrics import find_metric
from results.routing.pairs import Pair
from results.routing.scale import Lack, Scale
from results.routing.specification import BASELINES, FULL
from results.statistics.judgement import Judgement, Outcome, Verdict, judged, list_some, take_point
from results.statistics.student import find_p_value


@dataclass(frozen=True, slots=True)
class Dominance:
    """A claim that EAR is better than every baseline in every dimension."""

    id: str
    """Stays the same when the name changes: `tracon compare` pairs claims of two runs by it."""
    name: str
    claim: str
    better: Mapping[str, Verdict]
    """The metric of each dimension, and the better direction."""
    find_lack: Callable[..., Lack]
    """By the run's scale and labels: why times of the whole system under them are not compared."""
    left_out: str
    """What that means for them, before the reason."""
    find_scale_lack: Callable[[Scale], Lack]
    """Why the run is too small for the claim."""


DOMINANCES = (
    Dominance(
        "ear-dominates", "C3: EAR dominates",
        "EAR is better than all five baselines in TTFT, TPOT, APC, the worst instance's TTFT p90 and wall clock",
        {
            "ttft_p90_s": Verdict.LOWER,
            "tpot_p90_s": Verdict.LOWER,
            "apc": Verdict.HIGHER,
            "worker_ttft_p90_max_s": Verdict.LOWER,
            "amplification": Verdict.LOWER,
        },
        Scale.lacks_steady_state,
        "as they depend on the length of the replay",
        lambda scale: scale.lacks,
    ),
    Dominance(
        "ear-least-service", "5.4: EAR has the least service time",
        "under EAR a turn takes less time on average than under all five baselines, and the replay a smaller multiple "
        "of the trace's time",
        {"e2e_mean_s": Verdict.LOWER, "amplification": Verdict.LOWER},
        Scale.lacks_loop,
        "as no loop of dispatch coupling is stated",
        lambda scale: scale.lacks_instances or scale.lacks_sessions,
    ),
)  # fmt: skip
"""The second is where specs/ear 5.4 expects EAR in figure 8: service time W_turn across, amplification up."""
OF_QUEUES = frozenset({"ttft_p90_s", "worker_ttft_p90_max_s", "e2e_mean_s", "amplification"})
"""Times of the whole system: they grow with the length of the replay where a policy has no steady state."""


@dataclass(frozen=True, slots=True)
class _Comparison:
    """EAR against one baseline in one dimension."""

    text: str
    measured: Estimate
    none: float
    """The value under no effect: as `compare_policies` returns it."""
    good: Verdict
    is_left_out: bool
    """`Dominance.find_lack` names a reason: it is not compared."""

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


def _compare_with_baselines(
    one: Dominance, labels: Mapping[str, str], pairs: Sequence[Pair], scale: Scale
) -> Iterator[_Comparison]:
    full = labels[FULL]
    for name in BASELINES:
        if not labels.get(name):
            continue
        for metric, good in one.better.items():
            is_left_out = metric in OF_QUEUES and bool(one.find_lack(scale, full, labels[name]))
            text = f"{find_metric(metric).title} against {name}"
            yield _Comparison(text, *compare_policies(pairs, full, labels[name], metric), good, is_left_out)


def judge_dominance(one: Dominance, labels: Mapping[str, str], pairs: Sequence[Pair], scale: Scale) -> Judgement:
    """It holds where every comparison does (its p is the largest), and fails where one is the opposite, also in a run
    without some of the baselines.

    Where one was not run, is left out or has no interval, the claim cannot hold: unless it fails, its p is 1.
    """
    missing = [name for name in BASELINES if not labels.get(name)]
    every = tuple(_compare_with_baselines(one, labels, pairs, scale))
    known, left_out = [each for each in every if not each.is_left_out], [each for each in every if each.is_left_out]
    better, worse, level = ([each for each in known if each.is_better is side] for side in (True, False, None))
    p_values = [p for each in known if (p := each.p) is not None]
    lack = one.find_lack(scale, labels[FULL], *filter(None, map(labels.get, BASELINES)))
    reason = _count_comparisons(better, worse, level)
    if left_out:
        reason += f"; {len(left_out)} not compared, {one.left_out} ({lack.reason})"
    outcome, tested, needs = Outcome.UNDECIDED, _find_p_of_all(every, p_values), ""
    if missing:
        reason = f"not in this run: {', '.join(missing)}; {reason}"
    if worse:
        least = min(p for each in worse if (p := each.p) is not None)
        outcome, tested = Outcome.FAILS, min(1.0, least * len(BASELINES) * len(one.better))
    elif missing:
        outcome, needs = Outcome.OPEN, f"{', '.join(missing)} in the same run"
        tested = None if tested is None else 1.0
    elif left_out:
        outcome, needs = Outcome.OPEN, lack.needs
    elif better and not level:
        outcome = Outcome.HOLDS
    if outcome != Outcome.OPEN:
        reason = "; ".join((*_show_deciding(better, worse, level), reason))
    return Judgement(
        one.name,
        one.claim,
        f"holds where all {len(BASELINES) * len(one.better)} comparisons are distinguishably better, fails where one "
        "is distinguishably worse",
        outcome,
        reason,
        p=tested,
        point="" if missing or left_out else _state_points(one, known),
        needs=needs,
    )


def _find_p_of_all(every: Sequence[_Comparison], p_values: Sequence[float]) -> float | None:
    """The largest of `p_values`, 1 where some comparison gives none of them; None where none has an interval."""
    if all(each.p is None for each in every):
        return None
    return max(p_values) if len(p_values) == len(every) else 1.0


def _count_comparisons(
    better: Sequence[_Comparison], worse: Sequence[_Comparison], level: Sequence[_Comparison]
) -> str:
    excluded = [f"{each.text}: {each.excluded}" for each in level if each.excluded]
    shown = f" ({list_some(excluded, most=2)})" if excluded else ""
    return f"better in {len(better)}, worse in {len(worse)}, not distinguishable in {len(level)} comparisons{shown}"


def _state_points(one: Dominance, known: Sequence[_Comparison]) -> str:
    """In how many comparisons the values alone are better; empty without any value."""
    points = [
        judged(take_point(each.measured), each.none) == each.good for each in known if each.measured.value is not None
    ]
    count = len(BASELINES) * len(one.better)
    shown = f"better in {sum(points)} of {count} comparisons"
    return state_point(one.name, sum(points) == count, shown) if points else ""


def _show_deciding(
    better: Sequence[_Comparison], worse: Sequence[_Comparison], level: Sequence[_Comparison]
) -> Iterator[str]:
    """The comparisons that decide, with their intervals."""
    if worse:
        yield f"worse: {list_some([one.show() for one in worse])}"
    elif level:
        first = next((one for one in level if one.p is not None), level[0])
        yield f"not distinguishable, among others: {first.show()}"
    elif better:
        yield f"the least clear: {max(better, key=lambda one: one.p or 0.0).show()}"
