"""The load-floor bonus and its alternatives as a run measured them, and the questions D1 to D7 of specs/load_floor.md.

A question is answered from numbers, or stays open and says what is missing. "D" is an instance that decodes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, starmap
from typing import Any, TypeVar

import numpy as np

from results.records.estimate import Estimate
from results.routing import floor_facts
from results.routing.loads import group_labels
from results.routing.logs import LogFacts
from results.routing.measurements import (
    Measurements,
    count_interval,
    level_interval,
    mean_interval,
    one_per_trial,
    over_trials,
    ratio_interval,
)
from results.routing.metrics import metric_named
from results.routing.transfers import Moved, is_enough, withhold_interval
from results.statistics.estimates import floats_or_nan
from results.statistics.judgement import Verdict, decisive, judged, take_point
from results.statistics.student import change_level
from results.statistics.trials import MIN_PAIRED, Measured, Trial, combine

NO_FIX = "none"
BONUS = "load_floor_bonus"
"""The parameter of kv_aware."""
BACK_PRESSURE = "Q1.E"
"""Back-pressure above a share of the KV pool, in `FloorVariant.fix`."""
NO_LOG = "no decision log of a cell that counts can be read"
NON_TRIVIAL = 0.5
"""A D has a non-trivial share from this part of an even share on; the specification states no number."""
OF_TURNS = ("ttft_p90_s", "completed_share")
TTFT_RATIO = "ttft_p90_ratio"
"""Among the differences: the ratio of two TTFT p90. The report judges all times by their ratio."""
OF_LOGS = {
    "least_share": 1.0, "direct_rate": 1.0, "overlap_kept": math.inf, "overlap_chosen": 1.0, "lost_share": 1.0,
}  # fmt: skip
"""Numbers from decision logs, to the upper bound of each; overlap_kept has none, as an engine may find more cached
than the index knew of."""
NO_TRANSFER = "no KV was to be moved"


@dataclass(frozen=True, slots=True)
class FloorVariant:
    """One label of kv_aware."""

    label: str
    """The policy with its parameters in short."""
    fix: str
    """Which of the specification's fixes it has, e.g. `Q2.B K=200 (mean)`; `none`."""
    parameters: Mapping[str, Any]
    """Of the policy."""
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
    """To the reference under the same load, inside each trial, and the ratio TTFT_RATIO; empty where this is it or
    there is none."""
    against: Mapping[str, Mapping[str, Estimate]]
    """The same to each other label under the same load and rules of transfer; of labels with the bonus alone."""
    rules: floor_facts.Rules
    """By which its KV moves."""
    served: int
    """Requests with a session that were served."""
    counted: int
    """Of these, those whose tokens in the D's own cache are known: the overlap kept is over these alone."""
    turns: int
    """Of all trials."""
    failed_turns: int
    """Turns that were not completed."""
    transfers: int
    """Transfers that were asked for."""
    lost_transfers: int
    """Of these, those that failed or were refused."""
    decode_requests: floor_facts.DecodeRequests
    """Of its transfers."""
    rejects: int
    """Picks of sessions that some instance had refused before."""
    reject_moves: int
    """Picks that left the session's D because it had refused the session too often."""
    held: int
    """Picks that found no room."""
    load: Mapping[str, Any] = field(default_factory=dict)
    """`loads.name_load`."""

    def verdict(self, name: str, other: str = "") -> Verdict | None:
        """What the interval of that difference or ratio says, to the reference or to the label `other`."""
        difference = (self.against.get(other, {}) if other else self.differences).get(name)
        return None if difference is None else judged(difference, none=1.0 if name == TTFT_RATIO else 0.0)

    @property
    def is_counted(self) -> bool:
        """Whether the overlap kept is known of enough requests to represent all."""
        return is_enough(self.counted, self.served)

    @property
    def spread(self) -> bool | None:
        """Whether every D has a non-trivial share; None = no interval over trials, or one that allows both."""
        least, enough = decisive(self.values["least_share"]), NON_TRIVIAL / self.instances
        if least.low is None or least.high is None or least.low < enough <= least.high:
            return None
        return least.low >= enough


