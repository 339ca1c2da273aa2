"""A `routing` run's numbers to files: aggregate, pairs, verdicts, manifest, figures and the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pandas as pd
from msgspec import UNSET

from results.measures.summary import flatten_values
from results.records.decisions import KvTransfer
from results.records.declaration import pick_fields
from results.records.estimate import Estimate
from results.records.layout import RunLayout
from results.report.content import Report
from results.report.document import format_report_title
from results.report.documents import DEFINITIONS, name_run
from results.report.figure import Figure
from results.report.judgements import VERDICTS_FORMAT
from results.report.output import Outputs, write_analysis
from results.report.record_rows import build_frame
from results.routing.analyze import RoutingAnalysis, analyze
from results.routing.conditional_claims import ConditionalClaim
from results.routing.documents import (
    ClaimBounds,
    JudgedStanding,
    MigratedCell,
    MigrationRow,
    PairRow,
    PolicyManifestRow,
    PolicyNumbers,
    RoutedCellRow,
    RoutingAggregate,
    RoutingPairs,
    RoutingVerdicts,
    SpecifiedTables,
    VariedClaim,
)
from results.routing.figures import DRAWERS, build_figures
from results.routing.launch_noise import measure_noise
from results.routing.migrations import MigrationNumbers, RequestedMigration, count_pending_at
from results.routing.moves import CellMigrations
from results.routing.page import build_page
from results.routing.pairs import MetricDifference, Pair, Standing
from results.routing.report import build_report
from results.routing.tables import FIGURES_BEFORE
from results.statistics.judgement import Judgement

FORMAT = 1
"""Version of aggregate.json and pairs.json."""
_OF_TRANSFER = [one.name for one in fields(KvTransfer)]


def write_results(root: Path) -> RoutingAnalysis:
    """As `write_analysis`: aggregate.*, pairs.*, verdicts.json, MANIFEST.tsv, figures/ and report.*."""
    return write_analysis(root, analyze, build_outputs)


def build_outputs(analysis: RoutingAnalysis, layout: RunLayout) -> Outputs:
    more: dict[Path, object] = {layout.pairs_json: build_pairs(analysis), layout.pairs_csv: build_pair_rows(analysis)}
    if analysis.moves.cells:
        more[layout.migrations_csv] = build_migration_rows(analysis)
    return Outputs(
        aggregate=build_aggregate(analysis),
        rows=build_cell_rows(analysis),
        verdicts=build_verdicts(analysis),
        manifest=build_manifest(analysis),
        report=Report(
            format_report_title(analysis.facts),
            build_page(analysis),
            build_report(analysis),
            _mark_figures(analysis),
            FIGURES_BEFORE,
            DRAWERS,
        ),
        more=more,
    )


def build_aggregate(analysis: RoutingAnalysis) -> RoutingAggregate:
    return RoutingAggregate(
        format=FORMAT,
        definitions=DEFINITIONS,
        **name_run(analysis.facts),
        trace=analysis.trace,
        baseline=analysis.baseline,
        trials=analysis.trials,
        cells=analysis.cells,
        policies=tuple(
            PolicyNumbers(label, analysis.policies[label], analysis.values[label]) for label in analysis.labels
        ),
        interference=analysis.interference,
        migrations=analysis.moves.migrations,
        migrations_by_cell=tuple(map(_drop_events, analysis.moves.cells)),
        transfers=analysis.moves.transfers,
        transfer_against_recomputing=analysis.moves.recomputing,
        pools=analysis.pools,
        load_floor=analysis.floor,
        paper=SpecifiedTables(analysis.paper, analysis.ablation, analysis.settings),
        gaps=analysis.gaps,
    )


def build_pairs(analysis: RoutingAnalysis) -> RoutingPairs:
    return RoutingPairs(
        format=FORMAT,
        simulated=analysis.facts.simulated or UNSET,
        pairs=analysis.pairs,
        turn_by_turn=analysis.turn_pairs,
    )


def build_verdicts(analysis: RoutingAnalysis) -> RoutingVerdicts:
    return RoutingVerdicts(
        format=VERDICTS_FORMAT,
        standings=tuple(JudgedStanding(**pick_fields(row, Standing), alone=row.alone) for row in analysis.standings),
        claims=analysis.claims,
        launch_noise=measure_noise(analysis),
        conditional_claims=tuple(map(_vary_claim, analysis.conditional)) or UNSET,
        load_floor=analysis.decision_points,
        coupling=analysis.couplings,
        footprints=analysis.footprints,
        deployments=analysis.deployments,
        decode_pools=tuple(row for row in analysis.occupancies if row.point),
        engine_gates=UNSET if analysis.engine_gates is None else analysis.engine_gates,
        simulated=analysis.facts.simulated or UNSET,
    )


def _vary_claim(one: ConditionalClaim) -> VariedClaim:
    """With the number that decided, at the model's own values and under each variation."""
    return VariedClaim(
        name=one.claim.name,
        verdict=one.verdict,
        opposite_at=one.flips,
        outcomes=one.outcomes,
        quantity=one.claim.quantity,
        measured=_take_bounds(one.claim),
        varied={name: _take_bounds(own) for name, own in one.varied.items()},
    )


def _take_bounds(judgement: Judgement) -> ClaimBounds:
    measured = judgement.measured
    return ClaimBounds(measured.value, measured.low, measured.high, judgement.p, judgement.p_corrected)


