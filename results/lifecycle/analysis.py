"""A lifecycle run's numbers to files: summary.csv, aggregate, verdicts, manifest, figures and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from results.layout import RunLayout
from results.lifecycle.draw import DRAWERS
from results.lifecycle.figures import figures
from results.lifecycle.findings import LifecycleAnalysis, analyse
from results.lifecycle.record import LifecycleLayout, LifecycleRecord
from results.lifecycle.report import limits, opening, terminal_tables
from results.lifecycle.summary import flat
from results.lifecycle.tables import FIGURES_BEFORE, tables
from results.output import Report, write_frame, write_json, write_report
from results.report import title

__all__ = ["LifecycleAnalysis", "aggregate", "analyse", "analyse_lifecycle", "terminal_tables"]

FORMAT = 2
"""Version of aggregate.json and verdicts.json."""


def analyse_lifecycle(root: Path) -> LifecycleAnalysis:
    """Analyse the run folder `root`: write summary.csv, aggregate.*, verdicts.json, MANIFEST.tsv, figures/, report.*.

    The same folder gives the same files. Whatever is missing or damaged is a gap, never an error; raises ResultsError
    where `root` is no folder, OSError where the files cannot be written.
    """
    analysis = analyse(root)
    layout = RunLayout(root)
    write_frame(LifecycleLayout(root).summary_csv, flat(analysis.configs, half_step=_half_step(analysis)))
    write_json(layout.aggregate_json, aggregate(analysis))
    requests = flat_requests(analysis)
    write_frame(layout.aggregate_csv, requests)
    write_frame(layout.aggregate_parquet, requests)
    write_json(layout.verdicts_json, conclusions(analysis))
    write_frame(layout.manifest, manifest(analysis))
    name, found = title(analysis.facts), figures(analysis)
    report = Report(name, opening(analysis), tables(analysis), found, limits(analysis), FIGURES_BEFORE)
    write_report(layout, report, DRAWERS)
    return analysis


def _half_step(analysis: LifecycleAnalysis) -> bool:
    return analysis.settings.subtract_half_step


def aggregate(analysis: LifecycleAnalysis) -> dict[str, Any]:
    """`aggregate.json`: a row per configuration, the fits, the maps, and the gaps."""
    return {
        "format": FORMAT,
        "definitions": "docs/lifecycle-analysis.md",
        **analysis.facts.named,
        "transports": analysis.transports,
        "settings": msgspec.to_builtins(analysis.settings),
        "configs": msgspec.to_builtins(analysis.configs),
        "costs": msgspec.to_builtins(analysis.costs),
        "links": msgspec.to_builtins(analysis.links),
        "overheads": msgspec.to_builtins(analysis.overheads),
        "order_effects": msgspec.to_builtins(analysis.orders),
        "break_evens": msgspec.to_builtins(analysis.break_evens),
        "volumes": msgspec.to_builtins(analysis.volumes),
        "clock_steps": msgspec.to_builtins(analysis.steps),
        "checks": msgspec.to_builtins(analysis.checks),
        "drifts": msgspec.to_builtins(analysis.drifts),
        "discards": msgspec.to_builtins(analysis.discards),
        "failures": msgspec.to_builtins(analysis.failures),
        "gaps": msgspec.to_builtins(analysis.gaps),
    }


def conclusions(analysis: LifecycleAnalysis) -> dict[str, Any]:
    """`verdicts.json`: the success criteria."""
    return {
        "format": FORMAT,
        "settings": msgspec.to_builtins(analysis.settings),
        "criteria": msgspec.to_builtins(analysis.criteria),
    }


def flat_requests(analysis: LifecycleAnalysis) -> pd.DataFrame:
    """`aggregate.{csv,parquet}`: one row per request, warm-ups and discarded ones included."""
    rows = pd.DataFrame([_flat(record) for record in analysis.records])
    rows["d_promotion_less_half_step"] = _half_step(analysis)
    return rows


def _flat(record: LifecycleRecord) -> dict[str, Any]:
    detail, counts = record.transfer_detail, record.counts
    return {
        "prior_context": record.config.prior_context,
        "new_tokens": record.config.current_new_tokens,
        "output_length": record.config.output_length,
        "repetition": record.repetition,
        "warmup": record.warmup,
        "counted": record.counted,
        "discarded": record.discarded,
        "transport": record.transport,
        **{f"{name}_ms": value for name, value in {**record.breakdown_ms, **record.more_ms}.items()},
        "residual_share": record.residual_share,
        "client_residual_share": record.client_residual_share,
        **msgspec.to_builtins(detail),
        "colo_ttft_ms": record.colo.ttft_ms,
        "colo_e2e_ms": record.colo.e2e_ms,
        "colo_first": record.colo.first,
        "d_step_ms": counts.d_step_ms,
        "p_cached_tokens": counts.p_cached_tokens,
        "counted_tokens": record.verification.counted_tokens,
        "clock_error_ns": record.clock.error_ns,
    }


def manifest(analysis: LifecycleAnalysis) -> pd.DataFrame:
    """`MANIFEST.tsv`: a row per configuration of the plan or of a record; an empty field is not known."""
    planned = {one.config.key: one for one in analysis.planned}
    done = {row.config.key: row for row in analysis.configs}
    failed = {one.config.key: one.reason for one in analysis.failures}
    thrown = [one.config.key for one in analysis.discards]
    rows = []
    for key in sorted({*planned, *done, *failed}):
        plan, row = planned.get(key), done.get(key)
        counted = row.counted if row is not None else 0
        why = failed.get(key) or (plan.why_not if plan is not None else "")
        missing = "FAILED" if key in failed else "SKIP" if why else "not run"
        rows.append(
            {
                "prior_context": str(key[0]),
                "new_tokens": str(key[1]),
                "output_length": str(key[2]),
                "cell": plan.cell if plan is not None else "",
                "status": "ran" if counted else missing,
                "skip_reason": "" if counted else " ".join(why.split()),
                "counted": str(counted),
                "warmups": str(row.warmups) if row is not None else "0",
                "discarded": str(thrown.count(key)),
                "transport": " ".join(analysis.transports),
                "engine_versions": "; ".join(
                    f"{name} {text}" for name, text in sorted(analysis.facts.versions.items())
                ),
            }
        )
    return pd.DataFrame(rows, columns=list(rows[0]) if rows else [], dtype=str)
