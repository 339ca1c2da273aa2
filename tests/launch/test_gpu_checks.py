"""What the doctor reports on hosts with GPUs, all of them fake."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from launch import doctor, gpu_checks, rdma_checks
from launch.doctor import examine
from launch.doctor_rows import MISSING, OK, WARN, Row
from launch.environment import Engine
from launch.gpu_checks import check_cuda_host, check_driver, read_driver, read_gpus
from launch.gpu_fit import LOGIT_BYTES, estimate_engine_bytes
from launch.profile import PROFILES_FOLDER, load_profile
from tests.fake_gpus import DRIVER_TEXT, FakeGpu, cuda_profile, make_host

CODER = "h200-qwen3-coder-30b-dummy"
CODER_LINES = (PROFILES_FOLDER / f"{CODER}.toml").read_text().splitlines()


def make_engine(tmp_path: Path, cuda: str = "'13.0'", flash: tuple[int, ...] = (2, 3)) -> Engine:
    """An environment with a torch for this CUDA, and these FlashAttention builds."""
    packages = tmp_path / "packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "version.py").write_text(f"__version__ = '2.13.0'\ncuda: Optional[str] = {cuda}\n")
    (packages / "vllm" / "vllm_flash_attn").mkdir(parents=True)
    for number in flash:
        (packages / "vllm" / "vllm_flash_attn" / f"_vllm_fa{number}_C.abi3.so").touch()
    return Engine("cuda", tmp_path / "python", tmp_path, packages, {"torch": "2.13.0"})


def rows_of(tmp_path: Path, engine: Engine | None, share: float | None = 0.9) -> dict[str, Row]:
    found = check_cuda_host(engine, tmp_path / "gpu-host" / "infiniband", cuda_profile(share))
    return {row.what: row for row in found}


def test_a_host_with_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(tmp_path, monkeypatch, FakeGpu(used=1 << 30), rdma=())
    host.add_adapter("mlx5_0", "4: ACTIVE")
    rdma_checks.PEER_MEMORY.mkdir()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    rows = rows_of(tmp_path, make_engine(tmp_path))
    assert {row.state for row in rows.values()} == {OK}
    assert rows["driver and CUDA"].detail == "driver 580.95.05; torch was built for CUDA 13.0"
    assert rows["attention"].detail == "compute capability 9: FlashAttention 3"
    assert rows["GPU memory"].detail == "139.0 of 140.0 GiB free; an engine takes 90 % of all"
    assert rows["RDMA"].detail == "mlx5_0 (ACTIVE); nvidia_peermem is loaded"


def test_a_host_without_a_compiler_or_headers_cannot_start_an_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch)
    engine = make_engine(tmp_path)
    engine.python.write_text("#!/bin/sh\necho " + str(tmp_path) + "\n")
    engine.python.chmod(0o755)
    monkeypatch.setenv("CC", "no-such-compiler")
    row = rows_of(tmp_path, engine)["C compiler"]
    assert (row.state, row.detail.partition(":")[0]) == (MISSING, "CC names no-such-compiler, which is not on PATH")
    monkeypatch.setenv("CC", "true")
    row = rows_of(tmp_path, engine)["C compiler"]
    assert row.state == MISSING
    assert f"{tmp_path}/Python.h is missing" in row.detail
    (tmp_path / "Python.h").touch()
    assert rows_of(tmp_path, engine)["C compiler"].state == OK


def test_a_driver_that_is_too_old_for_torchs_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(tmp_path, monkeypatch)
    (host.folder / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    row = rows_of(tmp_path, make_engine(tmp_path))["driver and CUDA"]
    assert row.state == MISSING
    assert row.detail == "driver 550.54.15 is too old: torch was built for CUDA 13.0, which needs 580 or later"
    assert "--engine-python" in row.remedy
    assert "make gpu ENGINE_PYTHON=" in row.remedy


def make_compat(folder: Path, version: str) -> Path:
    """A folder as the package `cuda-compat` installs it."""
    folder.mkdir(parents=True)
    (folder / f"libcuda.so.{version}").touch()
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{version}")
    return folder


def test_an_old_driver_with_a_newer_libcuda_is_a_warning_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch)
    (host.folder / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    engine = make_engine(tmp_path)
    make_compat(host.folder / "cuda-12.8" / "compat", "570.86.15")
    assert check_driver(engine).state == MISSING, "this libcuda is too old for CUDA 13 as well"
    compat = make_compat(host.folder / "cuda-13.0" / "compat", "580.65.06")
    row = check_driver(engine)
    assert row.state == WARN
    assert "too old by itself: torch was built for CUDA 13.0, which needs 580 or later" in row.detail
    assert f"{compat}/libcuda.so.580.65.06 replaces its libcuda on data center GPUs" in row.detail
    assert row.remedy.startswith(f"`export LD_LIBRARY_PATH={compat}:/opt/lib`; ")
    elsewhere = make_compat(tmp_path / "elsewhere", "580.65.06")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(elsewhere))
    row = check_driver(engine)
    assert (row.state, row.remedy) == (WARN, "if engines do not start, update the driver to 580 or later")
    assert str(elsewhere) in row.detail


def missing_before_install(tmp_path: Path) -> dict[str, str]:
    """What is missing before an install, with the detail."""
    report = examine(cuda_profile(), {}, workspace=tmp_path, before_install=True)
    assert "engine" not in {row.what for row in report.rows}
    return {row.what: row.detail for row in report.rows if row.state == MISSING}


def test_before_an_install_a_host_is_judged_by_what_would_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch, FakeGpu(used=0))
    monkeypatch.setenv("TRACON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CC", "true")
    monkeypatch.setattr(doctor, "RUN_BYTES", 1)
    monkeypatch.setattr(doctor, "DISK_BYTES", {"cuda": 1})
    assert missing_before_install(tmp_path) == {}
    (host.folder / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    needs = "the torch of `tracon engine install cuda` is built for CUDA 13.0, which needs 580 or later"
    assert missing_before_install(tmp_path) == {"driver and CUDA": f"driver 550.54.15 is too old: {needs}"}
    (host.folder / "version").write_text(DRIVER_TEXT)
    monkeypatch.setattr(doctor, "DISK_BYTES", {"cuda": 10**18})
    assert list(missing_before_install(tmp_path)) == ["disk for engines"]
    monkeypatch.setenv("CC", "no-such-compiler")
    assert list(missing_before_install(tmp_path)) == ["C compiler", "disk for engines"]
    monkeypatch.setenv("CC", "true")
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.28"))
    assert list(missing_before_install(tmp_path)) == ["glibc", "disk for engines"]
    # An environment that exists takes no more room, and none of its connectors is imported here.
    monkeypatch.setattr(doctor, "_check_engine", lambda *_: (make_engine(tmp_path), Row("engine", OK, "")))
    assert missing_before_install(tmp_path) == {}


def test_a_driver_that_the_kernel_does_not_state_is_asked_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in WSL, and in containers without the driver's files in /proc."""
    host = make_host(tmp_path, monkeypatch)
    engine = make_engine(tmp_path)
    (host.folder / "version").unlink()
    row = check_driver(engine)
    assert row.state == MISSING
    assert row.detail.startswith("no NVIDIA driver in this kernel, and nvidia-smi states no version; ")
    host.driver = "580.95.05"
    host.write_tools()
    assert check_driver(engine).detail == "driver 580.95.05; torch was built for CUDA 13.0"
    host.driver = "550.54.15"
    host.write_tools()
    assert check_driver(engine).state == MISSING
    (host.folder / "version").write_text("another system's file\n")
    assert read_driver() == "550.54.15"


