"""Which GPUs an engine takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch import gpu_devices
from launch.errors import LaunchError
from launch.gpu_devices import NoGpu, choose_second_devices, list_engine_devices, name_devices, require_gpu
from launch.profile import load_profile
from tests.fake_gpus import FakeGpu, make_host


@pytest.mark.parametrize(
    ("visible", "size", "devices"),
    [("0,1", 1, "1"), ("4,5,6,7", 2, "6,7"), ("0", 1, ""), ("0,1,2", 2, ""), ("", 1, "")],
)
def test_a_second_engine_takes_the_next_gpus(visible: str, size: int, devices: str) -> None:
    assert choose_second_devices(size, {"CUDA_VISIBLE_DEVICES": visible, "PATH": ""}) == devices


def test_a_second_engine_skips_gpus_without_room() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0,1,2", "PATH": ""}
    assert choose_second_devices(1, environ, full=("1",)) == "2"
    assert choose_second_devices(1, environ, full=("1", "2")) == ""
    assert choose_second_devices(1, environ, full=("0",)) == "1", "the first engine's is not its own"


def test_without_a_choice_all_gpus_of_the_host_are_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(tmp_path, monkeypatch, FakeGpu(), FakeGpu())
    assert choose_second_devices(1, {"PATH": str(host.folder)}) == "1"
    assert choose_second_devices(1, {"PATH": ""}) == ""


def test_engines_take_gpus_among_those_that_the_user_named() -> None:
    assert name_devices([0, 1], {}) == "0,1"
    assert name_devices([1], {"CUDA_VISIBLE_DEVICES": "4,GPU-7"}) == "GPU-7"
    with pytest.raises(LaunchError, match="names 1 GPUs"):
        name_devices([1], {"CUDA_VISIBLE_DEVICES": "4"})


def test_a_host_with_too_few_gpus_is_refused_before_an_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch, FakeGpu(), FakeGpu())
    environ = {"PATH": f"{host.folder}:/usr/bin:/bin"}
    assert name_devices([1], environ) == "1"
    with pytest.raises(LaunchError, match="this host has 2 GPUs, and an engine wants number 3") as caught:
        name_devices([2], environ)
    assert "--set gpus=1" in caught.value.remedy


def test_a_host_without_a_gpu_is_refused_for_cuda_engines_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_devices, "DRIVER", tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    require_gpu(load_profile("cpu-tiny"))
    with pytest.raises(NoGpu, match="need an NVIDIA GPU, and this host has none") as caught:
        require_gpu(load_profile("h200-qwen3-0.6b-dummy"))
    assert "tracon doctor --profile h200-qwen3-0.6b-dummy" in caught.value.remedy
    make_host(tmp_path, monkeypatch)
    require_gpu(load_profile("h200-qwen3-0.6b-dummy"))


def test_a_container_without_nvidia_smi_has_the_kernels_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").touch()
    monkeypatch.setattr(gpu_devices, "DRIVER", tmp_path / "version")
    monkeypatch.setenv("PATH", str(tmp_path))
    require_gpu(load_profile("h200-qwen3-0.6b-dummy"))


@pytest.mark.parametrize(
    ("of_process", "of_launch", "size", "devices"),
    [
        (None, {}, 1, ("0",)),
        (None, {}, 2, ("0", "1")),
        ("4,5,6,7", {}, 2, ("4", "5")),
        ("4,5,6,7", {"CUDA_VISIBLE_DEVICES": "7"}, 1, ("7",)),
        ("GPU-1a", {}, 1, ("GPU-1a",)),
        ("", {}, 1, ()),
    ],
)
def test_an_engine_runs_on_the_first_gpus_that_it_may_use(
    of_process: str | None, of_launch: dict[str, str], size: int, devices: tuple[str, ...]
) -> None:
    environ = {} if of_process is None else {"CUDA_VISIBLE_DEVICES": of_process}
    assert list_engine_devices(size, {**environ, **of_launch}) == devices
