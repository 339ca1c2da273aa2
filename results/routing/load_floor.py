"""The load-floor bonus and its alternatives as a run measured them, and the questions D1 to D7 of specs/load_floor.md.

A question is answered from numbers, or stays open and says what is missing. "D" is an instance that decodes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from results.routing.by_session import once, over_trials, ratio
from results.routing.floor_facts import KV_AWARE, FloorFacts
from results.routing.logs import LogFacts
from results.routing.measure import Measurements, interval, level_interval
from results.routing.metrics import metric
from results.routing.transfers import Moved
from results.statistics import Estimate, Samples
from results.tax import Verdict, verdict_of
from results.trials import Measured, Trial, combine

NO_FIX = "none"
NO_LOG = "no decision log of a cell that counts can be read"
NON_TRIVIAL = 0.5
"""A D has a share of the sessions worth the name from so much of an even one on; the specification states none."""
OF_TURNS = ("ttft_p90_s", "completed_share")
OF_LOGS = {"least_share": 1.0, "direct_rate": 1.0, "overlap_kept": math.inf, "overlap_chosen": 1.0}
"""To the most that each can be; an engine may find more cached than the index knew of."""
QUARANTINED = "quarantin"
"""In the reason of a transfer that its pair's quarantine refused, and of a pair that is cut off."""


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
    overlap_chosen: what the picked D held over the same; ttft_p90_s, completed_share."""
    differences: Mapping[str, Estimate]
    """To the reference, inside each trial; empty where this is it, or there is none."""
    turns: int
    failed_turns: int
    """Turns that were not completed."""
    transfers: int
    failed_transfers: int
    rejects: int
    reject_moves: int
    held: int

    def verdict(self, name: str) -> Verdict | None:
        """What the interval of that difference says."""
        found = self.differences.get(name)
        return None if found is None else verdict_of(found)

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
class TransportFacts:
    """All transfers of a run, whatever the policy."""

    asked: int
    transferred: int
    failed: int
    timed_out: int
    quarantined: int
    """Refused because their pair was in quarantine."""
    pairs_quarantined: int
    pairs_recovered: int
    """Of these, pairs with a transfer that went well after one was refused."""
    longest_s: float | None
    over_30_s: int
    """Transferred, and would have failed at the specification's 30 s."""


@dataclass(frozen=True, slots=True)
class LoadFloor:
    """The section of the report."""

    reference: str
    """The label without any fix; empty = it was not run."""
    variants: tuple[FloorVariant, ...]
    transport: TransportFacts
    sessions: int
    trials: int


def fix_of(parameters: Mapping[str, object]) -> str:
    """Which fixes of the specification's tables these parameters of kv_aware switch on."""
    bonus = parameters.get("load_floor_bonus")
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
    reference = next((label for label in labels if fixes[label] == NO_FIX), "")
    floors = {label: {t: one.floor for t, one in facts.get(label, {}).items() if one.floor} for label in labels}
    own = {label: _measured(label, floors[label], measurements) for label in labels}
    return LoadFloor(
        reference=reference,
        variants=tuple(
            _variant(label, fixes[label], given[label], floors[label], own, reference, facts, measurements)
            for label in sorted(labels, key=lambda label: label != reference)
        ),
        transport=transport_facts([log.moved for logs in facts.values() for log in logs.values()]),
        sessions=measurements.sessions,
        trials=measurements.trials,
    )


def transport_facts(logs: Sequence[Sequence[Moved]]) -> TransportFacts:
    """Of these cells' transfers, each cell's in the order of its log."""
    every = [one.transfer for log in logs for one in log]
    took = [seconds for log in logs for one in log if (seconds := one.transfer_s) is not None]
    quarantined = recovered = 0
    for log in logs:
        closed: dict[tuple[str, str], bool] = {}
        for one in (one.transfer for one in log):
            pair = one.source, one.target
            if one.status == "refused" and QUARANTINED in one.reason:
                closed.setdefault(pair, False)
            elif one.status == "transferred" and pair in closed:
                closed[pair] = True
        quarantined, recovered = quarantined + len(closed), recovered + sum(closed.values())
    return TransportFacts(
        asked=len(every),
        transferred=sum(one.status == "transferred" for one in every),
        failed=sum(one.status == "failed" for one in every),
        timed_out=sum(one.status == "failed" and _timed_out(one.reason) for one in every),
        quarantined=sum(one.status == "refused" and QUARANTINED in one.reason for one in every),
        pairs_quarantined=quarantined,
        pairs_recovered=recovered,
        longest_s=max(took, default=None),
        over_30_s=sum(seconds > 30 for seconds in took),
    )


def _timed_out(reason: str) -> bool:
    return re.search(r"within [\d.]+ s", reason) is not None  # `not done within 120 s`


def _variant(
    label: str,
    fix: str,
    parameters: Mapping[str, object],
    floors: Mapping[int, FloorFacts],
    own: Mapping[str, Mapping[str, Measured]],
    reference: str,
    facts: Mapping[str, Mapping[int, LogFacts]],
    measurements: Measurements,
) -> FloorVariant:
    cells = measurements.cells(label)
    moved = [one for log in facts.get(label, {}).values() for one in log.moved]
    names = next((tuple(one.placed) for one in floors.values()), ())
    turns, completed = (sum(cell.counts.get(name) or 0 for cell in cells.values()) for name in ("turns", "completed"))
    values = {name: level_interval(own[label][name], most=OF_LOGS[name]) for name in OF_LOGS}
    values |= {name: level_interval(measurements.get(label, metric(name))) for name in OF_TURNS}
    compared = reference and label != reference
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
        differences=_differences(label, reference, own[label], own[reference], (*OF_LOGS, *OF_TURNS), measurements)
        if compared
        else {},
        turns=turns,
        failed_turns=turns - completed,
        transfers=len(moved),
        failed_transfers=sum(one.transfer.status == "failed" for one in moved),
        rejects=sum(one.rejects for one in floors.values()),
        reject_moves=sum(one.reject_moves for one in floors.values()),
        held=sum(one.held for one in floors.values()),
    )


def _measured(label: str, floors: Mapping[int, FloorFacts], measurements: Measurements) -> dict[str, Measured]:
    def of_sessions(top: str, bottom: str) -> Measured:
        return over_trials({trial: _ratio(one, top, bottom, measurements) for trial, one in floors.items()}, NO_LOG)

    return {
        "least_share": over_trials({trial: _least(one) for trial, one in floors.items()}, NO_LOG),
        "direct_rate": of_sessions("direct", "requests"),
        "overlap_kept": of_sessions("served_tokens", "best_tokens"),
        "overlap_chosen": of_sessions("chosen_tokens", "best_tokens"),
    }


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
    ours: Mapping[str, Measured],
    theirs: Mapping[str, Measured],
    names: Sequence[str],
    measurements: Measurements,
) -> dict[str, Estimate]:
    return {
        name: interval(
            combine(np.subtract, ours[name], theirs[name])
            if name in ours
            else measurements.difference(first, second, metric(name))
        )
        for name in names
    }