@pytest.mark.parametrize(("python", "package"), [("3.12.4", "python3.12-dev"), ("3.11.9", "python3.11-dev")])
def test_the_headers_of_the_engines_own_python_are_named(
    python: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch)
    engine = replace(make_engine(tmp_path), versions={"torch": "2.13.0", "python": python})
    monkeypatch.setenv("CC", "no-such-compiler")
    assert f"apt-get install gcc {package}" in rows_of(tmp_path, engine)["C compiler"].remedy


def test_an_open_kernel_module_states_its_version_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(tmp_path, monkeypatch)
    (host.folder / "version").write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Rel\n")
    assert read_driver() == "570.86.15"


def test_a_torch_without_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch)
    row = rows_of(tmp_path, make_engine(tmp_path, cuda="None"))["driver and CUDA"]
    assert row.state == MISSING
    assert "built without CUDA" in row.detail
    assert "tracon engine install cuda" in row.remedy


@pytest.mark.parametrize(
    ("capability", "flash", "state", "part"),
    [
        ("7.0", (2, 3), MISSING, "no kernels"),
        ("7.5", (2, 3), OK, "Triton or FlashInfer"),
        ("8.0", (2, 3), OK, "FlashAttention 2"),
        ("9.0", (2,), WARN, "needs FlashAttention 3"),
        ("10.0", (2, 3), OK, "FlashInfer"),
    ],
)
def test_the_attention_backend_follows_the_gpu(
    capability: str, flash: tuple[int, ...], state: str, part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(capability=capability))
    row = rows_of(tmp_path, make_engine(tmp_path, flash=flash))["attention"]
    assert row.state == state
    assert part in row.detail


