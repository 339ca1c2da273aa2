"""Everything that is known of a lifecycle run, computed from its folder and written nowhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from results.errors import ResultsError
from results.facts import RunFacts, run_facts
from results.lifecycle import verdicts
from results.lifecycle.checks import Check, RunDrift, checks, drifts, sizes_that_differ
from results.lifecycle.clock import Step, aligned
from results.lifecycle.fits import Costs, costs
from results.lifecycle.link import Link, links_of
from results.lifecycle.load import Discard, Failure, MeasuredCell, PlannedConfig, collect, plan_of, unmeasured
from results.lifecycle.maps import BreakEven, OverheadCell, Volume, break_evens, overhead_map, sizes_of, volumes
from results.lifecycle.pairs import OrderEffect, order_effects
from results.lifecycle.phases import breakdown
from results.lifecycle.record import Clock, LifecycleLayout, LifecycleRecord
from results.lifecycle.regression import transfers_of
from results.lifecycle.settings import Settings
from results.lifecycle.summary import ConfigSummary, summaries
from results.lifecycle.verdicts import Criterion
from results.load import Gap


@dataclass(frozen=True, slots=True)
class LifecycleAnalysis:
    """All that is known of a lifecycle run from its folder."""

    facts: RunFacts
    settings: Settings
    records: tuple[LifecycleRecord, ...]
    """By C, N, O and repetition, those that do not count included; durations by the clocks of all, see `steps`."""
    configs: tuple[ConfigSummary, ...]
    costs: Costs
    links: tuple[Link, ...]
    """What the link can carry, what was given first; empty = not known."""
    no_link: str
    """Why it was not measured; empty = it was, or nobody tried."""
    overheads: tuple[OverheadCell, ...]
    orders: tuple[OrderEffect, ...]
    """What it does which of a pair comes first."""
    break_evens: tuple[BreakEven, ...]
    volumes: tuple[Volume, ...]
    steps: tuple[Step, ...]
    """Where the clock of one of two hosts was set."""
    criteria: tuple[Criterion, ...]
    checks: tuple[Check, ...]
    drifts: tuple[RunDrift, ...]
    cells: Mapping[tuple[int, int, int], MeasuredCell]
    """What the finished cells say of themselves, by C, N, O."""
    failures: tuple[Failure, ...]
    discards: tuple[Discard, ...]
    planned: tuple[PlannedConfig, ...]
    gaps: tuple[Gap, ...]

    @property
    def counted(self) -> tuple[LifecycleRecord, ...]:
        """The requests that results are computed from."""
        return tuple(record for record in self.records if record.counted)

    @property
    def transports(self) -> tuple[str, ...]:
        return tuple(sorted({record.transport for record in self.records if record.transport}))

    @property
    def two_hosts(self) -> bool:
        """Some durations lie between clocks of two hosts."""
        return any(not record.clock.one_host for record in self.records)


def analyse(root: Path) -> LifecycleAnalysis:
    """As analyse_lifecycle, writing nothing. Raises ResultsError where `root` is no folder."""
    if not root.is_dir():
        raise ResultsError(f"no run folder at {root}", remedy="name a run's folder, or see `tracon list`")
    facts, fact_gaps = run_facts(root)
    planned, settings, plan_gaps = plan_of(root)
    found = collect(root)
    clocks, steps = aligned(found.records)
    records = tuple(measured(record, clock, settings) for record, clock in zip(found.records, clocks, strict=True))
    links, no_link, link_gaps = links_of(LifecycleLayout(root), settings.link_gbps)
    link_gbps = links[0].gbps if links else None
    fitted = costs(transfers_of(records), link_gbps=link_gbps, knee_share=settings.knee_share)
    overheads, moved = overhead_map(records), volumes(records)
    crossings, orders = break_evens(overheads), order_effects(sizes_of(records))
    blocks = {key: cell.block_tokens for key, cell in found.cells.items() if cell.block_tokens is not None}
    return LifecycleAnalysis(
        facts=facts,
        settings=settings,
        records=records,
        configs=summaries(records, found.discards),
        costs=fitted,
        links=links,
        no_link=no_link,
        overheads=overheads,
        orders=orders,
        break_evens=crossings,
        volumes=moved,
        steps=steps,
        criteria=(
            verdicts.complete(records),
            verdicts.dominates(records, settings.min_new_tokens),
            verdicts.linear(fitted),
            verdicts.incremental(moved),
            verdicts.quantified(overheads, crossings, orders),
        ),
        checks=checks(records),
        drifts=drifts(records),
        cells=found.cells,
        failures=found.failures,
        discards=found.discards,
        planned=planned,
        gaps=(
            *fact_gaps,
            *plan_gaps,
            *found.gaps,
            *(Gap("clocks", step.text) for step in steps),
            *link_gaps,
            *unmeasured(planned, records, found.failures),
            *_lacking(records),
            *sizes_that_differ(records, blocks),
        ),
    )


def measured(record: LifecycleRecord, clock: Clock, settings: Settings) -> LifecycleRecord:
    """The record with its durations by this clock, and less half a step where the settings say so."""
    half_step = record.counts.d_step_ms if settings.subtract_half_step else None
    if clock == record.clock and half_step is None:
        return record
    split = breakdown(
        record.timestamps_ns,
        record.more_timestamps_ns,
        clock,
        record.colo,
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


def _lacking(records: Sequence[LifecycleRecord]) -> list[Gap]:
    """Phases that counted requests lack, one gap per phase and reason."""
    found: dict[tuple[str, str], int] = {}
    for record in records:
        for name, value in record.phases_ms.items() if record.counted else ():
            if value is None:
                key = name, record.gaps.get(name, "not known")
                found[key] = found.get(key, 0) + 1
    return [Gap(name, f"{count} requests lack it: {why}") for (name, why), count in sorted(found.items())]
