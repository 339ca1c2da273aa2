"""A `routing` run's numbers to files: aggregate, pairs, verdicts, manifest, figures and the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from results.measures.summary import flatten_values
from results.records.decisions import KvTransfer
from results.records.estimate import Estimate
from results.records.layout import RunLayout
from results.report.content import Report
from results.report.document import report_title
from results.report.figure import Figure
from results.report.judgements import VERDICTS_FORMAT
from results.report.output import Outputs, write_outputs
from results.report.stored_page import digest_inputs
from results.routing.analyze import RoutingAnalysis, analyze
from results.routing.conditional_claims import ConditionalClaim
from results.routing.figures import DRAWERS, build_figures
from results.routing.launch_noise import measure_noise
from results.routing.migrations import MIGRATION_FIELDS
from results.routing.moves import CellMigrations
from results.routing.page import build_page
from results.routing.pairs import Pair
from results.routing.report import build_report
from results.routing.summary import RoutedSummary
from results.routing.tables import FIGURES_BEFORE
from results.statistics.judgement import Judgement

FORMAT = 1
"""Version of aggregate.json and pairs.json."""


def write_results(root: Path) -> RoutingAnalysis:
    """Analyze the run folder `root`: write aggregate.*, pairs.*, verdicts.json, MANIFEST.tsv, figures/ and report.*.

    The same folder gives the same files. Whatever is missing or damaged is a gap, never an error; raises ResultsError
    where `root` is no folder, OSError where the files cannot be written.
    """
    inputs = digest_inputs(root)
    analysis = analyze(root)
    layout = RunLayout(root)
    more: dict[Path, object] = {layout.pairs_json: build_pairs(analysis), layout.pairs_csv: build_pair_rows(analysis)}
    if analysis.moves.cells:
        more[layout.migrations_csv] = build_migration_rows(analysis)
    outputs = Outputs(
        aggregate=build_aggregate(analysis),
        rows=build_cell_rows(analysis),
        verdicts=build_verdicts(analysis),
        manifest=build_manifest(analysis),
        report=Report(
            report_title(analysis.facts),
            build_page(analysis),
            build_report(analysis),
            _mark_figures(analysis),
            FIGURES_BEFORE,
            DRAWERS,
        ),
        inputs=inputs,
        more=more,
    )
    write_outputs(layout, outputs)
    return analysis


def build_aggregate(analysis: RoutingAnalysis) -> dict[str, Any]:
    """`aggregate.json`: a row per cell, each policy's numbers over its trials, and the gaps."""
    return {
        "format": FORMAT,
        "definitions": "docs/analysis.md",
        **analysis.facts.named,
        "trace": analysis.trace,
        "baseline": analysis.baseline,
        "trials": analysis.trials,
        "cells": msgspec.to_builtins(analysis.cells),
        "policies": [
            {"label": label, "policy": analysis.policies[label], "values": msgspec.to_builtins(analysis.values[label])}
            for label in analysis.labels
        ],
        "interference": msgspec.to_builtins(analysis.interference),
        "migrations": msgspec.to_builtins(analysis.moves.migrations),
        "migrations_by_cell": [_migrations_row(cell) for cell in analysis.moves.cells],
        "transfers": msgspec.to_builtins(analysis.moves.transfers),
        "transfer_against_recomputing": msgspec.to_builtins(analysis.moves.recomputing),
        "pools": msgspec.to_builtins(analysis.pools),
        "load_floor": msgspec.to_builtins(analysis.floor),
        "paper": {
            "end_to_end": msgspec.to_builtins(analysis.paper),
            "ablation": msgspec.to_builtins(analysis.ablation),
            "sensitivity": msgspec.to_builtins(analysis.settings),
        },
        "gaps": msgspec.to_builtins(analysis.gaps),
    }


def build_pairs(analysis: RoutingAnalysis) -> dict[str, Any]:
    """`pairs.json`: every metric of every two policies, and every latency of them turn by turn."""
    return {
        "format": FORMAT,
        **_mark_simulated(analysis),
        "pairs": msgspec.to_builtins(analysis.pairs),
        "turn_by_turn": msgspec.to_builtins(analysis.turn_pairs),
    }


def build_verdicts(analysis: RoutingAnalysis) -> dict[str, Any]:
    """`verdicts.json`: who wins what, the specifications' claims and decision points, the loop of every policy, what
    decode pools would hold."""
    conditional = [_conditional_row(one) for one in analysis.conditional]
    return {
        "format": VERDICTS_FORMAT,
        "standings": [msgspec.to_builtins(row) | {"alone": row.alone} for row in analysis.standings],
        "claims": msgspec.to_builtins(analysis.claims),
        "launch_noise": msgspec.to_builtins(measure_noise(analysis)),
        **({"conditional_claims": conditional} if conditional else {}),
        "load_floor": msgspec.to_builtins(analysis.decision_points),
        "coupling": msgspec.to_builtins(analysis.couplings),
        "footprints": msgspec.to_builtins(analysis.footprints),
        "deployments": msgspec.to_builtins(analysis.deployments),
        "decode_pools": [msgspec.to_builtins(row) for row in analysis.occupancies if row.point],
        **({} if analysis.engine_gates is None else {"engine_gates": msgspec.to_builtins(analysis.engine_gates)}),
        **_mark_simulated(analysis),
    }


