"""Analyzes a `routing` run: computes everything from its folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from results.records.count import format_count
from results.records.engine_faults import list_engine_fault_gaps
from results.records.errors import ResultsError
from results.records.estimate import Estimate, unknown
from results.records.frames import Gap
from results.records.routing_cells import InstanceNumbers
from results.records.run_folder import RunFacts, run_facts
from results.records.samples import InterferenceRecord
from results.records.skipped_cells import describe_skip, read_skipped
from results.report.engine_gates import ShownGates, read_engine_gates
from results.routing import specification
from results.routing.conditional_claims import ConditionalClaim, judge_variations
from results.routing.coupling import Coupling, Curve, fit_couplings, predict_curve
from results.routing.decision_points import judge_decision_points
from results.routing.floor_facts import KV_AWARE
from results.routing.floor_measurements import fix_of, measure_load_floor
from results.routing.interference import Interference, read_interference, summarize_interference
from results.routing.load_floor import NO_FIX, LoadFloor
from results.routing.loads import Load, LoadJudgement, group_by_load, strip_load
from results.routing.logs import group_facts_by_label, read_logs
from results.routing.measurements import Measurements, find_odd_cells
from results.routing.metrics import list_metrics
from results.routing.moves import Moves, collect_moves
from results.routing.occupancy import (
    Deployment,
    Footprints,
    Occupancy,
    compute_occupancies,
    measure_deployments,
    measure_footprints,
)
from results.routing.pairs import (
    Pair,
    Standing,
    TurnPair,
    compare_labels,
    compare_turns,
    estimate_metric,
    find_difference,
    make_sort_key,
    rank_labels,
)
from results.routing.pools import InstancePool, measure_pools
from results.routing.read import LoadedCell, PlannedCell, load_cells, read_planned_cells
from results.routing.recomputing import KNOWN, RESERVED_OUTPUT, find_knowing_arms, find_recomputing_arms
from results.routing.scale import measure_scale
from results.routing.summary import RoutedSummary, summarize_loaded_cell
from results.routing.sweep_claims import judge_sweeps
from results.routing.verdicts import JUDGED, LOAD_ONLY, STATIC_PD, UNIFIED, Arms, judge_claims
from results.statistics.judgement import Judgement, correct_together

NO_LOG = (
    "picks by reason, retries, migrations, KV transfers, the load floor, and APC where KV was moved have no number "
    "(simulation.decision_log = false)"
)
"""What a run without decision logs does not show."""


@dataclass(frozen=True, slots=True)
class RoutingAnalysis:
    """Everything computed from the folder of a `routing` run."""

    facts: RunFacts
    cells: tuple[RoutedSummary, ...]
    """In the order they were measured."""
    labels: tuple[str, ...]
    """Every policy that was measured, in the order of tables and figures."""
    policies: Mapping[str, str]
    """Label to the policy's name."""
    baseline: str
    """The first load's label with which its others are compared (`find_baseline`); empty where nothing was measured."""
    trials: int
    """The most trials that any policy has."""
    values: Mapping[str, Mapping[str, Estimate]]
    """Label to metric to its mean over the trials, with its interval."""
    pairs: tuple[Pair, ...]
    turn_pairs: tuple[TurnPair, ...]
    standings: tuple[Standing, ...]
    couplings: tuple[Coupling, ...]
    curves: tuple[Curve, ...]
    """One per load that has one."""
    curve_reason: str
    """Why a curve or a part of one is missing; empty where none is."""
    footprints: Footprints
    deployments: tuple[Deployment, ...]
    deployments_reason: str
    """Why there are none; empty where there are."""
    occupancies: tuple[Occupancy, ...]
    interference: tuple[Interference, ...]
    moves: Moves
    floor: LoadFloor | None
    """None where no kv_aware cell has any fix of specs/load_floor.md."""
    points_by_load: tuple[LoadJudgement, ...]
    """The decision points of specs/load_floor.md."""
    pools: tuple[InstancePool, ...]
    """KV in use and sources of prompt tokens, by label and role."""
    paper: tuple[specification.SpecifiedRow, ...]
    """The specification's table 5.2."""
    ablation: tuple[specification.SpecifiedRow, ...]
    """Its table 5.3."""
    knowing: Mapping[str, str]
    """Label that knows output lengths to the one that differs in nothing else."""
    settings: tuple[specification.Setting, ...]
    """The grid of figure 9."""
    claims_by_load: tuple[LoadJudgement, ...]
    loads: tuple[Load, ...]
    """Arrival rate, trace or KV cache: only policies under one of them are compared."""
    planned: Mapping[str, int]
    """Label to its trials in the plan; empty where the plan cannot be read."""
    trace: Mapping[str, Any]
    """Trace of the first cell."""
    trace_digests: tuple[str, ...]
    """SHA-256 of every trace that was replayed, in the order of their names and of the trials."""
    trace_sums: Mapping[str, tuple[str, ...]]
    """Label to the SHA-256 of its traces; several where each trial has its own."""
    gaps: tuple[Gap, ...]
    conditional: tuple[ConditionalClaim, ...] = ()
    """`judgements` over the coefficients of the engine model; empty where none was varied."""
    engine_gates: ShownGates | None = None
    """What the engine model has shown against real runs; None = engines were real."""
    selected: Mapping[str, str] = field(default_factory=dict)
    """Labels whose trials that count may be the faster ones, with the reason: no interval rests on them."""

    @property
    def claims(self) -> tuple[Judgement, ...]:
        return tuple(one.judgement for one in self.claims_by_load)

    @property
    def decision_points(self) -> tuple[Judgement, ...]:
        return tuple(one.judgement for one in self.points_by_load)

    @property
    def judgements(self) -> tuple[Judgement, ...]:
        """The claims and the decision points, which were corrected together."""
        return (*self.claims, *self.decision_points)

    @property
    def trace_sizes(self) -> str:
        """`12 sessions, 53 requests`; empty where the trace states neither."""
        return ", ".join(f"{self.trace[key]} {key}" for key in ("sessions", "requests") if self.trace.get(key))

    @property
    def trials_differ(self) -> bool:
        """Each trial replays a trace of its own."""
        return any(len(sums) > 1 for sums in self.trace_sums.values())

    @property
    def degraded(self) -> tuple[RoutedSummary, ...]:
        """Cells whose client could not keep its schedule."""
        return tuple(cell for cell in self.cells if cell.degraded)

    def counted(self, label: str) -> list[RoutedSummary]:
        """A label's cells, without the degraded ones."""
        return [cell for cell in self.cells if cell.label == label and not cell.degraded]

    def compute_mean_over_cells(self, label: str, name: str) -> float | None:
        """A value of single cells, such as a bound that is not compared between policies."""
        return compute_mean_of_known(cell.estimate(name).value for cell in self.counted(label))

    def instances(self, label: str) -> dict[str, list[InstanceNumbers]]:
        """Each instance's numbers in the cells that count, by its name."""
        by_name: dict[str, list[InstanceNumbers]] = {}
        for cell in self.counted(label):
            for instance in cell.instances:
                by_name.setdefault(instance.instance, []).append(instance)
        return by_name

    def find_baseline(self, label: str) -> str:
        """The label's baseline: the first label under its load, which may be itself."""
        return next((load.labels[0] for load in self.loads if label in load.labels), "")

    @property
    def baseline_name(self) -> str:
        """For texts; with several loads the policies that are the baseline under them."""
        if len(self.loads) < 2:
            return self.baseline
        names = dict.fromkeys(strip_load(load.labels[0]) for load in self.loads)
        return f"{', '.join(names)} under the same load"

    @property
    def pairs_with_baseline(self) -> Iterator[Pair]:
        """Every metric of every label against its baseline."""
        return (row for row in self.pairs if row.second == self.find_baseline(row.first))

    def value(self, label: str, metric: str) -> Estimate:
        """A label's metric; unknown where there is none."""
        return self.values.get(label, {}).get(metric, unknown("not measured"))

    def difference(self, first: str, second: str, metric: str) -> Estimate:
        """first - second of a metric, whichever way round the two were compared; unknown where they were not."""
        return find_difference(self.pairs, first, second, metric)


