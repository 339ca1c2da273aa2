"""The load-floor bonus and its alternatives as a run measured them, and the questions D1 to D7 of specs/load_floor.md.

A question is answered from numbers, or stays open and says what is missing. "D" is an instance that decodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from results.routing.by_session import once, over_trials, ratio
from results.routing.floor_sessions import KV_AWARE, FloorFacts
from results.routing.floor_transport import (
    Rules,
    TargetLegs,
    TimeoutPair,
    TransportFacts,
    is_lost,
    leg_times,
    target_legs,
    transport_facts,
)
from results.routing.logs import LogFacts
from results.routing.measure import Measurements, interval, level_interval, ratio_interval
from results.routing.metrics import metric
from results.routing.transfers import Moved, enough_counted, partly
from results.statistics.estimates import Estimate, Samples
from results.statistics.judgement import Verdict, judged
from results.statistics.trials import Measured, Trial, combine

NO_FIX = "none"
BONUS = "load_floor_bonus"
"""The parameter of kv_aware."""
NO_LOG = "no decision log of a cell that counts can be read"
NON_TRIVIAL = 0.5
"""A D has a share worth the name from this part of an even share on; the specification states none."""
OF_TURNS = ("ttft_p90_s", "completed_share")
TTFT_RATIO = "ttft_p90_ratio"
"""Among the differences: of two TTFT p90 the ratio, which judges times here as everywhere in the report."""
OF_LOGS = {
    "least_share": 1.0, "direct_rate": 1.0, "overlap_kept": math.inf, "overlap_chosen": 1.0, "lost_share": 1.0,
}  # fmt: skip
"""To the most that each can be; an engine may find more cached than the index knew of."""
NO_TRANSFER = "no KV was to be moved"


@dataclass(frozen=True, slots=True)
class FloorVariant:
    """One label of kv_aware."""

    label: str
    fix: str
    """Which of the specification's fixes it has, e.g. `Q2.B K=200 (mean)`; `none`."""
    parameters: Mapping[str, object]
    instances: int
    """How many D there are."""
    shares: Mapping[str, Estimate]
    """Per D: its share of the sessions, by who served their first request."""
    values: Mapping[str, Estimate]
    """least_share: the smallest of these; direct_rate: served requests that their session's D served from its own
    cache, without prefill elsewhere or transfer; overlap_kept: cached tokens over what the best D held by the index;
    overlap_chosen: what the picked D held over the same; lost_share: transfers that failed or were refused, so that
    the D computed, of all that were asked for; ttft_p90_s, completed_share."""
    differences: Mapping[str, Estimate]
    """To the reference, inside each trial, and the ratio TTFT_RATIO; empty where this is it, or there is none."""
    against: Mapping[str, Mapping[str, Estimate]]
    """The same to each other label under the same rules of transfer; of labels with the bonus alone."""
    rules: Rules
    served: int
    """Requests with a session that were served."""
    counted: int
    """Of these, those of which is known what the D found in its own cache: the overlap kept is of these alone."""
    turns: int
    failed_turns: int
    """Turns that were not completed."""
    transfers: int
    lost_transfers: int
    legs: TargetLegs
    rejects: int
    reject_moves: int
    held: int

    def verdict(self, name: str, other: str = "") -> Verdict | None:
        """What the interval of that difference or ratio says, to the reference or to the label `other`."""
        found = (self.against.get(other, {}) if other else self.differences).get(name)
        return None if found is None else judged(found, none=1.0 if name == TTFT_RATIO else 0.0)

    @property
    def is_counted(self) -> bool:
        """Whether the overlap kept is known of enough requests to represent all."""
        return enough_counted(self.counted, self.served)

    @property
    def spread(self) -> bool | None:
        """Whether every D has a share worth the name; None = not known, or the interval over the trials does not tell.

        Too few trials for an interval: what was counted in them decides.
        """
        least, enough = self.values["least_share"], NON_TRIVIAL / self.instances
        if least.value is None:
            return None
        low, high = (least.value if bound is None else bound for bound in (least.low, least.high))
        return None if low < enough <= high else low >= enough


@dataclass(frozen=True, slots=True)
class LoadFloor:
    """The section of the report."""

    reference: str
    """The label without any fix; empty = it was not run."""
    variants: tuple[FloorVariant, ...]
    transport: TransportFacts
    timeouts: tuple[TimeoutPair, ...]
    sessions: int
    trials: int

    @property
    def compared(self) -> tuple[FloorVariant, ...]:
        """The labels whose KV moves by the same rules as the reference's; without one, by those of most labels."""
        rules = next((one.rules for one in self.variants if one.label == self.reference), None)
        rules = _usual([one.rules for one in self.variants]) if rules is None else rules
        return tuple(one for one in self.variants if one.rules == rules)