def _conditional_row(one: ConditionalClaim) -> dict[str, Any]:
    """With the number that decided, at the model's own values and under each variation."""
    return {
        "name": one.claim.name,
        "verdict": one.verdict,
        "opposite_at": one.flips,
        "outcomes": dict(one.outcomes),
        "quantity": one.claim.quantity,
        "measured": _list_bounds(one.claim),
        "varied": {name: _list_bounds(own) for name, own in one.varied.items()},
    }


def _list_bounds(judgement: Judgement) -> dict[str, float | None]:
    measured = judgement.measured
    bounds = {"value": measured.value, "low": measured.low, "high": measured.high}
    return bounds | {"p": judgement.p, "p_corrected": judgement.p_corrected}


def _mark_figures(analysis: RoutingAnalysis) -> list[Figure]:
    """The figures, whose CSV says what stood in for engines too."""
    mark = _mark_simulated(analysis)
    return [
        figure if figure.missing else replace(figure, table=figure.table.assign(**mark))
        for figure in build_figures(analysis)
    ]


def _mark_simulated(analysis: RoutingAnalysis) -> dict[str, str]:
    """For every file: what stood in for engines; nothing where they were real."""
    return {"simulated": analysis.facts.simulated} if analysis.facts.simulated else {}


def build_cell_rows(analysis: RoutingAnalysis) -> pd.DataFrame:
    """`aggregate.{csv,parquet}`: one row per cell; latencies have `_low`, `_high` and `_n` columns beside them."""
    return pd.DataFrame([_flat_cell(cell) | _mark_simulated(analysis) for cell in analysis.cells])


def _flat_cell(cell: RoutedSummary) -> dict[str, Any]:
    return {
        "cell": cell.cell,
        "label": cell.label,
        "policy": cell.policy,
        "trial": cell.trial,
        "place": cell.place,
        "duration_s": cell.duration_s,
        "degraded": bool(cell.degraded),
        **cell.counts,
        **flatten_values(cell.values),
    }


def _migrations_row(cell: CellMigrations) -> dict[str, Any]:
    """One cell's numbers, without its single migrations: those are rows of migrations.csv."""
    own = {field.name: getattr(cell.migrations, field.name) for field in fields(cell.migrations)}
    for name in ("events", "thrashed"):
        del own[name]
    own["requests"] = sum(cell.migrations.requests.values())
    named = {"cell": cell.cell, "label": cell.label, "trial": cell.trial, "counts": cell.counts}
    return named | {name: msgspec.to_builtins(value) for name, value in own.items()}


def build_migration_rows(analysis: RoutingAnalysis) -> pd.DataFrame:
    """`migrations.csv`: one row per migration that was asked for, its transfer's fields beside."""
    of_transfer = [field.name for field in fields(KvTransfer)]
    rows = [
        [cell.label, cell.trial, *(value(one) for value in MIGRATION_FIELDS.values())]
        + [getattr(one.transfer, name, None) for name in of_transfer]
        for cell in analysis.moves.cells
        for one in cell.migrations.events
    ]
    columns = ["label", "trial", *MIGRATION_FIELDS, *(f"kv_{name}" for name in of_transfer)]
    frame = pd.DataFrame(rows, columns=columns, dtype=object)  # integers beside nothing stay integers
    return frame.assign(**_mark_simulated(analysis))


def build_pair_rows(analysis: RoutingAnalysis) -> pd.DataFrame:
    """`pairs.csv`: one row per metric and two policies."""
    return pd.DataFrame([_pair_row(row) | _mark_simulated(analysis) for row in analysis.pairs])


def _pair_row(row: Pair) -> dict[str, Any]:
    ratio = row.ratio or Estimate(None)
    return {
        "metric": row.metric,
        "first": row.first,
        "second": row.second,
        **msgspec.to_builtins(row.difference),
        "second_value": row.second_value.value,
        "relative": row.relative,
        "ratio": ratio.value,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "trials_higher": row.higher_in,
        "trials_lower": row.lower_in,
        "verdict": None if row.verdict is None else str(row.verdict),
        "p_value": row.p_value,
        "common_turns": row.common_turns,
        "lost_turns": row.lost_turns,
    }


def build_manifest(analysis: RoutingAnalysis) -> pd.DataFrame:
    """`MANIFEST.tsv`: a row per policy of the plan or of a result folder; an empty field is not known."""
    labels = dict.fromkeys((*analysis.planned, *analysis.labels))
    return pd.DataFrame([_manifest_row(analysis, label) for label in sorted(labels)], dtype=str)


def _manifest_row(analysis: RoutingAnalysis, label: str) -> dict[str, str]:
    cells = [cell for cell in analysis.cells if cell.label == label]
    planned = analysis.planned.get(label)
    row = {
        "label": label,
        "policy": analysis.policies.get(label, ""),
        "parameters": msgspec.json.encode(cells[0].parameters, order="sorted").decode() if cells else "",
        "status": "ran" if cells else "not run",
        "trials_done": str(len(cells)),
        "trials_planned": "" if planned is None else str(planned),
        "trials_degraded": str(sum(bool(cell.degraded) for cell in cells)),
        "result_directories": "; ".join(str(Path(cell.path).parent) for cell in cells),
        "git_commit": _join_known(cell.git_commit or "" for cell in cells),
        "trace": str(analysis.trace.get("file") or ""),
        "trace_sha256": "; ".join(analysis.trace_sums.get(label, ())),
        "engine_versions": "; ".join(f"{name} {version}" for name, version in sorted(analysis.facts.versions.items())),
    }
    if analysis.facts.simulated:
        row["simulated"] = analysis.facts.simulated
    return {name: " ".join(value.split()) for name, value in row.items()}


def _join_known(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value))
