"""Write a search's results: aggregate, verdicts, manifest, figure and report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from results.capacity.analyze import CapacityAnalysis, PolicyCapacity, analyze
from results.capacity.figures import build_figures, draw_capacity
from results.capacity.report import FIGURE, build_page, build_report, describe_answer, name_outcome
from results.records.layout import RunLayout
from results.report.content import Report
from results.report.document import report_title
from results.report.judgements import VERDICTS_FORMAT
from results.report.output import Outputs, write_outputs
from results.report.stored_page import digest_inputs

FORMAT = 1
"""Version of aggregate.json."""


def write_results(root: Path) -> CapacityAnalysis:
    """Analyze the run folder and write its files; the same points give the same files. Raises ResultsError, OSError."""
    inputs = digest_inputs(root)
    analysis = analyze(root)
    figures = build_figures(analysis)
    title = report_title(analysis.facts)
    outputs = Outputs(
        aggregate=build_aggregate(analysis),
        rows=build_rows(analysis),
        verdicts={
            "format": VERDICTS_FORMAT,
            "simulated": analysis.facts.simulated,
            "policies": _list_answers(analysis),
            "engine_gates": msgspec.to_builtins(analysis.engine_gates),
        },
        manifest=pd.DataFrame([_manifest_row(analysis, policy) for policy in analysis.policies], dtype=str),
        report=Report(title, build_page(analysis), build_report(analysis), figures, "Points", {FIGURE: draw_capacity}),
        inputs=inputs,
    )
    write_outputs(RunLayout(root), outputs)
    return analysis


def build_aggregate(analysis: CapacityAnalysis) -> dict[str, Any]:
    """`aggregate.json`: the answer for each policy, and every point."""
    return {
        "format": FORMAT,
        **analysis.facts.named,
        "slo": analysis.slo,
        "limits_s": {limit.name: limit.limit_s for limit in analysis.limits},
        "traces": analysis.traces,
        "distinct_traces": analysis.distinct_traces,
        "policies": _list_answers(analysis),
        "gaps": msgspec.to_builtins(analysis.gaps),
    }


def _list_answers(analysis: CapacityAnalysis) -> list[dict[str, Any]]:
    return [
        {
            "label": policy.label,
            **msgspec.to_builtins(policy.answer),
            "needed": msgspec.to_builtins(policy.needed),
            "why": describe_answer(policy),
            "points": [
                {
                    "size": msgspec.to_builtins(size),
                    "standing": name_outcome(point),
                    "distance": point.distance,
                    "estimates": msgspec.to_builtins(point.estimates),
                }
                for size, point in policy.points.items()
            ],
        }
        for policy in analysis.policies
    ]


def build_rows(analysis: CapacityAnalysis) -> pd.DataFrame:
    """`aggregate.{csv,parquet}`: one row per point and trace."""
    return pd.DataFrame(
        {
            "label": record.label,
            "instances": record.instances,
            "prefill_instances": record.prefill_instances,
            "size": size.text,
            "trial": record.trial,
            "turns": record.turns,
            "completed": record.completed,
            **{f"{name}_s": value for name, value in record.values.items()},
            "objective": name_outcome(policy.points[size]),
            "simulated": record.simulated,
        }
        for policy in analysis.policies
        for size, records in policy.records.items()
        for record in records
    )


def _manifest_row(analysis: CapacityAnalysis, policy: PolicyCapacity) -> dict[str, str]:
    fewest = policy.answer.fewest
    return {
        "label": policy.label,
        "status": "ran" if policy.answer.unfinished is None else "not finished",
        "fewest_instances": "" if fewest is None else fewest.text,
        "points": str(len(policy.points)),
        "simulated": analysis.facts.simulated,
    }
