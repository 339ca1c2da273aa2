"""How a prefill slows the decodes on its instance: the rows of `interference.jsonl`, summarized (figure f4d)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.records.estimate import Estimate, unknown
from results.records.frames import Gap
from results.records.layout import RunLayout
from results.records.samples import InterferenceRecord
from results.routing.read import read_rows
from results.statistics.estimates import mean


@dataclass(frozen=True, slots=True)
class Interference:
    """All repeats of one prefill length beside this many decodes."""

    prefill_tokens: int
    """Prompt length of the prefill."""
    decodes: int
    """Requests that decode beside it."""
    repeats: int
    """Prefills that were measured."""
    before_s: Estimate
    """ITL of the running decodes before the prefill joined: mean over repeats with Student's t interval."""
    during_s: Estimate
    """While it ran: gaps between tokens that overlap the time from its send to its token."""
    after_s: Estimate
    """After it had its token."""
    slowdown: Estimate
    """during / before of each repeat: mean over repeats, with its interval."""
    worst_gap_s: float | None
    """The longest gap between two tokens of any decode while a prefill ran."""


def read_interference(root: Path) -> tuple[tuple[InterferenceRecord, ...], tuple[Gap, ...]]:
    """The rows of the run. A missing file is no gap: not every preset measures interference."""
    path = RunLayout(root).interference
    if not path.is_file():
        return (), ()
    return read_rows(path, InterferenceRecord)


def summarize_interference(rows: Sequence[InterferenceRecord]) -> tuple[Interference, ...]:
    """By prefill length and number of decodes."""
    groups: dict[tuple[int, int], list[InterferenceRecord]] = defaultdict(list)
    for row in rows:
        groups[row.decodes, row.prefill_tokens].append(row)
    return tuple(_summarize_repeats(*key, groups[key]) for key in sorted(groups))


def _summarize_repeats(decodes: int, prefill_tokens: int, rows: Sequence[InterferenceRecord]) -> Interference:
    ratios = [row.itl_during_s / row.itl_before_s for row in rows if row.itl_during_s is not None and row.itl_before_s]
    worst = [row.worst_gap_during_s for row in rows if row.worst_gap_during_s is not None]
    return Interference(
        prefill_tokens=prefill_tokens,
        decodes=decodes,
        repeats=len(rows),
        before_s=_estimate_mean_of_repeats(row.itl_before_s for row in rows),
        during_s=_estimate_mean_of_repeats(row.itl_during_s for row in rows),
        after_s=_estimate_mean_of_repeats(row.itl_after_s for row in rows),
        slowdown=_estimate_mean_of_repeats(ratios),
        worst_gap_s=max(worst, default=None),
    )


def _estimate_mean_of_repeats(values: Iterable[float | None]) -> Estimate:
    known = [value for value in values if value is not None]
    return mean(known) if known else unknown("no repeat measured it")
