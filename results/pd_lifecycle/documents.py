"""What the files of a run's analysis hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from results.pd_lifecycle.analysis_settings import Settings
from results.pd_lifecycle.clock_offsets import Step
from results.pd_lifecycle.consistency import Check, RunDrift
from results.pd_lifecycle.cost_model import Costs
from results.pd_lifecycle.first_repetitions import FirstRepetitions
from results.pd_lifecycle.half_step import HalfStep
from results.pd_lifecycle.overheads import BreakEven, GridOverhead, OverheadCell
from results.pd_lifecycle.paired_requests import OrderEffect
from results.pd_lifecycle.read import Discard, FailedCell, LinkBandwidth
from results.pd_lifecycle.summary import ConfigSummary, SummaryRow
from results.pd_lifecycle.volumes import Volume
from results.records.declaration import Declared
from results.records.frames import Gap
from results.records.lifecycle import TransferDetail
from results.report.documents import AggregateHead
from results.statistics.judgement import Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleNumbers:
    """What an analysis computes and `aggregate.json` holds."""

    transports: tuple[str, ...]
    """By which the KV was moved."""
    settings: Settings
    """Settings of the analysis."""
    launches: int
    """Launches of each engine: trials with a counted request that are not left out."""
    configs: tuple[ConfigSummary, ...]
    """By C, N and O."""
    costs: Costs
    """What a transfer costs by its size."""
    links: tuple[LinkBandwidth, ...]
    """Bandwidths of the link, a stated one first; empty = unknown."""
    grid_overheads: tuple[GridOverhead, ...]
    """Over the whole grid: the handover over both combined engines, and those over each other."""
    overheads: tuple[OverheadCell, ...]
    """Over the combined engine with the connector."""
    plain_overheads: tuple[OverheadCell, ...]
    """Over the plain combined engine; empty where it was not measured."""
    order_effects: tuple[OrderEffect, ...]
    """What the order of a pair of requests changes."""
    break_evens: tuple[BreakEven, ...]
    """Break-evens of `overheads`."""
    plain_break_evens: tuple[BreakEven, ...]
    """Break-evens of `plain_overheads`."""
    first_repetitions: tuple[FirstRepetitions, ...]
    """How much longer the first repetitions take than the others."""
    half_step: HalfStep
    """Whether half of the decode instance's step is worth subtracting."""
    volumes: tuple[Volume, ...]
    """Transferred bytes by N."""
    clock_steps: tuple[Step, ...]
    """Where the clock of one of two hosts was set."""
    checks: tuple[Check, ...]
    """Whether sources that state the same agree."""
    drifts: tuple[RunDrift, ...]
    """How each TTFT changed over a launch."""
    discards: tuple[Discard, ...]
    """Repeated measurements, those of failed cells, and records that do not count."""
    failures: tuple[FailedCell, ...]
    """Cells that failed."""
    gaps: tuple[Gap, ...]
    """What of the run's artifacts is missing or damaged, and the launches that are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleAggregate(LifecycleNumbers, AggregateHead):
    """`aggregate.json`: every number of the report."""


@dataclass(frozen=True, slots=True)
class LifecycleVerdicts:
    """`verdicts.json`: the success criteria."""

    format: int
    settings: Settings
    """Settings of the analysis."""
    criteria: tuple[Judgement, ...]
    """Criteria of the specification."""


@dataclass(frozen=True, slots=True)
class LifecycleRow:
    """A row of `aggregate.csv`: one request, warm-up and discarded requests included."""

    prior_context: int
    new_tokens: int
    output_length: int
    trial: int
    repetition: int
    """From 1."""
    warmup: bool
    """It is dropped because connections are made in it."""
    counted: bool
    """It enters the results."""
    discarded: str
    """Why it does not count; empty = it does, unless it is a warm-up."""
    transport: str
    """By which the KV was moved; empty = unknown."""
    durations_ms: Mapping[str, float | None]
    """Every duration of the record by its name, as `<name>_ms`."""
    residual_share: float | None
    """As in the record."""
    client_residual_share: float | None
    """As in the record."""
    transfer_detail: TransferDetail
    """As in the record."""
    colo_ttft_ms: float | None
    """TTFT of the same request on the combined engine with the connector."""
    colo_e2e_ms: float | None
    """E2E of it."""
    colo_first: bool | None
    """It was sent before the request whose prompt is handed over."""
    plain_ttft_ms: float | None
    """TTFT of the same request on the combined engine without a connector."""
    plain_e2e_ms: float | None
    """E2E of it."""
    plain_first: bool | None
    """It was sent before the request whose prompt is handed over."""
    d_step_ms: float | None
    """Median step of the decode instance while the request waited for its blocks."""
    p_cached_tokens: int | None
    """Prompt tokens that the prefill instance had in its own cache."""
    counted_tokens: int | None
    """What the decode instance held before, by its counters; empty = not known."""
    clock_error_ns: int | None
    """The offset between the clocks of the hosts is right to within this."""
    d_promotion_less_half_step: bool
    """Half of the decode instance's step is subtracted from `d_promotion_ms`."""


@dataclass(frozen=True, slots=True)
class LifecycleManifestRow:
    """A row of `MANIFEST.tsv`: one cell of the plan or of a record. An empty field is unknown."""

    prior_context: str
    new_tokens: str
    output_length: str
    trial: str
    cell: str
    status: str
    """`ran`, `FAILED`, `SKIP` or `not run`."""
    skip_reason: str
    """Why it was skipped, or failed."""
    counted: str
    """Requests that enter the results."""
    warmups: str
    """Warm-up requests."""
    discarded: str
    """Measurements that do not count."""
    transport: str
    """Transport of the run."""
    engine_versions: str
    """Package and version, with semicolons between them."""


DOCUMENTS: tuple[Declared, ...] = (
    Declared(LifecycleAggregate, ("aggregate.json",)),
    Declared(LifecycleVerdicts, ("verdicts.json",)),
    Declared(LifecycleRow, ("aggregate.csv", "aggregate.parquet")),
    Declared(SummaryRow, ("results/lifecycle/summary.csv",)),
    Declared(LifecycleManifestRow, ("MANIFEST.tsv",)),
)
