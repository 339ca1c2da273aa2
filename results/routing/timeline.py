"""The data of figure 10: prompt tokens pending at each instance over time, and the migrations between them.

Pure functions of decision records and of the 1 Hz samples of the same cell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from results.records.decisions import DecisionRecord
from results.records.turns import EngineSample
from results.routing.migrations import outcome_of, wants_to_move
from results.statistics.estimates import Samples


@dataclass(frozen=True, slots=True)
class PendingSeries:
    """Prompt tokens pending at one instance, as the router counted them. Seconds count from the log's first pick."""

    instance: str
    t_s: Samples
    tokens: Samples


@dataclass(frozen=True, slots=True)
class Arrow:
    """One migration in figure 10."""

    t_s: float
    source: str
    target: str
    session: str
    outcome: str
    """`transferred`, `recomputed`, `unneeded`, `failed` or `unknown`."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Figure 10: pending prefill per instance over time, and the migrations."""

    series: tuple[PendingSeries, ...]
    """By instance name."""
    arrows: tuple[Arrow, ...]


def timeline(records: Sequence[DecisionRecord], samples: Iterable[EngineSample] = ()) -> Timeline:
    """From the view of every pick and, between picks, from the 1 Hz `samples` of the same cell."""
    log = sorted(records, key=lambda record: record.seq)
    points: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in log:
        for load in record.cluster.instances:
            points[load.instance].append((record.t_ns, load.pending_prefill_tokens))
    for sample in samples:
        if sample.pending_prefill_tokens is not None:
            points[sample.instance].append((sample.t_ns, sample.pending_prefill_tokens))
    t0_ns = log[0].t_ns if log else min((found[0][0] for found in points.values()), default=0)
    arrows = (
        Arrow(
            (record.t_ns - t0_ns) / 1e9,
            record.decision.migrate_from,
            record.decision.instance,
            record.request.session,
            outcome_of(record),
        )
        for record in log
        if wants_to_move(record)
    )
    return Timeline(tuple(_series(name, points[name], t0_ns) for name in sorted(points)), tuple(arrows))


def heat(found: Timeline, edges_s: Samples) -> Samples:
    """The most tokens pending between each two of `edges_s`, instances x bins; NaN where nothing was seen."""
    grid = np.full((len(found.series), max(len(edges_s) - 1, 0)), np.nan)
    for row, series in enumerate(found.series):
        places = np.searchsorted(edges_s, series.t_s, side="right") - 1
        inside = (places >= 0) & (places < grid.shape[1])
        np.fmax.at(grid[row], places[inside], series.tokens[inside])
    return grid


def _series(name: str, points: list[tuple[int, int]], t0_ns: int) -> PendingSeries:
    points.sort()
    return PendingSeries(
        name,
        np.array([(t_ns - t0_ns) / 1e9 for t_ns, _ in points], dtype=np.float64),
        np.array([tokens for _, tokens in points], dtype=np.float64),
    )
