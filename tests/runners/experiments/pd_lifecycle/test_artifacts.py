"""A finished cell's files: in place as a whole or not at all, adopted after a sudden death, or replaced."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from results.pd_lifecycle.read import read_records
from results.records.gpu import HEADER, GpuSample, format_sample, read_gpu_log
from results.records.layout import LifecycleLayout, RunLayout, publish
from results.records.lifecycle_cells import DiscardedMeasurement, LifecycleRequest, MeasuredCell
from runners.campaign.context import RunContext
from runners.campaign.experiment import CellOutcome
from runners.experiments.pd_lifecycle import artifacts as pd_lifecycle_artifacts
from runners.experiments.pd_lifecycle.artifacts import adopt_cell, explain_degraded, publish_cell
from runners.experiments.pd_lifecycle.cell import LifecycleCell, Measurements
from tests.runners.experiments.pd_lifecycle.lifecycle_fakes import FakeBench
from tests.runners.experiments.pd_lifecycle.test_cell import SHAPE, cell, grid


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def context(run: Path) -> RunContext:
    return cast(RunContext, SimpleNamespace(layout=RunLayout(run)))


async def finish(run: Path, attempt: int = 1, **fake: Any) -> tuple[CellOutcome, Measurements]:
    """Measure the cell and put it in place, as the experiment does."""
    folder = RunLayout(run).attempt(cell(SHAPE).cell, attempt)
    bench = FakeBench(run / "engines" / str(attempt), **fake).bench()
    measurements = Measurements()
    await LifecycleCell(cell(SHAPE), attempt, grid(), bench, folder, lambda *events: None, measurements).run("tiny")
    return publish_cell(cell(SHAPE), attempt, grid(), bench, measurements, folder, context(run)), measurements


def files_of(run: Path) -> set[str]:
    root = LifecycleLayout(run).folder
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


async def test_a_finished_cell_is_adopted_and_counted(run: Path) -> None:
    outcome, _ = await finish(run)
    assert outcome.summary["counted"] == 3
    assert outcome.summary["bytes_transferred"] == 512 * SHAPE.current_new_tokens
    assert outcome.degraded == ""
    assert adopt_cell(cell(SHAPE), context(run)) == outcome
    assert files_of(run) == {
        *(f"{SHAPE.label}_rep{number}.json" for number in range(1, 6)),
        *(f"cells/{SHAPE.label}/{name}" for name in ("cell.json", "requests.jsonl", "decisions.jsonl", "gpu_util.csv")),
        *(f"cells/{SHAPE.label}/probe/{side}/transfer.1.jsonl" for side in ("prefill", "decode")),
    }
    collected = read_records(run)
    assert len(collected.records) == 5
    assert collected.gaps == ()
    assert not RunLayout(run).attempt(cell(SHAPE).cell, 1).exists()


def write_samples(run: Path, *moments: tuple[int, str]) -> None:
    """A `gpu.csv` with a sample of GPU 0 at each moment (ns), in this cell."""
    rows = [GpuSample(t_ns, 0, 97.0, 1000.0, power_w=400.0 + t_ns, cell=of, engines=2) for t_ns, of in moments]
    run.mkdir()
    lines = [",".join(HEADER), *(",".join(format_sample(row)) for row in rows)]
    RunLayout(run).gpu_csv.write_text("\n".join(lines) + "\n")


async def test_a_cell_has_the_gpu_samples_of_its_handovers(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pd_lifecycle_artifacts, "_find_span_ns", lambda _measurements: (5, 9))
    here = cell(SHAPE).cell
    write_samples(run, (4, here), (6, here), (8, here), (7, "another"))
    await finish(run)
    record = json.loads(LifecycleLayout(run).cell(SHAPE, 0).read_text())
    assert (record["gpu"]["gpus"], record["gpu"]["power_w"]) == ([0], 407.0)
    samples = read_gpu_log(LifecycleLayout(run).cell(SHAPE, 0).with_name("gpu_util.csv")).samples
    assert [sample.t_ns for sample in samples] == [6, 8]
    assert "gpu_util.csv" in record["checksums"]


async def test_without_samples_a_cell_says_why(run: Path) -> None:
    await finish(run)
    record = json.loads(LifecycleLayout(run).cell(SHAPE, 0).read_text())
    assert record["gpu"]["power_w"] is None
    assert record["gpu"]["reason"]


async def test_a_death_between_two_renames_leaves_nothing_that_counts(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(moves: dict[Path, Path]) -> None:
        publish(dict(list(moves.items())[:-2]))
        raise KeyboardInterrupt

    monkeypatch.setattr(pd_lifecycle_artifacts, "publish", dies)
    with pytest.raises(KeyboardInterrupt):
        await finish(run)
    assert LifecycleLayout(run).record(SHAPE, 1).exists()
    assert adopt_cell(cell(SHAPE), context(run)) is None
    collected = read_records(run)
    assert not collected.records
    assert collected.gaps
    monkeypatch.undo()
    await finish(run, attempt=2)
    assert adopt_cell(cell(SHAPE), context(run)) is not None
    assert len(read_records(run).records) == 5


@pytest.mark.parametrize("name", ["requests.jsonl", "probe/prefill/transfer.1.jsonl", f"../../{SHAPE.label}_rep4.json"])
async def test_a_cell_whose_files_were_changed_is_measured_again(run: Path, name: str) -> None:
    await finish(run)
    path = LifecycleLayout(run).cell(SHAPE).parent / name
    path.write_bytes(path.read_bytes()[:-2])
    assert adopt_cell(cell(SHAPE), context(run)) is None


async def test_the_commit_mark_has_what_the_analysis_reads_of_it(run: Path) -> None:
    _, measurements = await finish(run, failing=frozenset({1}))
    path = LifecycleLayout(run).cell(SHAPE)
    mark = msgspec.json.decode(path.read_bytes(), type=MeasuredCell)
    assert set(json.loads(path.read_text())) == {one.name for one in dataclasses.fields(MeasuredCell)}
    assert mark.discarded == (DiscardedMeasurement(2, measurements.discarded[0].discarded),)
    assert mark.records == tuple(f"{SHAPE.label}_rep{number}.json" for number in range(1, 6))
    assert read_records(run).cells == {(0, *SHAPE.key): mark}
    rows = msgspec.json.Decoder(LifecycleRequest).decode_lines((path.parent / "requests.jsonl").read_bytes())
    assert {row.repetition for row in rows} == {1, 2, 3, 4, 5}
    assert all(row.first == (row.position == 0) for row in rows)


async def test_a_mark_of_another_form_finishes_no_cell(run: Path) -> None:
    await finish(run)
    mark = LifecycleLayout(run).cell(SHAPE)
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"headline": 3}))
    assert adopt_cell(cell(SHAPE), context(run)) is None


async def test_a_new_attempt_replaces_all_of_the_old_one(run: Path) -> None:
    _, first = await finish(run, failing=frozenset({1}))
    assert len(first.discarded) == 1
    assert f"cells/{SHAPE.label}/discarded/rep2_0.json" in files_of(run)
    assert len(read_records(run).discards) == 1
    await finish(run, attempt=2)
    assert not any("discarded" in name for name in files_of(run))
    assert not read_records(run).discards


async def test_a_phase_that_was_not_measured_and_phases_that_do_not_add_up_degrade_the_cell(run: Path) -> None:
    _, measurements = await finish(run)
    assert explain_degraded(measurements) == ""
    record = measurements.records[4]
    broken = {**record.breakdown_ms, "rdma_transfer": None}
    gaps = {"rdma_transfer": "the probe was blind"}
    measurements.records[4] = dataclasses.replace(record, breakdown_ms=broken, gaps=gaps)
    assert explain_degraded(measurements) == "not measured: rdma_transfer (the probe was blind)"
    measurements.records[4] = dataclasses.replace(record, client_residual_share=-0.08)
    assert explain_degraded(measurements) == "the sum of the phases differs from E2E by up to 8 %"
    measurements.records[4] = record
    measurements.records[1] = dataclasses.replace(measurements.records[1], residual_share=0.5)
    assert explain_degraded(measurements) == "", "a warm-up says nothing about the cell"