def test_memory_that_others_hold_is_named_with_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=1 << 30), FakeGpu(used=60 << 30))
    row = rows_of(tmp_path, None)["GPU memory"]
    assert row.state == WARN, "an engine takes the other"
    assert "more than GPU 1 has free: engines take the others" in row.detail
    assert row.remedy.startswith("stop the process that holds it (`nvidia-smi` lists it)")
    assert rows_of(tmp_path, None, 0.46)["GPU memory"].state == OK
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    row = rows_of(tmp_path, None)["GPU memory"]
    assert row.state == MISSING
    assert "more than GPU 1 has free: vLLM refuses to start there" in row.detail
    assert row.remedy.startswith("stop the process that holds it (`nvidia-smi` lists it)")
    assert "gpu_memory_utilization" in row.remedy


def test_what_others_hold_of_a_split_gpu_says_nothing_of_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=60 << 30, mig="Enabled"))
    assert rows_of(tmp_path, None)["GPU memory"].state == MISSING
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1a")
    row = rows_of(tmp_path, None)["GPU memory"]
    assert (row.state, "what a part of it (MIG) has free is not known" in row.detail) == (WARN, True)


def test_an_engine_of_two_gpus_needs_both_of_them_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=60 << 30), FakeGpu(used=0))
    path = tmp_path / "two.toml"
    path.write_text("\n".join(CODER_LINES).replace("tensor_parallel_size = 1", "tensor_parallel_size = 2"))
    assert check_memory(CODER).state == WARN
    assert check_memory(str(path)).state == MISSING


@pytest.mark.parametrize("visible", ["0", "GPU-00000000"])
def test_a_gpu_that_cuda_visible_devices_hides_is_not_judged(
    visible: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = FakeGpu(name="Tesla V100", capability="7.0", used=139 << 30)
    make_host(tmp_path, monkeypatch, FakeGpu(used=1 << 30), hidden)
    engine = make_engine(tmp_path)
    assert rows_of(tmp_path, engine)["attention"].state == MISSING
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    rows = rows_of(tmp_path, engine)
    assert rows["attention"] == Row("attention", OK, "compute capability 9: FlashAttention 3")
    assert rows["GPU memory"].detail == "139.0 of 140.0 GiB free; an engine takes 90 % of all"


def test_memory_rows_name_a_gpu_as_nvidia_smi_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(), FakeGpu(), FakeGpu(used=60 << 30))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert "more than GPU 2 has free" in rows_of(tmp_path, None)["GPU memory"].detail


def test_only_configs_with_mooncake_need_an_adapter_that_reaches_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch, FakeGpu(used=0), rdma=())
    host.add_adapter("mlx5_0", "4: ACTIVE")
    ok = dict.fromkeys(("vllm", "torch", "mooncake", "nixl"), Row("x", OK, ""))
    monkeypatch.setattr(doctor, "_check_engine", lambda *_: (make_engine(tmp_path), Row("engine", OK, "")))
    monkeypatch.setattr(doctor, "_check_components", lambda _engine: ok)
    configs = examine(cuda_profile(), {"nixl_both": ("nixl",), "mooncake_both": ("mooncake",)}).configs
    assert {config.config: config.missing for config in configs} == {"nixl_both": (), "mooncake_both": ("RDMA",)}


def test_a_host_without_gpus_has_every_row_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_checks, "DRIVER", tmp_path / "none")
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    assert read_gpus() == ()
    report = examine(cuda_profile(0.9), {})
    rows = {row.what: row for row in report.rows}
    for what in ("engine", "GPU", "driver and CUDA", "GPU memory", "RDMA"):
        assert rows[what].state in (MISSING, WARN)
        assert rows[what].remedy


def test_a_tool_that_answers_nonsense_counts_as_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(tmp_path, monkeypatch)
    (host.folder / "nvidia-smi").write_text("#!/bin/sh\necho '0, GPU-0, [N/A], 1, 2'\n")
    assert read_gpus() == ()


