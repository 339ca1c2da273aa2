"""The analysis of a run, computed from its folder; nothing is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from results.connector_tax.attribution import Attribution, attribute_taxes
from results.connector_tax.capacity import CapacityCost, measure_capacity, measure_goodput
from results.connector_tax.combined_taxes import (
    Additivity,
    Decomposition,
    TaxAmplification,
    add_up_taxes,
    amplify_taxes,
    decompose_taxes,
)
from results.connector_tax.drift import measure_drifts
from results.connector_tax.engine_changes import EngineChange, list_engine_changes
from results.connector_tax.judged_cells import choose_cells
from results.connector_tax.launch_noise import LaunchNoise, measure_launch_noise
from results.connector_tax.launches import count_planned
from results.connector_tax.manifest import make_manifest_rows
from results.connector_tax.measurements import Measurements
from results.connector_tax.read import Collected, collect_cells, read_step_samples
from results.connector_tax.saturation import describe_rate, fix_rates, judge_cells, reference_rates
from results.connector_tax.slo import Slo
from results.connector_tax.summary import CellSummary
from results.connector_tax.tax import TaxRow, make_tax_rows, noise_floor
from results.connector_tax.trends import Trend, follow_trends
from results.connector_tax.verdicts import judge_hypotheses, judge_success
from results.measures.drift import Drift
from results.records.engine_faults import list_engine_fault_gaps
from results.records.errors import ArtifactError, ResultsError
from results.records.estimate import Estimate
from results.records.frames import Gap
from results.records.host import HostSample, compute_mean_work_us, compute_slow_share, find_disturbed, read_host
from results.records.layout import RunLayout
from results.records.manifest import ManifestRow
from results.records.phase_names import CONFIRM
from results.records.reference_rates import REF_LOAD, REF_SAFE, SPECIFIED, CellSaturation, ReferenceRates, Thresholds
from results.records.run_folder import (
    PlannedCell,
    PreflightDecision,
    RunFacts,
    list_missing_files,
    read_preflight_decisions,
    run_facts,
)
from results.records.skipped_cells import describe_skip, read_skipped
from results.statistics.estimates import Samples
from results.statistics.judgement import Judgement


@dataclass(frozen=True, slots=True)
class Analysis:
    facts: RunFacts
    cells: tuple[CellSummary, ...]
    saturation: Mapping[str, CellSaturation]
    """By `CellSummary.path`."""
    rates: ReferenceRates
    """Those that the run used, where it wrote them; else those that its plan fixes, or its Phase A gives."""
    taxes: tuple[TaxRow, ...]
    noise_floor: tuple[TaxRow, ...]
    """The difference of the baseline's two names; empty where it was measured under one."""
    launch_noise: tuple[LaunchNoise, ...]
    """The difference of two launches of one config; empty where each config was launched once."""
    manifest: tuple[ManifestRow, ...]
    decisions: Mapping[str, PreflightDecision]
    gaps: tuple[Gap, ...]
    decomposition: tuple[Decomposition, ...] = ()
    additivity: tuple[Additivity, ...] = ()
    amplification: tuple[TaxAmplification, ...] = ()
    trends: tuple[Trend, ...] = ()
    drift: tuple[Drift, ...] = ()
    verdicts: tuple[Judgement, ...] = ()
    """H1 to H6."""
    engine_changes: tuple[EngineChange, ...] = ()
    attribution: tuple[Attribution, ...] = ()
    capacity: tuple[CapacityCost, ...] = ()
    criteria: tuple[Judgement, ...] = ()
    """The success criteria 1 to 7."""
    disturbed: tuple[str, ...] = ()
    """The cells that were measured on a disturbed host; they take part."""
    slow: float | None = None
    """0..1: the share of the seconds under load in which a core was slow; None = not timed."""
    samples: Mapping[str, Mapping[str, Samples]] = field(default_factory=dict, compare=False, repr=False)
    """By `CellSummary.path`: the samples of its requests, as `measure_cell`."""

    @property
    def degraded(self) -> tuple[CellSummary, ...]:
        """Cells whose client could not keep its schedule."""
        return tuple(cell for cell in self.cells if cell.degraded)

    @property
    def launches(self) -> int:
        """Launches per config: trials with a cell."""
        return len({cell.trial for cell in self.cells})