@dataclass(frozen=True, slots=True)
class TimeoutPair:
    """Two labels under one load that differ in their transfers' timeout alone."""

    short: str
    """Label with the shorter timeout."""
    long: str
    """Label with the longer timeout."""
    short_s: float
    """The shorter timeout."""
    long_s: float
    """The longer timeout."""
    short_decode_requests: floor_facts.DecodeRequests
    """Under the shorter timeout."""
    long_decode_requests: floor_facts.DecodeRequests
    """Under the longer timeout."""
    over_short: int
    """Decode requests under the long timeout that brought the KV and took longer than the short one."""
    lost_share: Estimate
    """Share of the transfers that were lost, long - short, inside each trial."""


@dataclass(frozen=True, slots=True)
class QuarantinePair:
    """Two labels under one load that differ in the rules of quarantine alone: one closes a pair after fewer
    failures."""

    fewer: str
    """Label that closes a pair after fewer failures."""
    more: str
    """The other label."""
    fewer_rules: str
    """Its rules of quarantine."""
    more_rules: str
    """Those of the other."""
    lost_share: Estimate
    """Share of the transfers that were lost, more - fewer, inside each trial."""


@dataclass(frozen=True, slots=True)
class LoadFloor:
    """The section of the report: of a whole run, or of one of its loads (`split_by_load`)."""

    reference: str
    """The label without any fix, of several loads the first one's; empty = it was not run."""
    variants: tuple[FloorVariant, ...]
    """In the order of tables."""
    transport: floor_facts.TransportFacts
    """Of the whole run."""
    timeouts: tuple[TimeoutPair, ...]
    """Labels that differ in the timeout alone."""
    sessions: int
    """Of the whole run."""
    trials: int
    """The most that a label has."""
    quarantines: tuple[QuarantinePair, ...] = ()
    """Labels that differ in the quarantine alone."""
    no_logs: str = ""
    """Why no decision point can be answered; empty where decision logs were read."""

    @property
    def compared(self) -> tuple[FloorVariant, ...]:
        """The labels whose KV moves by the same rules as the reference's; without one, by those of most labels."""
        rules = next((one.rules for one in self.variants if one.label == self.reference), None)
        rules = _usual_rules([one.rules for one in self.variants]) if rules is None else rules
        return tuple(one for one in self.variants if one.rules == rules)


def fix_of(parameters: Mapping[str, object]) -> str:
    """Which fixes of the specification's tables these parameters of kv_aware switch on."""
    bonus = parameters.get(BONUS)
    discount = str(parameters.get("overlap_discount", "off"))
    fixes = [
        f"Q2.B K={bonus} ({_describe_bonus(parameters)})" if bonus else "",
        "Q2.A" if parameters.get("cold_bonus") else "",
        "Q2.C" if parameters.get("order") == "inflight_first" else "",
        f"Q2.D ({discount})" if discount != "off" else "",
        "Q2.E" if parameters.get("prewarm_tokens") else "",
        "Q2.F" if parameters.get("min_overlap_blocks") or parameters.get("min_overlap_share") else "",
        "without Q2.G" if parameters.get("migration_reject_threshold") == 0 else "",
        BACK_PRESSURE if parameters.get("backpressure_above") is not None else "",
    ]
    return " + ".join(fix for fix in fixes if fix) or NO_FIX


def _describe_bonus(parameters: Mapping[str, object]) -> str:
    """Its form, and its gate where that is the specification's own."""
    form = str(parameters.get("floor_form", "mean"))
    return f"{form}, per worker" if parameters.get("floor_gate") == "per_worker" else form


@dataclass(frozen=True, slots=True)
class _Label:
    """One label of kv_aware as it was run."""

    label: str
    fix: str
    parameters: Mapping[str, object]
    logs: Mapping[int, LogFacts]
    """By trial."""
    rules: floor_facts.Rules
    load: Mapping[str, object]
    measured: Mapping[str, Measured]
    """OF_LOGS."""

    @property
    def floors(self) -> dict[int, floor_facts.FloorFacts]:
        return {trial: log.floor for trial, log in self.logs.items() if log.floor is not None}

    @property
    def moved(self) -> list[Moved]:
        return [one for log in self.logs.values() for one in log.moved]

    @property
    def counted(self) -> tuple[int, int]:
        """Requests whose tokens in the D's own cache are known, and all that were served."""
        sessions = [session for floor in self.floors.values() for session in floor.sessions]
        return sum(one.counted for one in sessions), sum(one.requests for one in sessions)


