"""From a run's measurements to its hypotheses and success criteria."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from results.connector_tax import hypotheses, success_criteria
from results.connector_tax.combined_taxes import (
    MOONCAKE,
    NIXL,
    Additivity,
    Decomposition,
    Trend,
    nixl_gap,
    tax_at,
)
from results.connector_tax.measurements import Measurements
from results.connector_tax.tax import Metric
from results.measures.saturation import REF_SAFE, ReferenceRates
from results.measures.summary import CellSummary
from results.records.frames import Gap
from results.records.manifest import ManifestRow
from results.records.run_folder import Decision, RunFacts
from results.statistics.estimates import Estimate, unknown
from results.statistics.judgement import Judgement
from results.statistics.trials import estimate

_Row = TypeVar("_Row", Decomposition, Additivity, Trend)


def judge_hypotheses(
    measurements: Measurements,
    rates: ReferenceRates,
    decomposition: Sequence[Decomposition],
    additivity: Sequence[Additivity],
    lines: Sequence[Trend],
) -> tuple[Judgement, ...]:
    """H1 to H6, by the contrasts of mooncake_both's TTFT tax (H6: TPOT)."""
    mooncake, nixl = (
        estimate(tax_at(measurements, rates, REF_SAFE, config, Metric.TTFT_P90)) for config in (MOONCAKE, NIXL)
    )
    return (
        hypotheses.judge_tax(mooncake),
        hypotheses.judge_gap(nixl_gap(measurements, rates, Metric.TTFT_P90), mooncake, nixl),
        hypotheses.judge_framework(_first(decomposition, config=MOONCAKE, metric=Metric.TTFT_P90)),
        hypotheses.judge_additivity(_first(additivity, metric=Metric.TTFT_P90)),
        hypotheses.judge_input_trend(_first(lines, config=MOONCAKE, along="input_tokens", at=None)),
        hypotheses.judge_output_trend(_first(lines, config=MOONCAKE, along="output_tokens", at=None)),
    )


def judge_success(
    judged: Sequence[Judgement],
    facts: RunFacts,
    rows: Sequence[ManifestRow],
    decisions: Mapping[str, Decision],
    cells: Collection[CellSummary],
    gaps: Sequence[Gap],
    unmeasured: Sequence[Gap],
) -> tuple[Judgement, ...]:
    """The success criteria 1 to 7; `gaps`: all that artifacts lack; `unmeasured`: planned cells that are not there."""
    h1, h2, h3, h4, h5, h6 = judged
    planned = bool(facts.cells)
    trials = max((cell.trial for cell in cells), default=0) + 1
    return (
        success_criteria.tax_reported(h1),
        success_criteria.gap_reported(h2),
        success_criteria.cost_labelled(h3),
        success_criteria.additivity_decided(h4),
        success_criteria.trends_reported(h5, h6),
        success_criteria.artifacts_present(rows, decisions, [*gaps, *unmeasured], planned),
        success_criteria.wall_clock(_span_h(cells), trials, whole=planned and not unmeasured),
    )


def _span_h(cells: Collection[CellSummary]) -> Estimate:
    ends = [cell.t_end_unix_s for cell in cells if cell.t_end_unix_s is not None]
    if not ends:
        return unknown("no cell was measured")
    return Estimate((max(ends) - min(cell.t_start_unix_s for cell in cells)) / 3600, n=len(ends))


def _first(rows: Sequence[_Row], **where: object) -> _Row | None:
    """The row whose attributes are these."""
    return next((row for row in rows if all(getattr(row, name) == value for name, value in where.items())), None)