def fix_of(parameters: Mapping[str, object]) -> str:
    """Which fixes of the specification's tables these parameters of kv_aware switch on."""
    bonus = parameters.get(BONUS)
    discount = str(parameters.get("overlap_discount", "off"))
    found = [
        f"Q2.B K={bonus} ({parameters.get('floor_form', 'mean')})" if bonus else "",
        "Q2.A" if parameters.get("cold_bonus") else "",
        "Q2.C" if parameters.get("order") == "inflight_first" else "",
        f"Q2.D ({discount})" if discount != "off" else "",
        "Q2.E" if parameters.get("prewarm_tokens") else "",
        "Q2.F" if parameters.get("min_overlap_blocks") or parameters.get("min_overlap_share") else "",
        "without Q2.G" if parameters.get("migration_reject_threshold") == 0 else "",
        "Q1.E" if parameters.get("backpressure_above") is not None else "",
    ]
    return " + ".join(part for part in found if part) or NO_FIX


def load_floor(
    policies: Mapping[str, str],
    facts: Mapping[str, Mapping[int, LogFacts]],
    measurements: Measurements,
) -> LoadFloor | None:
    """Of the run with these labels (to their policies' names) and logs; None where no kv_aware cell has any fix."""
    labels = [label for label, policy in policies.items() if policy == KV_AWARE and measurements.cells(label)]
    given = {label: next(iter(measurements.cells(label).values())).parameters for label in labels}
    fixes = {label: fix_of(parameters) for label, parameters in given.items()}
    if not set(fixes.values()) - {NO_FIX}:
        return None
    logs = {label: {t: one for t, one in facts.get(label, {}).items() if one.floor} for label in labels}
    rules = {label: _rules(logs[label]) for label in labels}
    usual = _usual(list(rules.values()))
    plain = [label for label in labels if fixes[label] == NO_FIX]
    reference = next((label for label in plain if rules[label] == usual), plain[0] if plain else "")
    own = {label: _measured(logs[label], measurements) for label in labels}

    def differences(label: str, other: str) -> dict[str, Estimate]:
        return _differences(label, other, own, logs, measurements)

    found = []
    for label in sorted(labels, key=lambda label: label != reference):
        others = [one for one in labels if one != label and rules[one] == rules[label]]
        found.append(
            _variant(
                label,
                fixes[label],
                given[label],
                logs[label],
                own[label],
                measurements,
                differences=differences(label, reference) if reference and label != reference else {},
                against={one: differences(label, one) for one in others} if given[label].get(BONUS) else {},
            )
        )
    return LoadFloor(
        reference=reference,
        variants=tuple(found),
        transport=transport_facts([log.moved for logs in facts.values() for log in logs.values()]),
        timeouts=_timeouts(labels, given, rules, logs, own),
        sessions=measurements.sessions,
        trials=measurements.trials,
    )


def _usual(rules: Sequence[Rules]) -> Rules:
    """Those of most labels; of as many, the first."""
    return Counter(rules).most_common(1)[0][0]


def _rules(logs: Mapping[int, LogFacts]) -> Rules:
    found = (one.floor.rules for one in logs.values() if one.floor is not None)
    return next(found, Rules(None, None, ""))


def _timeouts(
    labels: Sequence[str],
    given: Mapping[str, Mapping[str, object]],
    rules: Mapping[str, Rules],
    logs: Mapping[str, Mapping[int, LogFacts]],
    own: Mapping[str, Mapping[str, Measured]],
) -> tuple[TimeoutPair, ...]:
    """Every two labels that differ in the timeout of their transfers alone."""
    found = []
    for one, other in combinations(labels, 2):
        times = rules[one].timeout_s, rules[other].timeout_s
        if given[one] != given[other] or None in times or rules[one].moves_kv is False:
            continue
        if rules[one] != replace(rules[other], timeout_s=times[0]) or times[0] == times[1]:
            continue
        (short_s, short), (long_s, long) = sorted(((times[0] or 0.0, one), (times[1] or 0.0, other)))
        moved = {label: [row for log in logs[label].values() for row in log.moved] for label in (short, long)}
        found.append(
            TimeoutPair(
                short=short,
                long=long,
                short_s=short_s,
                long_s=long_s,
                short_legs=target_legs(moved[short]),
                long_legs=target_legs(moved[long]),
                over_short=sum(seconds > short_s for seconds in leg_times(moved[long])),
                lost_share=interval(combine(np.subtract, own[long]["lost_share"], own[short]["lost_share"])),
            )
        )
    return tuple(found)