def measure_load_floor(
    policies: Mapping[str, str],
    facts: Mapping[str, Mapping[int, LogFacts]],
    measurements: Measurements,
) -> LoadFloor | None:
    """`policies`: label to the policy's name. None where no kv_aware cell has any fix."""
    names = [
        label for label, policy in policies.items() if policy == floor_facts.KV_AWARE and measurements.cells(label)
    ]
    labels = [_read_label(name, facts.get(name, {}), measurements) for name in names]
    if all(one.fix == NO_FIX for one in labels):
        return None
    groups = group_labels({one.label: one.load for one in labels})
    by_load = [[one for one in labels if one.label in own] for _, own in groups]
    reference = next((plain for own in by_load if (plain := _find_plain(own)) is not None), None)
    pairs = [two for own in by_load for two in combinations(own, 2)]
    return LoadFloor(
        reference="" if reference is None else reference.label,
        variants=tuple(variant for own in by_load for variant in _measure_variants(own, measurements)),
        transport=floor_facts.transport_facts([log.moved for logs in facts.values() for log in logs.values()]),
        timeouts=tuple(starmap(_timeout_pair, _pair_by_rule(pairs, "timeout_s"))),
        sessions=measurements.sessions,
        trials=measurements.trials,
        quarantines=tuple(starmap(_quarantine_pair, _pair_by_rule(pairs, "failures_to_quarantine", "quarantine"))),
        no_logs="" if any(facts.get(name) for name in names) else NO_LOG,
    )


def split_by_load(floor: LoadFloor) -> dict[str, LoadFloor]:
    """What differs between the loads of a run, to what was measured under each; one without a name where there is one.

    Without loads under which no arm has a fix and no two differ in a rule of transfer alone.
    """
    groups = group_labels({one.label: one.load for one in floor.variants})
    if len(groups) < 2:
        return {"": floor}
    by_load = {load: _take_labels(floor, labels) for load, labels in groups}
    return {
        load: own
        for load, own in by_load.items()
        if own.timeouts or own.quarantines or any(one.fix != NO_FIX for one in own.variants)
    }


def _take_labels(floor: LoadFloor, labels: Collection[str]) -> LoadFloor:
    """These, which are all of one load."""
    variants = tuple(one for one in floor.variants if one.label in labels)
    reference = _find_plain(variants)
    return replace(
        floor,
        reference="" if reference is None else reference.label,
        variants=variants,
        timeouts=tuple(pair for pair in floor.timeouts if pair.short in labels),
        quarantines=tuple(pair for pair in floor.quarantines if pair.fewer in labels),
    )


Arm = TypeVar("Arm", _Label, FloorVariant)


def _find_plain(arms: Sequence[Arm]) -> Arm | None:
    """The arm without a fix; of several the first whose KV moves by the rules of most arms."""
    usual = _usual_rules([one.rules for one in arms])
    plain = [one for one in arms if one.fix == NO_FIX]
    return next((one for one in plain if one.rules == usual), plain[0] if plain else None)


def _measure_variants(labels: Sequence[_Label], measurements: Measurements) -> Iterator[FloorVariant]:
    """All labels of one load, the reference first."""
    reference = _find_plain(labels)
    for own in sorted(labels, key=lambda one: one is not reference):
        others = [one for one in labels if one is not own and one.rules == own.rules and own.parameters.get(BONUS)]
        differences = dict[str, Estimate]()
        if reference is not None and reference is not own:
            differences = _measure_differences(own, reference, measurements)
        yield _measure_variant(
            own,
            measurements,
            differences=differences,
            against={one.label: _measure_differences(own, one, measurements) for one in others},
        )


