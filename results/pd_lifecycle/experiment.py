"""The results of `pd-lifecycle` for the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from results.experiment import ExperimentResults
from results.records.lifecycle import upgrade_aggregate
from results.report.content import ReportText

if TYPE_CHECKING:
    from results.pd_lifecycle.analyse import LifecycleAnalysis


def _analyse(root: Path) -> LifecycleAnalysis:
    from results.pd_lifecycle.analyse import analyse

    return analyse(root)


def _write(root: Path) -> LifecycleAnalysis:
    from results.pd_lifecycle.write import analyse_lifecycle

    return analyse_lifecycle(root)


def _report(analysis: LifecycleAnalysis) -> ReportText:
    from results.pd_lifecycle.report import build_report

    return build_report(analysis)


RESULTS = ExperimentResults(
    name="pd-lifecycle",
    measured_kinds=frozenset({"lifecycle"}),
    documents=lambda layout: {"aggregate": layout.aggregate_json, "verdicts": layout.verdicts_json},
    analyse=_analyse,
    write=_write,
    report=_report,
    upgrades={"aggregate": upgrade_aggregate},
    why_no_compare="its configurations are compared within it, with the same requests on a combined instance",
)
