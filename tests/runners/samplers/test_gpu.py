"""The GPUs are sampled once a second while a cell is measured; what is not there is said, never 0."""

from __future__ import annotations

import queue
import sys
from pathlib import Path

import pytest

from results.records.gpu import GpuSample, read_gpu_log
from runners.samplers import gpu as sampling
from runners.samplers.gpu import GpuSampler, name_limits, open_gpus
from tests.fake_gpus import FakeGpu, make_host

WAIT_S = 30.0


def look(path: Path, cell: str = "phase-a/plain/r1") -> tuple[GpuSample, ...]:
    """One look at the host's GPUs."""
    seen: queue.Queue[tuple[GpuSample, ...]] = queue.Queue()
    with GpuSampler(path, seen.put, period_s=0.001) as sampler:
        sampler.cell = cell
        return seen.get(timeout=WAIT_S)


def test_each_gpu_is_sampled_and_told_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch, FakeGpu(reasons=0x1 | 0x4 | 0x20), FakeGpu(celsius=41))
    first, second = look(tmp_path / "gpu.csv")
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
    (sample,) = look(tmp_path / "gpu.csv")
    assert (sample.utilisation_percent, sample.power_w, sample.limited_by) == (None, None, None)
    assert read_gpu_log(tmp_path / "gpu.csv").samples[0] == sample


def test_nothing_is_sampled_between_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch)
    with GpuSampler(tmp_path / "gpu.csv", period_s=0.001):
        pass
    assert read_gpu_log(tmp_path / "gpu.csv").samples == ()


def test_without_a_driver_the_file_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "DRIVER", tmp_path / "none")
    with GpuSampler(tmp_path / "gpu.csv"):
        pass
    log = read_gpu_log(tmp_path / "gpu.csv")
    assert log.samples == ()
    assert log.reason == "this host has no NVIDIA driver: no GPU is used"


def test_without_the_optional_package_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_host(tmp_path, monkeypatch)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in str(open_gpus())


def test_a_driver_that_stops_answering_ends_the_samples_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = make_host(tmp_path, monkeypatch)
    seen: queue.Queue[tuple[GpuSample, ...]] = queue.Queue()
    with GpuSampler(tmp_path / "gpu.csv", seen.put, period_s=0.001) as sampler:
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