def compute_mean_of_known(values: Iterable[float | None]) -> float | None:
    """None where there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def analyze(root: Path) -> RoutingAnalysis:
    """Analyze the run folder `root`; writes nothing but Parquet copies and the claims under each variation.

    Raises ResultsError where `root` is no folder.
    """
    if not root.is_dir():
        raise ResultsError(f"no run folder at {root}", remedy="name a run's folder, or see `tracon list`")
    judged = _judge_cells(root, "")
    conditional = judge_variations(root, judged.every, judged.loads, lambda name: _judge_cells(root, name).every)
    analysis = _analyze_judged(root, judged)
    return replace(analysis, conditional=conditional, engine_gates=read_engine_gates(root, analysis.facts))


@dataclass(frozen=True, slots=True)
class _Judged:
    """The claims and decision points of the cells of one variation, and what they rest on."""

    facts: RunFacts
    cells: tuple[LoadedCell, ...]
    summaries: tuple[RoutedSummary, ...]
    measurements: Measurements
    policies: Mapping[str, str]
    """Label to the policy's name, in the order of tables."""
    loads: tuple[Load, ...]
    pairs: tuple[Pair, ...]
    couplings: tuple[Coupling, ...]
    moves: Moves
    floor: LoadFloor | None
    specified: Mapping[str, str]
    """As `policies`, of those that may be a row of the specification."""
    even: frozenset[str]
    """Labels of static pools of one size."""
    settings: tuple[specification.Setting, ...]
    claims: tuple[LoadJudgement, ...]
    points: tuple[LoadJudgement, ...]
    gaps: tuple[Gap, ...]
    """Gaps of what was read."""

    @property
    def every(self) -> tuple[LoadJudgement, ...]:
        """Claims and decision points."""
        return (*self.claims, *self.points)


