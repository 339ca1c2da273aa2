"""The results of `connector-tax` for the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from results.experiment import Compared, ExperimentResults
from results.report.content import ReportText

if TYPE_CHECKING:
    from rich.console import RenderableType

    from results.connector_tax.analyse import Analysis
    from results.report.chart import Chart


def _analyse(root: Path) -> Analysis:
    from results.connector_tax.analyse import analyse

    return analyse(root)


def _write(root: Path) -> Analysis:
    from results.connector_tax.write import analyse_run

    return analyse_run(root)


def _report(analysis: Analysis) -> ReportText:
    from results.connector_tax.report import build_report

    return build_report(analysis)


def _draw_curves(analysis: Analysis, width: int) -> RenderableType | None:
    from results.connector_tax.curves import ttft_curves

    return ttft_curves(analysis, width)


def _build_charts(analysis: Analysis) -> tuple[Chart, ...]:
    from results.connector_tax.charts import build_charts

    return build_charts(analysis)


def _render_page(analysis: Analysis, root: Path, width: int) -> RenderableType:
    from results.connector_tax.page import page_of, page_text

    return page_text(page_of(analysis, root), width)


def _compare(first: Path, second: Path) -> Compared:
    from results.connector_tax.compare import compare_runs, to_json
    from results.connector_tax.compare_tables import describe_comparison

    changes = compare_runs(first, second)
    return Compared(describe_comparison(changes), to_json(changes))


RESULTS = ExperimentResults(
    name="connector-tax",
    measured_kinds=frozenset({"load"}),
    documents=lambda layout: {"aggregate": layout.aggregate_json, "tax": layout.tax_json},
    analyse=_analyse,
    write=_write,
    report=_report,
    curves=_draw_curves,
    charts=_build_charts,
    page=_render_page,
    compare=_compare,
)
