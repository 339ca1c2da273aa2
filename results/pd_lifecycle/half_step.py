"""Whether half of the decode instance's step should be subtracted from `d_promotion` (`subtract_half_step`).

The specification subtracts it because a signal that arrives during a step waits for the step's end, half a step on
average (specs/pd_lifecycle, "Risks & Mitigations"). That is so where the decode instance steps without a pause: it
serves other requests. An idle one polls for blocks, and the wait is for the poll.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from results.records.lifecycle import LifecycleRecord


@dataclass(frozen=True, slots=True)
class HalfStep:
    """`d_promotion` beside the step of the decode instance, medians over the counted requests that have both."""

    requests: int
    """Counted requests that have both."""
    step_ms: float | None
    """Median step of the decode instance."""
    promotion_ms: float | None
    """Median `d_promotion`."""
    worthwhile: bool | None
    """None = neither is known."""
    text: str
    """The same in words."""


def assess_half_step(records: Sequence[LifecycleRecord]) -> HalfStep:
    """From the records' stamps, whatever the setting is."""
    known = [
        (record.counts.d_step_ms, (promoted - received) / 1e6)
        for record in records
        if record.counted
        and record.counts.d_step_ms
        and (promoted := record.timestamps_ns.t8_d_promoted) is not None
        and (received := record.timestamps_ns.t7_d_recv_signal) is not None
    ]
    if not known:
        return HalfStep(0, None, None, None, "The steps of the decode instance are unknown.")
    step_ms, promotion_ms = (median(values) for values in zip(*known, strict=True))
    worthwhile = promotion_ms <= step_ms  # a signal waits for the end of one step at most
    measured = f"d_promotion is {promotion_ms / step_ms:.2g} steps of the decode instance (medians)"
    if worthwhile:
        text = f"{measured}: a signal waits for the step under way, and subtracting half a step removes that wait."
    else:
        text = (
            f"{measured}, and a signal waits for one step at most: the decode instance is idle and polls. Subtracting "
            "half a step is worthwhile only where it serves other requests."
        )
    return HalfStep(len(known), step_ms, promotion_ms, worthwhile, text)