def _judge_cells(root: Path, variation: str) -> _Judged:
    """Judge the cells of one variation; empty = those that vary nothing, whose other numbers a report shows too."""
    facts, fact_gaps = run_facts(root)
    cells, cell_gaps = load_cells(root, variation, with_samples=not variation)
    summaries = tuple(summarize_loaded_cell(cell) for cell in cells)
    measurements = Measurements(cells, summaries)
    policies = _order_policies(summaries)
    labels = tuple(policies)
    loads = group_by_load(cells, labels)
    metrics = [metric for metric in list_metrics() if not variation or metric.name in JUDGED]
    pairs = tuple(pair for load in loads for pair in compare_labels(measurements, load.labels, metrics))
    couplings = fit_couplings(measurements, labels)
    parameters = {summary.label: summary.parameters for summary in summaries}
    logs, log_gaps = read_logs(root, cells, with_pending=not variation)
    log_facts = group_facts_by_label(logs, cells, labels, measurements)
    moves = collect_moves(cells, logs, log_facts, measurements)
    floor = measure_load_floor(policies, log_facts, measurements)
    specified, splits = _select_specified_policies(cells, policies), _split_pools(summaries)
    even = frozenset(label for label, (prefill, decode) in splits.items() if prefill == decode)
    by_load = [{label: specified[label] for label in load.labels if label in specified} for load in loads]
    named = [_name_rows(own, parameters, even) for own in by_load]
    uneven = [_name_uneven(own, splits) for own in by_load]
    arms = _list_arms(loads, cells, named, uneven, facts, couplings)
    settings = max((specification.list_threshold_settings(own, parameters) for own in by_load), key=len, default=())
    judged = (*judge_claims(arms, pairs, moves), *judge_sweeps(loads, arms, settings, measurements))
    claims, points = _correct_together(judged, floor, simulated=bool(facts.simulated))
    return _Judged(
        facts, cells, summaries, measurements, policies, loads, pairs, couplings, moves, floor, specified, even,
        settings, claims, points, (*fact_gaps, *cell_gaps, *log_gaps),
    )  # fmt: skip