def _mark_figures(analysis: RoutingAnalysis) -> list[Figure]:
    """The figures, whose CSV says what stood in for engines too."""
    mark = {"simulated": analysis.facts.simulated} if analysis.facts.simulated else {}
    return [
        figure if figure.missing else replace(figure, table=figure.table.assign(**mark))
        for figure in build_figures(analysis)
    ]


def build_cell_rows(analysis: RoutingAnalysis) -> pd.DataFrame:
    """`aggregate.{csv,parquet}`: one row per cell."""
    return build_frame(
        RoutedCellRow(
            cell=cell.cell,
            label=cell.label,
            policy=cell.policy,
            trial=cell.trial,
            position=cell.position,
            duration_s=cell.duration_s,
            degraded=bool(cell.degraded),
            counts=cell.counts,
            values=flatten_values(cell.values),
            simulated=analysis.facts.simulated or UNSET,
        )
        for cell in analysis.cells
    )


def _drop_events(cell: CellMigrations) -> MigratedCell:
    return MigratedCell(
        cell=cell.cell,
        label=cell.label,
        trial=cell.trial,
        counts=cell.counts,
        requests=sum(cell.migrations.requests.values()),
        **pick_fields(cell.migrations, MigrationNumbers),
    )


def build_migration_rows(analysis: RoutingAnalysis) -> pd.DataFrame:
    """`migrations.csv`: one row per migration that was asked for, its transfer's fields beside."""
    simulated = analysis.facts.simulated
    rows = [
        _describe_migration(cell, one, simulated) for cell in analysis.moves.cells for one in cell.migrations.events
    ]
    if not rows:
        own = [one.name for one in fields(MigrationRow) if one.name not in ("kv", "simulated")]
        return pd.DataFrame(columns=[*own, *(f"kv_{name}" for name in _OF_TRANSFER), *["simulated"][: bool(simulated)]])
    return build_frame(rows, dtype=object)  # integers beside nothing stay integers


def _describe_migration(cell: CellMigrations, one: RequestedMigration, simulated: str) -> MigrationRow:
    pick = one.pick
    return MigrationRow(
        label=cell.label,
        trial=cell.trial,
        request=pick.request.request,
        session=one.session,
        turn=pick.request.turn,
        t_s=one.t_s,
        source=pick.decision.migrate_from,
        target=pick.decision.instance,
        outcome=one.outcome,
        moved_s=one.moved_s,
        source_pending_tokens=count_pending_at(pick, pick.decision.migrate_from),
        target_pending_tokens=count_pending_at(pick, pick.decision.instance),
        context_tokens=pick.request.input_tokens,
        lost_tokens=one.lost_tokens,
        first_byte_s=one.first_byte_s,
        turns_left=one.turns_left,
        stayed_cool=one.stayed_cool,
        next_cool=one.next_cool,
        transfer_s=one.transfer_s,
        kv={f"kv_{name}": getattr(one.transfer, name, None) for name in _OF_TRANSFER},
        simulated=simulated or UNSET,
    )


def build_pair_rows(analysis: RoutingAnalysis) -> pd.DataFrame:
    """`pairs.csv`: one row per metric and two policies."""
    return build_frame(_describe_pair(row, analysis.facts.simulated) for row in analysis.pairs)


def _describe_pair(row: Pair, simulated: str) -> PairRow:
    ratio = row.ratio or Estimate(None)
    return PairRow(
        **pick_fields(row, MetricDifference),
        second_value=row.second_value.value,
        relative=row.relative,
        ratio=ratio.value,
        ratio_low=ratio.low,
        ratio_high=ratio.high,
        trials_higher=row.higher_in,
        trials_lower=row.lower_in,
        verdict=None if row.verdict is None else str(row.verdict),
        p_value=row.p_value,
        common_turns=row.common_turns,
        lost_turns=row.lost_turns,
        simulated=simulated or UNSET,
    )


def build_manifest(analysis: RoutingAnalysis) -> pd.DataFrame:
    """`MANIFEST.tsv`: a row per policy of the plan or of a result folder."""
    labels = dict.fromkeys((*analysis.planned, *analysis.labels))
    return build_frame((_make_manifest_row(analysis, label) for label in sorted(labels)), dtype=str)


def _make_manifest_row(analysis: RoutingAnalysis, label: str) -> PolicyManifestRow:
    cells = [cell for cell in analysis.cells if cell.label == label]
    planned = analysis.planned.get(label)
    versions = (f"{name} {version}" for name, version in sorted(analysis.facts.versions.items()))
    parameters = msgspec.json.encode(cells[0].parameters, order="sorted").decode() if cells else ""
    return PolicyManifestRow(
        label=_join_words(label),
        policy=_join_words(analysis.policies.get(label, "")),
        parameters=_join_words(parameters),
        status="ran" if cells else "not run",
        trials_done=str(len(cells)),
        trials_planned="" if planned is None else str(planned),
        trials_degraded=str(sum(bool(cell.degraded) for cell in cells)),
        result_directories=_join_words("; ".join(str(Path(cell.path).parent) for cell in cells)),
        git_commit=_join_words(_join_known(cell.git_commit or "" for cell in cells)),
        trace=_join_words(str(analysis.trace.get("file") or "")),
        trace_sha256=_join_words("; ".join(analysis.trace_sums.get(label, ()))),
        engine_versions=_join_words("; ".join(versions)),
        simulated=_join_words(analysis.facts.simulated) or UNSET,
    )


def _join_words(text: str) -> str:
    """With single spaces between its words, as a cell of a TSV needs it."""
    return " ".join(text.split())


def _join_known(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(value for value in values if value))
