"""The results of `connector-tax` for the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from results.experiment import ExperimentResults
from results.report.content import ReportText

if TYPE_CHECKING:
    from results.connector_tax.analyze import Analysis
    from results.records.declaration import Declared
    from results.report.chart import Chart
    from results.report.comparison import Comparable
    from results.report.page import Page


def _analyze(root: Path) -> Analysis:
    from results.connector_tax.analyze import analyze

    return analyze(root)


def _write(root: Path) -> Analysis:
    from results.connector_tax.write import write_results

    return write_results(root)


def _report(analysis: Analysis) -> ReportText:
    from results.connector_tax.report import build_report

    return build_report(analysis)


def _build_charts(analysis: Analysis) -> tuple[Chart, ...]:
    from results.connector_tax.charts import build_charts

    return build_charts(analysis)


def _build_page(analysis: Analysis) -> Page:
    from results.connector_tax.page import build_page

    return build_page(analysis)


def _list_comparable(analysis: Analysis) -> Comparable:
    from results.connector_tax.compare import build_comparable

    return build_comparable(analysis)


def _list_declared() -> tuple[Declared, ...]:
    from results.connector_tax.documents import DOCUMENTS

    return DOCUMENTS


RESULTS = ExperimentResults(
    name="connector-tax",
    measured_kinds=frozenset({"load"}),
    documents=lambda layout: {"aggregate": layout.aggregate_json, "tax": layout.tax_json},
    analyze=_analyze,
    write=_write,
    report=_report,
    declared=_list_declared,
    charts=_build_charts,
    page=_build_page,
    comparable=_list_comparable,
    exported=lambda layout: (layout.tax_csv, layout.reference_rates),
    times_steps=True,
)
