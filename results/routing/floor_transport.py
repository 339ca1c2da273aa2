"""What specs/load_floor.md asks of the transport: how transfers ended, their target legs, arms with other timeouts.

Pure functions. A target leg lasts from its sending to the KV at the target (handover: to its first byte), with the
target's queue: what a transfer timeout bounds. "Lost" is a transfer that failed or was refused: its target computed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.records.decisions import KvTransfer
from results.records.turns import RoutingCell
from results.routing.transfers import Moved
from results.statistics.estimates import Estimate

QUARANTINED = "quarantin"
"""In the reason of a transfer that its pair's quarantine refused, and of a pair that is cut off."""
LOST = frozenset({"failed", "refused"})
"""How a transfer ends whose target computes what was to come."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a cell's router may move KV."""

    moves_kv: bool | None
    """None = the cell does not say."""
    timeout_s: float | None
    """Of a transfer; None = the cell does not say."""
    others: str
    """The other rules as they were given."""


@dataclass(frozen=True, slots=True)
class TransportFacts:
    """All transfers of a run, whatever the policy."""

    asked: int
    transferred: int
    failed: int
    quarantined: int
    """Refused because their pair was in quarantine."""
    pairs_quarantined: int
    pairs_recovered: int
    """Of these, pairs with a transfer that went well after one was refused."""


@dataclass(frozen=True, slots=True)
class TargetLegs:
    """The target legs of one label's transfers."""

    done: int
    """Those that brought the KV."""
    longest_s: float | None
    timed_out: int


@dataclass(frozen=True, slots=True)
class TimeoutPair:
    """Two labels that differ in their transfers' timeout alone."""

    short: str
    long: str
    short_s: float
    long_s: float
    short_legs: TargetLegs
    long_legs: TargetLegs
    over_short: int
    """Of the long one's that brought the KV: those that took longer than the short timeout."""
    lost_share: Estimate
    """Share of the transfers that were lost, long - short, inside each trial."""


def rules_of(cell: RoutingCell) -> Rules:
    """By the cell's own record."""
    moves, given = cell.router.get("moves_kv"), cell.router.get("transfer")
    rules = dict(given) if isinstance(given, Mapping) else {}
    timeout_s = rules.pop("timeout_s", None)
    return Rules(
        moves_kv=moves if isinstance(moves, bool) else None,
        timeout_s=float(timeout_s) if isinstance(timeout_s, int | float) else None,
        others=", ".join(f"{name}={value}" for name, value in sorted(rules.items())),
    )


def is_lost(transfer: KvTransfer) -> bool:
    """Whether the target had to compute what was to come."""
    return transfer.status in LOST


def target_legs(moved: Sequence[Moved]) -> TargetLegs:
    """Of these transfers."""
    took = leg_times(moved)
    timed_out = sum(
        one.transfer.status == "failed" and bool(one.transfer.t_target_sent_ns) and _timed_out(one.transfer.reason)
        for one in moved
    )
    return TargetLegs(len(took), max(took, default=None), timed_out)


def leg_times(moved: Sequence[Moved]) -> list[float]:
    """Seconds of each target leg that brought the KV."""
    return [seconds for one in moved if (seconds := one.target_leg_s) is not None]


def transport_facts(logs: Sequence[Sequence[Moved]]) -> TransportFacts:
    """Of these cells' transfers, each cell's in the order of its log."""
    every = [one.transfer for log in logs for one in log]
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
        quarantined=sum(one.status == "refused" and QUARANTINED in one.reason for one in every),
        pairs_quarantined=quarantined,
        pairs_recovered=recovered,
    )


def _timed_out(reason: str) -> bool:
    return re.search(r"within [\d.]+ s", reason) is not None  # `not done within 120 s`
