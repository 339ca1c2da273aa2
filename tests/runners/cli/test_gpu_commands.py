"""The commands before the first engine starts, as processes on a fake GPU host: `tracon doctor` and `tracon plan`."""

from __future__ import annotations

import socket
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.install_plan import lock_file
from launch.libraries import SYSTEM_LIBRARIES
from tests.e2e.cli import data, tracon
from tests.e2e.gpu_runs import gpu_host
from tests.fake_gpus import FakeGpu, FakeHost
from tests.launch import fake_uv

CODER = "h200-qwen3-coder-30b-dummy"
HEADER = Path(sysconfig.get_path("include")) / "Python.h"
DOES_NOT_FIT = "An engine of this run does not fit into GPU"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRACON_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CC", "true")
    with gpu_host(tmp_path):
        yield tmp_path / "host"


@pytest.fixture(scope="module")
def cuda_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with stubs of all that is locked for CUDA, every one of which can be imported."""
    root = tmp_path_factory.mktemp("cuda") / "env"
    fake_uv.make_environment(root)
    packages = root / "lib" / "python3.11" / "site-packages"
    fake_uv.install_stubs(packages, lock_file("cuda"))
    kernels = [f"vllm/vllm_flash_attn/_vllm_fa{number}_C.abi3.so" for number in (2, 3)]
    copies = [f"nixl_cu13.libs/{library.soname.replace('.so', '-0.so')}" for library in SYSTEM_LIBRARIES["cuda"]]
    lmcache = [f"lmcache/{name}.py" for name in ("__init__", "cuda_ops", "integration/vllm/vllm_v1_adapter")]
    for name in ("torch/__init__.py", *lmcache, *kernels, *copies):
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (packages / "torch" / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    return root / "bin" / "python"


@pytest.mark.skipif(not HEADER.is_file(), reason="this Python has no headers, which an engine on a GPU needs")
def test_a_gpu_host_that_lacks_nothing_passes_the_strict_doctor(host: Path, cuda_python: Path, tmp_path: Path) -> None:
    asked = ("doctor", "--profile", CODER, "--strict", "--engine-python", str(cuda_python))
    done = tracon(*asked, "--json", workspace=tmp_path)
    report = data(done)
    assert [row for row in report["rows"] if row["state"] == "missing"] == []
    assert done.returncode == 0, done.stderr
    rows = {row["what"]: row["detail"] for row in report["rows"]}
    assert rows["GPU"] == "2 (NVIDIA H200)"
    assert rows["attention"] == "compute capability 9: FlashAttention 3"
    assert all(config["ok"] for config in report["configs"])
    (host / "version").unlink()
    done = tracon(*asked, workspace=tmp_path)
    assert done.returncode == 4
    assert "missing on this host: driver and CUDA." in done.stderr


def test_an_old_driver_stops_the_doctor_before_an_environment_is_installed(host: Path, tmp_path: Path) -> None:
    (host / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    asked = ("doctor", "--profile", CODER, "--strict", "--before-install", "--only", "nixl_both", "--json")
    done = tracon(*asked, workspace=tmp_path)
    assert done.returncode == 4
    assert "driver and CUDA" in " ".join(done.stderr.split())
    report = data(done)
    whats = {row["what"] for row in report["rows"]}
    assert {"GPU", "GPU memory", "driver and CUDA", "disk for engines"} <= whats
    assert not {"engine", "RDMA"} & whats
    assert report["configs"] == []
    table = tracon(*asked[:-1], workspace=tmp_path).stdout
    assert "550.54.15" in table
    assert "can run" not in table, "that is for the environment to say"


@pytest.mark.parametrize(
    ("experiment", "preset"),
    [
        ("connector-tax", "gpu-demo"),
        ("routing", "gpu-demo"),
        ("pd-lifecycle", "gpu-demo"),
        ("pd-lifecycle", "two-gpus"),
    ],
)
@pytest.mark.usefixtures("host")
def test_what_make_gpu_and_the_page_on_gpus_name_is_planned(experiment: str, preset: str, tmp_path: Path) -> None:
    done = tracon("plan", experiment, "--profile", CODER, "--preset", preset, "--json", workspace=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = data(done)
    assert plan["profile"] == CODER
    assert plan["estimated_s"] > 600
    assert not [note for note in plan["notes"] if DOES_NOT_FIT in note]


@pytest.mark.parametrize(
    ("experiment", "preset", "share"),
    [
        ("connector-tax", "gpu-demo", "90 % of the GPU's memory are 71.7 GiB"),
        ("routing", "gpu-demo", "46 % of the GPU's memory are 36.6 GiB"),
        ("routing", "two-gpus", ""),
    ],
)
def test_a_plan_says_that_a_model_does_not_fit_by_the_doctors_estimate(
    experiment: str, preset: str, share: str, host: Path, tmp_path: Path
) -> None:
    """On two H100; a plan is made all the same."""
    FakeHost(host, [FakeGpu("NVIDIA H100", used=0, total=81_559 << 20) for _ in range(2)]).write_tools()
    done = tracon("plan", experiment, "--profile", CODER, "--preset", preset, "--json", workspace=tmp_path)
    assert done.returncode == 0, done.stderr
    notes = [note for note in data(done)["notes"] if DOES_NOT_FIT in note]
    assert len(notes) == (1 if share else 0)
    assert share in "".join(notes)


H100, H200 = (FakeGpu(used=0, total=mib << 20) for mib in (81_559, 143_771))
HELD = FakeGpu(used=120 << 30, total=H200.total)
NO_ROOM, OTHERS, PORT = "fits into none of the GPUs", "other processes hold memory of GPU 0, 1", "is taken by"
ACCEPTED = ("--accept-small-gpus",)


@pytest.mark.parametrize(
    ("gpus", "options", "reason"),
    [
        ((H100, H100), (), NO_ROOM),
        ((H100, H100), ACCEPTED, PORT),
        ((H100, H200), (), PORT),
        ((HELD, HELD), (), OTHERS),
        ((HELD, HELD), ACCEPTED, PORT),
        ((HELD, H200), (), PORT),
    ],
    ids=[
        "its engine fits into no GPU", "no GPU, accepted", "its engine fits into one GPU",
        "others hold both GPUs", "both held, accepted", "others hold one GPU",
    ],
)  # fmt: skip
def test_a_run_is_refused_only_if_no_gpu_has_room_for_its_engine(
    gpus: tuple[FakeGpu, ...], options: tuple[str, ...], reason: str, host: Path, cuda_python: Path, tmp_path: Path
) -> None:
    """A taken port is looked at last: it stops the runs that nothing else refuses."""
    FakeHost(host, list(gpus)).write_tools()
    workspace = tmp_path / "runs"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = tracon(
            "run", "connector-tax", "--profile", CODER, "--preset", "gpu-demo", "--engine-python", str(cuda_python),
            "--port", str(taken.getsockname()[1]), *options, workspace=workspace,
        )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert not list(workspace.glob("*connector-tax*"))
    text = " ".join(done.stderr.split())
    assert {refusal for refusal in (NO_ROOM, OTHERS, PORT) if refusal in text} == {reason}
