"""What an operator skipped is named as that, and is nothing that a run lacks."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

from results.connector_tax.analyze import Analysis, analyze
from results.pd_lifecycle.read import PlannedConfig, find_unmeasured
from results.records.frames import Gap
from results.records.layout import RunLayout
from results.records.lifecycle import RequestConfig
from results.records.skipped_cells import SkippedCell, read_skipped
from results.routing.analyze import analyze as analyze_routing
from results.statistics.judgement import Judgement, Outcome
from tests.results.connector_tax.synthetic import DATE, Behavior, Run, write_measured_run
from tests.results.routing.synthetic import Truth, World
from tests.results.routing.synthetic import write_run as write_routing_run

RUN = Run({"plain": Behavior(), "mooncake_both": Behavior(0.25)}, rates_per_s=(1, 2), requests=40, steps=0)


def skip(root: Path, *cells: str, reason: str = "too slow") -> None:
    rows = [SkippedCell(1.0, cell, reason) for cell in cells]
    RunLayout(root).skipped_cells.write_bytes(msgspec.json.Encoder().encode_lines(rows))


def criterion(analysis: Analysis, name: str) -> Judgement:
    return next(one for one in analysis.criteria if one.name == name)


def test_a_skipped_cell_of_connector_tax_is_named_and_no_missing_artifact(tmp_path: Path) -> None:
    layout = write_measured_run(tmp_path, RUN)
    for path in layout.config(DATE, "mooncake_both").root.glob("*_A_r2.*"):
        path.unlink()
    missing = analyze(tmp_path)
    assert Gap("mooncake_both, phase A", "not measured: r2") in missing.gaps
    assert criterion(missing, "6").outcome == Outcome.FAILS
    skip(tmp_path, "phase-a/mooncake_both/r2")
    named = analyze(tmp_path)
    assert Gap("mooncake_both, phase A", "skipped by the operator (too slow): r2") in named.gaps
    assert not [gap for gap in named.gaps if gap.reason.startswith("not measured")]
    whole = criterion(named, "6")
    assert whole.outcome == Outcome.HOLDS
    assert whole.reason.endswith("; mooncake_both, phase A skipped by the operator (too slow): r2")
    assert criterion(named, "7").outcome == Outcome.UNDECIDED, "the hours of a part say nothing of the whole"


def test_the_manifest_has_the_reason_where_all_cells_of_a_config_were_skipped(tmp_path: Path) -> None:
    layout = write_measured_run(tmp_path, RUN)
    shutil.rmtree(layout.config(DATE, "mooncake_both").root)
    skip(tmp_path, "phase-a/mooncake_both/r1", "phase-a/mooncake_both/r2", reason="")
    analysis = analyze(tmp_path)
    (row,) = (row for row in analysis.manifest if row.config == "mooncake_both")
    assert (row.status, row.skip_reason) == ("SKIP", "skipped by the operator")
    assert criterion(analysis, "6").outcome == Outcome.HOLDS


def test_a_cell_that_was_measured_after_all_is_no_gap(tmp_path: Path) -> None:
    write_measured_run(tmp_path, RUN)
    skip(tmp_path, "phase-a/mooncake_both/r2")
    assert not [gap for gap in analyze(tmp_path).gaps if "skipped" in gap.reason]


def test_a_skipped_cell_of_routing_is_named(tmp_path: Path) -> None:
    write_routing_run(tmp_path, World(sessions=8, turns=2, trials=1), [Truth("sticky")], planned=["lmetric"])
    assert Gap("trials/lmetric/t0", "not measured") in analyze_routing(tmp_path).gaps
    skip(tmp_path, "trials/lmetric/t0")
    assert Gap("trials/lmetric/t0", "skipped by the operator (too slow)") in analyze_routing(tmp_path).gaps


@pytest.mark.parametrize(
    ("skipped", "reason"), [({}, "not measured"), ({"c": "too slow"}, "skipped by the operator (too slow)")]
)
def test_a_skipped_cell_of_a_lifecycle_is_named(skipped: dict[str, str], reason: str) -> None:
    planned = [PlannedConfig("c", RequestConfig(0, 512, 32), "")]
    assert find_unmeasured(planned, [], [], skipped) == (Gap("c", reason),)


def test_a_damaged_row_is_a_gap_and_the_others_are_read(tmp_path: Path) -> None:
    assert read_skipped(tmp_path) == ({}, ())
    row = msgspec.json.encode(SkippedCell(1.0, "a", "b"))
    RunLayout(tmp_path).skipped_cells.write_bytes(b"{\n" + row)
    skipped, (gap,) = read_skipped(tmp_path)
    assert skipped == {"a": "b"}
    assert gap.reason.startswith("line 1 is damaged")


def test_a_cell_that_a_retry_put_back_is_skipped_no_more(tmp_path: Path) -> None:
    rows = [SkippedCell(1.0, "a", "slow"), SkippedCell(1.0, "b"), SkippedCell(2.0, "a", withdrawn=True)]
    RunLayout(tmp_path).skipped_cells.write_bytes(msgspec.json.Encoder().encode_lines(rows))
    assert read_skipped(tmp_path) == ({"b": ""}, ())
