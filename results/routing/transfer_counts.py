"""Counts the tokens of KV transfers by the engines' own transfer logs (docs/probe.md), joined to the decision log.

The router divides a target's counters among the transfers that ended there, and cannot do so where several overlapped.
The target's log names each request: Mooncake's lines hold the transfer's id, NIXL's the source's request, whose name
contains it. Runs whose engines wrote no such log are left as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import msgspec

from results.records.decisions import DecisionRecord, KvTransfer
from results.records.frames import Gap, read_verified_bytes
from results.records.layout import TrialLayout
from results.records.transfer_log import ProbeEvent, ProbeLog, read_probe
from results.records.turns import RoutingCell

LOG = "log"
"""`KvTransfer.counted_by` where the target's log gave the tokens."""
ALLOCATED, SCHEDULED, PROMOTED, WRITE = "blocks_allocated", "scheduled", "promoted", "write"
KINDS = frozenset({ALLOCATED, SCHEDULED, PROMOTED, WRITE})
DECODE = "decode"
"""`part` of the decode request."""
NOT_LOGGED = "the target's transfer log does not hold it"


@dataclass(frozen=True, slots=True)
class Logged:
    """One transfer by the logs of its engines; None = not logged."""

    external_tokens: int
    local_tokens: int | None
    prompt_tokens: int | None
    bytes: int | None
    """Bytes of the copies that were made for this transfer alone."""

    @property
    def computed_tokens(self) -> int | None:
        """Prompt tokens that were neither transferred nor cached."""
        if self.prompt_tokens is None or self.local_tokens is None:
            return None
        return max(self.prompt_tokens - self.external_tokens - self.local_tokens, 0)


def read_transfer_logs(layout: TrialLayout, record: RoutingCell) -> tuple[dict[str, ProbeLog], tuple[Gap, ...]]:
    """The transfer log of each of the cell's instances that wrote one; a damaged or missing one is a gap."""
    logs: dict[str, ProbeLog] = {}
    gaps: list[Gap] = []
    known = {layout.root / name: checksum for name, checksum in record.checksums.items()}
    for engine in record.engines:
        paths = {*layout.transfer_logs(engine.instance), *(path for path in known if path.parent != layout.root)}
        paths = {path for path in paths if layout.find_instance_of(path) == engine.instance}
        wrong = [raw for path in sorted(paths) if isinstance(raw := read_verified_bytes(path, known.get(path)), Gap)]
        launches = [] if wrong else [read_probe(one) for one in sorted({path.parent for path in paths})]
        gaps += [*wrong, *(gap for log in launches for gap in log.gaps)]
        if launches:
            logs[engine.instance] = ProbeLog(
                tuple(sorted((event for log in launches for event in log.events), key=lambda event: event.t_ns)),
                tuple(status for log in launches for status in log.statuses),
            )
    return logs, tuple(gaps)


def take_counts_from_logs(
    records: Sequence[DecisionRecord], logs: Mapping[str, ProbeLog], cell: RoutingCell, artifact: str
) -> tuple[tuple[DecisionRecord, ...], tuple[Gap, ...]]:
    """The records with the tokens of transfers that the target's log holds; `logs`: by instance.

    Where counters and log differ, the log's are taken, as they are of this very request, and there is a gap of
    `artifact`.
    """
    if not logs:
        return tuple(records), ()
    blocks = {engine.instance: engine.block_tokens for engine in cell.engines}
    indexes = {instance: _LogIndex(log) for instance, log in logs.items()}
    both, differing, completed = 0, list[str](), list[DecisionRecord]()
    for record in records:
        moved = None if record.outcome is None else record.outcome.transfer
        if record.outcome is None or moved is None or moved.status != "transferred" or moved.target not in indexes:
            completed.append(record)
            continue
        logged = _read_transfer(moved, indexes)
        if logged is None:
            filled = _mark_unlogged(moved)
        elif moved.external_tokens is None:
            filled = _fill_counts(moved, logged, blocks.get(moved.target))
        else:
            both += 1
            filled = moved if _counts_agree(moved, logged) else _fill_counts(moved, logged, blocks.get(moved.target))
            if filled is not moved:
                by_counters, by_log = _describe_tokens(moved), _describe_tokens(logged)
                differing.append(f"{moved.transfer}: {by_counters} by the counters, {by_log} by the log")
        outcome = msgspec.structs.replace(record.outcome, transfer=filled)
        completed.append(msgspec.structs.replace(record, outcome=outcome))
    if not differing:
        return tuple(completed), ()
    text = f"{len(differing)} of {both} transfers differ between the target's counters and its log, which is taken"
    return tuple(completed), (Gap(artifact, f"{text}; {differing[0]}"),)


