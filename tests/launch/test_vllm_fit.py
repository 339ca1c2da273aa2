"""An environment whose vLLM the probes do not fit is refused with its version and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.doctor_rows import OK, WARN
from launch.environment import find_engine
from launch.libraries import LibraryState
from launch.vllm_fit import VllmDoesNotFit, describe_fit, require_fit
from tests.launch import fake_uv
from tests.launch.vllm_sources import packages_of
from tests.patches.test_source_check import SCHEDULER, make_vllm

FOREIGN = SCHEDULER.replace("throttle_prefills=False", "budget")


def test_a_vllm_whose_steps_cannot_be_timed_is_refused(tmp_path: Path) -> None:
    make_vllm(tmp_path, **{"v1/core/sched/scheduler": FOREIGN})
    with pytest.raises(VllmDoesNotFit) as caught:
        require_fit(tmp_path, "cuda")
    assert "vLLM 0.99.0" in str(caught.value)
    assert "Scheduler.schedule: unknown signature (self, budget)" in str(caught.value)
    assert "0.26.0" in caught.value.remedy
    assert "tracon engine install cuda" in caught.value.remedy


def test_the_environment_named_by_the_user_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("launch.environment.provide", lambda *_: LibraryState((), ()))
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    fake_uv.make_environment(tmp_path / "env")
    make_vllm(packages)
    (packages / "vllm-0.99.0.dist-info" / "METADATA").write_text("Name: vllm\nVersion: 0.99.0\n")
    python = tmp_path / "env" / "bin" / "python"
    assert find_engine("cuda", python).versions["vllm"] == "0.99.0"
    make_vllm(packages, **{"v1/core/sched/scheduler": FOREIGN})
    with pytest.raises(VllmDoesNotFit):
        find_engine("cuda", python)


def test_the_doctor_names_the_hooks_that_do_not_fit(tmp_path: Path) -> None:
    row = describe_fit(make_vllm(tmp_path), "cuda")
    assert row.state == WARN
    assert "transfer probe lack" in row.detail
    assert "Scheduler._update_waiting_for_remote_kv" in row.detail
    assert "null with the reason" in row.detail
    empty = describe_fit(tmp_path / "none", "cuda")
    assert empty.state == WARN
    assert "no sources" in empty.detail


def test_the_locked_release_fits() -> None:
    assert describe_fit(packages_of("0.32.0"), "cpu").state == OK
