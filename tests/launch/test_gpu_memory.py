"""Which GPUs an engine takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.errors import LaunchError
from launch.gpu_memory import name_devices, second_devices


@pytest.mark.parametrize(
    ("visible", "size", "devices"),
    [("0,1", 1, "1"), ("4,5,6,7", 2, "6,7"), ("0", 1, ""), ("0,1,2", 2, ""), ("", 1, "")],
)
def test_a_second_engine_takes_the_next_gpus(visible: str, size: int, devices: str) -> None:
    assert second_devices(size, {"CUDA_VISIBLE_DEVICES": visible, "PATH": ""}) == devices


def test_without_a_choice_all_gpus_of_the_host_are_visible(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 10\necho 20\n")
    tool.chmod(0o755)
    assert second_devices(1, {"PATH": str(tmp_path)}) == "1"
    assert second_devices(1, {"PATH": ""}) == ""


def test_engines_take_gpus_among_those_that_the_user_named() -> None:
    assert name_devices([0, 1], {}) == "0,1"
    assert name_devices([1], {"CUDA_VISIBLE_DEVICES": "4,GPU-7"}) == "GPU-7"
    with pytest.raises(LaunchError, match="names 1 GPUs"):
        name_devices([1], {"CUDA_VISIBLE_DEVICES": "4"})
