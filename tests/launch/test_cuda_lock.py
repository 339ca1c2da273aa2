"""The CUDA environment without a GPU: its lock resolves, and what it builds imports."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import uv

from launch import patching
from launch.doctor import examine
from launch.doctor_rows import OK
from launch.gpu_checks import read_torch_cuda
from launch.install import install
from launch.install_plan import DISK_BYTES, lock_file
from tests.fake_gpus import cuda_profile
from tests.launch.cuda_environment import import_modules, settle_launches

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]


def test_the_cuda_lock_resolves_without_a_gpu() -> None:
    argv = [
        uv.find_uv_bin(), "pip", "compile", "--quiet", "--no-header", "--python-version", "3.11",
        "--python-platform", "x86_64-manylinux_2_35", "--only-binary", ":all:", str(lock_file("cuda")),
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "\nvllm==" in f"\n{done.stdout}"


def test_the_cuda_environment_installs_and_imports_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloads some 5 GB, unless uv's cache has them."""
    if shutil.disk_usage(tmp_path).free < DISK_BYTES["cuda"]:
        pytest.skip(f"{tmp_path} has too little room for the CUDA environment")
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    engine = install("cuda")  # it imports torch and vLLM, and refuses a torch without CUDA
    assert engine.versions["vllm"] == "0.32.0"
    assert read_torch_cuda(engine.site_packages) == "13.0"
    assert {name: why for name, why in engine.imports.items() if why and "libcuda.so.1" not in why} == {}
    rows = {row.what: row for row in examine(cuda_profile(), {}).rows}
    assert {name: rows[name].state for name in ("engine", "vLLM", "torch", "hooks")} == dict.fromkeys(
        ("engine", "vLLM", "torch", "hooks"), OK
    )
    patching.apply(engine)
    assert import_modules(engine) == {}
    settle_launches(engine, tmp_path)
    shutil.rmtree(tmp_path / "engines")