def analyze(root: Path) -> Analysis:
    """As write_results, writing nothing but the Parquet copies. Raises ResultsError where `root` is no folder."""
    if not root.is_dir():
        raise ResultsError(f"no run folder at {root}", remedy="name a run's folder, or see `tracon list`")
    facts, fact_gaps = run_facts(root)
    decisions, preflight_gaps = read_preflight_decisions(root)
    collected = collect_cells(root)
    rates, rate_gaps = _read_rates(root, facts, collected.summaries)
    skipped, skip_gaps = read_skipped(root)
    manifest, manifest_gaps = make_manifest_rows(root, facts, decisions, collected.summaries, skipped)
    judged = judge_cells(collected.summaries, rates.thresholds)
    by_cell = {(judgement.cell, judgement.config): judgement for judgement in judged}
    file_gaps = [gap for layout in RunLayout(root).configs() for gap in list_missing_files(layout)]
    saturation = {cell.path: by_cell[cell.cell, cell.config] for cell in collected.summaries}
    cells = choose_cells(collected.summaries, rates, facts.shapes, facts.swept_shape)
    planned = count_planned(facts.cells)
    measurements = Measurements(
        cells,
        _sample_reader(collected, {cell.path for cell in cells if cell.phase == "A"}),
        {path: judgement.saturated for path, judgement in saturation.items()},
        rates.ref_safe_per_s,
        planned,
    )
    decomposition, additivity = decompose_taxes(measurements, rates), add_up_taxes(measurements, rates)
    lines = follow_trends(measurements)
    verdicts = judge_hypotheses(measurements, rates, decomposition, additivity, lines)
    kept_up = [cell for cell in collected.summaries if not cell.degraded]
    taxes = make_tax_rows(measurements, rates)
    changes = list_engine_changes(collected.summaries)
    artifact_gaps = (*fact_gaps, *preflight_gaps, *manifest_gaps, *file_gaps, *collected.gaps, *skip_gaps)
    unmeasured, left_out = _find_unmeasured(facts, decisions, collected, rates, skipped)
    host = _read_load_samples(root, collected.summaries)
    goodput_of = _make_goodput_reader(facts, collected.paths)
    return Analysis(
        facts=facts,
        cells=collected.summaries,
        saturation=saturation,
        rates=rates,
        taxes=taxes,
        noise_floor=noise_floor(measurements, rates),
        launch_noise=measure_launch_noise(measurements, rates, compute_mean_work_us(host)),
        manifest=manifest,
        decisions=decisions,
        gaps=(*artifact_gaps, *rate_gaps, *unmeasured, *left_out, *list_engine_fault_gaps(root)),
        decomposition=decomposition,
        additivity=additivity,
        amplification=amplify_taxes(measurements, rates),
        trends=lines,
        drift=measure_drifts(cell for cell in kept_up if not saturation[cell.path].saturated),
        verdicts=verdicts,
        engine_changes=changes,
        attribution=attribute_taxes(taxes, cells, changes),
        capacity=measure_capacity(collected.summaries, saturation, goodput_of, planned),
        criteria=judge_success(
            verdicts, facts, manifest, decisions, collected.summaries, artifact_gaps, unmeasured, left_out
        ),
        disturbed=tuple(one.cell for one in find_disturbed(host)),
        slow=compute_slow_share(host),
        samples=collected.samples,
    )