def _read_label(label: str, facts: Mapping[int, LogFacts], measurements: Measurements) -> _Label:
    cell = next(iter(measurements.cells(label).values()))
    logs = {trial: log for trial, log in facts.items() if log.floor}
    rules = next((log.floor.rules for log in logs.values() if log.floor), floor_facts.Rules(None, None, ""))
    measured = {name: measurements.withhold(one, label) for name, one in _measure_logs(logs, measurements).items()}
    return _Label(label, fix_of(cell.parameters), cell.parameters, logs, rules, measurements.load(label), measured)


def _usual_rules(rules: Sequence[floor_facts.Rules]) -> floor_facts.Rules:
    """Those of most labels; of as many, the first."""
    return Counter(rules).most_common(1)[0][0]


def _pair_by_rule(pairs: Sequence[tuple[_Label, _Label]], rule: str, *beside: str) -> Iterator[tuple[_Label, _Label]]:
    """Those that differ in this field of Rules alone (and in those `beside` it), the lower value first."""
    for one, other in pairs:
        own, others = getattr(one.rules, rule), getattr(other.rules, rule)
        if None in (own, others) or own == others or one.rules.moves_kv is False or one.parameters != other.parameters:
            continue
        if one.rules == replace(other.rules, **{name: getattr(one.rules, name) for name in (rule, *beside)}):
            yield (one, other) if own < others else (other, one)


def _timeout_pair(short: _Label, long: _Label) -> TimeoutPair:
    short_s, long_s = (one.rules.timeout_s or 0.0 for one in (short, long))
    return TimeoutPair(
        short=short.label,
        long=long.label,
        short_s=short_s,
        long_s=long_s,
        short_decode_requests=floor_facts.summarize_decode_requests(short.moved),
        long_decode_requests=floor_facts.summarize_decode_requests(long.moved),
        over_short=sum(seconds > short_s for seconds in floor_facts.list_decode_times(long.moved)),
        lost_share=_subtract_lost(long, short),
    )


def _quarantine_pair(fewer: _Label, more: _Label) -> QuarantinePair:
    lost_share = _subtract_lost(more, fewer)
    return QuarantinePair(fewer.label, more.label, fewer.rules.quarantine, more.rules.quarantine, lost_share)


def _subtract_lost(first: _Label, second: _Label) -> Estimate:
    """The first's share of lost transfers less the second's."""
    return mean_interval(combine(np.subtract, first.measured["lost_share"], second.measured["lost_share"]))


def _measure_variant(
    own: _Label,
    measurements: Measurements,
    *,
    differences: Mapping[str, Estimate],
    against: Mapping[str, Mapping[str, Estimate]],
) -> FloorVariant:
    cells, floors = measurements.cells(own.label), own.floors
    names = next((tuple(floor.placed) for floor in floors.values()), ())
    turns, completed = (sum(cell.counts.get(name) or 0 for cell in cells.values()) for name in ("turns", "completed"))
    counted, served = own.counted
    values = {name: level_interval(own.measured[name], most=OF_LOGS[name]) for name in OF_LOGS}
    values["least_share"] = count_interval(own.measured["least_share"])
    values["overlap_kept"] = withhold_interval(values["overlap_kept"], counted, served)
    values |= {name: level_interval(measurements.get(own.label, metric_named(name))) for name in OF_TURNS}
    return FloorVariant(
        label=own.label,
        fix=own.fix,
        parameters=own.parameters,
        instances=max(len(names), 1),
        shares={
            name: count_interval(measurements.withhold(_share_of_sessions(floors, name), own.label)) for name in names
        },
        values=values,
        differences=differences,
        against=against,
        rules=own.rules,
        served=served,
        counted=counted,
        turns=turns,
        failed_turns=turns - completed,
        transfers=len(own.moved),
        lost_transfers=sum(floor_facts.is_lost(one.transfer) for one in own.moved),
        decode_requests=floor_facts.summarize_decode_requests(own.moved),
        rejects=sum(floor.rejects for floor in floors.values()),
        reject_moves=sum(floor.reject_moves for floor in floors.values()),
        held=sum(floor.held for floor in floors.values()),
        load=own.load,
    )


