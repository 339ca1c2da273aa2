"""Computes the analysis of a lifecycle run from its folder; writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results.pd_lifecycle import verdicts
from results.pd_lifecycle.analysis_settings import Settings
from results.pd_lifecycle.by_launch import (
    IncompleteLaunch,
    drop_launches,
    find_incomplete_launches,
    split_launches,
)
from results.pd_lifecycle.clock_offsets import align_clocks
from results.pd_lifecycle.consistency import find_size_mismatches, measure_drifts, run_checks
from results.pd_lifecycle.cost_model import fit_costs
from results.pd_lifecycle.documents import LifecycleNumbers
from results.pd_lifecycle.first_repetitions import compare_first_repetitions
from results.pd_lifecycle.half_step import assess_half_step
from results.pd_lifecycle.overheads import find_break_evens, measure_grid_overheads, measure_overheads
from results.pd_lifecycle.paired_requests import measure_order_effects
from results.pd_lifecycle.phases import break_down, count_missing_phases
from results.pd_lifecycle.read import (
    Collected,
    PlannedConfig,
    find_pending,
    find_unmeasured,
    read_links,
    read_plan,
    read_records,
)
from results.pd_lifecycle.summary import summarize_configs
from results.pd_lifecycle.transfer_regression import collect_transfers
from results.pd_lifecycle.volumes import measure_volumes
from results.records.engine_faults import list_engine_fault_gaps
from results.records.errors import ResultsError
from results.records.frames import Gap
from results.records.layout import LifecycleLayout
from results.records.lifecycle import Clock, LifecycleRecord
from results.records.run_folder import RunFacts, run_facts
from results.records.skipped_cells import read_skipped
from results.statistics.judgement import Judgement, Outcome, correct_together


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleAnalysis(LifecycleNumbers):
    facts: RunFacts
    records: tuple[LifecycleRecord, ...]
    """By C, N, O and repetition, also those that do not count; durations by the clocks of all, see `clock_steps`."""
    left_out: tuple[IncompleteLaunch, ...]
    """Launches that take no part in what is compared over launches; they do in criteria 1 and 4 and in the checks."""
    no_link: str
    """Why measuring the link failed; empty = it was measured, or not attempted."""
    criteria: tuple[Judgement, ...]
    """Criteria of the specification."""
    planned: tuple[PlannedConfig, ...]
    pending: tuple[PlannedConfig, ...]
    """Planned cells that `tracon resume` measures."""

    @property
    def counted(self) -> tuple[LifecycleRecord, ...]:
        """The requests that enter the results."""
        return tuple(record for record in self.records if record.counted)

    @property
    def compared(self) -> tuple[LifecycleRecord, ...]:
        """The counted requests of the launches that are not left out."""
        return drop_launches(self.counted, self.left_out)

    @property
    def two_hosts(self) -> bool:
        """Whether some durations lie between the clocks of two hosts."""
        return any(not record.clock.one_host for record in self.records)


def analyze(root: Path) -> LifecycleAnalysis:
    """Analyze the run folder `root`. Raises ResultsError where it is no folder."""
    if not root.is_dir():
        raise ResultsError(f"no run folder at {root}", remedy="name the folder of a run; `tracon list` shows all runs")
    facts, fact_gaps = run_facts(root)
    planned, settings, plan_gaps = read_plan(root)
    contents = read_records(root)
    skipped, skip_gaps = read_skipped(root)
    clocks, steps = align_clocks(contents.records)
    pairs = zip(contents.records, clocks, strict=True)
    records = tuple(recompute_durations(record, clock, settings) for record, clock in pairs)
    links, no_link, link_gaps = read_links(LifecycleLayout(root), settings.link_gbps)
    link_gbps = links[0].gbps if links else None
    left_out = find_incomplete_launches(records)
    compared = drop_launches(records, left_out)
    has_plain = any(record.plain.ttft_ms is not None for record in compared)
    overheads, plain = measure_overheads(compared), measure_overheads(compared, plain=True) if has_plain else ()
    measured = LifecycleAnalysis(
        facts=facts,
        transports=tuple(sorted({record.transport for record in records if record.transport})),
        settings=settings,
        records=records,
        configs=summarize_configs(compared, contents.discards),
        costs=fit_costs(collect_transfers(compared), link_gbps=link_gbps, knee_share=settings.knee_share),
        links=links,
        no_link=no_link,
        launches=len(split_launches(compared)),
        left_out=left_out,
        grid_overheads=measure_grid_overheads(compared),
        overheads=overheads,
        plain_overheads=plain,
        order_effects=measure_order_effects(compared),
        break_evens=find_break_evens(overheads),
        plain_break_evens=find_break_evens(plain),
        first_repetitions=compare_first_repetitions(compared),
        half_step=assess_half_step(compared),
        volumes=measure_volumes(records),
        clock_steps=steps,
        criteria=(),
        checks=run_checks(records, contents.cells),
        drifts=measure_drifts(compared),
        failures=contents.failures,
        discards=contents.discards,
        planned=planned,
        pending=find_pending(planned, records, contents.failures, skipped),
        gaps=(
            *(launch.gap for launch in left_out),
            *fact_gaps,
            *plan_gaps,
            *contents.gaps,
            *(Gap("clocks", step.text) for step in steps),
            *link_gaps,
            *find_unmeasured(planned, records, contents.failures, skipped),
            *skip_gaps,
            *_find_gaps(root, contents, records),
        ),
    )
    return replace(measured, criteria=_judge_criteria(measured))


def _judge_criteria(measured: LifecycleAnalysis) -> tuple[Judgement, ...]:
    """In the specification's order; those that compare times are corrected together (Holm).

    One of them with numbers but without a p belongs to the family: a launch that lacks a (C, N) must not make the
    others look more certain.
    """
    plain, launches = measured.plain_overheads, measured.launches
    dominance = verdicts.judge_dominance(measured.compared, measured.settings.min_new_tokens)
    linearity = verdicts.judge_linearity(measured.costs)
    overheads = [
        *([verdicts.judge_overhead(plain, measured.plain_break_evens)] if plain else []),
        verdicts.judge_overhead(measured.overheads, measured.break_evens, measured.order_effects),
    ]
    fitted = len(collect_transfers(measured.compared).split_launches())
    complete = verdicts.judge_completeness(measured.records)
    increment = verdicts.judge_increment(measured.volumes, verdicts.list_unsized(measured.records))
    of_times = (
        verdicts.require_launches(dominance, launches),
        verdicts.require_launches(linearity, launches, fitted),
        *(verdicts.require_launches(one, launches) for one in overheads),
    )
    undefined = sum(one.p is None and one.outcome is not Outcome.OPEN for one in of_times)
    return correct_together((complete, *of_times[:2], increment, *of_times[2:]), undefined=undefined)


def _find_gaps(root: Path, contents: Collected, records: Sequence[LifecycleRecord]) -> list[Gap]:
    """What the records lack, and what the engines had."""
    blocks = {key: cell.block_tokens for key, cell in contents.cells.items() if cell.block_tokens is not None}
    missing = count_missing_phases(record for record in records if record.counted)
    return [
        *(Gap(name, f"{count} requests lack it: {why}") for (name, why), count in sorted(missing.items())),
        *find_size_mismatches(records, blocks),
        *list_engine_fault_gaps(root),
    ]


def recompute_durations(record: LifecycleRecord, clock: Clock, settings: Settings) -> LifecycleRecord:
    """The record with its durations by this clock, and without half a step where the settings say so."""
    half_step = record.counts.d_step_ms if settings.subtract_half_step else None
    if clock == record.clock and half_step is None:
        return record
    split = break_down(
        record.timestamps_ns,
        record.more_timestamps_ns,
        clock,
        record.colo,
        record.plain,
        missing=record.gaps,
        write_side=record.counts.write_side,
        half_step_ms=None if half_step is None else half_step / 2,
    )
    own = {name: why for name, why in record.gaps.items() if name not in (*record.breakdown_ms, *record.more_ms)}
    return replace(
        record,
        clock=clock,
        breakdown_ms=split.breakdown_ms,
        more_ms=split.more_ms,
        error_ms=split.error_ms,
        residual_share=split.residual_share,
        client_residual_share=split.client_residual_share,
        gaps={**own, **split.gaps},
    )