def _read_rates(
    root: Path, facts: RunFacts, summaries: Sequence[CellSummary]
) -> tuple[ReferenceRates, tuple[Gap, ...]]:
    """The rates that the run used, and gaps where their file is lost, or the artifacts now give others."""
    path = RunLayout(root).reference_rates
    thresholds = msgspec.convert(dict(facts.thresholds), Thresholds) if facts.thresholds else SPECIFIED
    try:
        written = ReferenceRates.from_json(path.read_bytes())
    except (OSError, ArtifactError) as error:
        missing = isinstance(error, OSError)
        needed = not missing or any(summary.phase != "A" for summary in summaries)
        from_phase_a = reference_rates(summaries, thresholds=thresholds)
        source = "the plan fixes" if facts.fixed_rates else "Phase A gives now"
        why = f"{'is missing' if missing else error}; the reference rates are those {source}"
        chosen = fix_rates(from_phase_a, facts.fixed_rates) if facts.fixed_rates else from_phase_a
        return chosen, (Gap(path.name, why),) if needed else ()
    if written.fixed:
        return written, ()
    # an old run whose file does not state `specified` chose its rates by the specification's rules
    states_both = any(criterion.specified is not None for cell in written.cells for criterion in cell.criteria)
    now = reference_rates(summaries, thresholds=written.thresholds, specified=not states_both)
    rates = ((name, written.rate(name), now.rate(name)) for name in (REF_SAFE, REF_LOAD))
    differing = [
        Gap(path.name, f"says {name} = {describe_rate(before)}, but the cells now give {describe_rate(after)}")
        for name, before, after in rates
        if before != after
    ]
    return written, tuple(differing)


def _find_unmeasured(
    facts: RunFacts,
    decisions: Mapping[str, PreflightDecision],
    collected: Collected,
    rates: ReferenceRates,
    skipped: Mapping[str, str],
) -> tuple[tuple[Gap, ...], tuple[Gap, ...]]:
    """Planned cells without a record, a gap per config and phase: those that are missing, and those of `skipped`.

    Cells of a config whose pre-flight failed, and cells that are not needed, are no gap.
    """
    done = {summary.cell for summary in collected.summaries}
    missing: dict[tuple[str, str, str], list[str]] = {}
    left_out: dict[tuple[str, str, str], list[str]] = {}
    for cell in facts.cells:
        is_excluded = cell.config in decisions and not decisions[cell.config].included
        if cell.cell in done or is_excluded or _is_needless(cell, rates):
            continue
        if cell.cell in skipped:
            left_out.setdefault((cell.config, cell.phase, describe_skip(skipped[cell.cell])), []).append(cell.stem)
        else:
            missing.setdefault((cell.config, cell.phase, "not measured"), []).append(cell.stem)
    return _list_gaps(missing), _list_gaps(left_out)


def _list_gaps(stems: Mapping[tuple[str, str, str], Sequence[str]]) -> tuple[Gap, ...]:
    """`stems`: by config, phase and why they lack."""
    return tuple(
        Gap(f"{config}, {_name_part(phase)}", f"{why}: {', '.join(own)}")
        for (config, phase, why), own in sorted(stems.items())
    )


def _name_part(phase: str) -> str:
    return "confirm stage" if phase == CONFIRM else f"phase {phase}"


def _is_needless(cell: PlannedCell, rates: ReferenceRates) -> bool:
    """Whether the cell's reference rate does not exist, or another cell measures the same at it."""
    if not cell.reference:
        return False
    if cell.reference == REF_LOAD and rates.ref_load_per_s == rates.ref_safe_per_s:
        return True
    return rates.rate(cell.reference) is None


def _read_load_samples(root: Path, cells: Sequence[CellSummary]) -> tuple[HostSample, ...]:
    """The host's samples under the load of these cells, without those of the engine's start."""
    loads = {
        cell.cell: (cell.t_start_unix_s, math.inf if cell.t_end_unix_s is None else cell.t_end_unix_s) for cell in cells
    }
    return tuple(
        sample
        for sample in read_host(RunLayout(root).host_csv)
        if sample.cell in loads and loads[sample.cell][0] <= sample.t_unix_s <= loads[sample.cell][1]
    )


def _make_goodput_reader(facts: RunFacts, paths: Mapping[str, Path]) -> Callable[[CellSummary], Estimate] | None:
    """Reads a cell's goodput; None where the plan has no SLO."""
    slo = Slo(**facts.slo)
    return (lambda cell: measure_goodput(paths[cell.path], slo)) if str(slo) else None


def _sample_reader(collected: Collected, timed: Collection[str]) -> Callable[[CellSummary], Mapping[str, Samples]]:
    """A cell's samples; reads the steps of `timed` cells only, of which step taxes are computed."""

    def read(summary: CellSummary) -> Mapping[str, Samples]:
        samples = collected.samples[summary.path]
        return {**samples, **read_step_samples(collected.paths[summary.path])} if summary.path in timed else samples

    return read
