"""What another policy would have picked: repeat every recorded pick on its recorded view.

This compares decisions. It does not predict latencies: see `LIMITS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from results.records.decisions import ClusterView, Decision, DecisionRecord, RoutedRequest
from runners.router.policies import list_parameters
from runners.router.policies.policy import Policy, PolicyError, new_tokens
from runners.router.why import why_not

LIMITS = (
    "Each pick is made again on the recorded view. Loads, caches, owners, migrations, refusals and pauses are those "
    "that the recorded policy brought about; after a first difference the real ones would have differed too. This says "
    "where two policies disagree, not how fast the other one would have been."
)
Owners = Literal["recorded", "served"]


@dataclass(frozen=True, slots=True)
class Difference:
    """A pick that would have gone elsewhere."""

    seq: int
    request: str
    session: str
    turn: int
    recorded: str
    recorded_reason: str
    instead: str
    instead_reason: str
    why_not_recorded: str
    """Why the other policy does not take the recorded instance, in words."""


@dataclass(frozen=True, slots=True)
class ReasonPair:
    """Picks with these two reasons."""

    recorded_reason: str
    instead_reason: str
    picks: int
    differ: int


@dataclass(frozen=True, slots=True)
class Met:
    """Load of the picked instances, as means over all picks with an instance; None = there were none."""

    new_tokens: float | None
    """Prompt tokens to compute, by the index."""
    pending_prefill_tokens: float | None
    num_requests: float | None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One log, or several of one recorded policy, under another policy."""

    policy: str
    parameters: dict[str, Any]
    recorded_policies: tuple[str, ...]
    picks: int
    agree: int
    reasons: tuple[ReasonPair, ...]
    """Most picks first."""
    shares: dict[str, tuple[int, int]]
    """Per instance: picks recorded, picks instead. An empty name = nowhere."""
    recorded_met: Met
    instead_met: Met
    migrations: tuple[int, int]
    """Picks with a migration: recorded, instead."""
    unowned_turns: int
    """Picks for later turns of a session without a known owner: the recorded policy does not bind."""
    differences: tuple[Difference, ...]
    limits: str = LIMITS

    @property
    def agreement(self) -> float | None:
        """Share of picks with the same instances; None = there are no picks."""
        return self.agree / self.picks if self.picks else None


def repeat_picks(records: Sequence[DecisionRecord], policy: Policy, owners: Owners = "recorded") -> WhatIf:
    """Repeat every pick of `records`, in order, with `policy`.

    `owners`: the session's owner as `recorded`, or the instance that `served` its previous turn (for logs of policies
    that bind nothing). The tie-break counter is the recorded one, plus the advances of `policy`, minus those of the
    recorded policy. Raises PolicyError if a user's policy fails or names an instance that cannot be picked.
    """
    reasons: Counter[tuple[str, str, bool]] = Counter()
    before: Counter[str] = Counter()
    after: Counter[str] = Counter()
    differences: list[Difference] = []
    recorded_rows: list[tuple[int, int, int]] = []
    instead_rows: list[tuple[int, int, int]] = []
    served: dict[str, str] = {}
    ahead = unowned = migrations = instead = 0
    for record in records:
        request = _set_owner(record, served, owners)
        unowned += request.turn > 0 and request.session != "" and not request.owner
        decision = _decide_again(policy, request, record, ahead)
        recorded = record.decision
        ahead += decision.advances - recorded.advances
        same = (decision.instance, decision.prefill) == (recorded.instance, recorded.prefill)
        migrations += bool(recorded.migrate_from)
        instead += bool(decision.migrate_from)
        reasons[recorded.reason, decision.reason, same] += 1
        before[recorded.instance] += 1
        after[decision.instance] += 1
        recorded_rows += _measure_met(record, recorded)
        instead_rows += _measure_met(record, decision)
        if not same:
            differences.append(_describe_difference(record, decision))
        if record.outcome is not None and record.outcome.status == "ok":
            served[request.session] = recorded.instance
    return WhatIf(
        policy=policy.name,
        parameters=list_parameters(policy),
        recorded_policies=tuple(dict.fromkeys(record.decision.policy for record in records)),
        picks=len(records),
        agree=len(records) - len(differences),
        reasons=_count_pairs(reasons),
        shares={name: (before[name], after[name]) for name in sorted({*before, *after})},
        recorded_met=_average_met(recorded_rows),
        instead_met=_average_met(instead_rows),
        migrations=(migrations, instead),
        unowned_turns=unowned,
        differences=tuple(differences),
    )


def _set_owner(record: DecisionRecord, served: dict[str, str], owners: Owners) -> RoutedRequest:
    if owners == "recorded" or not record.request.session:
        return record.request
    return msgspec.structs.replace(record.request, owner=served.get(record.request.session, ""))


def _decide_again(policy: Policy, request: RoutedRequest, record: DecisionRecord, ahead: int) -> Decision:
    cluster = msgspec.structs.replace(record.cluster, fallbacks=record.cluster.fallbacks + ahead)
    where = f"policy {policy.name} at pick {record.seq}"
    try:
        decision = policy.decide(request, cluster)
    except Exception as error:
        raise PolicyError(f"{where}: {type(error).__name__}: {error}", remedy="correct the policy") from error
    fault = _find_fault(decision, cluster)
    if fault:
        raise PolicyError(f"{where}: {fault}", remedy="correct the policy")
    return decision


def _measure_met(record: DecisionRecord, decision: Decision) -> list[tuple[int, int, int]]:
    """New tokens, pending tokens and requests of the picked instance; empty = none was picked."""
    name, request = decision.prefill or decision.instance, record.request
    return [
        (new_tokens(request, load), load.pending_prefill_tokens, load.num_requests)
        for load in record.cluster.instances
        if load.instance == name
    ]


def _average_met(rows: Sequence[tuple[int, int, int]]) -> Met:
    if not rows:
        return Met(None, None, None)
    return Met(*(sum(column) / len(rows) for column in zip(*rows, strict=True)))


def _find_fault(decision: Decision, cluster: ClusterView) -> str:
    """Why a user's policy's decision cannot be carried out; empty = it can."""
    loads = {load.instance: load for load in cluster.instances}
    for name in (decision.instance, decision.prefill, decision.migrate_from):
        if name and name not in loads:
            return f"it names {name!r}, which is no instance"
    for name in (decision.instance, decision.prefill):
        if name and not loads[name].available:
            return f"it picks {name}, which is not available ({loads[name].why_unavailable or 'no reason given'})"
    return ""


def _describe_difference(record: DecisionRecord, decision: Decision) -> Difference:
    recorded, request = record.decision, record.request
    rival = next((other for other in decision.candidates if other.instance == recorded.instance), None)
    return Difference(
        seq=record.seq,
        request=request.request,
        session=request.session,
        turn=request.turn,
        recorded=recorded.instance,
        recorded_reason=recorded.reason,
        instead=decision.instance,
        instead_reason=decision.reason,
        why_not_recorded=why_not(rival, decision) if rival is not None else "it was not weighed",
    )


def _count_pairs(reasons: Counter[tuple[str, str, bool]]) -> tuple[ReasonPair, ...]:
    keys = dict.fromkeys((recorded, instead) for recorded, instead, _ in reasons)
    pairs = (ReasonPair(a, b, reasons[a, b, True] + reasons[a, b, False], reasons[a, b, False]) for a, b in keys)
    return tuple(sorted(pairs, key=lambda pair: (-pair.picks, pair.recorded_reason, pair.instead_reason)))
