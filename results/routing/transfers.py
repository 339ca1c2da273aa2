"""KV movements of a cell as rows, and what computing the same tokens takes there.

Pure functions of decision records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from results.decisions import DecisionRecord, KvTransfer
from results.routing.migrations import transfer_s
from results.statistics import Ranks, Samples

MIN_FIT = 10
"""Fewer prefills say nothing of a time per token."""
MOST_CACHED = 0.5
"""A prefill tells what computing takes where no more of its prompt than this share was cached."""


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
    def source_computed_tokens(self) -> int | None:
        """Of the prefix, what the source had lost and computed again for the transfer."""
        cached = self.transfer.source_cached_tokens
        return None if cached is None else max(self.transfer.prefix_tokens - cached, 0)


@dataclass(frozen=True, slots=True)
class Prefill:
    """A turn that was served without KV from elsewhere, mostly computed, with no prefill before it in the queue."""

    session: str
    computed_tokens: int
    ttft_s: float
    """Dispatch to the first byte."""


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
        before = [load.pending_prefill_tokens for load in record.cluster.instances if load.instance == made.instance]
        if before == [0] and outcome.cached_tokens <= MOST_CACHED * outcome.prompt_tokens:
            computed = outcome.prompt_tokens - outcome.cached_tokens
            found.append(Prefill(record.request.session, computed, outcome.ttft_s))
    return tuple(found)


def prefill_s_per_token(found: Sequence[Prefill]) -> float | str:
    """What one more computed token adds to the time to the first byte (least squares); or why it is not known."""
    if len(found) < MIN_FIT:
        return f"{len(found)} turns were computed on an instance with nothing pending (needs {MIN_FIT})"
    slope = float(slopes(found, np.zeros(len(found), dtype=np.int64), np.ones((1, 1)))[0])
    return (
        slope
        if slope > 0
        else "they do not differ in length, or longer ones did not take longer: no time per token can be told"
    )


def slopes(found: Sequence[Prefill], group: Ranks, weights: Samples) -> Samples:
    """The same in each draw of the groups; NaN where a draw has no two lengths, or tells no time above 0."""
    x = np.array([one.computed_tokens for one in found], dtype=np.float64)
    y = np.array([one.ttft_s for one in found], dtype=np.float64)
    x, groups = x - x.mean(), weights.shape[1]  # about the mean: squares of large numbers would lose digits
    terms = (np.ones_like(x), x, y, x * x, x * y)
    n, sx, sy, sxx, sxy = (weights @ np.bincount(group, weights=term, minlength=groups) for term in terms)
    spread = n * sxx - sx * sx
    found_slopes = np.divide(n * sxy - sx * sy, spread, out=np.full(n.size, np.nan), where=spread > 1e-9)
    return np.asarray(np.where(found_slopes > 0, found_slopes, np.nan), dtype=np.float64)


def _between_s(begin_ns: int, end_ns: int) -> float | None:
    return (end_ns - begin_ns) / 1e9 if begin_ns and end_ns else None
