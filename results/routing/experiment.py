"""The results of `routing` for the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from results.experiment import ExperimentResults
from results.report.content import ReportText

if TYPE_CHECKING:
    from results.records.declaration import Declared
    from results.report.comparison import Comparable
    from results.report.page import Page
    from results.routing.analyze import RoutingAnalysis


def _analyze(root: Path) -> RoutingAnalysis:
    from results.routing.analyze import analyze

    return analyze(root)


def _write(root: Path) -> RoutingAnalysis:
    from results.routing.write import write_results

    return write_results(root)


def _report(analysis: RoutingAnalysis) -> ReportText:
    from results.routing.report import build_report

    return build_report(analysis)


def _build_page(analysis: RoutingAnalysis) -> Page:
    from results.routing.page import build_page

    return build_page(analysis)


def _list_comparable(analysis: RoutingAnalysis) -> Comparable:
    from results.routing.compare import build_comparable

    return build_comparable(analysis)


def _list_declared() -> tuple[Declared, ...]:
    from results.routing.documents import DOCUMENTS

    return DOCUMENTS


RESULTS = ExperimentResults(
    name="routing",
    measured_kinds=frozenset({"replay"}),
    documents=lambda layout: {
        "aggregate": layout.aggregate_json,
        "verdicts": layout.verdicts_json,
        "pairs": layout.pairs_json,
    },
    analyze=_analyze,
    write=_write,
    report=_report,
    declared=_list_declared,
    page=_build_page,
    comparable=_list_comparable,
    exported=lambda layout: (layout.pairs_csv, layout.migrations_csv),
)
