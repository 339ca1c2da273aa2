"""What a decision log of kv_aware says of specs/load_floor.md: who got which sessions, and what became of the overlap.

Pure functions of decision records. "D" is an instance that decodes: of role `decode` in pools, else every one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.records.decisions import DecisionRecord
from results.records.turns import RoutingCell
from results.routing.floor_transport import QUARANTINED, Rules, rules_of

KV_AWARE = "kv_aware"
"""The policy of that specification."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The served requests of one session."""

    session: str
    requests: int
    direct: int
    """Served by the D that the session was bound to, from its own cache: no prefill elsewhere and no transfer, and some
    of the prompt was cached."""
    best_tokens: int
    """Prompt tokens that the D with the most held at each pick, by the router's index; summed."""
    chosen_tokens: int
    """The same of the D that was picked."""
    counted: int
    """Of the requests, those of which is known what the D found in its own cache."""
    counted_best_tokens: int
    """`best_tokens` of these alone."""
    served_tokens: int
    """Prompt tokens that the D found in its own cache at these, as its responses say (not what was handed over)."""


@dataclass(frozen=True, slots=True)
class FloorFacts:
    """One cell."""

    placed: Mapping[str, int]
    """Per D: sessions whose first request it served."""
    sessions: tuple[SessionFacts, ...]
    reject_moves: int
    """Picks that left the session's D because it had refused the session too often."""
    rejects: int
    """Picks of sessions that some instance had refused before."""
    held: int
    """Picks that found no room."""
    cut_off: int
    """Picks at which some pair of instances was in quarantine."""
    rules: Rules
    """How the cell's KV may move."""


def floor_facts(cell: RoutingCell, records: Sequence[DecisionRecord]) -> FloorFacts:
    """Of one cell; `records` in any order."""
    log = sorted(records, key=lambda record: record.seq)
    decodes = tuple(engine.instance for engine in cell.engines if engine.role != "prefill")
    served = [record for record in log if record.outcome is not None and record.outcome.status == "ok"]
    placed = Counter({name: 0 for name in decodes})
    by_session: dict[str, list[DecisionRecord]] = {}
    for record in served:
        name = record.request.session
        if not name:
            continue
        if name not in by_session:
            placed[record.decision.instance] += 1
        by_session.setdefault(name, []).append(record)
    return FloorFacts(
        placed=dict(sorted(placed.items())),
        sessions=tuple(_session(name, own, decodes) for name, own in sorted(by_session.items())),
        reject_moves=sum(record.decision.reason == "reject_migration" for record in log),
        rejects=sum(bool(record.request.rejects) for record in log),
        held=sum(record.outcome is not None and record.outcome.status == "held" for record in log),
        cut_off=sum(any(QUARANTINED in why for why in record.request.cut_off.values()) for record in log),
        rules=rules_of(cell),
    )


def _session(name: str, own: Sequence[DecisionRecord], decodes: Sequence[str]) -> SessionFacts:
    held = [{name: record.request.cached_tokens.get(name, 0) for name in decodes} for record in own]
    best = [max(here.values(), default=0) for here in held]
    found = [_own_tokens(record) for record in own]
    direct = [
        record.decision.instance == record.request.owner
        and not record.decision.prefill
        and (record.outcome is None or record.outcome.transfer is None)
        and bool(tokens)
        for record, tokens in zip(own, found, strict=True)
    ]
    return SessionFacts(
        session=name,
        requests=len(own),
        direct=sum(direct),
        best_tokens=sum(best),
        chosen_tokens=sum(here.get(record.decision.instance, 0) for record, here in zip(own, held, strict=True)),
        counted=sum(tokens is not None for tokens in found),
        counted_best_tokens=sum(most for most, tokens in zip(best, found, strict=True) if tokens is not None),
        served_tokens=sum(tokens for tokens in found if tokens is not None),
    )


def _own_tokens(record: DecisionRecord) -> int | None:
    """What the instance found in its own cache; by the index where no response said it.

    None: KV was handed over, and the tokens that came were not counted.
    """
    outcome = record.outcome
    if outcome is not None and outcome.transfer is not None and outcome.transfer.status == "transferred":
        return outcome.transfer.local_tokens
    if outcome is not None and outcome.cached_tokens is not None:
        return outcome.cached_tokens
    return record.request.cached_tokens.get(record.decision.instance, 0)
