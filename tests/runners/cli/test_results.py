"""What the command line shows of results: two runs side by side, and the curves below a report."""

from __future__ import annotations

import io
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from results.connector_tax.analyze import Analysis, analyze
from results.connector_tax.charts import build_charts
from results.records.layout import RunLayout
from results.registry import find_results_of_run
from results.report.curves import draw_curves
from runners.cli.reports import make_report_json, make_report_tables, render_ending
from runners.errors import RunnerError
from tests.e2e.cli import data, tracon
from tests.results.connector_tax.synthetic import Behavior, Run, write_run
from tests.results.undrawn import nothing_drawn

RUN = Run(
    configs={"plain": Behavior(), "mooncake_both": Behavior(0.29, knee_per_s=4)},
    rates_per_s=(1, 2, 4),
    requests=80,
    steps=0,
)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for day in ("20260131", "20260201"):
        write_run(folder / f"{day}-120000-connector-tax-cpu-tiny", RUN)
    return folder


def test_compare_prints_both_runs_and_the_same_as_data(workspace: Path) -> None:
    runs = [str(path) for path in sorted(workspace.iterdir())]
    compared = tracon("compare", *runs, workspace=workspace)
    assert compared.returncode == 0, compared.stderr
    for part in ("first = 20260131", "Latencies", "What differed", "What this does not say", "no verdict"):
        assert part in compared.stdout
    changes = data(tracon("compare", *runs, "--json", workspace=workspace))
    assert changes["first"]["run"] == "20260131-120000-connector-tax-cpu-tiny"
    assert sum(row["table"] == "Latencies" for row in changes["changes"]) == 12


def test_compare_refuses_what_cannot_be_compared(workspace: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "faster", Run(RUN.configs, (16,), requests=40, steps=0))
    done = tracon("compare", str(next(workspace.iterdir())), str(tmp_path / "faster"), workspace=workspace)
    assert done.returncode == 2
    assert "no cell in common" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("width", [60, 100])
def test_the_curves_fit_and_name_every_config(workspace: Path, width: int) -> None:
    curves = draw_curves(build_charts(analyze(next(workspace.iterdir())))[0], width)
    assert curves is not None
    text = shown(curves, width)
    assert max(len(line) for line in text.splitlines()) <= width
    for part in ("TTFT p90, ms, over req/s", "a plain", "b mooncake_both", "┤", " 4 "):
        assert part in text
    assert "B" in text, "mooncake_both is saturated at the last rate"


def shown(content: RenderableType, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, no_color=True).print(content)
    return out.getvalue()


def unfolded(content: RenderableType) -> str:
    return " ".join(shown(content).split())


def test_a_run_ends_with_its_page_and_what_to_do_next(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = next(workspace.iterdir())
    ending = shown(render_ending(folder))
    assert max(len(line) for line in ending.splitlines()) <= 80
    unwrapped = ending.replace("\n", "")
    for part in ("exceed those of plain", "mooncake_both", "report.html", f"tracon report {folder.name}"):
        assert part in unwrapped
    assert "Reference rates" not in ending, "the report's tables are more than a screen"


@nothing_drawn()
def test_a_run_ends_without_a_second_analysis_unless_it_has_changed(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(next(workspace.iterdir()), tmp_path / "20260201-120000-connector-tax-cpu-tiny"))
    results = find_results_of_run(folder)
    results.write(folder)
    analyzed: list[Path] = []

    def analyze_counted(root: Path) -> Analysis:
        analyzed.append(root)
        return analyze(root)

    counted = replace(results, analyze=analyze_counted)
    monkeypatch.setattr("results.registry.find_results_of_run", lambda _: counted)
    monkeypatch.setenv("COLUMNS", "80")
    assert "exceed those of plain" in unfolded(render_ending(folder))
    assert analyzed == []
    for layout in RunLayout(folder).configs():
        for cell in layout.cells():
            cell.unlink()
    assert "no cell was measured" in unfolded(render_ending(folder))
    assert analyzed == [folder]


def test_an_experiment_without_a_page_ends_with_its_tables(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = next(workspace.iterdir())
    without_page = replace(find_results_of_run(folder), page=None)
    monkeypatch.setattr("results.registry.find_results_of_run", lambda _: without_page)
    assert "Reference rates" in shown(render_ending(folder))


def test_a_damaged_document_is_named_with_what_writes_it_again(workspace: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(next(workspace.iterdir()), tmp_path / "run")
    make_report_json(folder, again=False)
    path = next(iter(find_results_of_run(folder).documents(RunLayout(folder)).values()))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunnerError, match="is damaged") as refused:
        make_report_json(folder, again=False)
    assert str(path) in str(refused.value)
    assert "--again" in refused.value.remedy


def test_there_are_no_curves_without_rates(workspace: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "one", Run(RUN.configs, (2,), requests=40, steps=0))
    (tmp_path / "none").mkdir()
    for name in ("one", "none"):
        assert [draw_curves(chart, 100) for chart in build_charts(analyze(tmp_path / name))] == [None] * 3


def test_the_first_chart_stands_below_the_tables_of_a_terminal(workspace: Path) -> None:
    folder = next(workspace.iterdir())
    tables, _, curves = shown(make_report_tables(folder, again=False, curves_width=100), 120).partition(
        "TTFT p90, ms, over"
    )
    assert "Reference rates" in tables
    assert "B" in curves.partition("capital")[0]
    assert "capital" not in shown(make_report_tables(folder, again=False), 120)


def test_a_report_in_a_pipe_has_no_curves(workspace: Path) -> None:
    report = tracon("report", str(next(workspace.iterdir())), workspace=workspace)
    assert report.returncode == 0, report.stderr
    assert "Reference rates" in report.stdout
    assert "capital: saturated" not in report.stdout
