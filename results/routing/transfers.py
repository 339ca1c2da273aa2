"""KV movements of a cell as rows, and what computing the same tokens takes there.

Pure functions of decision records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from results.decisions import DecisionRecord, KvTransfer
from results.routing.migrations import pending_at, transfer_s
from results.statistics import Ranks, Samples

MIN_FIT = 30
"""Fewer turns say nothing of a time per token beside what was pending."""


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


@dataclass(frozen=True, slots=True)
class Prefill:
    """A turn that was served without KV from elsewhere."""

    session: str
    computed_tokens: int
    """Of its prompt, by the engine's count."""
    pending_tokens: int
    """Prompt tokens pending at its instance when it was picked."""
    ttft_s: float
    """From the pick to the first byte."""


def moved(records: Iterable[DecisionRecord]) -> tuple[Moved, ...]:
    """Every movement in the log, in its order."""
    return tuple(
        Moved(record.request.session, record.outcome.transfer)
        for record in records
        if record.outcome is not None and record.outcome.transfer is not None
    )


def prefills(records: Iterable[DecisionRecord]) -> tuple[Prefill, ...]:
    """The turns that tell what computing a prompt token takes in this cell."""
    found = []
    for record in records:
        outcome, made = record.outcome, record.decision
        if outcome is None or outcome.status != "ok" or outcome.transfer is not None or made.prefill:
            continue
        if outcome.ttft_s is None or outcome.prompt_tokens is None or outcome.cached_tokens is None:
            continue
        computed = outcome.prompt_tokens - outcome.cached_tokens
        pending = pending_at(record, made.instance)
        if pending is not None:
            found.append(Prefill(record.request.session, computed, pending, outcome.ttft_s))
    return tuple(found)


def prefill_s_per_token(found: Sequence[Prefill]) -> float | str:
    """What one more computed token adds to the time to the first byte, pending tokens held; or why it is not known."""
    if len(found) < MIN_FIT:
        return f"{len(found)} turns were served without KV from elsewhere (needs {MIN_FIT})"
    slope = float(slopes(found, np.zeros(len(found), dtype=np.int64), np.ones((1, 1)))[0])
    return slope if slope > 0 else "turns that computed more tokens did not take longer: no time per token can be told"


def slopes(found: Sequence[Prefill], group: Ranks, weights: Samples) -> Samples:
    """The same in each draw of the groups (least squares); NaN where a draw tells no time above 0."""
    own, pending, took_s = (
        np.array([getattr(one, name) for one in found], dtype=np.float64)
        for name in ("computed_tokens", "pending_tokens", "ttft_s")
    )
    columns = [column - column.mean() for column in (own, pending, took_s)]  # squares of large numbers lose digits

    def summed(terms: Samples) -> Samples:
        return np.asarray(weights @ np.bincount(group, weights=terms, minlength=weights.shape[1]), dtype=np.float64)

    n, sums = summed(np.ones(own.size)), [summed(column) for column in columns]

    def spread(first: int, second: int) -> Samples:
        return np.asarray(summed(columns[first] * columns[second]) - sums[first] * sums[second] / n, dtype=np.float64)

    with np.errstate(divide="ignore", invalid="ignore"):
        xx, pp, xp, xy, py = spread(0, 0), spread(1, 1), spread(0, 1), spread(0, 2), spread(1, 2)
        held = np.where(pp > 0, xp / pp, 0.0)  # nothing is held where the same was always pending
        slope = (xy - held * py) / (xx - held * xp)
        return np.asarray(np.where((xx - held * xp > 1e-9 * xx) & (slope > 0), slope, np.nan), dtype=np.float64)


def _between_s(begin_ns: int, end_ns: int) -> float | None:
    return (end_ns - begin_ns) / 1e9 if begin_ns and end_ns else None
