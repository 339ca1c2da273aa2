"""A run folder becomes its cells; whatever is missing or damaged in it has a name, and never ends the analysis."""

from __future__ import annotations

import shutil
from dataclasses import fields, replace
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from results.measures.replay_numbers import replay_numbers
from results.records.errors import ResultsError
from results.records.frames import TURN_SCHEMA, Gap, read_table
from results.records.layout import TrialLayout
from results.records.turns import TurnRecord
from results.routing.analyze import analyze
from results.routing.figures import build_figures
from results.routing.read import LoadedCell, load_cells
from results.routing.summary import summarize_loaded_cell
from tests.results.routing.synthetic import Truth, World, records, report_text, write_interference, write_run

WORLD = World(sessions=6, turns=4, trials=2)
POLICIES = (Truth("round_robin"), Truth("unified", ttft_s=0.15))
CELL = "results/20260131_unified/trial_1"
ARTIFACTS = (
    "config.json", "metrics.jsonl", "decisions.jsonl", "engines.jsonl", "metrics.summary.json", "breakdown.json",
    "apc.json", "gpu_util.csv", "cell.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "20260131-120000-routing-cpu-tiny", WORLD, POLICIES)


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / original.name))


def _gaps(root: Path) -> dict[str, str]:
    return {gap.artifact: gap.reason for gap in analyze(root).gaps}


def _load(root: Path) -> LoadedCell:
    return next(cell for cell in load_cells(root)[0] if cell.path == f"{CELL}/cell.json")


def test_a_whole_run_has_no_gap(root: Path) -> None:
    analysis = analyze(root)
    assert analysis.gaps == ()
    assert [cell.position for cell in analysis.cells] == [0, 1, 2, 3]
    assert analysis.labels == ("round_robin", "unified")
    assert (analysis.baseline, analysis.trials) == ("round_robin", 2)


@pytest.mark.parametrize("name", ARTIFACTS)
def test_removing_any_one_artifact_gives_a_gap_that_names_it(root: Path, name: str) -> None:
    (root / CELL / name).unlink()
    (root / CELL / name).with_suffix(".parquet").unlink(missing_ok=True)
    assert f"{CELL}/{name}" in _gaps(root)


@pytest.mark.parametrize("content", [b"", b"\x00\xff garbage", b'{"a": ', b"null"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "decisions.jsonl", "engines.jsonl", "breakdown.json", "cell.json"])
def test_a_damaged_artifact_is_a_gap_and_no_crash(root: Path, name: str, content: bytes) -> None:
    (root / CELL / name).write_bytes(content)
    (root / CELL / "metrics.parquet").unlink(missing_ok=True)
    assert f"{CELL}/{name}" in _gaps(root)


@pytest.mark.parametrize("content", [b"", b"\x00\xff garbage", b'{"cells": 5}', b"null"])
def test_a_damaged_plan_is_no_crash(root: Path, content: bytes) -> None:
    (root / "plan.json").write_bytes(content)
    assert len(analyze(root).cells) == 4


def test_every_field_of_a_turn_is_kept(root: Path) -> None:
    assert TURN_SCHEMA.names == [field.name for field in fields(TurnRecord)]
    turn = replace(records(WORLD, POLICIES[0])[0], session_delay_s=1.25, simulated=True)
    path = root / CELL / "metrics.jsonl"
    path.write_bytes(msgspec.json.Encoder().encode_lines([turn]))
    loaded = read_table(path, TURN_SCHEMA)
    assert not isinstance(loaded, Gap)
    assert loaded[0].to_pylist() == [msgspec.to_builtins(turn)]
    assert pq.read_table(path.with_suffix(".parquet"))["session_delay_s"].to_pylist() == [1.25]


def test_a_cell_that_was_not_finished_is_not_counted(root: Path) -> None:
    (root / CELL / "cell.json").unlink()
    assert len(load_cells(root)[0]) == 3
    assert _gaps(root)["trials/unified/t1"] == "not measured"


def test_a_record_that_was_changed_is_not_read(root: Path) -> None:
    path = root / CELL / "metrics.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"e1"', b'"e0"'))
    assert "differs from the checksum" in _gaps(root)[f"{CELL}/metrics.jsonl"]
    cell = next(cell for cell in analyze(root).cells if cell.path.startswith(CELL))
    assert cell.counts["completed"] is None
    assert cell.estimate("ttft_p90_s").reason == "the turn records cannot be read"


