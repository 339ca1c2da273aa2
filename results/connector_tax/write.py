"""Write a run's results: aggregate, tax, manifest, per-config summaries, figures and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from results.connector_tax.analyse import Analysis, analyse
from results.connector_tax.draw import DRAWERS
from results.connector_tax.figures import build_figures
from results.connector_tax.page import build_page
from results.connector_tax.report import build_report
from results.connector_tax.summary import CellSummary
from results.connector_tax.tables import FIGURES_BEFORE
from results.connector_tax.tax import TaxRow
from results.measures.summary import flatten_values
from results.records.layout import ConfigLayout, RunLayout
from results.records.manifest import ManifestRow
from results.report.content import Report
from results.report.document import report_title
from results.report.judgements import VERDICTS_FORMAT
from results.report.output import Outputs, write_outputs
from results.report.stored_page import digest_inputs

_MANIFEST_FIELDS = [field.name for field in fields(ManifestRow)]
FORMAT = 1
"""Version of aggregate.json, tax.json and summary.json."""


def write_results(root: Path) -> Analysis:
    """Analyse the run folder `root`: write aggregate.*, tax.*, MANIFEST.tsv, each summary.json, figures/, report.*.

    The same folder gives the same files. A missing or damaged artifact is a gap, not an error. Raises ResultsError if
    `root` is no folder, OSError if the files cannot be written.
    """
    inputs = digest_inputs(root)
    analysis = analyse(root)
    layout = RunLayout(root)
    outputs = Outputs(
        aggregate=build_aggregate(analysis),
        rows=flat_cells(analysis),
        verdicts=build_verdicts(analysis),
        manifest=pd.DataFrame(analysis.manifest, columns=_MANIFEST_FIELDS, dtype=object),
        report=Report(
            report_title(analysis.facts),
            build_page(analysis),
            build_report(analysis),
            build_figures(analysis, root),
            FIGURES_BEFORE,
            DRAWERS,
        ),
        inputs=inputs,
        more={
            layout.tax_json: build_taxes(analysis),
            layout.tax_csv: flat_taxes(analysis.taxes),
            **_build_summaries(analysis, layout),
        },
    )
    write_outputs(layout, outputs)
    return analysis


def build_taxes(analysis: Analysis) -> dict[str, Any]:
    """`tax.json`; `noise_floor`: plain against plain, in the same form as the taxes and none of them."""
    rows = {"taxes": analysis.taxes, "noise_floor": analysis.noise_floor}
    return {
        "format": FORMAT,
        **{name: [_tax_row(row) for row in table] for name, table in rows.items()},
        "launch_noise": msgspec.to_builtins(analysis.launch_noise),
        "attribution": [one.describe() for one in analysis.attribution],
        "engine_changes": msgspec.to_builtins(analysis.engine_changes),
        "capacity": msgspec.to_builtins(analysis.capacity),
    }


def _build_summaries(analysis: Analysis, layout: RunLayout) -> dict[Path, object]:
    """Every config's `summary.json`: the rows of its cells."""
    return {
        folder.summary_json: {
            "format": FORMAT,
            "cells": [_cell_row(analysis, cell) for cell in analysis.cells if _is_below(cell, folder)],
        }
        for folder in layout.configs()
    }


def _is_below(cell: CellSummary, folder: ConfigLayout) -> bool:
    return Path(cell.path).parent.name == folder.root.name


def build_aggregate(analysis: Analysis) -> dict[str, Any]:
    """`aggregate.json`: a row per cell, the saturation table with its criteria, the reference rates, the gaps."""
    return {
        "format": FORMAT,
        "definitions": "docs/analysis.md",
        **analysis.facts.named,
        "cells": [_cell_row(analysis, cell) for cell in analysis.cells],
        "reference_rates": msgspec.to_builtins(analysis.rates),
        "gaps": msgspec.to_builtins(analysis.gaps),
    }


def _cell_row(analysis: Analysis, cell: CellSummary) -> dict[str, Any]:
    judgement = analysis.saturation[cell.path]
    row: dict[str, Any] = msgspec.to_builtins(cell)
    return row | {"saturation": msgspec.to_builtins(judgement) | {"fired": list(judgement.fired)}}


def flat_cells(analysis: Analysis) -> pd.DataFrame:
    """`aggregate.{csv,parquet}`: one row per cell; latencies have `_low`, `_high` and `_n` columns beside them."""
    return pd.DataFrame([_flat_cell(analysis, cell) for cell in analysis.cells])


def _flat_cell(analysis: Analysis, cell: CellSummary) -> dict[str, Any]:
    judgement = analysis.saturation[cell.path]
    return {
        "cell": cell.cell,
        "config": cell.config,
        "phase": cell.phase,
        "trial": cell.trial,
        "rate_per_s": cell.rate_per_s,
        "input_tokens": cell.shape.input_tokens,
        "output_tokens": cell.shape.output_tokens,
        "window_s": cell.window_s,
        "stop_reason": cell.stop_reason,
        **cell.counts,
        "saturated": judgement.saturated,
        "criteria_fired": ",".join(map(str, judgement.fired)),
        "degraded": bool(cell.degraded),
        "step_timing_available": bool(cell.step_timing.get("available", False)),
        **flatten_values(cell.values),
    }


def build_verdicts(analysis: Analysis) -> dict[str, Any]:
    """`verdicts.json`: hypotheses and success criteria, and the contrasts of taxes they rest on."""
    names = ("verdicts", "criteria", "decomposition", "additivity", "amplification", "trends", "drift")
    return {"format": VERDICTS_FORMAT, **{name: msgspec.to_builtins(getattr(analysis, name)) for name in names}}


def flat_taxes(taxes: Sequence[TaxRow]) -> pd.DataFrame:
    """`tax.csv`: one row per tax."""
    return pd.DataFrame([_tax_row(row) for row in taxes])


def _tax_row(row: TaxRow) -> dict[str, Any]:
    return {
        "reference": row.reference,
        "phase": row.phase,
        "rate_per_s": row.rate_per_s,
        "input_tokens": row.shape.input_tokens,
        "output_tokens": row.shape.output_tokens,
        "config": row.config,
        "metric": str(row.metric),
        **msgspec.to_builtins(row.estimate),
        "verdict": None if row.verdict is None else str(row.verdict),
        "withheld": row.withheld,
        "saturated": row.saturated,
        "p_corrected": row.p,
        "alone_low": None if row.alone is None else row.alone.low,
        "alone_high": None if row.alone is None else row.alone.high,
        "own_low": None if row.own is None else row.own.low,
        "own_high": None if row.own is None else row.own.high,
    }
