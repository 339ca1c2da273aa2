"""The results of `capacity` for the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from results.experiment import ExperimentResults
from results.report.content import ReportText

if TYPE_CHECKING:
    from results.capacity.analyze import CapacityAnalysis
    from results.records.declaration import Declared
    from results.report.page import Page


def _analyze(root: Path) -> CapacityAnalysis:
    from results.capacity.analyze import analyze

    return analyze(root)


def _write(root: Path) -> CapacityAnalysis:
    from results.capacity.write import write_results

    return write_results(root)


def _report(analysis: CapacityAnalysis) -> ReportText:
    from results.capacity.report import build_report

    return build_report(analysis)


def _build_page(analysis: CapacityAnalysis) -> Page:
    from results.capacity.report import build_page

    return build_page(analysis)


def _list_declared() -> tuple[Declared, ...]:
    from results.capacity.documents import DOCUMENTS

    return DOCUMENTS


RESULTS = ExperimentResults(
    name="capacity",
    measured_kinds=frozenset({"point"}),
    documents=lambda layout: {"aggregate": layout.aggregate_json, "verdicts": layout.verdicts_json},
    analyze=_analyze,
    write=_write,
    report=_report,
    declared=_list_declared,
    page=_build_page,
    why_no_compare="its policies are compared within it",
)