def _variant(
    label: str,
    fix: str,
    parameters: Mapping[str, object],
    logs: Mapping[int, LogFacts],
    own: Mapping[str, Measured],
    measurements: Measurements,
    *,
    differences: Mapping[str, Estimate],
    against: Mapping[str, Mapping[str, Estimate]],
) -> FloorVariant:
    cells = measurements.cells(label)
    floors = {trial: one.floor for trial, one in logs.items() if one.floor is not None}
    moved = [one for log in logs.values() for one in log.moved]
    names = next((tuple(one.placed) for one in floors.values()), ())
    turns, completed = (sum(cell.counts.get(name) or 0 for cell in cells.values()) for name in ("turns", "completed"))
    counted, served = _counted(logs)
    values = {name: level_interval(own[name], most=OF_LOGS[name]) for name in OF_LOGS}
    values["overlap_kept"] = partly(values["overlap_kept"], counted, served)
    values |= {name: level_interval(measurements.get(label, metric(name))) for name in OF_TURNS}
    return FloorVariant(
        label=label,
        fix=fix,
        parameters=parameters,
        instances=max(len(names), 1),
        shares={
            name: level_interval(
                over_trials(
                    {t: once(_share(one, name), sum(one.placed.values())) for t, one in floors.items()}, NO_LOG
                ),
                most=1.0,
            )
            for name in names
        },
        values=values,
        differences=differences,
        against=against,
        rules=_rules(logs),
        served=served,
        counted=counted,
        turns=turns,
        failed_turns=turns - completed,
        transfers=len(moved),
        lost_transfers=sum(is_lost(one.transfer) for one in moved),
        legs=target_legs(moved),
        rejects=sum(one.rejects for one in floors.values()),
        reject_moves=sum(one.reject_moves for one in floors.values()),
        held=sum(one.held for one in floors.values()),
    )


def _counted(logs: Mapping[int, LogFacts]) -> tuple[int, int]:
    """Requests of which is known what the D found in its own cache; and all that were served."""
    sessions = [session for log in logs.values() if log.floor is not None for session in log.floor.sessions]
    return sum(one.counted for one in sessions), sum(one.requests for one in sessions)


def _measured(logs: Mapping[int, LogFacts], measurements: Measurements) -> dict[str, Measured]:
    def over(compute: Callable[[LogFacts, FloorFacts], Trial | None], why: str = NO_LOG) -> Measured:
        known = {trial: (log, log.floor) for trial, log in logs.items() if log.floor is not None}
        return over_trials({trial: compute(*one) for trial, one in known.items()}, why)

    def of_sessions(top: str, bottom: str) -> Measured:
        return over(lambda _log, one: _ratio(one, top, bottom, measurements))

    return {
        "least_share": over(lambda _log, one: _least(one)),
        "direct_rate": of_sessions("direct", "requests"),
        "overlap_kept": of_sessions("served_tokens", "counted_best_tokens"),
        "overlap_chosen": of_sessions("chosen_tokens", "best_tokens"),
        "lost_share": over(lambda log, _one: _lost(log.moved, measurements), NO_TRANSFER if logs else NO_LOG),
    }


def _lost(moved: Sequence[Moved], measurements: Measurements) -> Trial | None:
    lost = np.array([is_lost(one.transfer) for one in moved], dtype=np.float64)
    return ratio([one.session for one in moved], lost, np.ones(len(moved)), measurements)


def _ratio(one: FloorFacts, top: str, bottom: str, measurements: Measurements) -> Trial | None:
    names = [session.session for session in one.sessions]
    above, below = (_column(one, name) for name in (top, bottom))
    return ratio(names, above, below, measurements)


def _column(one: FloorFacts, name: str) -> Samples:
    return np.array([getattr(session, name) for session in one.sessions], dtype=np.float64)


def _least(one: FloorFacts) -> Trial | None:
    shares = [share for name in one.placed if (share := _share(one, name)) is not None]
    return once(min(shares, default=None), sum(one.placed.values()))


def _share(one: FloorFacts, name: str) -> float | None:
    total = sum(one.placed.values())
    return one.placed.get(name, 0) / total if total else None


def _differences(
    first: str,
    second: str,
    own: Mapping[str, Mapping[str, Measured]],
    logs: Mapping[str, Mapping[int, LogFacts]],
    measurements: Measurements,
) -> dict[str, Estimate]:
    found = {name: interval(combine(np.subtract, own[first][name], own[second][name])) for name in OF_LOGS}
    for label in (first, second):
        found["overlap_kept"] = partly(found["overlap_kept"], *_counted(logs[label]))
    found |= {name: interval(measurements.difference(first, second, metric(name))) for name in OF_TURNS}
    return found | {TTFT_RATIO: ratio_interval(measurements.log_ratio(first, second, metric("ttft_p90_s")))}