def _analyze_judged(root: Path, judged: _Judged) -> RoutingAnalysis:
    """Everything else about the cells that vary nothing."""
    cells, summaries, measurements = judged.cells, judged.summaries, judged.measurements
    labels, loads = tuple(judged.policies), judged.loads
    parameters = {summary.label: summary.parameters for summary in summaries}
    rows, row_gaps = read_interference(root)
    planned = [cell for cell in read_planned_cells(root) if not cell.variation]
    return RoutingAnalysis(
        facts=judged.facts,
        cells=summaries,
        labels=labels,
        policies=judged.policies,
        baseline=labels[0] if labels else "",
        trials=measurements.trials,
        values={
            label: {one.name: estimate_metric(measurements, label, one) for one in list_metrics()} for label in labels
        },
        pairs=judged.pairs,
        turn_pairs=tuple(pair for load in loads for pair in compare_turns(measurements, load.labels)),
        standings=rank_labels(measurements, loads),
        couplings=judged.couplings,
        **_predict_curves(measurements, judged.couplings, loads, cells),
        **_measure_pools_held(cells, labels),
        interference=summarize_interference(rows),
        moves=judged.moves,
        floor=judged.floor,
        points_by_load=judged.points,
        pools=measure_pools(cells, labels, measurements),
        paper=specification.make_end_to_end_rows(judged.specified, parameters, judged.even),
        ablation=specification.make_ablation_rows(judged.specified, parameters),
        knowing=find_knowing_arms(cell.record for cell in cells),
        settings=judged.settings,
        claims_by_load=judged.claims,
        loads=loads,
        planned=Counter(cell.label for cell in planned if cell.kind == "replay"),
        **_describe_replay(cells),
        gaps=(*judged.gaps, *row_gaps, *_find_gaps(root, cells, planned, rows)),
        selected=measurements.selected,
    )


def _measure_pools_held(cells: Sequence[LoadedCell], labels: Sequence[str]) -> dict[str, Any]:
    """`footprints`, `deployments`, `deployments_reason` and `occupancies`."""
    counted = [cell for cell in cells if not cell.degraded]
    footprints = measure_footprints(counted)
    deployments, no_deployments = measure_deployments(counted, labels)
    return {
        "footprints": footprints,
        "deployments": deployments,
        "deployments_reason": no_deployments,
        "occupancies": compute_occupancies(footprints, deployments),
    }


def _predict_curves(
    measurements: Measurements, couplings: Sequence[Coupling], loads: Sequence[Load], cells: Sequence[LoadedCell]
) -> dict[str, Any]:
    """`curves` and `curve_reason`."""
    by_trial = {(cell.record.label, cell.record.trial): cell for cell in cells}
    predicted = [
        predict_curve(measurements, [row for row in couplings if row.label in load.labels], by_trial) for load in loads
    ]
    reasons = [one if isinstance(one, str) else one.reason for one in predicted]
    return {
        "curves": tuple(one for one in predicted if not isinstance(one, str)),
        "curve_reason": "; ".join(dict.fromkeys(reason for reason in reasons if reason)),
    }


def _describe_replay(cells: Sequence[LoadedCell]) -> dict[str, Any]:
    """The trace of the first cell that replayed the run's own; all digests."""
    records = [cell.record for cell in cells]
    sums: dict[str, dict[str, None]] = {}
    for record in records:
        sums.setdefault(record.label, {})[str(record.trace.get("sha256") or "")] = None
    traces = {str(record.trace.get("name") or ""): record.trace for record in reversed(records)}
    ordered = sorted(records, key=lambda one: (str(one.trace.get("name") or ""), one.trial))
    return {
        "trace": dict(traces[min(traces)]) if traces else {},
        "trace_digests": tuple(dict.fromkeys(str(record.trace.get("sha256") or "") for record in ordered)),
        "trace_sums": {label: tuple(own) for label, own in sums.items()},
    }


def _select_specified_policies(cells: Sequence[LoadedCell], policies: Mapping[str, str]) -> dict[str, str]:
    """Labels that may be a row of the specification: no arms that compute migrated KV again or know the outputs."""
    records = [cell.record for cell in cells]
    beside = set(find_recomputing_arms(records).values())
    beside |= {record.label for record in records if record.router.get(RESERVED_OUTPUT) == KNOWN}
    return {label: policy for label, policy in policies.items() if label not in beside}


def _name_rows(
    policies: Mapping[str, str], parameters: Mapping[str, Mapping[str, Any]], even: Collection[str]
) -> dict[str, str]:
    """`Arms.labels` among these policies; `even`: as in make_end_to_end_rows."""
    rows = (
        *specification.make_end_to_end_rows(policies, parameters, even),
        *specification.make_ablation_rows(policies, parameters),
    )
    others = {name: [label for label, policy in policies.items() if policy == name] for name in (UNIFIED, LOAD_ONLY)}
    return {row.name: row.label for row in rows} | {name: own[0] for name, own in others.items() if len(own) == 1}


