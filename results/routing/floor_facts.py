"""What specs/load_floor.md asks of one cell or of all transfers: who got which sessions, what became of the overlap,
how transfers ended, and how long their decode requests took.

Pure functions of decision records. "D" is an instance that decodes: of role `decode` in pools, else every one. A
decode request lasts from its sending to the KV at the target (handover: to its first byte), with the target's queue:
what a transfer timeout bounds. "Lost" is a transfer that failed or was refused: its target computed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.records.decisions import DecisionRecord, KvTransfer
from results.records.turns import RoutingCell
from results.routing.read import read_number_or_none
from results.routing.recomputing import RESERVED_OUTPUT
from results.routing.transfers import Moved

KV_AWARE = "kv_aware"
"""The policy of that specification."""
QUARANTINED = "quarantin"
"""In the reason of a transfer that was refused because its pair is in quarantine or cut off."""
OF_QUARANTINE = ("failures_to_quarantine", "window_s", "quarantine_s", "quarantine_max_s")
"""The rules of a transfer that say when a pair is closed, and for how long."""
LOST = frozenset({"failed", "refused"})
"""How a transfer ends whose target computes the KV itself."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a cell's router may move KV."""

    moves_kv: bool | None
    """None = the cell does not say."""
    timeout_s: float | None
    """Time limit of a transfer; None = the cell does not say."""
    others: str
    """The other rules as they were given."""
    failures_to_quarantine: float | None = None
    """After which a pair is closed; None = the cell does not say."""
    quarantine: str = ""
    """These with OF_QUARANTINE's others."""


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
    """Requests whose tokens in the D's own cache are known."""
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
    rules: Rules
    """How the cell's KV may move."""


@dataclass(frozen=True, slots=True)
class TransportFacts:
    """All transfers of a run, whatever the policy."""

    asked: int
    """Transfers that the router asked for."""
    transferred: int
    """Those whose KV arrived."""
    failed: int
    """Those that failed."""
    quarantined: int
    """Refused because their pair was in quarantine."""
    pairs_quarantined: int
    """Pairs of instances with a refused transfer."""
    pairs_recovered: int
    """Pairs with a successful transfer after a refused one."""


@dataclass(frozen=True, slots=True)
class DecodeRequests:
    """The decode requests of one label's transfers."""

    done: int
    """Those that brought the KV."""
    longest_s: float | None
    """The longest of them; None = there is none."""
    timed_out: int
    """Those that ended at the timeout."""


def floor_facts(cell: RoutingCell, records: Sequence[DecisionRecord]) -> FloorFacts:
    """`records`: those of the cell, in any order."""
    log = sorted(records, key=lambda record: record.seq)
    decodes = tuple(engine.instance for engine in cell.engines if engine.role != "prefill")
    placed = Counter({name: 0 for name in decodes})
    by_session: dict[str, list[DecisionRecord]] = {}
    for record in log:
        session = record.request.session
        if not session or record.outcome is None or record.outcome.status != "ok":
            continue
        if session not in by_session:
            placed[record.decision.instance] += 1
        by_session.setdefault(session, []).append(record)
    return FloorFacts(
        placed=dict(sorted(placed.items())),
        sessions=tuple(_collect_session_facts(name, own, decodes) for name, own in sorted(by_session.items())),
        reject_moves=sum(record.decision.reason == "reject_migration" for record in log),
        rejects=sum(bool(record.request.rejects) for record in log),
        held=sum(record.outcome is not None and record.outcome.status == "held" for record in log),
        rules=read_rules(cell),
    )


def _collect_session_facts(name: str, own: Sequence[DecisionRecord], decodes: Sequence[str]) -> SessionFacts:
    direct = best = chosen = counted = counted_best = served = 0
    for record in own:
        held = {instance: record.request.cached_tokens.get(instance, 0) for instance in decodes}
        most, picked, tokens = max(held.values(), default=0), record.decision.instance, _count_own_tokens(record)
        best += most
        chosen += held.get(picked, 0)
        if tokens is not None:
            counted += 1
            counted_best += most
            served += tokens
        moved = record.outcome is not None and record.outcome.transfer is not None
        direct += picked == record.request.owner and not record.decision.prefill and not moved and bool(tokens)
    return SessionFacts(name, len(own), direct, best, chosen, counted, counted_best, served)


def _count_own_tokens(record: DecisionRecord) -> int | None:
    """Tokens that the instance found in its own cache; by the index where no response reports them.

    None: KV was handed over, and its tokens were not counted.
    """
    outcome = record.outcome
    if outcome is not None and outcome.transfer is not None and outcome.transfer.status == "transferred":
        return outcome.transfer.local_tokens
    if outcome is not None and outcome.cached_tokens is not None:
        return outcome.cached_tokens
    return record.request.cached_tokens.get(record.decision.instance, 0)


def read_rules(cell: RoutingCell) -> Rules:
    moves, transfer = cell.router.get("moves_kv"), cell.router.get("transfer")
    rules = dict(transfer) if isinstance(transfer, Mapping) else {}
    timeout_s, failures = rules.pop("timeout_s", None), rules.get("failures_to_quarantine")
    quarantine = {name: rules.pop(name) for name in OF_QUARANTINE if name in rules}
    if reserved := cell.router.get(RESERVED_OUTPUT):  # arms that reserve differently have different rules
        rules[RESERVED_OUTPUT] = reserved
    return Rules(
        moves_kv=moves if isinstance(moves, bool) else None,
        timeout_s=read_number_or_none(timeout_s),
        others=_list_rules(rules),
        failures_to_quarantine=read_number_or_none(failures),
        quarantine=_list_rules(quarantine),
    )


def _list_rules(rules: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(rules.items()))


def is_lost(transfer: KvTransfer) -> bool:
    """Whether the target had to compute the KV itself."""
    return transfer.status in LOST


def summarize_decode_requests(moved: Sequence[Moved]) -> DecodeRequests:
    took = list_decode_times(moved)
    failed = [one.transfer for one in moved if one.transfer.status == "failed" and one.transfer.t_target_sent_ns]
    timed_out = sum(bool(re.search(r"within [\d.]+ s", one.reason)) for one in failed)  # `not done within 120 s`
    return DecodeRequests(len(took), max(took, default=None), timed_out)


def list_decode_times(moved: Sequence[Moved]) -> list[float]:
    """Seconds of each decode request that brought the KV."""
    return [seconds for one in moved if (seconds := one.decode_request_s) is not None]


def collect_transport_facts(logs: Sequence[Sequence[Moved]]) -> TransportFacts:
    """`logs`: each cell's transfers, in the order of its log."""
    every = [one.transfer for log in logs for one in log]
    has_recovered: dict[tuple[int, str, str], bool] = {}
    for cell, log in enumerate(logs):
        for transfer in (one.transfer for one in log):
            pair = cell, transfer.source, transfer.target
            if transfer.status == "refused" and QUARANTINED in transfer.reason:
                has_recovered.setdefault(pair, False)
            elif transfer.status == "transferred" and pair in has_recovered:
                has_recovered[pair] = True
    return TransportFacts(
        asked=len(every),
        transferred=sum(one.status == "transferred" for one in every),
        failed=sum(one.status == "failed" for one in every),
        quarantined=sum(one.status == "refused" and QUARANTINED in one.reason for one in every),
        pairs_quarantined=len(has_recovered),
        pairs_recovered=sum(has_recovered.values()),
    )
