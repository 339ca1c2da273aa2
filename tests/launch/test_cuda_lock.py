"""The CUDA environment's lock still resolves: every package is published for this platform at the pinned version."""

from __future__ import annotations

import subprocess

import pytest
import uv

from launch.install_plan import lock_file

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_the_cuda_lock_resolves_without_a_gpu() -> None:
    argv = [
        uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--python-version", "3.11",
        "--python-platform", "x86_64-manylinux_2_35", "--only-binary", ":all:", str(lock_file("cuda")),
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "\nvllm==" in f"\n{done.stdout}"
