"""Everything that is known of a `routing` run, computed from its folder and written nowhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from results.records.engine_faults import engine_fault_gaps
from results.records.errors import ResultsError
from results.records.frames import Gap
from results.records.layout import RunLayout
from results.records.run_folder import RunFacts, run_facts
from results.records.samples import InterferenceRecord
from results.routing.arms import recomputing_arms
from results.routing.coupling import Coupling, Curve, couplings, curve
from results.routing.decision_points import judge_decision_points
from results.routing.floor_sessions import KV_AWARE
from results.routing.interference import Interference, interferences, read_interference
from results.routing.load import LoadedCell, collect
from results.routing.load_floor import NO_FIX, LoadFloor, fix_of, load_floor
from results.routing.logs import facts_by_label, read_logs
from results.routing.measure import Measurements, odd_gaps
from results.routing.metrics import metrics
from results.routing.moves import Moves, moves
from results.routing.occupancy import Footprints, Occupancy, footprints, occupancies
from results.routing.pairs import (
    Pair,
    Standing,
    TurnPair,
    difference_of,
    order_of,
    pairs,
    standings,
    turn_pairs,
    value_of,
)
from results.routing.pools import Pool, pools
from results.routing.specified_tables import PaperRow, Setting, ablation_rows, end_to_end_rows, sensitivity
from results.routing.summary import RoutedSummary, summary_of
from results.routing.verdicts import judge_claims
from results.statistics.estimates import Estimate, unknown
from results.statistics.judgement import Judgement


@dataclass(frozen=True, slots=True)
class RoutingAnalysis:
    """All that is known of a `routing` run from its folder."""

    facts: RunFacts
    cells: tuple[RoutedSummary, ...]
    """In the order they were measured."""
    labels: tuple[str, ...]
    """Every policy that was measured, in the order of tables and figures."""
    policies: Mapping[str, str]
    """Label to the policy's name."""
    baseline: str
    """The label that the others are set against; empty where nothing was measured."""
    trials: int
    """The most trials that any policy has."""
    values: Mapping[str, Mapping[str, Estimate]]
    """Label to metric to its mean over the trials, with its interval."""
    pairs: tuple[Pair, ...]
    turn_pairs: tuple[TurnPair, ...]
    standings: tuple[Standing, ...]
    couplings: tuple[Coupling, ...]
    curve: Curve | None
    curve_reason: str
    """Why there is no curve."""
    footprints: Footprints
    occupancies: tuple[Occupancy, ...]
    interference: tuple[Interference, ...]
    moves: Moves
    floor: LoadFloor | None
    """None where no kv_aware cell has any fix of specs/load_floor.md."""
    decision_points: tuple[Judgement, ...]
    pools: tuple[Pool, ...]
    """KV in use and sources of prompt tokens, by label and role."""
    paper: tuple[PaperRow, ...]
    """The specification's table 5.2."""
    ablation: tuple[PaperRow, ...]
    """Its table 5.3."""
    settings: tuple[Setting, ...]
    """The grid of figure 9."""
    claims: tuple[Judgement, ...]
    planned: Mapping[str, int]
    """Label to its trials in the plan; empty where the plan cannot be read."""
    trace: Mapping[str, Any]
    """Of the first cell."""
    replay: Mapping[str, Any]
    gaps: tuple[Gap, ...]

    @property
    def degraded(self) -> tuple[RoutedSummary, ...]:
        """Cells whose client could not keep its schedule."""
        return tuple(cell for cell in self.cells if cell.degraded)

    def value(self, label: str, metric: str) -> Estimate:
        """A label's metric; unknown where there is none."""
        return self.values.get(label, {}).get(metric, unknown("not measured"))

    def difference(self, first: str, second: str, metric: str) -> Estimate:
        """first - second of a metric, whichever way round the two were compared; unknown where they were not."""
        return difference_of(self.pairs, first, second, metric)


