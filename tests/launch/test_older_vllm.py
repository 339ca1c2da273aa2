"""An environment with an older vLLM, named with --engine-python: vLLM 0.26 with torch 2.11, on a host without a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from launch import patching
from launch.doctor import examine
from launch.doctor_rows import MISSING, OK, WARN
from launch.environment import Engine, find_engine
from launch.install_plan import DISK_BYTES
from tests.fake_gpus import cuda_profile
from tests.launch.cuda_environment import import_modules, settle_launches
from tests.launch.vllm_sources import SOURCES

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]

VERSION = "0.26.0"
SOURCE_TESTS = ("tests/launch/test_launch_sources.py", "tests/patches/test_source_check.py")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Downloads some 4 GB, unless uv's cache has them. Removed again: it takes 8 GB."""
    folder = tmp_path_factory.mktemp("older")
    if shutil.disk_usage(folder).free < DISK_BYTES["cuda"]:
        pytest.skip(f"{folder} has too little room for a CUDA environment")
    program, python = uv.find_uv_bin(), folder / "env" / "bin" / "python"
    subprocess.run([program, "venv", "--quiet", "--python", "3.11", str(folder / "env")], check=True)
    packages = (f"vllm=={VERSION}", "nixl==1.5.1")
    subprocess.run([program, "pip", "install", "--quiet", "--python", str(python), *packages], check=True, timeout=2400)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACON_HOME", str(folder / "home"))
        yield find_engine("cuda", python)
    shutil.rmtree(folder)


def test_it_is_taken_as_it_is_and_the_doctor_names_what_it_lacks(engine: Engine) -> None:
    assert (engine.versions["vllm"], engine.versions["torch"], engine.managed) == (VERSION, "2.11.0", False)
    requires = {"plain": (), "noop_connector": ("patches",), "nixl_both": ("nixl",), "mooncake_both": ("mooncake",)}
    report = examine(cuda_profile(), requires, engine_python=engine.python)
    rows = {row.what: row for row in report.rows}
    assert {name: rows[name].state for name in ("engine", "vLLM", "torch", "nixl")} == dict.fromkeys(
        ("engine", "vLLM", "torch", "nixl"), OK
    )
    assert rows["hooks"].state == WARN
    assert "measure with it as it is" in rows["hooks"].remedy
    assert rows["mooncake"].state == MISSING
    assert "pip install mooncake-transfer-engine-cuda13" in rows["mooncake"].remedy
    assert {config.config: config.ok for config in report.configs} == {
        "plain": True, "noop_connector": True, "nixl_both": True, "mooncake_both": False,
    }  # fmt: skip


def test_the_probe_is_on_its_scheduler_and_what_runs_on_a_gpu_imports(engine: Engine) -> None:
    patching.apply(engine)
    assert import_modules(engine) == {}
    assert not patching.revert(engine).applied


def test_it_settles_every_launch_as_on_a_gpu(engine: Engine, tmp_path: Path) -> None:
    patching.apply(engine)
    settle_launches(engine, tmp_path)


def test_the_sources_of_its_wheel_have_what_tracon_relies_on(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / f"vllm-{VERSION}").symlink_to(engine.site_packages)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", VERSION, *SOURCE_TESTS],
        env=os.environ | {SOURCES: str(tmp_path)}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout, done.stdout[-3000:]
