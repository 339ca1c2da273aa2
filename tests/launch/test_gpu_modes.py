"""What the doctor reports of compute modes and of GPUs that are split into parts (MIG)."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch import doctor
from launch.doctor import examine, narrow_report
from launch.doctor_rows import MISSING, OK, WARN, Row
from launch.environment import Engine
from launch.gpu_modes import check_modes
from launch.profile import load_profile
from tests.fake_gpus import FakeGpu, make_host

ALONE, CLOSED, SPLIT = (
    FakeGpu(used=0, compute_mode="Exclusive_Process"),
    FakeGpu(used=0, compute_mode="Prohibited"),
    FakeGpu(used=0, mig="Enabled"),
)
PLAIN = FakeGpu(used=0)


def test_gpus_in_their_default_modes_lack_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, PLAIN, PLAIN)
    assert check_modes() == Row("GPU modes", OK, "compute mode Default")


def test_a_gpu_that_takes_one_process_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, PLAIN, ALONE)
    row = check_modes()
    assert row.state == WARN
    assert "GPU 1 takes one engine at a time" in row.detail
    assert row.remedy.startswith("`nvidia-smi -c DEFAULT` as root")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert check_modes().state == OK, "engines may not take the other"


def test_a_gpu_that_takes_no_process_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, CLOSED)
    row = check_modes()
    assert (row.state, row.remedy) == (MISSING, "`nvidia-smi -c DEFAULT` as root")
    assert "no engine can use GPU 0" in row.detail


def test_a_split_gpu_is_missing_until_a_part_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, SPLIT)
    row = check_modes()
    assert row.state == MISSING
    assert "MIG splits GPU 0" in row.detail
    assert "nvidia-smi -mig 0" in row.remedy
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert check_modes().state == MISSING
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1a,MIG-2b")
    assert check_modes() == Row("GPU modes", OK, "compute mode Default; 2 MIG parts are named")


@pytest.mark.parametrize("field", ["compute_mode", "mig.mode.current"])
def test_a_driver_that_does_not_know_a_field_still_states_the_other(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch, CLOSED if field == "mig.mode.current" else SPLIT)
    tool = host.folder / "nvidia-smi"
    tool.write_text(tool.read_text().replace(f"      {field})", "      no_such_field)"))
    assert check_modes().state == MISSING


def test_a_gpu_without_these_modes_lacks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=0, compute_mode="[N/A]", mig="[N/A]"))
    assert check_modes() == Row("GPU modes", OK, "compute mode not stated")


CONFIGS: dict[str, tuple[str, ...]] = {"plain": (), "nixl_both": ("nixl",)}


@pytest.mark.parametrize(("gpus", "shared"), [((ALONE,), True), ((ALONE, ALONE), False), ((PLAIN,), False)])
def test_nixls_proof_cannot_share_a_gpu_that_takes_one_process(
    gpus: tuple[FakeGpu, ...], shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, *gpus)
    engine = Engine("cuda", tmp_path / "python", tmp_path, tmp_path, {"torch": "2.13.0"})
    ok = dict.fromkeys(("vllm", "torch", "nixl"), Row("x", OK, ""))
    monkeypatch.setattr(doctor, "_check_engine", lambda *_: (engine, Row("engine", OK, "")))
    monkeypatch.setattr(doctor, "_check_components", lambda _engine: ok)
    report = examine(load_profile("h200-qwen3-0.6b-dummy"), CONFIGS)
    row = {row.what: row for row in report.rows}.get("GPU sharing")
    missing = {config.config: config.missing for config in report.configs}
    assert missing == {"plain": (), "nixl_both": ("GPU sharing",) if shared else ()}
    assert (row is not None) == shared
    if row is not None:
        assert row.state == MISSING
        assert "nvidia-smi -c DEFAULT" in row.remedy
    assert "GPU sharing" not in {row.what for row in narrow_report(report, ["plain"]).rows}
