"""What the doctor says of a machine, and of each config on it."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import msgspec
import pytest

from launch import doctor
from launch.doctor import DoctorReport, examine, narrow_report, to_json
from launch.doctor_rows import MISSING, OK, WARN, Row
from launch.environment import Engine
from launch.errors import LaunchError
from launch.host_checks import PORTS_LOOKED_AT, check_libc
from launch.install_plan import lock_file
from launch.libraries import SYSTEM_LIBRARIES, LibraryState
from launch.patching import apply
from launch.profile import load_profile
from tests.fake_gpus import cuda_profile
from tests.launch import fake_uv

CPU, CUDA = load_profile("cpu-tiny"), cuda_profile()
REQUIRES = {
    "plain": (),
    "noop_connector": ("patches",),
    "mooncake_both": ("mooncake", "patches"),
    "nixl_both": ("nixl",),
    "lmcache_only": ("lmcache", "patches"),
    "multi_mooncake_lmcache": ("mooncake", "lmcache", "patches"),
}


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Python of an environment with stubs of all that is locked; LMCache's cannot be imported."""
    monkeypatch.setenv("TRACON_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("launch.environment.provide", lambda *_: LibraryState((), ()))
    monkeypatch.setattr("launch.doctor.loadable", lambda soname: True)
    fake_uv.make_environment(tmp_path / "env")
    fake_uv.install_stubs(tmp_path / "env" / "lib" / "python3.11" / "site-packages", lock_file("cpu"))
    return tmp_path / "env" / "bin" / "python"


def rows(report: DoctorReport) -> dict[str, Row]:
    return {row.what: row for row in report.rows}


def can_run(report: DoctorReport) -> dict[str, bool]:
    return {config.config: config.ok for config in report.configs}


def test_without_an_engine_every_config_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    report = examine(CPU, REQUIRES)
    assert rows(report)["engine"].state == MISSING
    assert not report.ok
    for config in report.configs:
        assert not config.ok
        assert config.missing[0] == "engine"
        assert "tracon engine install cpu" in config.remedy


def test_a_config_can_run_where_what_it_needs_works(python: Path) -> None:
    report = examine(CPU, REQUIRES, engine_python=python)
    assert can_run(report) == {
        "plain": True, "noop_connector": True, "mooncake_both": True, "nixl_both": True,
        "lmcache_only": False, "multi_mooncake_lmcache": False,
    }  # fmt: skip
    broken = next(config for config in report.configs if config.config == "lmcache_only")
    assert broken.missing == ("lmcache",)
    assert "no stub of lmcache" in broken.detail
    assert broken.remedy


def test_a_package_that_is_not_there_is_named(python: Path) -> None:
    packages = python.parent.parent / "lib" / "python3.11" / "site-packages"
    shutil.rmtree(next(packages.glob("nixl-*.dist-info")))
    report = examine(CPU, REQUIRES, engine_python=python)
    assert rows(report)["nixl"].state == MISSING
    assert rows(report)["nixl"].remedy == f"`{python} -m pip install nixl`"
    assert not can_run(report)["nixl_both"]
    assert can_run(report)["plain"]


def test_a_library_that_nobody_has_stops_what_needs_it(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verbs = next(library for library in SYSTEM_LIBRARIES["cpu"] if library.soname == "libibverbs.so.1")
    monkeypatch.setattr("launch.environment.provide", lambda *_: LibraryState((verbs,), ()))
    monkeypatch.setattr(doctor, "loadable", lambda soname: soname != verbs.soname)
    report = examine(CPU, REQUIRES, engine_python=python)
    assert rows(report)["system libraries"] == Row(
        "system libraries", MISSING, "libibverbs.so.1", "apt-get install libibverbs1"
    )
    mooncake = next(config for config in report.configs if config.config == "mooncake_both")
    assert not mooncake.ok
    assert mooncake.remedy == "apt-get install libibverbs1"
    assert can_run(report)["nixl_both"]


def test_patches_are_told_apart_absent_there_and_changed(python: Path) -> None:
    assert rows(examine(CPU, {}, engine_python=python))["patches"].state == WARN
    done = apply(python)
    assert rows(examine(CPU, {}, engine_python=python))["patches"].state == OK
    (Path(done.site_packages) / "tracon_patches" / "plugin.py").write_text("")
    row = rows(examine(CPU, {}, engine_python=python))["patches"]
    assert row.state == WARN
    assert "plugin.py" in row.detail
    assert f"tracon patch apply --kind cpu --engine-python {python}" in row.remedy


def test_patches_that_cannot_be_applied_stop_what_needs_them(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writable = os.access

    def access(path: str | Path, mode: int) -> bool:
        return mode != os.W_OK and writable(path, mode)

    monkeypatch.setattr("os.access", access)
    report = examine(CPU, REQUIRES, engine_python=python)
    assert can_run(report)["plain"]
    assert not can_run(report)["noop_connector"]


def test_a_taken_port_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        launch = msgspec.structs.replace(CPU.launch, port_base=max(1024, port - PORTS_LOOKED_AT + 1))
        row = rows(examine(msgspec.structs.replace(CPU, launch=launch), {}))["ports"]
    assert row.state == WARN
    assert str(port) in row.detail
    assert "port_base" in row.remedy


def test_a_cuda_engine_needs_a_gpu_and_a_cpu_engine_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "list_gpus", lambda: "no nvidia-smi")
    monkeypatch.setattr(doctor, "INFINIBAND", tmp_path / "none")
    assert rows(examine(CPU, {}))["GPU"].state == OK
    assert rows(examine(CUDA, {}))["GPU"].state == MISSING
    assert rows(examine(CUDA, {}))["RDMA"].state == WARN
    (tmp_path / "none" / "mlx5_0").mkdir(parents=True)
    assert rows(examine(CPU, {}))["RDMA"] == Row("RDMA", OK, "mlx5_0")


def test_gpus_are_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'GPU 0: NVIDIA H20 (UUID: GPU-1)\\nGPU 1: NVIDIA H20 (UUID: GPU-2)\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert rows(examine(CUDA, {}))["GPU"] == Row("GPU", OK, "2 (NVIDIA H20)")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-2")
    assert rows(examine(CUDA, {}))["GPU"] == Row("GPU", OK, "1 of 2 (NVIDIA H20): CUDA_VISIBLE_DEVICES=GPU-2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    row = rows(examine(CUDA, {}))["GPU"]
    assert (row.state, row.detail) == (MISSING, "CUDA_VISIBLE_DEVICES=2 names none of the 2 GPUs of this host")


def test_a_disk_without_room_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "RUN_BYTES", 10**18)
    row = rows(examine(CPU, {}, workspace=tmp_path / "not" / "yet"))["disk for runs"]
    assert row.state == MISSING
    assert "1000000000 GB needed" in row.detail


def test_json_holds_all_of_it(python: Path) -> None:
    report = examine(CPU, REQUIRES, engine_python=python)
    document = json.loads(json.dumps(to_json(report)))
    assert document["kind"] == "cpu"
    assert document["ok"] is report.ok
    assert [row["what"] for row in document["rows"]] == [row.what for row in report.rows]
    assert {config["config"]: config["requires"] for config in document["configs"]} == {
        name: list(needs) for name, needs in REQUIRES.items()
    }


def test_a_need_that_is_not_known_is_not_taken_for_met(python: Path) -> None:
    report = examine(CPU, {"new": ("warp_drive",)}, engine_python=python)
    assert report.configs[0].missing == ("warp_drive",)


def test_only_what_is_named_is_reported(python: Path) -> None:
    report = examine(CPU, {"plain": (), "mooncake_both": ("mooncake",)}, engine_python=python)
    row = narrow_report(report, ["GPU"])
    assert ([one.what for one in row.rows], row.configs) == (["GPU"], ())
    assert narrow_report(report, ["gpu"]) == row
    plain = narrow_report(report, ["plain"])
    assert [config.config for config in plain.configs] == ["plain"]
    whats = {one.what for one in plain.rows}
    assert {"engine", "vLLM", "GPU", "memory"} <= whats
    assert not {"mooncake", "nixl", "lmcache", "RDMA"} & whats
    assert {"mooncake", "RDMA"} <= {one.what for one in narrow_report(report, ["mooncake_both"]).rows}
    with pytest.raises(LaunchError, match="no row or config plian"):
        narrow_report(report, ["plian"])


ADAPTER = "lmcache.integration.vllm.vllm_v1_adapter"


def stub_lmcache(python: Path, **modules: str) -> Path:
    """A package `lmcache` that imports, with its adapter for vLLM and these modules; its folder."""
    folder = python.parent.parent / "lib" / "python3.11" / "site-packages" / "lmcache"
    adapter = ADAPTER.partition(".")[2].replace(".", "/")
    for name, text in {"__init__": "", adapter: "", **modules}.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("modules", "error"),
    [
        ({"cuda_ops": "raise ImportError('libcudart.so.13: cannot open')"}, "libcudart.so.13: cannot open"),
        ({"c_ops": "raise ImportError('undefined symbol')"}, "undefined symbol"),
        ({}, "No module named 'lmcache.cuda_ops'"),
    ],
    ids=["its kernels", "the kernels of an older one", "a build without kernels"],
)
def test_a_cuda_engine_needs_the_kernels_of_lmcache(python: Path, modules: dict[str, str], error: str) -> None:
    """Without them LMCache still moves KV, by other code than the one to measure."""
    stub_lmcache(python, **modules)
    row = rows(examine(CUDA, {}, engine_python=python))["lmcache"]
    assert row.state == MISSING
    assert error in row.detail
    assert f"import torch, {ADAPTER}, lmcache." in row.remedy
    assert rows(examine(CPU, {}, engine_python=python))["lmcache"].state == OK


def test_a_cuda_engine_needs_the_adapter_of_lmcache_that_vllm_loads(python: Path) -> None:
    folder = stub_lmcache(python, cuda_ops="")
    assert rows(examine(CUDA, {}, engine_python=python))["lmcache"].state == OK
    (folder / "integration" / "vllm" / "vllm_v1_adapter.py").write_text("import vllm.absent\n")
    row = rows(examine(CUDA, {}, engine_python=python))["lmcache"]
    assert row.state == MISSING
    assert "vllm.absent" in row.detail


def test_imports_of_a_cuda_engine_are_tried_on_this_host_whatever_worked_when_it_was_built(python: Path) -> None:
    stub_lmcache(python, cuda_ops="raise ImportError('not on this host')")
    root, versions, worked = python.parent.parent, {"lmcache": "0.5.6"}, {"lmcache": ""}
    packages = root / "lib" / "python3.11" / "site-packages"
    for kind, state in (("cuda", MISSING), ("cpu", OK)):
        engine = Engine(kind, python, root, packages, versions, imports=worked, managed=True)
        assert doctor._check_components(engine)["lmcache"].state == state


@pytest.mark.parametrize(
    ("libc", "state", "shown"),
    [
        (("glibc", "2.28"), MISSING, "glibc 2.28: "),
        (("glibc", "2.31"), OK, "2.31"),
        (("glibc", "2.40"), OK, "2.40"),
        (("", ""), MISSING, "no glibc: "),
    ],
)
def test_an_old_glibc_stops_before_the_download_for_cuda(
    libc: tuple[str, str], state: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: libc)
    row = check_libc()
    assert (row.what, row.state) == ("glibc", state)
    assert row.detail.startswith(shown)
    assert ("2.31" in row.remedy) == (state == MISSING)


def test_the_version_of_glibc_matters_to_an_install_alone(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.28"))
    assert rows(examine(CUDA, {}, before_install=True))["glibc"].state == MISSING
    assert "glibc" not in rows(examine(CUDA, {}, engine_python=python))
    assert "glibc" not in rows(examine(CPU, {}, before_install=True))
