"""The launches of a run: how many were planned, how many were measured, and how long a round of them takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from results.connector_tax.summary import CellSummary
from results.records.phase_names import CONFIRM
from results.records.run_folder import PlannedCell

HOUR_S = 3600.0


def count_planned(cells: Sequence[PlannedCell]) -> int:
    """Launches per config by the run's plan: of the confirm stage, where there is one; 0 = the plan does not say."""
    confirmed = [cell for cell in cells if cell.phase == CONFIRM]
    return len({cell.trial for cell in confirmed or cells})


def describe_launches(cells: Sequence[CellSummary], planned: Sequence[PlannedCell]) -> str:
    """`8 launches per config`, or `5 to 8 of 8` where some are missing: of the confirm stage, where there is one."""
    confirmed = [cell for cell in cells if cell.phase == CONFIRM]
    measured: dict[str, set[int]] = {}
    for cell in confirmed or cells:
        measured.setdefault(cell.config, set()).add(cell.trial)
    wanted = {one.trial for one in planned if one.config in measured and (one.phase == CONFIRM or not confirmed)}
    counts = {len(trials) for trials in measured.values()}
    fewest, most = min(counts, default=0), max(counts, default=0)
    count = str(most) if fewest == most else f"{fewest} to {most}"
    if fewest < len(wanted):
        return f"{count} of {len(wanted)} launches per config"
    return "one launch per config" if counts == {1} else f"{count} launches per config"


def count_planned_launches(planned: Sequence[PlannedCell]) -> dict[str, int]:
    """By cell, how many launches of its config the plan has at its load."""
    loads = {cell.cell: (cell.config, cell.phase, re.sub(rf"_t{cell.trial}$", "", cell.stem)) for cell in planned}
    launches = Counter(loads.values())
    return {cell: launches[load] for cell, load in loads.items()}


def measure_launch_s(cells: Sequence[CellSummary]) -> float | None:
    """Duration of one launch of every config, starts of engines included; None = no cell was measured.

    Of the confirm stage, where there is one; else of every phase. The median over rounds of launches, from the start of
    one to the start of the next: a pause of the run, or a cell that was repeated later, does not move it.
    """
    confirmed = [cell for cell in cells if cell.phase == CONFIRM]
    stages: dict[str, dict[int, list[CellSummary]]] = {}
    for cell in confirmed or cells:
        stages.setdefault(cell.phase[:1], {}).setdefault(cell.trial, []).append(cell)
    return sum(_measure_round_s(list(rounds.values())) for rounds in stages.values()) if stages else None


def _measure_round_s(rounds: Sequence[Sequence[CellSummary]]) -> float:
    starts_s = sorted(min(cell.t_start_unix_s for cell in cells) for cells in rounds)
    if len(starts_s) > 1:
        return median(after - before for before, after in pairwise(starts_s))
    ends_s = [cell.t_end_unix_s for cell in rounds[0] if cell.t_end_unix_s is not None]
    return max(ends_s, default=starts_s[0]) - starts_s[0]


def describe_time(launches: int, cells: Sequence[CellSummary]) -> str:
    """`, about 12 h`: for this many launches per config, at the pace of these cells; empty = not known."""
    launch_s = measure_launch_s(cells)
    if not launch_s:
        return ""
    hours = launches * launch_s / HOUR_S
    if hours >= 10:
        return f", about {hours:.0f} h"
    return f", about {hours:.1f} h" if hours >= 1 else f", about {max(hours * 60, 1):.0f} min"
