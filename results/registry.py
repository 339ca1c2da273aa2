"""The experiments whose results can be analyzed."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from results.experiment import ExperimentResults
from results.records.errors import DAMAGED_JSON, ResultsError
from results.records.layout import RunLayout

if TYPE_CHECKING:
    from results.report.comparison import Comparable, Comparison

FOLDERS = (
    "connector_tax",
    "routing",
    "pd_lifecycle",
    "capacity",
)
"""Folders of this package with an `experiment.py` that declares `RESULTS`."""
WITHOUT_PLAN = "connector-tax"
"""The experiment of a run whose plan cannot be read."""

_BY_NAME: dict[str, ExperimentResults[Any]] = {}


def register(results: ExperimentResults[Any]) -> None:
    """Make the experiment known to report, compare and console. Raises ValueError where its name is taken."""
    if results.name in _BY_NAME:
        raise ValueError(f"there are results of an experiment {results.name!r} already")
    _BY_NAME[results.name] = results


def unregister(name: str) -> None:
    del _BY_NAME[name]


for _folder in FOLDERS:
    register(import_module(f"results.{_folder}.experiment").RESULTS)


def list_all_results() -> tuple[ExperimentResults[Any], ...]:
    """In the order of their registration."""
    return tuple(_BY_NAME.values())


def find_results(experiment: str) -> ExperimentResults[Any]:
    """`experiment`: as the plan states it; empty = the plan cannot be read. Raises ResultsError for an unknown name."""
    name = experiment or WITHOUT_PLAN
    if name not in _BY_NAME:
        raise ResultsError(
            f"unknown experiment {name!r}", remedy=f"use a Tracon that has it; this one has {', '.join(_BY_NAME)}"
        )
    return _BY_NAME[name]


def find_results_of_run(folder: Path) -> ExperimentResults[Any]:
    """By the experiment that the plan in `folder` names. Raises ResultsError where the experiment is unknown."""
    try:
        plan = msgspec.json.decode(RunLayout(folder).plan.read_bytes())
    except (OSError, *DAMAGED_JSON):
        plan = {}
    experiment = plan.get("experiment") if isinstance(plan, dict) else ""
    return find_results(experiment if isinstance(experiment, str) else "")


def is_measured(kind: str) -> bool:
    """Whether cells of this kind have numbers to analyze."""
    return any(kind in results.measured_kinds for results in _BY_NAME.values())


def compare_runs(first: Path, second: Path) -> Comparison:
    """Compare the runs in two folders: analyzed now, or as `tracon export` wrote them.

    Raises ResultsError where a folder is none, or where the runs are not of one experiment, share no number, or differ
    in what they must agree in.
    """
    from results.records.run_folder import run_facts
    from results.report.comparison import compare, require_same_experiment

    sides = [(folder, _read_exported(folder)) for folder in (first, second)]
    require_same_experiment(*(run_facts(folder)[0] if side is None else side.facts for folder, side in sides))
    return compare(*(side or _analyze_comparable(folder) for folder, side in sides))


def export_run(source: Path, target: Path) -> tuple[Path, ...]:
    """Analyze the run in `source`, then copy its results to `target`; returns the files there.

    Raises ResultsError where `source` is no run or `target` is one, OSError where a file cannot be written.
    """
    from results.report.export import export_results, refuse_run_folder

    refuse_run_folder(target)  # before the analysis, which takes long
    results = find_results_of_run(source)
    analysis = results.write(source)
    own = results.exported(RunLayout(source))
    return export_results(source, target, _build_comparable(results, analysis, source), own)


def _read_exported(folder: Path) -> Comparable | None:
    """None where `folder` is no exported run."""
    from results.report.export import read_comparable

    return read_comparable(folder) if RunLayout(folder).comparable.is_file() else None


def _analyze_comparable(folder: Path) -> Comparable:
    """Raises ResultsError where the experiment has no such numbers, or `folder` is no run."""
    results = find_results_of_run(folder)
    if results.comparable is None:
        raise ResultsError(
            f"{folder.name} is a {results.name} run: {results.why_no_compare}",
            remedy=f"see `tracon report {folder.name}`",
        )
    comparable = _build_comparable(results, results.analyze(folder), folder)
    assert comparable is not None
    return comparable


def _build_comparable(results: ExperimentResults[Any], analysis: Any, folder: Path) -> Comparable | None:  # noqa: ANN401
    """With how the run was made; None where the experiment's runs are not compared."""
    from results.report.differences import read_origin

    if results.comparable is None:
        return None
    return replace(results.comparable(analysis), origin=read_origin(folder))
