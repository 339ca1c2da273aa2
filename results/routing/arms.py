"""One policy in two arms of a run: in one its KV moves, in the other the target of a migration computes it again.

The arms have equal policies, parameters, pools and rules of transfer, so a trial of both is a pair. Which turns migrate
is decided by each arm's own load: the migrated turns of both are not the same turns, but were chosen by the same rule.
All that were served count, whatever became of their transfer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from results.records.turns import RoutingCell
from results.routing.by_session import over_trials, ratio
from results.routing.measure import Measurements, interval, log_of_ratio, ratio_interval
from results.routing.metrics import metric
from results.routing.migrations import Migrations
from results.statistics.estimates import Estimate
from results.statistics.judgement import Verdict, judged
from results.statistics.trials import Measured, Trial, combine

MOVES_KV = "moves_kv"
"""In a cell's `router`: whether its instances could hand KV over."""


@dataclass(frozen=True, slots=True)
class AgainstArm:
    """The migrated turns of a label whose KV moves, against those of the arm that computes it again."""

    other: str
    """The label of that arm."""
    migrated: int
    """Migrated turns that were served, over all trials."""
    other_migrated: int
    with_kv_s: Estimate
    """From the pick to the first byte, mean."""
    without_kv_s: Estimate
    ratio: Estimate
    """The first over the second inside a trial; geometric mean over the trials."""
    every_turn: Estimate
    """The same of the mean TTFT of all turns that both arms completed: the very same turns."""
    verdict: Verdict | None
    """Of `ratio`."""


def recomputing_arms(records: Iterable[RoutingCell]) -> dict[str, str]:
    """The labels whose KV moves, to the label of the arm that differs in nothing else and moves none."""
    known: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for record in records:
        moves = record.router.get(MOVES_KV)
        if isinstance(moves, bool):
            known[moves].setdefault(_same(record), record.label)
    return {label: known[False][same] for same, label in known[True].items() if same in known[False]}


def _same(record: RoutingCell) -> str:
    """What the cells of both arms have in common."""
    roles = sorted(engine.role for engine in record.engines)
    transfer = record.router.get("transfer") or {}
    return repr((record.policy, sorted(record.parameters.items()), roles, sorted(transfer.items())))


def against_arm(
    label: str,
    other: str,
    found: Mapping[str, Mapping[int, Migrations]],
    measurements: Measurements,
) -> AgainstArm:
    """Of two labels; `found` by label and trial."""
    ours, theirs = (_waited(found.get(name, {}), name, measurements) for name in (label, other))
    compared = ratio_interval(combine(log_of_ratio, ours, theirs))
    return AgainstArm(
        other=other,
        migrated=sum(one.n for one in ours.trials.values()),
        other_migrated=sum(one.n for one in theirs.trials.values()),
        with_kv_s=interval(ours),
        without_kv_s=interval(theirs),
        ratio=compared,
        every_turn=ratio_interval(measurements.log_ratio(label, other, metric("ttft_mean_s"))),
        verdict=judged(compared, 1.0),
    )


def _waited(found: Mapping[int, Migrations], label: str, measurements: Measurements) -> Measured:
    def mean(one: Migrations) -> Trial | None:
        own = [(event.session, event.waited_s) for event in one.events if event.waited_s is not None]
        waited = np.array([seconds for _, seconds in own], dtype=np.float64)
        return ratio([session for session, _ in own], waited, np.ones(waited.size), measurements)

    return over_trials({t: mean(one) for t, one in found.items()}, f"no migrated turn of {label} was served")
