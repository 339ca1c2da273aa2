"""The results of `pd-lifecycle` for the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.experiment import ExperimentResults
from results.records.layout import LifecycleLayout, RunLayout
from results.report.content import ReportText

if TYPE_CHECKING:
    from results.pd_lifecycle.analyze import LifecycleAnalysis
    from results.records.declaration import Declared
    from results.report.comparison import Comparable
    from results.report.page import Page


def _analyze(root: Path) -> LifecycleAnalysis:
    from results.pd_lifecycle.analyze import analyze

    return analyze(root)


def _write(root: Path) -> LifecycleAnalysis:
    from results.pd_lifecycle.write import write_results

    return write_results(root)


def _report(analysis: LifecycleAnalysis) -> ReportText:
    from results.pd_lifecycle.report import build_report

    return build_report(analysis)


def _build_page(analysis: LifecycleAnalysis) -> Page:
    from results.pd_lifecycle.page import build_page

    return build_page(analysis)


def _list_comparable(analysis: LifecycleAnalysis) -> Comparable:
    from results.pd_lifecycle.compare import build_comparable

    return build_comparable(analysis)


def _upgrade_aggregate(document: dict[str, Any]) -> dict[str, Any]:
    from results.records.lifecycle import upgrade_aggregate

    return upgrade_aggregate(document)


def _list_exported(layout: RunLayout) -> tuple[Path, ...]:
    lifecycle = LifecycleLayout(layout.root)
    return lifecycle.summary_csv, lifecycle.link


def _list_declared() -> tuple[Declared, ...]:
    from results.pd_lifecycle.documents import DOCUMENTS

    return DOCUMENTS


RESULTS = ExperimentResults(
    name="pd-lifecycle",
    measured_kinds=frozenset({"lifecycle"}),
    documents=lambda layout: {"aggregate": layout.aggregate_json, "verdicts": layout.verdicts_json},
    analyze=_analyze,
    write=_write,
    report=_report,
    declared=_list_declared,
    upgrades={"aggregate": _upgrade_aggregate},
    page=_build_page,
    comparable=_list_comparable,
    exported=_list_exported,
)