def test_a_turn_that_is_there_twice_is_damage(root: Path) -> None:
    layout = TrialLayout(root / CELL)
    record = msgspec.json.decode(layout.cell.read_bytes())
    record["checksums"] = {}
    layout.cell.write_bytes(msgspec.json.encode(record))
    lines = layout.metrics.read_bytes().splitlines(keepends=True)
    layout.metrics.write_bytes(b"".join([*lines, lines[0]]))
    assert _gaps(root)[f"{CELL}/metrics.jsonl"] == "is damaged: 1 turns are there twice"


def test_without_the_breakdown_the_decision_log_is_counted(root: Path) -> None:
    layout = TrialLayout(root / CELL)
    before = _load(root)
    layout.breakdown.unlink()
    after = _load(root)
    assert before.picks == after.picks
    assert after.picks is not None
    assert after.picks.reasons == {"affinity": 18, "cold": 6}


def test_the_summary_a_cell_wrote_is_the_one_its_artifacts_give(root: Path) -> None:
    written = msgspec.json.decode(TrialLayout(root / CELL).summary.read_bytes())
    found = msgspec.to_builtins(summarize_loaded_cell(_load(root)))
    assert written["values"] == found["values"]
    assert written["counts"] == found["counts"]


def test_a_planned_prefill_length_without_a_row_is_a_gap(root: Path) -> None:
    plan = msgspec.json.decode((root / "plan.json").read_bytes())
    plan["cells"] += [{"cell": f"interference/n{tokens}", "kind": "interference"} for tokens in (256, 1024)]
    (root / "plan.json").write_bytes(msgspec.json.encode(plan))
    write_interference(root, {256: 1.5})
    assert _gaps(root) == {"interference/n1024": "not measured"}


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="no run folder"):
        analyze(tmp_path / "nothing")


def _rewrite(folder: Path, *, turns: dict[str, object] | None = None, record: dict[str, object] | None = None) -> None:
    """Change every turn, or the record, as if the cell had been so."""
    layout = TrialLayout(folder)
    said = msgspec.json.decode(layout.cell.read_bytes())
    if turns is not None:
        rows = msgspec.json.Decoder(dict).decode_lines(layout.metrics.read_bytes())
        layout.metrics.write_bytes(msgspec.json.Encoder().encode_lines([{**row, **turns} for row in rows]))
        layout.metrics.with_suffix(".parquet").unlink(missing_ok=True)
    layout.cell.write_bytes(msgspec.json.encode({**said, "checksums": {}, **(record or {})}))


EVERY = [f"results/20260131_{policy.label}/trial_{trial}" for policy in POLICIES for trial in range(WORLD.trials)]
NEVER_SENT: dict[str, object] = {
    "status": "dropped", "t_due_ns": None, "t_send_ns": None, "t_first_token_ns": None, "t_last_token_ns": None,
    "t_end_ns": None, "prompt_tokens": None, "completion_tokens": None, "cached_tokens": None, "instance": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("turns", "record"),
    [
        (NEVER_SENT, {}),
        (NEVER_SENT, {"engines": [], "replay": {}, "trace": {}, "router": {}}),
        ({"instance": ""}, {"engines": []}),
        ({"status": "error", "t_first_token_ns": None, "t_last_token_ns": None}, {}),
        ({"completion_tokens": 1}, {}),
        ({"inflight_sessions": None}, {"replay": {"wall_clock_s": 1.0, "trace_span_s": 0.0}}),
        ({"t_end_ns": None}, {}),
        (None, {"t_end_ns": 0, "parameters": {"a": [1, {"b": None}]}, "gpu_utilisation": 0.5}),
    ],
)
@pytest.mark.parametrize("cells", [[CELL], EVERY], ids=["one", "every"])
def test_whatever_came_of_a_cell_can_be_analyzed(
    root: Path, cells: list[str], turns: dict[str, object] | None, record: dict[str, object]
) -> None:
    for cell in cells:
        _rewrite(root / cell, turns=turns, record=record)
    analysis = analyze(root)
    assert len(analysis.cells) == 4
    assert report_text(analysis)
    assert build_figures(analysis)


def test_a_standalone_replay_whose_records_are_damaged_has_reasons_for_numbers(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"index": ')
    numbers = replay_numbers(path)
    assert {number.value for number in numbers.values()} == {None}
    assert "is damaged" in (numbers["apc_usage"].reason or "")
