"""Write a search's results: aggregate, verdicts, manifest, figure and report."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from results.capacity.analyze import CapacityAnalysis, PolicyCapacity, analyze
from results.capacity.documents import (
    AssessedSize,
    CapacityAggregate,
    CapacityManifestRow,
    CapacityRow,
    CapacityVerdicts,
    PolicyAnswer,
)
from results.capacity.figures import build_figures, draw_capacity
from results.capacity.report import FIGURE, build_page, build_report, describe_answer, name_outcome
from results.capacity.search import Answer
from results.records.declaration import pick_fields
from results.records.layout import RunLayout
from results.report.content import Report
from results.report.document import format_report_title
from results.report.documents import name_run
from results.report.judgements import VERDICTS_FORMAT
from results.report.output import Outputs, write_analysis
from results.report.record_rows import build_frame

FORMAT = 1
"""Version of aggregate.json."""


def write_results(root: Path) -> CapacityAnalysis:
    """As `write_analysis`: aggregate.*, verdicts.json, MANIFEST.tsv, figures/ and report.*."""
    return write_analysis(root, analyze, build_outputs)


def build_outputs(analysis: CapacityAnalysis, layout: RunLayout) -> Outputs:
    figures = build_figures(analysis)
    title = format_report_title(analysis.facts)
    return Outputs(
        aggregate=build_aggregate(analysis),
        rows=build_rows(analysis),
        verdicts=build_verdicts(analysis),
        manifest=build_frame((_make_manifest_row(analysis, policy) for policy in analysis.policies), dtype=str),
        report=Report(title, build_page(analysis), build_report(analysis), figures, "Points", {FIGURE: draw_capacity}),
    )


def build_aggregate(analysis: CapacityAnalysis) -> CapacityAggregate:
    return CapacityAggregate(
        format=FORMAT,
        **name_run(analysis.facts),
        slo=analysis.slo,
        limits_s={limit.name: limit.limit_s for limit in analysis.limits},
        traces=analysis.traces,
        distinct_traces=analysis.distinct_traces,
        policies=_list_answers(analysis),
        gaps=analysis.gaps,
    )


def build_verdicts(analysis: CapacityAnalysis) -> CapacityVerdicts:
    return CapacityVerdicts(
        format=VERDICTS_FORMAT,
        simulated=analysis.facts.simulated,
        policies=_list_answers(analysis),
        engine_gates=analysis.engine_gates,
    )


def _list_answers(analysis: CapacityAnalysis) -> tuple[PolicyAnswer, ...]:
    return tuple(
        PolicyAnswer(
            label=policy.label,
            **pick_fields(policy.answer, Answer),
            needed=policy.needed,
            why=describe_answer(policy),
            points=tuple(
                AssessedSize(size, name_outcome(point), point.distance, point.estimates)
                for size, point in policy.points.items()
            ),
        )
        for policy in analysis.policies
    )


def build_rows(analysis: CapacityAnalysis) -> pd.DataFrame:
    """`aggregate.{csv,parquet}`: one row per point and trace."""
    return build_frame(
        CapacityRow(
            label=record.label,
            instances=record.instances,
            prefill_instances=record.prefill_instances,
            size=size.text,
            trial=record.trial,
            turns=record.turns,
            completed=record.completed,
            values={f"{name}_s": value for name, value in record.values.items()},
            objective=name_outcome(policy.points[size]),
            simulated=record.simulated,
        )
        for policy in analysis.policies
        for size, records in policy.records.items()
        for record in records
    )


def _make_manifest_row(analysis: CapacityAnalysis, policy: PolicyCapacity) -> CapacityManifestRow:
    fewest = policy.answer.fewest
    return CapacityManifestRow(
        label=policy.label,
        status="ran" if policy.answer.unfinished is None else "not finished",
        fewest_instances="" if fewest is None else fewest.text,
        points=str(len(policy.points)),
        simulated=analysis.facts.simulated,
    )
