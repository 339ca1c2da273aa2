"""KV movements of a cell as rows. Pure functions of decision records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from results.records.decisions import DecisionRecord, KvTransfer, transfer_s
from results.statistics.estimates import Estimate

COUNTED_SHARE = 0.9
"""Where the tokens of fewer were counted, those that were are no sample of all: it was chance, or load, that chose."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One KV movement that was asked for."""

    session: str
    transfer: KvTransfer

    @property
    def transfer_s(self) -> float | None:
        """From the router's beginning to the KV at the target (handover: the target begins to answer)."""
        return transfer_s(self.transfer)

    @property
    def source_leg_s(self) -> float | None:
        """The source's answer to its leg: what it had to compute, and its queue."""
        return _between_s(self.transfer.t_source_sent_ns, self.transfer.t_source_done_ns)

    @property
    def target_leg_s(self) -> float | None:
        """From the target's leg to the KV there: the pull, the target's queue and what it computed beside."""
        done = self.transfer.status == "transferred"
        return _between_s(self.transfer.t_target_sent_ns, self.transfer.t_done_ns) if done else None

    @property
    def wait_s(self) -> float | None:
        """What neither leg took: transfers to one target are made one at a time."""
        legs = self.transfer_s, self.source_leg_s, self.target_leg_s
        return None if None in legs else (legs[0] or 0.0) - (legs[1] or 0.0) - (legs[2] or 0.0)

    @property
    def source_computed_tokens(self) -> int | None:
        """Of the prefix, what the source had lost and computed again for the transfer."""
        cached = self.transfer.source_cached_tokens
        return None if cached is None else max(self.transfer.prefix_tokens - cached, 0)


def moved(records: Iterable[DecisionRecord]) -> tuple[Moved, ...]:
    """Every movement in the log, in its order."""
    return tuple(
        Moved(record.request.session, record.outcome.transfer)
        for record in records
        if record.outcome is not None and record.outcome.transfer is not None
    )


def enough_counted(counted: int, whole: int) -> bool:
    """Whether numbers of those that were counted may stand for all."""
    return not whole or counted >= COUNTED_SHARE * whole


def partly(found: Estimate, counted: int, whole: int) -> Estimate:
    """A number of those that were counted: without an interval where they cannot stand for all."""
    if found.value is None or enough_counted(counted, whole):
        return found
    return replace(found, low=None, high=None, reason=f"only {counted} of {whole} were counted", basis=None)


def _between_s(begin_ns: int, end_ns: int) -> float | None:
    return (end_ns - begin_ns) / 1e9 if begin_ns and end_ns else None