def analyse(root: Path) -> RoutingAnalysis:
    """As analyse_routing, writing nothing but the Parquet copies. Raises ResultsError where `root` is no folder."""
    if not root.is_dir():
        raise ResultsError(f"no run folder at {root}", remedy="name a run's folder, or see `tracon list`")
    facts, fact_gaps = run_facts(root)
    cells, cell_gaps = collect(root)
    rows, row_gaps = read_interference(root)
    summaries = tuple(summary_of(cell) for cell in cells)
    measurements = Measurements(cells, summaries)
    labels = _ordered(summaries)
    names = [label for label, _ in labels]
    planned = _planned(root, "replay")
    found = pairs(measurements, names)
    loops = couplings(measurements, names)
    predicted = curve(measurements, loops, {(cell.record.label, cell.record.trial): cell for cell in cells})
    counted = [cell for cell in cells if not cell.degraded]
    held = footprints(counted)
    policies = dict(labels)
    parameters = {summary.label: summary.parameters for summary in summaries}
    logs, log_gaps = read_logs(root, cells)
    said = facts_by_label(logs, cells, policies, measurements)
    moved, floor = moves(cells, logs, said, measurements), load_floor(policies, said, measurements)
    moving = _moving_policies(cells, policies)
    ablation = ablation_rows(moving, parameters)
    return RoutingAnalysis(
        facts=facts,
        cells=summaries,
        labels=tuple(names),
        policies=policies,
        baseline=names[0] if names else "",
        trials=measurements.trials,
        values=_values(measurements, names),
        pairs=found,
        turn_pairs=turn_pairs(measurements, names),
        standings=standings(measurements, names, found),
        couplings=loops,
        curve=None if isinstance(predicted, str) else predicted,
        curve_reason=predicted if isinstance(predicted, str) else predicted.reason,
        footprints=held,
        occupancies=occupancies(held),
        interference=interferences(rows),
        moves=moved,
        floor=floor,
        decision_points=() if floor is None else judge_decision_points(floor),
        pools=pools(cells, names),
        paper=end_to_end_rows(moving, parameters, _even_pools(summaries)),
        ablation=ablation,
        settings=sensitivity(moving, parameters),
        claims=judge_claims(ablation, found, moved),
        planned=_trials_by_label(planned),
        trace=dict(cells[0].record.trace) if cells else {},
        replay=dict(cells[0].record.replay) if cells else {},
        gaps=(*fact_gaps, *cell_gaps, *row_gaps, *log_gaps, *_find_gaps(root, cells, planned, rows)),
    )


def _moving_policies(cells: Sequence[LoadedCell], policies: Mapping[str, str]) -> dict[str, str]:
    """Labels with their policies, without the arms whose migrations compute the KV again."""
    computed_again = set(recomputing_arms(cell.record for cell in cells).values())
    return {label: policy for label, policy in policies.items() if label not in computed_again}


def _values(measurements: Measurements, labels: Sequence[str]) -> dict[str, dict[str, Estimate]]:
    return {label: {measure.name: value_of(measurements, label, measure) for measure in metrics()} for label in labels}


def _even_pools(summaries: Sequence[RoutedSummary]) -> set[str]:
    """Labels with as many instances that prefill as that decode."""
    roles = {summary.label: Counter(one.role for one in summary.instances) for summary in summaries}
    return {label for label, count in roles.items() if count["prefill"] == count["decode"] > 0}


def _ordered(summaries: Sequence[RoutedSummary]) -> list[tuple[str, str]]:
    """Labels to their policies; of kv_aware the plain one first, which the load floor's variants are set against."""
    found = {summary.label: summary for summary in summaries}

    def key(summary: RoutedSummary) -> tuple[int, bool, str]:
        place, label = order_of(summary.label, summary.policy)
        fixed = summary.policy == KV_AWARE and fix_of(summary.parameters) != NO_FIX
        return place, fixed, label

    return [(one.label, one.policy) for one in sorted(found.values(), key=key)]


@dataclass(frozen=True, slots=True)
class _PlannedCell:
    cell: str
    label: str


def _planned(root: Path, kind: str) -> tuple[_PlannedCell, ...]:
    """The plan's cells of one kind; a plan that cannot be read is a gap of the run's facts."""
    try:
        plan = msgspec.json.decode(RunLayout(root).plan.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return ()
    cells = plan.get("cells") if isinstance(plan, dict) else None
    return tuple(
        _PlannedCell(str(cell.get("cell", "")), str(cell.get("label", "")))
        for cell in (cells if isinstance(cells, list) else [])
        if isinstance(cell, dict) and cell.get("kind") == kind
    )


def _trials_by_label(planned: Sequence[_PlannedCell]) -> dict[str, int]:
    found: dict[str, int] = {}
    for cell in planned:
        found[cell.label] = found.get(cell.label, 0) + 1
    return found


def _find_gaps(
    root: Path,
    cells: Sequence[LoadedCell],
    planned: Sequence[_PlannedCell],
    rows: Sequence[InterferenceRecord],
) -> tuple[Gap, ...]:
    """What is missing of the plan, differs between cells of a trial, or was disturbed by an engine's death or stall."""
    return (
        *odd_gaps(cells),
        *_unmeasured(planned, cells),
        *_uninterfered(_planned(root, "interference"), rows),
        *engine_fault_gaps(root),
    )


def _unmeasured(planned: Sequence[_PlannedCell], cells: Sequence[LoadedCell]) -> list[Gap]:
    """Planned cells without a record."""
    done = {cell.record.cell for cell in cells}
    return [Gap(cell.cell, "not measured") for cell in planned if cell.cell not in done]


def _uninterfered(planned: Sequence[_PlannedCell], rows: Sequence[InterferenceRecord]) -> list[Gap]:
    """Planned prefill lengths (`interference/n2048`) without a row."""
    done = {f"n{row.prefill_tokens}" for row in rows}
    return [Gap(cell.cell, "not measured") for cell in planned if cell.cell.rpartition("/")[2] not in done]