@pytest.mark.parametrize(("total_mib", "state"), [(81_559, MISSING), (143_771, OK)])
def test_a_gpu_that_the_model_does_not_fit_into_is_missing(
    total_mib: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights, and the KV of a request of 200,000 tokens, on an H100 and an H200."""
    make_host(tmp_path, monkeypatch, FakeGpu(used=0, total=total_mib << 20))
    report = examine(load_profile(CODER), {}, before_install=True)
    row = {row.what: row for row in report.rows}["GPU memory"]
    assert row.state == state
    assert ("GPU_PROFILE=h200-qwen3-0.6b-dummy" in row.remedy) == (state == MISSING)


H100, A100 = FakeGpu(used=0, total=81_559 << 20), FakeGpu(used=0, total=40_960 << 20)


def check_memory(profile: str) -> Row:
    report = examine(load_profile(profile), {}, before_install=True)
    return {row.what: row for row in report.rows}["GPU memory"]


@pytest.mark.parametrize(
    ("gpus", "settings"),
    [
        ((H100,), "engine.max_model_len = 73728"),
        ((H100, H100), "engine.max_model_len = 73728"),
        ((A100, A100), "engine.max_model_len = 57344 and engine.tensor_parallel_size = 2"),
        ((A100,) * 4, "engine.max_model_len = 57344 and engine.tensor_parallel_size = 2"),
    ],
    ids=["one H100", "two H100", "two A100 40 GB", "four A100 40 GB"],
)
def test_the_remedy_for_a_small_gpu_makes_a_profile_that_fits(
    gpus: tuple[FakeGpu, ...], settings: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, *gpus)
    remedy = check_memory(CODER).remedy
    assert remedy.startswith(f"measure with {settings}: `sed -e ")
    (tmp_path / "launch").symlink_to(PROFILES_FOLDER.parent)
    edit, _, make = remedy.partition("`")[2].partition("`")[0].partition(" && ")
    subprocess.run(["sh", "-c", edit], cwd=tmp_path, check=True)
    assert make == "make gpu GPU_PROFILE=./smaller.toml"
    smaller = tmp_path / "smaller.toml"
    changed = [line for line in smaller.read_text().splitlines() if line not in CODER_LINES]
    assert changed == [text.removeprefix("engine.") for text in settings.split(" and ")]
    assert check_memory(str(smaller)).state == OK


def test_gpus_that_no_setting_fits_are_left_the_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, A100)
    assert check_memory(CODER).remedy == "take the small model: `make gpu GPU_PROFILE=h200-qwen3-0.6b-dummy`"
    assert check_memory("h200-qwen3-0.6b-dummy").state == OK


def test_the_remedy_for_a_profile_of_ones_own_names_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, H100)
    path = tmp_path / "mine.toml"
    path.write_text((PROFILES_FOLDER / f"{CODER}.toml").read_text().replace(f'name = "{CODER}"', 'name = "mine"'))
    assert check_memory(str(path)).remedy.endswith("or write engine.max_model_len = 73728 into the profile")


def test_vllm_takes_fewer_requests_at_once_on_a_small_gpu() -> None:
    profile = load_profile(CODER)
    small, large = (estimate_engine_bytes(profile, size << 30) for size in (40, 80))
    assert small is not None
    assert large is not None
    assert large - small == (1024 - 256) * 151_643 * LOGIT_BYTES


def test_other_gpus_that_an_engine_fits_into_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy, free, small = FakeGpu(used=60 << 30), FakeGpu(used=0), FakeGpu(used=0, total=12 << 30)
    make_host(tmp_path, monkeypatch, busy, free, small)
    row = check_memory(CODER)
    assert row.state == MISSING
    assert "GPU 2 has too little" in row.detail
    assert row.remedy == "use the other GPUs alone: `export CUDA_VISIBLE_DEVICES=0,1`"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    row = check_memory(CODER)
    assert row.state == WARN
    assert "more than GPU 0 has free: engines take the others" in row.detail


def test_gpus_whose_memory_is_not_known_are_told_apart_from_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert check_memory(CODER).detail == "CUDA_VISIBLE_DEVICES=7 names no GPU"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    tool = host.folder / "nvidia-smi"
    tool.write_text(tool.read_text().replace("compute_cap) value=$3", "no_such_field) value=$3"))
    row = check_memory(CODER)
    assert row.state == MISSING
    assert "does not state their compute capability and memory" in row.detail
    assert "update the driver" in row.remedy
    assert "--query-gpu=compute_cap,memory.total,memory.used" in row.remedy
