"""Write a run's results: aggregate, tax, manifest, per-config summaries, figures and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pandas as pd

from results.connector_tax.analyze import Analysis, analyze
from results.connector_tax.attribution import Attribution, CallbackShares
from results.connector_tax.documents import (
    AttributedTax,
    ConfigCells,
    JudgedCell,
    JudgedSaturation,
    TaxAggregate,
    TaxDocument,
    TaxedCellRow,
    TaxFileRow,
    TaxVerdicts,
)
from results.connector_tax.draw import DRAWERS
from results.connector_tax.figures import build_figures
from results.connector_tax.page import build_page
from results.connector_tax.report import build_report
from results.connector_tax.summary import CellSummary, ConfigAtRate
from results.connector_tax.tables import FIGURES_BEFORE
from results.connector_tax.tax import TaxedConfig, TaxedRate, TaxRow
from results.measures.summary import flatten_values
from results.records.declaration import pick_fields
from results.records.estimate import Estimate
from results.records.layout import ConfigLayout, RunLayout
from results.records.manifest import ManifestRow
from results.records.reference_rates import CellSaturation
from results.report.content import Report
from results.report.document import format_report_title
from results.report.documents import DEFINITIONS, name_run
from results.report.judgements import VERDICTS_FORMAT
from results.report.output import Outputs, write_analysis
from results.report.record_rows import build_frame

_MANIFEST_FIELDS = [field.name for field in fields(ManifestRow)]
FORMAT = 1
"""Version of aggregate.json, tax.json and summary.json."""


def write_results(root: Path) -> Analysis:
    """As `write_analysis`: aggregate.*, tax.*, verdicts.json, MANIFEST.tsv, summary.json, figures/ and report.*."""
    return write_analysis(root, analyze, build_outputs)


def build_outputs(analysis: Analysis, layout: RunLayout) -> Outputs:
    return Outputs(
        aggregate=build_aggregate(analysis),
        rows=flatten_cells(analysis),
        verdicts=build_verdicts(analysis),
        manifest=pd.DataFrame(analysis.manifest, columns=_MANIFEST_FIELDS, dtype=object),
        report=Report(
            format_report_title(analysis.facts),
            build_page(analysis),
            build_report(analysis),
            build_figures(analysis, layout.root),
            FIGURES_BEFORE,
            DRAWERS,
        ),
        more={
            layout.tax_json: build_taxes(analysis),
            layout.tax_csv: flatten_taxes(analysis.taxes),
            **_build_summaries(analysis, layout),
        },
    )


def build_taxes(analysis: Analysis) -> TaxDocument:
    return TaxDocument(
        format=FORMAT,
        taxes=_list_tax_rows(analysis.taxes),
        noise_floor=_list_tax_rows(analysis.noise_floor),
        launch_noise=analysis.launch_noise,
        attribution=tuple(map(_describe_attribution, analysis.attribution)),
        engine_changes=analysis.engine_changes,
        capacity=analysis.capacity,
    )


def _describe_attribution(one: Attribution) -> AttributedTax:
    return AttributedTax(
        **pick_fields(one.row, TaxedConfig),
        tax=one.row.estimate,
        **pick_fields(one, CallbackShares),
    )


def _build_summaries(analysis: Analysis, layout: RunLayout) -> dict[Path, object]:
    """Every config's `summary.json`."""
    return {
        folder.summary_json: ConfigCells(
            FORMAT, tuple(_judge_cell(analysis, cell) for cell in analysis.cells if _is_below(cell, folder))
        )
        for folder in layout.configs()
    }


def _is_below(cell: CellSummary, folder: ConfigLayout) -> bool:
    return Path(cell.path).parent.name == folder.root.name


def build_aggregate(analysis: Analysis) -> TaxAggregate:
    return TaxAggregate(
        format=FORMAT,
        definitions=DEFINITIONS,
        **name_run(analysis.facts),
        cells=tuple(_judge_cell(analysis, cell) for cell in analysis.cells),
        reference_rates=analysis.rates,
        gaps=analysis.gaps,
    )


def _judge_cell(analysis: Analysis, cell: CellSummary) -> JudgedCell:
    judgement = analysis.saturation[cell.path]
    saturation = JudgedSaturation(**pick_fields(judgement, CellSaturation), fired=judgement.fired)
    return JudgedCell(**pick_fields(cell, CellSummary), saturation=saturation)


def flatten_cells(analysis: Analysis) -> pd.DataFrame:
    """`aggregate.{csv,parquet}`: one row per cell."""
    return build_frame(_flatten_cell(analysis, cell) for cell in analysis.cells)


def _flatten_cell(analysis: Analysis, cell: CellSummary) -> TaxedCellRow:
    judgement = analysis.saturation[cell.path]
    return TaxedCellRow(
        **pick_fields(cell, ConfigAtRate),
        input_tokens=cell.shape.input_tokens,
        output_tokens=cell.shape.output_tokens,
        window_s=cell.window_s,
        stop_reason=cell.stop_reason,
        counts=cell.counts,
        saturated=judgement.saturated,
        criteria_fired=",".join(map(str, judgement.fired)),
        degraded=bool(cell.degraded),
        step_timing_available=bool(cell.step_timing.get("available", False)),
        values=flatten_values(cell.values),
    )


def build_verdicts(analysis: Analysis) -> TaxVerdicts:
    return TaxVerdicts(
        format=VERDICTS_FORMAT,
        verdicts=analysis.verdicts,
        criteria=analysis.criteria,
        decomposition=analysis.decomposition,
        additivity=analysis.additivity,
        amplification=analysis.amplification,
        trends=analysis.trends,
        drift=analysis.drift,
    )


def flatten_taxes(taxes: Sequence[TaxRow]) -> pd.DataFrame:
    """`tax.csv`: one row per tax."""
    return build_frame(_list_tax_rows(taxes))


def _list_tax_rows(taxes: Sequence[TaxRow]) -> tuple[TaxFileRow, ...]:
    return tuple(
        TaxFileRow(
            **pick_fields(row, TaxedRate),
            input_tokens=row.shape.input_tokens,
            output_tokens=row.shape.output_tokens,
            config=row.config,
            metric=row.metric,
            **pick_fields(row.estimate, Estimate),
            verdict=None if row.verdict is None else str(row.verdict),
            withheld=row.withheld,
            saturated=row.saturated,
            p_corrected=row.p,
            alone_low=None if row.alone is None else row.alone.low,
            alone_high=None if row.alone is None else row.alone.high,
            own_low=None if row.own is None else row.own.low,
            own_high=None if row.own is None else row.own.high,
        )
        for row in taxes
    )
