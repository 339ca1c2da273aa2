"""A request metric declared outside the packages is in the frame, the summary, the comparison and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from results.connector_tax.read import analyze_cell
from results.measures.latency import RequestMetric, declare
from results.measures.replay_numbers import replay_numbers
from results.records.frames import name_artifact
from results.records.layout import ConfigLayout, list_trial_layouts
from results.routing.read import load_cells
from results.routing.write import write_results
from runners.cli import app
from tests.doc_code import declared_metric
from tests.results.connector_tax.synthetic import Behavior, Cell, Load, write_cell
from tests.results.routing.synthetic import Truth, World, write_run
from tests.results.undrawn import nothing_drawn


@pytest.fixture
def metric(tmp_path: Path) -> Iterator[RequestMetric]:
    """The one of docs/extending.md."""
    with declared_metric(tmp_path) as declared:
        yield declared


@pytest.fixture
def root(tmp_path: Path, metric: RequestMetric) -> Path:
    return write_run(tmp_path, World(sessions=6, turns=4, trials=3), (Truth("sticky"), Truth("unified", ttft_s=0.1)))


@nothing_drawn()
def test_a_declared_metric_is_everywhere_without_another_edit(root: Path) -> None:
    layout = list_trial_layouts(root)[0]
    cell = next(cell for cell in load_cells(root)[0] if cell.path == name_artifact(layout.cell))
    turns = cell.turns
    assert turns is not None
    np.testing.assert_allclose(turns.wait_s, turns.first_s - turns.due_s)  # the frame
    summary = json.loads(layout.summary.read_text())
    median = float(np.median(turns.wait_s))
    assert summary["values"]["wait_p50_s"]["value"] == pytest.approx(median)  # written at the cell's end
    assert replay_numbers(layout.metrics)["wait_p50_s"].value == pytest.approx(median)  # a standalone replay
    analysis = write_results(root)
    assert analysis.cells[0].values["wait_p90_s"].value is not None
    pairs = json.loads((root / "pairs.json").read_text())
    assert "wait_p50_s" in json.dumps(pairs)  # the comparison of policies
    report = (root / "report.md").read_text()
    assert "client wait (ms)" in report
    assert "wait_p50_s" in (root / "aggregate.csv").read_text()
    printed = json.loads(CliRunner().invoke(app, ["report", str(root), "--json"]).stdout)
    for row in printed["aggregate"]["policies"]:
        assert row["values"]["wait_p50_s"]["value"] == pytest.approx(analysis.value(row["label"], "wait_p50_s").value)


def test_where_records_lack_a_field_that_it_reads_it_alone_is_unknown(metric: RequestMetric, tmp_path: Path) -> None:
    """Requests of the open loop have no `t_due_ns`."""
    folder = ConfigLayout(tmp_path / "results" / "20260131_plain")
    values = analyze_cell(write_cell(folder, Cell("plain", Behavior(), Load(requests=40), steps=0))).values
    assert values["wait_p50_s"].value is None
    assert values["wait_p50_s"].reason
    assert values["ttft_p50_s"].value is not None


def test_two_metrics_of_one_name_are_refused(metric: RequestMetric) -> None:
    with pytest.raises(ValueError, match="wait_s"):
        declare(metric)


def test_a_metric_of_a_field_that_no_record_has_is_refused(metric: RequestMetric) -> None:
    with pytest.raises(ValueError, match="reads t_dew_ns, which no record"):
        declare(replace(metric, name="dew_s", reads=("t_dew_ns", "t_first_token_ns")))