def _list_arms(
    loads: Sequence[Load],
    cells: Sequence[LoadedCell],
    named: Sequence[Mapping[str, str]],
    uneven: Sequence[Mapping[str, str]],
    facts: RunFacts,
    couplings: Sequence[Coupling],
) -> list[Arms]:
    """The arms of the claims under each load; `named`, `uneven`: labels by row and by split, under each load."""
    no_loop = {row.label: row.why_no_loop for row in couplings}
    arms = []
    for load, labels, pools in zip(loads, named, uneven, strict=True):
        own = [cell for cell in cells if cell.record.label in load.labels]
        arms.append(Arms(labels, measure_scale(own, facts, no_loop), pools, load.text))
    return arms


def _correct_together(
    claims: Sequence[LoadJudgement], floor: LoadFloor | None, *, simulated: bool
) -> tuple[tuple[LoadJudgement, ...], tuple[LoadJudgement, ...]]:
    """Claims and decision points, corrected together (Holm)."""
    points = () if floor is None else judge_decision_points(floor, simulated=simulated)
    judged = (*claims, *points)
    corrected = correct_together([one.judgement for one in judged])
    together = tuple(replace(one, judgement=own) for one, own in zip(judged, corrected, strict=True))
    return together[: len(claims)], together[len(claims) :]


def _split_pools(summaries: Sequence[RoutedSummary]) -> dict[str, tuple[int, int]]:
    """By label, how many instances prefill and how many decode; labels without pools are left out."""
    roles = {summary.label: Counter(one.role for one in summary.instances) for summary in summaries}
    splits = {label: (count["prefill"], count["decode"]) for label, count in roles.items()}
    return {label: split for label, split in splits.items() if all(split)}


def _name_uneven(policies: Mapping[str, str], splits: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """`Arms.uneven` among these policies; a split of several labels is none's."""
    labels: dict[str, list[str]] = {}
    for label, policy in policies.items():
        prefill, decode = splits.get(label, (0, 0))
        if policy == specification.BASELINES[STATIC_PD] and prefill != decode:
            labels.setdefault(f"{prefill}P+{decode}D", []).append(label)
    return {split: own[0] for split, own in labels.items() if len(own) == 1}


def _order_policies(summaries: Sequence[RoutedSummary]) -> dict[str, str]:
    """Labels to their policies; of kv_aware the plain one first, which the load floor's variants are set against."""

    def order(summary: RoutedSummary) -> tuple[int, bool, str]:
        position, label = make_sort_key(summary.label, summary.policy)
        fixed = summary.policy == KV_AWARE and fix_of(summary.parameters) != NO_FIX
        return position, fixed, label

    last_of_label = {summary.label: summary for summary in summaries}
    return {summary.label: summary.policy for summary in sorted(last_of_label.values(), key=order)}


def _find_gaps(
    root: Path,
    cells: Sequence[LoadedCell],
    planned: Sequence[PlannedCell],
    rows: Sequence[InterferenceRecord],
) -> tuple[Gap, ...]:
    """What is missing of the plan, differs between cells of a trial, has no log, or was disturbed by an engine's death
    or stall."""
    unlogged = sum(not cell.record.logs_decisions for cell in cells)
    no_logs = (Gap("decision logs", f"of {format_count(unlogged, 'cell', 'cells')} were not written: {NO_LOG}"),)
    measured = {cell.record.cell for cell in cells} | {f"interference/n{row.prefill_tokens}" for row in rows}
    odd = (Gap(path, f"is {why}; it is not compared") for path, why in find_odd_cells(cells).items())
    skipped, skip_gaps = read_skipped(root)
    unmeasured = (
        Gap(cell.cell, describe_skip(skipped[cell.cell]) if cell.cell in skipped else "not measured")
        for kind in ("replay", "interference")
        for cell in planned
        if cell.kind == kind and cell.cell not in measured
    )
    return (*(no_logs if unlogged else ()), *odd, *unmeasured, *skip_gaps, *list_engine_fault_gaps(root))
