"""Writes the analysis files of a lifecycle run: summary.csv, aggregate, verdicts, manifest, figures and the report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd

from results.pd_lifecycle.analyze import LifecycleAnalysis, analyze
from results.pd_lifecycle.documents import (
    LifecycleAggregate,
    LifecycleManifestRow,
    LifecycleNumbers,
    LifecycleRow,
    LifecycleVerdicts,
)
from results.pd_lifecycle.draw import DRAWERS
from results.pd_lifecycle.figures import build_figures
from results.pd_lifecycle.page import build_page
from results.pd_lifecycle.report import build_report
from results.pd_lifecycle.summary import build_summary_rows
from results.pd_lifecycle.tables import FIGURES_BEFORE
from results.records.declaration import pick_fields
from results.records.layout import LifecycleLayout, RunLayout
from results.records.lifecycle import AGGREGATE_FORMAT, LifecycleRecord
from results.report.content import Report
from results.report.document import format_report_title
from results.report.documents import DEFINITIONS, name_run
from results.report.judgements import VERDICTS_FORMAT
from results.report.output import Outputs, write_analysis
from results.report.record_rows import build_frame


def write_results(root: Path) -> LifecycleAnalysis:
    """As `write_analysis`: summary.csv, aggregate.*, verdicts.json, MANIFEST.tsv, figures/ and report.*."""
    return write_analysis(root, analyze, build_outputs)


def build_outputs(analysis: LifecycleAnalysis, layout: RunLayout) -> Outputs:
    summary = build_summary_rows(analysis.configs, half_step=analysis.settings.subtract_half_step)
    return Outputs(
        aggregate=build_aggregate(analysis),
        rows=build_request_rows(analysis),
        verdicts=build_verdicts(analysis),
        manifest=build_manifest(analysis),
        report=Report(
            format_report_title(analysis.facts),
            build_page(analysis),
            build_report(analysis),
            build_figures(analysis),
            FIGURES_BEFORE,
            DRAWERS,
        ),
        more={LifecycleLayout(layout.root).summary_csv: summary},
    )


def build_aggregate(analysis: LifecycleAnalysis) -> LifecycleAggregate:
    return LifecycleAggregate(
        format=AGGREGATE_FORMAT,
        definitions=DEFINITIONS,
        **name_run(analysis.facts),
        **pick_fields(analysis, LifecycleNumbers),
    )


def build_verdicts(analysis: LifecycleAnalysis) -> LifecycleVerdicts:
    return LifecycleVerdicts(VERDICTS_FORMAT, analysis.settings, analysis.criteria)


def build_request_rows(analysis: LifecycleAnalysis) -> pd.DataFrame:
    """The rows of `aggregate.{csv,parquet}`: one per request, warm-up and discarded requests included."""
    half_step = analysis.settings.subtract_half_step
    return build_frame(_make_request_row(record, half_step) for record in analysis.records)


def _make_request_row(record: LifecycleRecord, half_step: bool) -> LifecycleRow:
    return LifecycleRow(
        prior_context=record.config.prior_context,
        new_tokens=record.config.current_new_tokens,
        output_length=record.config.output_length,
        trial=record.trial,
        repetition=record.repetition,
        warmup=record.warmup,
        counted=record.counted,
        discarded=record.discarded,
        transport=record.transport,
        durations_ms={f"{name}_ms": value for name, value in {**record.breakdown_ms, **record.more_ms}.items()},
        residual_share=record.residual_share,
        client_residual_share=record.client_residual_share,
        transfer_detail=record.transfer_detail,
        colo_ttft_ms=record.colo.ttft_ms,
        colo_e2e_ms=record.colo.e2e_ms,
        colo_first=record.colo.first,
        plain_ttft_ms=record.plain.ttft_ms,
        plain_e2e_ms=record.plain.e2e_ms,
        plain_first=record.plain.first,
        d_step_ms=record.counts.d_step_ms,
        p_cached_tokens=record.counts.p_cached_tokens,
        counted_tokens=record.verification.counted_tokens,
        clock_error_ns=record.clock.error_ns,
        d_promotion_less_half_step=half_step,
    )


def build_manifest(analysis: LifecycleAnalysis) -> pd.DataFrame:
    """The rows of `MANIFEST.tsv`: one per cell of the plan or of a record."""
    planned = {(one.trial, *one.config.key): one for one in analysis.planned}
    done = Counter((record.trial, *record.config.key) for record in analysis.counted)
    warm = Counter((record.trial, *record.config.key) for record in analysis.records if record.warmup)
    failed = {(one.trial, *one.config.key): one.reason for one in analysis.failures}
    discarded = Counter((one.trial, *one.config.key) for one in analysis.discards)
    rows = []
    for key in sorted({*planned, *done, *warm, *failed}):
        plan, counted = planned.get(key), done[key]
        why = failed.get(key) or (plan.why_not if plan is not None else "")
        missing = "FAILED" if key in failed else "SKIP" if why else "not run"
        rows.append(
            LifecycleManifestRow(
                prior_context=str(key[1]),
                new_tokens=str(key[2]),
                output_length=str(key[3]),
                trial=str(key[0]),
                cell=plan.cell if plan is not None else "",
                status="ran" if counted else missing,
                skip_reason="" if counted else " ".join(why.split()),
                counted=str(counted),
                warmups=str(warm[key]),
                discarded=str(discarded[key]),
                transport=" ".join(analysis.transports),
                engine_versions="; ".join(f"{name} {text}" for name, text in sorted(analysis.facts.versions.items())),
            )
        )
    return build_frame(rows, dtype=str)