def _share_of_sessions(floors: Mapping[int, floor_facts.FloorFacts], instance: str) -> Measured:
    shares = {trial: _placed_share(floor, floor.placed.get(instance, 0)) for trial, floor in floors.items()}
    return over_trials(shares, NO_LOG)


def _placed_share(floor: floor_facts.FloorFacts, sessions: int) -> Trial | None:
    """Of the sessions whose first request was served, which are its `n`; None where none was."""
    total = sum(floor.placed.values())
    return one_per_trial(sessions / total, total) if total else None


def _measure_logs(logs: Mapping[int, LogFacts], measurements: Measurements) -> dict[str, Measured]:
    floors = {trial: log.floor for trial, log in logs.items() if log.floor is not None}
    least = {trial: _placed_share(floor, min(floor.placed.values(), default=0)) for trial, floor in floors.items()}
    lost = {trial: _lost_share(log.moved, measurements) for trial, log in logs.items()}

    def of_sessions(top: str, bottom: str) -> Measured:
        return over_trials(
            {trial: _ratio_of_sessions(floor, top, bottom, measurements) for trial, floor in floors.items()}, NO_LOG
        )

    return {
        "least_share": over_trials(least, NO_LOG),
        "direct_rate": of_sessions("direct", "requests"),
        "overlap_kept": of_sessions("served_tokens", "counted_best_tokens"),
        "overlap_chosen": of_sessions("chosen_tokens", "best_tokens"),
        "lost_share": over_trials(lost, NO_TRANSFER if logs else NO_LOG),
    }


def _lost_share(moved: Sequence[Moved], measurements: Measurements) -> Trial | None:
    lost = floats_or_nan(floor_facts.is_lost(one.transfer) for one in moved)
    return measurements.mean_of_rows([one.session for one in moved], lost)


def _ratio_of_sessions(
    floor: floor_facts.FloorFacts, top: str, bottom: str, measurements: Measurements
) -> Trial | None:
    above, below = (floats_or_nan(getattr(session, name) for session in floor.sessions) for name in (top, bottom))
    return measurements.ratio_of_rows([session.session for session in floor.sessions], above, below)


def _measure_differences(first: _Label, second: _Label, measurements: Measurements) -> dict[str, Estimate]:
    differences = {
        name: mean_interval(combine(np.subtract, first.measured[name], second.measured[name])) for name in OF_LOGS
    }
    for label in (first, second):
        differences["overlap_kept"] = withhold_interval(differences["overlap_kept"], *label.counted)
    labels = first.label, second.label
    differences |= {name: mean_interval(measurements.difference(*labels, metric_named(name))) for name in OF_TURNS}
    return differences | {TTFT_RATIO: ratio_interval(measurements.log_ratio(*labels, metric_named("ttft_p90_s")))}


def change_floor_level(floor: LoadFloor, level: float) -> LoadFloor:
    """Put every interval over trials at this level."""
    return _change_estimates(floor, lambda name, one: change_level(one, level, is_ratio=name == TTFT_RATIO))


def take_floor_points(floor: LoadFloor) -> LoadFloor:
    """Take every value as if it were certain, and the trials as if they were enough."""
    points = _change_estimates(floor, lambda _, one: take_point(one))
    return replace(points, trials=max(floor.trials, MIN_PAIRED))


def _change_estimates(floor: LoadFloor, change: Callable[[str, Estimate], Estimate]) -> LoadFloor:
    """`change`: from a number's name and value to the new value."""

    def change_all(estimates: Mapping[str, Estimate]) -> dict[str, Estimate]:
        return {name: change(name, one) for name, one in estimates.items()}

    variants = tuple(
        replace(
            one,
            values=change_all(one.values),
            differences=change_all(one.differences),
            against={label: change_all(own) for label, own in one.against.items()},
        )
        for one in floor.variants
    )
    timeouts = tuple(replace(pair, lost_share=change("lost_share", pair.lost_share)) for pair in floor.timeouts)
    quarantines = tuple(replace(pair, lost_share=change("lost_share", pair.lost_share)) for pair in floor.quarantines)
    return replace(floor, variants=variants, timeouts=timeouts, quarantines=quarantines)
