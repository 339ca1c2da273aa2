"""Step records of a cell come out of the rings joined, complete, and with a reason for everything that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from results.measures.step_records import StepCut, cut_steps
from results.records.frames import read_steps
from results.records.layout import name_parquet_beside
from results.records.rings import MISSING
from results.records.schemas import STEP_COLUMNS
from tests.results.records.ring_file import RingFile, engine_rows, worker_rows

SECOND = 1_000_000_000


def _ring(folder: Path, role: str, pid: int, rows: npt.ArrayLike, **status: object) -> RingFile:
    ring = RingFile(folder / f"engine_step.{role}.{pid}.ring", role, pid, status=status)
    ring.put(rows)
    return ring


def _cut(folder: Path, t0_ns: int = 0, t1_ns: int = 1 << 62) -> tuple[StepCut, list[dict[str, Any]]]:
    path = folder / "engine_step_A_r4.jsonl"
    cut = cut_steps(folder, t0_ns, t1_ns, path)
    return cut, [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("worker_pid", [11, 12], ids=["one process", "two processes"])
def test_worker_callbacks_join_their_step(tmp_path: Path, worker_pid: int) -> None:
    engine = engine_rows(5)
    _ring(tmp_path, "engine", 11, engine)
    _ring(tmp_path, "worker", worker_pid, worker_rows(engine, get_finished_ns=1000 * np.arange(1, 6)))
    cut, rows = _cut(tmp_path)
    assert cut == StepCut(True, None, {}, records=5, records_lost=0, worker_join_ratio=1.0)
    assert tuple(rows[0]) == STEP_COLUMNS
    assert [row["get_finished_us"] for row in rows] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert rows[0] | {"t_ns": 0} == {
        "t_ns": 0, "step_id": 0, "role": "engine", "step_duration_us": 40.0, "build_meta_us": 0.5,
        "get_finished_us": 1.0, "start_load_kv_us": 0.8, "wait_for_save_us": 0.6, "exec_us": 700.0, "update_us": 30.0,
        "engine_step_us": 770.0, "period_us": 800.0, "child1_us": None, "child2_us": None, "num_running": 2,
        "num_waiting": 0, "prefill_tokens": 0,
        "decode_tokens": 2, "scheduled_requests": 2,
    }  # fmt: skip


def test_a_save_that_no_step_called_is_no_gap_where_the_worker_was_recorded(tmp_path: Path) -> None:
    """It took no time: the sum of all callbacks stays known."""
    engine = engine_rows(5)
    _ring(tmp_path, "engine", 11, engine)
    _ring(tmp_path, "worker", 12, worker_rows(engine, wait_for_save_ns=MISSING))
    cut, rows = _cut(tmp_path)
    assert [row["wait_for_save_us"] for row in rows] == [None] * 5
    assert cut.unavailable_fields == {}


def test_the_callbacks_of_a_multiconnector_s_children_are_those_of_both_processes(tmp_path: Path) -> None:
    engine = engine_rows(3, child1_ns=1_000, child2_ns=500)
    stated = {"children": ["Mooncake", "LMCache"], "batch_queue": True, "settings": {"kv_blocks": 1024}}
    _ring(tmp_path, "engine", 11, engine, **stated)
    _ring(tmp_path, "worker", 12, worker_rows(engine, child1_ns=120_000, child2_ns=4_000))
    cut, rows = _cut(tmp_path)
    assert [(row["child1_us"], row["child2_us"]) for row in rows] == [(121.0, 4.5)] * 3
    assert (cut.children, cut.batch_queue, cut.settings) == (("Mooncake", "LMCache"), True, {"kv_blocks": 1024})
    assert cut.unavailable_fields == {}


def test_only_steps_scheduled_in_the_window_are_cut(tmp_path: Path) -> None:
    _ring(tmp_path, "engine", 11, engine_rows(10, t0_ns=SECOND, spacing_ns=SECOND))
    _, rows = _cut(tmp_path, 3 * SECOND, 6 * SECOND)
    assert [row["step_id"] for row in rows] == [2, 3, 4]


def test_a_restarted_engine_s_step_ids_do_not_mix(tmp_path: Path) -> None:
    """Both launches counted from 0; the clock tells them apart, also inside one window."""
    first, second = engine_rows(4, t0_ns=SECOND), engine_rows(4, t0_ns=100 * SECOND)
    _ring(tmp_path, "engine", 11, first)
    _ring(tmp_path, "worker", 12, worker_rows(first, get_finished_ns=1000))
    _ring(tmp_path, "engine", 21, second)
    _ring(tmp_path, "worker", 22, worker_rows(second, get_finished_ns=9000))
    _, rows = _cut(tmp_path, 50 * SECOND)
    assert [row["get_finished_us"] for row in rows] == [9.0] * 4
    cut, rows = _cut(tmp_path)
    assert [row["get_finished_us"] for row in rows] == [1.0] * 4 + [9.0] * 4
    assert cut.worker_join_ratio == 1.0


def test_of_several_workers_the_slowest_counts(tmp_path: Path) -> None:
    engine = engine_rows(3)
    _ring(tmp_path, "engine", 11, engine)
    _ring(tmp_path, "worker", 12, worker_rows(engine, get_finished_ns=5000, start_load_kv_ns=100))
    _ring(tmp_path, "worker", 13, worker_rows(engine, get_finished_ns=1000, start_load_kv_ns=900))
    _, rows = _cut(tmp_path)
    assert {(row["get_finished_us"], row["start_load_kv_us"]) for row in rows} == {(5.0, 0.9)}


def test_what_was_not_measured_is_null_with_the_probe_s_reason(tmp_path: Path) -> None:
    """An engine without a connector has no callbacks, and that is no failed join."""
    status = {"unavailable": {"build_meta_ns": "no KV connector in this engine"}}
    _ring(tmp_path, "engine", 11, engine_rows(3, build_meta_ns=MISSING), **status)
    cut, rows = _cut(tmp_path)
    assert cut.available
    assert cut.worker_join_ratio is None
    assert cut.unavailable_fields["build_meta_us"] == "no KV connector in this engine"
    assert set(cut.unavailable_fields) == {"build_meta_us", "get_finished_us", "start_load_kv_us", "wait_for_save_us"}
    assert rows[0]["build_meta_us"] is None
    assert rows[0]["get_finished_us"] is None


def test_a_bad_join_makes_the_worker_s_fields_unavailable(tmp_path: Path) -> None:
    engine = engine_rows(100)
    _ring(tmp_path, "engine", 11, engine)
    _ring(tmp_path, "worker", 12, worker_rows(engine)[:90])
    cut, rows = _cut(tmp_path)
    assert cut.worker_join_ratio == pytest.approx(0.9)
    assert "90.0 % of the steps" in cut.unavailable_fields["get_finished_us"]
    assert rows[95]["get_finished_us"] is None


def test_a_connector_whose_worker_never_reported_is_not_free(tmp_path: Path) -> None:
    _ring(tmp_path, "engine", 11, engine_rows(10))
    cut, _ = _cut(tmp_path)
    assert cut.worker_join_ratio == 0.0
    assert set(cut.unavailable_fields) == {"get_finished_us", "start_load_kv_us", "wait_for_save_us"}


def test_empty_steps_do_not_count_in_the_join(tmp_path: Path) -> None:
    engine = engine_rows(100, decode_tokens=np.where(np.arange(100) < 50, 2, 0))
    _ring(tmp_path, "engine", 11, engine)
    _ring(tmp_path, "worker", 12, worker_rows(engine)[:50])
    cut, rows = _cut(tmp_path)
    assert (cut.worker_join_ratio, cut.records, len(rows)) == (1.0, 100, 100)


def test_no_ring_no_steps_and_a_probe_that_says_no_each_have_a_reason(tmp_path: Path) -> None:
    assert "no step ring" in str(_cut(tmp_path / "nothing")[0].reason)
    _ring(tmp_path / "idle", "engine", 11, engine_rows(3))
    cut, rows = _cut(tmp_path / "idle", 50 * SECOND)
    assert (cut.available, rows) == (False, [])
    assert "no engine step" in str(cut.reason)
    _ring(tmp_path / "mute", "engine", 11, engine_rows(3), step_timing_available=False, reason="schedule() has changed")
    cut, rows = _cut(tmp_path / "mute")
    assert (cut.available, cut.reason, rows) == (False, "schedule() has changed", [])


def test_a_broken_ring_is_named_and_spoils_no_other(tmp_path: Path) -> None:
    (tmp_path / "engine_step.engine.10.ring").write_bytes(b"rubbish")
    cut, _ = _cut(tmp_path)
    assert not cut.available
    assert "engine_step.engine.10.ring" in str(cut.reason)
    _ring(tmp_path, "engine", 11, engine_rows(3))
    cut, rows = _cut(tmp_path)
    assert cut.available
    assert "engine_step.engine.10.ring" in str(cut.reason)
    assert len(rows) == 3


def test_records_lost_to_the_ring_s_size_are_counted_where_they_matter(tmp_path: Path) -> None:
    ring = RingFile(tmp_path / "engine_step.engine.11.ring", "engine", 11, capacity=10)
    ring.put(engine_rows(25, t0_ns=SECOND, spacing_ns=SECOND))
    cut, rows = _cut(tmp_path, 0, 100 * SECOND)
    assert (cut.records_lost, cut.records) == (16, 9)
    cut, rows = _cut(tmp_path, 20 * SECOND, 100 * SECOND)
    assert (cut.records_lost, [row["step_id"] for row in rows]) == (0, [19, 20, 21, 22, 23, 24])


def test_the_parquet_beside_holds_the_same_and_is_what_is_read(tmp_path: Path) -> None:
    engine = engine_rows(200, step_duration_ns=np.arange(200) * 1001, period_ns=MISSING)
    _ring(tmp_path, "engine", 11, engine)
    _ring(tmp_path, "worker", 11, worker_rows(engine))
    _cut(tmp_path)
    path = tmp_path / "engine_step_A_r4.jsonl"
    kept = read_steps(path).frame
    name_parquet_beside(path).unlink()
    parsed = read_steps(path).frame
    assert kept is not None
    assert parsed is not None
    assert kept.equals(parsed)
    assert kept["step_duration_us"].tolist() == pytest.approx(np.arange(200) * 1.001)
    assert kept["period_us"].isna().all()
