"""What the files of a run's analysis hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from results.connector_tax.attribution import CallbackShares
from results.connector_tax.capacity import CapacityCost
from results.connector_tax.combined_taxes import Additivity, Decomposition, TaxAmplification
from results.connector_tax.engine_changes import EngineChange
from results.connector_tax.launch_noise import LaunchNoise
from results.connector_tax.summary import CellSummary, ConfigAtRate
from results.connector_tax.tax import Metric, TaxedConfig, TaxedRate
from results.connector_tax.trends import Trend
from results.measures.drift import Drift
from results.records.declaration import Declared
from results.records.estimate import Estimate
from results.records.frames import Gap
from results.records.reference_rates import CellSaturation, ReferenceRates
from results.report.documents import AggregateHead
from results.statistics.judgement import Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSaturation(CellSaturation):
    """Whether one cell was saturated, and the criteria that fired."""

    fired: tuple[int, ...] = field()  # without a value of its own it would have the base's property for a default
    """Numbers of the criteria that fired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCell(CellSummary):
    """One measured cell, and whether it was saturated."""

    saturation: JudgedSaturation
    """By the criteria of Phase A."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaxAggregate(AggregateHead):
    """`aggregate.json`: the cells with their saturation, the reference rates, the gaps."""

    cells: tuple[JudgedCell, ...]
    """By folder and file name."""
    reference_rates: ReferenceRates
    """Those that the run used, where it wrote them; else those that its plan fixes, or its Phase A gives."""
    gaps: tuple[Gap, ...]
    """What of the run's artifacts is missing or damaged, and what was not measured."""


@dataclass(frozen=True, slots=True)
class ConfigCells:
    """`summary.json` of a config: its cells."""

    format: int
    cells: tuple[JudgedCell, ...]
    """By file name."""


@dataclass(frozen=True)  # without slots, as TaxedRate
class _TaxedLoad(TaxedRate):
    input_tokens: int
    """Prompt length."""
    output_tokens: int
    """Output length."""
    config: str
    metric: Metric
    """What is taxed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaxFileRow(Estimate, _TaxedLoad):
    """One tax of one config against plain at one load: of `tax.json`, and a row of `tax.csv`."""

    verdict: str | None
    """On which side of no tax the interval is: `higher`, `lower`, `not distinguishable`; None where `withheld` says
    why."""
    withheld: str
    """Why there is no verdict; empty where there is one, or nothing to compare with."""
    saturated: str
    """`plain` where that is saturated at this load, else the config where it is; empty where neither is."""
    p_corrected: float | None
    """Two-sided, corrected for all configs at this load; None where they were not compared together."""
    alone_low: float | None
    """Lower bound of the interval that holds for this config by itself."""
    alone_high: float | None
    """The other end of it."""
    own_low: float | None
    """Lower bound of the interval from the spread of this config's launches only."""
    own_high: float | None
    """The other end of it."""


@dataclass(frozen=True)  # without slots, as TaxedRate
class _AttributedTax(TaxedConfig):
    tax: Estimate
    """The tax."""


@dataclass(frozen=True, slots=True)
class AttributedTax(CallbackShares, _AttributedTax):
    """One tax beside the config's callbacks at the same load."""


@dataclass(frozen=True, slots=True)
class TaxDocument:
    """`tax.json`: the taxes, and what explains them."""

    format: int
    taxes: tuple[TaxFileRow, ...]
    """By load, config and metric."""
    noise_floor: tuple[TaxFileRow, ...]
    """Plain against plain, in the same form as the taxes and none of them."""
    launch_noise: tuple[LaunchNoise, ...]
    """The difference of two launches of one config; empty where each config was launched once."""
    attribution: tuple[AttributedTax, ...]
    """Every latency tax with what its callbacks can account for."""
    engine_changes: tuple[EngineChange, ...]
    """What vLLM changed for each config."""
    capacity: tuple[CapacityCost, ...]
    """What each config sustains."""


@dataclass(frozen=True, slots=True)
class TaxVerdicts:
    """`verdicts.json`: hypotheses and success criteria, and the contrasts of taxes that they rest on."""

    format: int
    verdicts: tuple[Judgement, ...]
    """H1 to H6."""
    criteria: tuple[Judgement, ...]
    """The success criteria 1 to 7."""
    decomposition: tuple[Decomposition, ...]
    """Each tax as that of the framework and that of the connector."""
    additivity: tuple[Additivity, ...]
    """Whether stacked connectors cost the sum of both."""
    amplification: tuple[TaxAmplification, ...]
    """What queueing adds to each tax."""
    trends: tuple[Trend, ...]
    """The taxes along input and output length."""
    drift: tuple[Drift, ...]
    """Whether latencies moved over the run."""


@dataclass(frozen=True, slots=True)
class TaxedCellRow(ConfigAtRate):
    """A row of `aggregate.csv`: one cell."""

    input_tokens: int
    """Prompt length."""
    output_tokens: int
    """Output length."""
    window_s: float
    """Length of the measured window."""
    stop_reason: str
    """`complete`, or `hard_stop` where the longest duration came first."""
    counts: Mapping[str, int | None]
    """Requests due in the window: completed, failed, dropped, cut; warmup (due before it); steps, empty_steps."""
    saturated: bool | None
    """None = not known."""
    criteria_fired: str
    """Numbers of the saturation criteria that fired, with commas between them."""
    degraded: bool
    """It takes no part in comparisons."""
    step_timing_available: bool
    """Whether its steps were timed."""
    values: Mapping[str, float | int | None]
    """Every value by its name; latencies have `_low`, `_high` and `_n` columns beside them."""


DOCUMENTS: tuple[Declared, ...] = (
    Declared(TaxAggregate, ("aggregate.json",)),
    Declared(ConfigCells, ("results/<date>_<config>/summary.json",)),
    Declared(TaxedCellRow, ("aggregate.csv", "aggregate.parquet")),
    Declared(TaxDocument, ("tax.json",)),
    Declared(TaxFileRow, ("tax.csv", "in TaxDocument")),
    Declared(TaxVerdicts, ("verdicts.json",)),
)
