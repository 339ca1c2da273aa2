"""The GPUs are sampled once a second while a cell is measured; what is not there is said, never 0."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch import gpu_devices
from results.records.gpu import GpuSample, read_gpu_log
from runners.samplers.gpu import GpuSampler, name_limits, open_gpus
from tests.fake_gpus import FakeGpu, make_host

WAIT_S = 30.0


def look(path: Path, *engines: tuple[str, ...]) -> tuple[GpuSample, ...]:
    """One look at the GPUs of engines with these devices."""
    seen: queue.Queue[tuple[GpuSample, ...]] = queue.Queue()
    with GpuSampler(path, lambda: engines, seen.put, period_s=0.001) as sampler:
        sampler.cell = "phase-a/plain/r1"
        return seen.get(timeout=WAIT_S)


def test_each_gpu_is_sampled_and_told_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(reasons=0x1 | 0x4 | 0x20), FakeGpu(celsius=41))
    first, second = look(tmp_path / "gpu.csv", ("0", "1"))
    assert (first.gpu, second.gpu, first.cell) == (0, 1, "phase-a/plain/r1")
    assert (first.clock_mhz, first.memory_clock_mhz, first.power_w, first.temperature_c) == (1755, 3201, 412, 65)
    assert (first.memory_used_mib, first.memory_total_mib) == (60 * 1024, 140 * 1024)
    assert first.limited_by == "power cap+software thermal slowdown"
    assert (second.limited_by, second.temperature_c) == ("none", 41)
    log = read_gpu_log(tmp_path / "gpu.csv")
    assert log.samples[:2] == (first, second)
    assert log.reason == ""


def test_what_a_gpu_does_not_state_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(tmp_path, monkeypatch, FakeGpu(utilisation=None, milliwatts=None))
    monkeypatch.delattr(sys.modules["pynvml"], "nvmlDeviceGetCurrentClocksEventReasons")
    assert host.gpus
    (sample,) = look(tmp_path / "gpu.csv", ("0",))
    assert (sample.utilisation_percent, sample.power_w, sample.limited_by) == (None, None, None)
    assert read_gpu_log(tmp_path / "gpu.csv").samples[0] == sample


@pytest.mark.parametrize(
    ("engines", "counts"),
    [
        ([("0",)], [1, 0, 0]),
        ([("1",), ("1",)], [0, 2, 0]),
        ([("0", "2"), ("2",)], [1, 0, 2]),
        ([("GPU-00000002",)], [0, 0, 1]),
        ([], [0, 0, 0]),
        ([("MIG-1",), ("0",)], [None, None, None]),
        ([("7",)], [None, None, None]),
    ],
)
def test_each_sample_has_how_many_engines_of_the_run_use_the_gpu(
    engines: list[tuple[str, ...]], counts: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, *(FakeGpu() for _ in counts))
    gpus = open_gpus()
    assert not isinstance(gpus, str)
    assert [sample.engines for sample in gpus.look("one", engines)] == counts


@pytest.fixture
def engine() -> Iterator[int]:
    """The pid of a process that this one has started, as a run has started its engines."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


OTHER = os.getppid()
GIB_IN_MIB = 1024


@pytest.mark.parametrize(
    ("own", "other", "others_mib"),
    [
        (40 * GIB_IN_MIB, None, 20 * GIB_IN_MIB),
        (40 * GIB_IN_MIB, 20 * GIB_IN_MIB, 20 * GIB_IN_MIB),
        (61 * GIB_IN_MIB, None, 0),
        ("[N/A]", 20 * GIB_IN_MIB, None),
        (None, 20 * GIB_IN_MIB, None),
        (None, None, None),
    ],
    ids=["not listed", "listed", "none", "memory not stated", "pids of another namespace", "an empty list"],
)
def test_memory_that_no_process_of_the_run_holds_is_others(
    own: int | str | None,
    other: int | None,
    others_mib: float | None,
    engine: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = tuple((pid, mib) for pid, mib in ((engine, own), (OTHER, other)) if mib is not None)
    make_host(tmp_path, monkeypatch, FakeGpu(used=60 << 30, processes=processes))
    (sample,) = look(tmp_path / "gpu.csv", ("0",))
    assert sample.others_mib == others_mib
    assert read_gpu_log(tmp_path / "gpu.csv").samples[0] == sample


def test_what_the_driver_reserves_is_no_process(engine: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(used=60 << 30, processes=((engine, 59 * GIB_IN_MIB),)))
    nvml = sys.modules["pynvml"]
    reserved = {None: 0, 2: 700 << 20}
    monkeypatch.setattr(nvml, "nvmlMemory_v2", 2, raising=False)
    monkeypatch.setattr(
        nvml,
        "nvmlDeviceGetMemoryInfo",
        lambda gpu, version=None: SimpleNamespace(used=gpu.used - reserved[version], total=gpu.total),
    )
    (sample,) = look(tmp_path / "gpu.csv", ("0",))
    assert (sample.memory_used_mib, sample.others_mib) == (60 * GIB_IN_MIB, GIB_IN_MIB - 700)


def test_without_a_list_of_processes_others_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch)
    monkeypatch.delattr(sys.modules["pynvml"], "nvmlDeviceGetComputeRunningProcesses")
    (sample,) = look(tmp_path / "gpu.csv", ("0",))
    assert sample.others_mib is None


def test_only_the_gpus_of_the_runs_engines_are_told_and_all_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_host(tmp_path, monkeypatch, *(FakeGpu() for _ in range(8)))
    (sample,) = look(tmp_path / "gpu.csv", ("5",))
    assert (sample.gpu, sample.engines) == (5, 1)
    samples = read_gpu_log(tmp_path / "gpu.csv").samples
    assert {(one.gpu, one.engines) for one in samples} == {(gpu, int(gpu == 5)) for gpu in range(8)}


def test_nothing_is_sampled_between_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch)
    with GpuSampler(tmp_path / "gpu.csv", lambda: (), period_s=0.001):
        pass
    assert read_gpu_log(tmp_path / "gpu.csv").samples == ()


def test_without_a_driver_the_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_devices, "DRIVER", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with GpuSampler(tmp_path / "gpu.csv", lambda: ()):
        pass
    log = read_gpu_log(tmp_path / "gpu.csv")
    assert log.samples == ()
    assert log.reason == "this host has no NVIDIA driver: no GPU is used"


def test_a_kernel_without_the_drivers_file_may_have_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_host(tmp_path, monkeypatch)
    (host.folder / "version").unlink()  # as in WSL
    assert not isinstance(open_gpus(), str)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in str(open_gpus())


def test_a_driver_that_stops_answering_ends_the_samples_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch)
    seen: queue.Queue[tuple[GpuSample, ...]] = queue.Queue()
    with GpuSampler(tmp_path / "gpu.csv", lambda: [("0",)], seen.put, period_s=0.001) as sampler:
        sampler.cell = "one"
        seen.get(timeout=WAIT_S)
        host.gpus[0].used = None  # type: ignore[assignment]  # an answer that no GPU gives
        sampler._thread.join(WAIT_S)
    text = (tmp_path / "gpu.csv").read_text()
    assert "# the samples end: TypeError" in text
    assert read_gpu_log(tmp_path / "gpu.csv").samples


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        (0x0, "none"),
        (0x1, "none"),
        (0x4, "power cap"),
        (0x48, "hardware slowdown+hardware thermal slowdown"),
        (0x1000, "0x1000"),
    ],
)
def test_what_limits_clocks_is_named(bits: int, text: str) -> None:
    assert name_limits(bits) == text