def _counts_agree(moved: KvTransfer, logged: Logged) -> bool:
    pairs = (moved.external_tokens, logged.external_tokens), (moved.local_tokens, logged.local_tokens)
    return all(counted == other for counted, other in pairs if counted is not None and other is not None)


def _describe_tokens(one: KvTransfer | Logged) -> str:
    return f"{one.external_tokens} tokens transferred and {one.local_tokens} cached"


def _mark_unlogged(moved: KvTransfer) -> KvTransfer:
    """Add to the reason that the target's log does not hold the transfer either."""
    if moved.external_tokens is not None:
        return moved
    return replace(moved, counted_reason="; ".join(part for part in (moved.counted_reason, NOT_LOGGED) if part))


def _fill_counts(moved: KvTransfer, logged: Logged, block_tokens: int | None) -> KvTransfer:
    external = logged.external_tokens
    logged_from = "" if logged.bytes is None else LOG
    holds = moved.bytes is not None and (moved.bytes_from == "counter" or moved.external_tokens == external)
    return replace(
        moved,
        external_tokens=external,
        local_tokens=logged.local_tokens,
        computed_tokens=logged.computed_tokens,
        blocks=None if not block_tokens else -(-external // block_tokens),
        bytes=moved.bytes if holds else logged.bytes,
        bytes_from=moved.bytes_from if holds else logged_from,
        counted_by=LOG,
        counted_reason="",
    )


class _LogIndex:
    """One instance's log, by transfer."""

    def __init__(self, log: ProbeLog) -> None:
        self.sees_allocation = not log.blind(ALLOCATED)
        self._events: dict[str, list[ProbeEvent]] = defaultdict(list)
        for event in log.events:
            if event.event in KINDS:
                for name in _list_possible_ids(event):
                    self._events[name].append(event)

    def of(self, transfer: str, kind: str) -> list[ProbeEvent]:
        return [event for event in self._events.get(transfer, ()) if event.event == kind]


def _list_possible_ids(event: ProbeEvent) -> frozenset[str]:
    """Texts that may be its transfer's id: engines build request ids from the client's, `cmpl-NAME-0-1a2b3c4d`."""
    parts = [text.split("-") for text in (event.request, event.remote_request) if text]
    return event.carries | {
        "-".join(own[begin:end]) for own in parts for begin, end in combinations(range(len(own) + 1), 2)
    }


def _read_transfer(moved: KvTransfer, indexes: Mapping[str, _LogIndex]) -> Logged | None:
    target = indexes[moved.target]
    allocated = next(iter(target.of(moved.transfer, ALLOCATED)), None)
    scheduled = next((event for event in target.of(moved.transfer, SCHEDULED) if event.part == DECODE), None)
    promoted = next(iter(target.of(moved.transfer, PROMOTED)), None)
    if allocated is not None and allocated.external_tokens is not None:
        external, local = allocated.external_tokens, allocated.local_tokens
    elif allocated is None and scheduled is not None and scheduled.cached_tokens is not None and target.sees_allocation:
        external, local = 0, scheduled.cached_tokens  # it held the whole prefix and pulled nothing
    else:
        return None
    if promoted is not None and promoted.ok is False:  # the load failed: only what had arrived counts
        if promoted.num_computed is None or local is None:
            return None
        external = max(promoted.num_computed - local, 0)
    prompt = next((event.prompt_tokens for event in (allocated, scheduled) if event and event.prompt_tokens), None)
    return Logged(external, local, prompt, _sum_written(moved, indexes) if external else 0)


def _sum_written(moved: KvTransfer, indexes: Mapping[str, _LogIndex]) -> int | None:
    """Bytes of the copies that served this transfer alone; Mooncake's source writes, NIXL's target reads."""
    own = [
        event
        for instance in (moved.source, moved.target)
        if instance in indexes
        for event in indexes[instance].of(moved.transfer, WRITE)
        if event.ok is not False
    ]
    alone = all(event.bytes is not None and len(event.transfers or ()) <= 1 for event in own)
    return sum(event.bytes or 0 for event in own) if own and alone else None
