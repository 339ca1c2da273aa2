"""Which GPUs a second engine takes beside the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.gpu import second_devices


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
