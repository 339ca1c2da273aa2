"""The load-floor bonus and its alternatives as a run measured them, for the questions D1 to D7 of specs/load_floor.md.

"D" is an instance that decodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from results.records.estimate import Estimate
from results.routing import floor_facts
from results.routing.loads import group_labels
from results.routing.transfers import is_enough
from results.statistics.judgement import Verdict, judged, take_point, withhold_bounds
from results.statistics.student import change_level
from results.statistics.trials import MIN_PAIRED

NO_FIX = "none"
BONUS = "load_floor_bonus"
"""The parameter of kv_aware."""
BACK_PRESSURE = "Q1.E"
"""Back-pressure above a share of the KV pool, in `FloorVariant.fix`."""
NON_TRIVIAL = 0.5
"""A D has a non-trivial share from this part of an even share on; the specification states no number."""
TTFT_RATIO = "ttft_p90_ratio"
"""Among the differences: the ratio of two TTFT p90. The report judges all times by their ratio."""


@dataclass(frozen=True, slots=True)
class FloorVariant:
    """One label of kv_aware."""

    label: str
    fix: str
    """Which of the specification's fixes it has, e.g. `Q2.B K=200 (mean)`; `none`."""
    parameters: Mapping[str, Any]
    """Parameters of the policy."""
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
    """Served requests whose tokens in the D's own cache are known: the overlap kept is over these alone."""
    turns: int
    """Turns of all trials."""
    failed_turns: int
    """Turns that were not completed."""
    transfers: int
    """Transfers that were asked for."""
    lost_transfers: int
    """Transfers that failed or were refused."""
    decode_requests: floor_facts.DecodeRequests
    """Decode requests of its transfers."""
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
        least, enough = withhold_bounds(self.values["least_share"]), NON_TRIVIAL / self.instances
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
    """Transport of the whole run."""
    timeouts: tuple[TimeoutPair, ...]
    """Labels that differ in the timeout alone."""
    sessions: int
    """Sessions of the whole run."""
    trials: int
    """The most that a label has."""
    quarantines: tuple[QuarantinePair, ...] = ()
    """Labels that differ in the quarantine alone."""
    no_logs: str = ""
    """Why no decision point can be answered; empty where decision logs were read."""

    @property
    def compared(self) -> tuple[FloorVariant, ...]:
        """The labels whose KV moves by the same rules as the reference's, over as many D; without a reference, those
        like most labels."""
        reference = next((one for one in self.variants if one.label == self.reference), None)
        basis = find_usual_basis(self.variants) if reference is None else find_basis(reference)
        return tuple(one for one in self.variants if find_basis(one) == basis)


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
    reference = find_plain(variants)
    return replace(
        floor,
        reference="" if reference is None else reference.label,
        variants=variants,
        timeouts=tuple(pair for pair in floor.timeouts if pair.short in labels),
        quarantines=tuple(pair for pair in floor.quarantines if pair.fewer in labels),
    )


class FloorArm(Protocol):
    """What the choice of the reference reads of an arm."""

    @property
    def fix(self) -> str: ...
    @property
    def rules(self) -> floor_facts.Rules: ...
    @property
    def instances(self) -> int: ...


Arm = TypeVar("Arm", bound=FloorArm)


def find_plain(arms: Sequence[Arm]) -> Arm | None:
    """The arm without a fix; of several the first whose KV moves as that of most arms."""
    plain = [one for one in arms if one.fix == NO_FIX]
    if not plain:
        return None
    usual = find_usual_basis(arms)
    return next((one for one in plain if find_basis(one) == usual), plain[0])


def find_basis(arm: FloorArm) -> tuple[floor_facts.Rules, int]:
    """What must be equal in two arms that are compared: by which rules KV moves, and over how many D.

    The arms of a load have equally many instances, so the number of D gives the pools.
    """
    return arm.rules, arm.instances


def find_usual_basis(arms: Sequence[FloorArm]) -> tuple[floor_facts.Rules, int]:
    """That of most arms; of as many, the first."""
    return Counter(map(find_basis, arms)).most_common(1)[0][0]


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
