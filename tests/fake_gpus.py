"""A host with NVIDIA GPUs that do not exist: nvidia-smi, NVML, the driver's files, RDMA adapters."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

import launch.doctor
import launch.gpu_checks
import launch.gpu_devices
import launch.rdma_checks
from launch.profile import Profile, load_profile

DRIVER_TEXT = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n"
SMI = """#!/bin/sh
fields=${{1#--query-gpu=}}
state() {{
  line=
  IFS=,
  for field in $fields; do
    case $field in
      index) value=$1 ;;
      uuid) value=$2 ;;
      compute_cap) value=$3 ;;
      memory.total) value=$4 ;;
      memory.used) value=$5 ;;
      compute_mode) value=$6 ;;
      mig.mode.current) value=$7 ;;
      driver_version) value={driver} ;;
      *) echo "unknown field: $field" >&2; exit 1 ;;
    esac
    line="$line, $value"
  done
  echo "${{line#, }}"
}}
if [ "$1" = -L ]; then
{listed}
elif [ "$*" = "topo -m" ]; then
printf '\t\033[4mGPU0\tGPU1\033[0m\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n'
elif [ "$1" = --query-compute-apps=gpu_uuid,pid,used_memory ]; then
:
{processes}
else
{states}
fi
"""
"""As nvidia-smi it ignores CUDA_VISIBLE_DEVICES."""


def cuda_profile(memory_share: float | None = None) -> Profile:
    """A small model on a GPU; `memory_share`: of its memory, for an engine."""
    profile = load_profile("h200-qwen3-0.6b-dummy")
    engine = msgspec.structs.replace(profile.engine, gpu_memory_utilization=memory_share)
    return msgspec.structs.replace(profile, engine=engine)


class NVMLError(Exception):
    """As pynvml's."""


@dataclass
class FakeGpu:
    """What NVML says of one GPU; `None` = it does not support the question."""

    name: str = "NVIDIA H200"
    utilisation: float | None = 97.0
    used: int = 60 << 30
    total: int = 140 << 30
    clocks: tuple[int, int] = (1755, 3201)
    milliwatts: int | None = 412_000
    celsius: int = 65
    reasons: int = 0
    capability: str = "9.0"
    compute_mode: str = "Default"
    mig: str = "Disabled"
    processes: tuple[tuple[int, int | str], ...] = ()
    """Pid and MiB of those that hold its memory, as nvidia-smi lists them; in most containers it lists none."""


@dataclass
class FakeHost:
    folder: Path
    gpus: list[FakeGpu] = field(default_factory=lambda: [FakeGpu()])
    driver: str = "[N/A]"
    """What nvidia-smi states as the driver's version."""

    @staticmethod
    def uuid(index: int) -> str:
        return f"GPU-{index:08x}-beef"

    def write_tools(self) -> None:
        """Put nvidia-smi into the folder, as it answers for these GPUs."""
        listed = "\n".join(
            f"echo 'GPU {index}: {gpu.name} (UUID: {self.uuid(index)})'" for index, gpu in enumerate(self.gpus)
        )
        states = "\n".join(
            f"state {index} {self.uuid(index)} {gpu.capability} {gpu.total >> 20} {gpu.used >> 20} "
            f"{gpu.compute_mode} {gpu.mig}"
            for index, gpu in enumerate(self.gpus)
        )
        processes = "\n".join(
            f"echo '{self.uuid(index)}, {pid}, {mib}'"
            for index, gpu in enumerate(self.gpus)
            for pid, mib in gpu.processes
        )
        tool = self.folder / "nvidia-smi"
        tool.write_text(SMI.format(listed=listed, states=states, processes=processes, driver=self.driver))
        tool.chmod(0o755)

    def add_adapter(self, name: str, state: str = "") -> None:
        """An RDMA adapter with its node, and a port in this state; empty = without a port."""
        number = len(list(self.folder.glob("infiniband_verbs/*")))
        verbs, nodes = self.folder / "infiniband_verbs" / f"uverbs{number}", self.folder / "nodes"
        port = self.folder / "infiniband" / name / "ports" / "1"
        for folder in (verbs, nodes, port if state else port.parents[1]):
            folder.mkdir(parents=True, exist_ok=True)
        (verbs / "ibdev").write_text(f"{name}\n")
        (nodes / verbs.name).touch()
        if state:
            (port / "state").write_text(f"{state}\n")

    def nvml(self) -> Any:  # noqa: ANN401 - a module made here
        """A `pynvml` that answers for these GPUs."""
        module: Any = ModuleType("pynvml")
        module.__spec__ = ModuleSpec("pynvml", None)
        module.NVMLError = NVMLError
        module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM, module.NVML_TEMPERATURE_GPU = 1, 2, 0
        module.nvmlInit = lambda: None
        module.nvmlDeviceGetCount = lambda: len(self.gpus)
        module.nvmlDeviceGetHandleByIndex = lambda index: self.gpus[index]
        module.nvmlDeviceGetUUID = lambda gpu: self.uuid(next(i for i, one in enumerate(self.gpus) if one is gpu))
        module.nvmlDeviceGetMemoryInfo = lambda gpu: SimpleNamespace(used=gpu.used, total=gpu.total)
        module.nvmlDeviceGetUtilizationRates = lambda gpu: SimpleNamespace(gpu=_supported(gpu.utilisation))
        module.nvmlDeviceGetPowerUsage = lambda gpu: _supported(gpu.milliwatts)
        module.nvmlDeviceGetClockInfo = lambda gpu, which: gpu.clocks[which - 1]
        module.nvmlDeviceGetTemperature = lambda gpu, _sensor: gpu.celsius
        module.nvmlDeviceGetCurrentClocksEventReasons = lambda gpu: gpu.reasons
        module.nvmlDeviceGetComputeRunningProcesses = lambda gpu: [
            SimpleNamespace(pid=pid, usedGpuMemory=mib << 20 if isinstance(mib, int) else None)
            for pid, mib in gpu.processes
        ]
        return module


def _supported(value: float | None) -> float:
    if value is None:
        raise NVMLError("Not Supported")
    return value


def make_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu, rdma: tuple[str, ...] = ("mlx5_0",)
) -> FakeHost:
    """This host, as far as Tracon looks, with these GPUs (one H200 where none is named) and RDMA adapters."""
    host = FakeHost(tmp_path / "gpu-host", list(gpus) or [FakeGpu()])
    host.folder.mkdir()
    host.write_tools()
    driver = host.folder / "version"
    driver.write_text(DRIVER_TEXT)
    for name in rdma:
        host.add_adapter(name)
    monkeypatch.setattr(launch.rdma_checks, "DEVICE_NODES", host.folder / "nodes")
    monkeypatch.setattr(launch.rdma_checks, "PEER_MEMORY", host.folder / "nvidia_peermem")
    for name in (launch.rdma_checks.DMA_BUF, launch.rdma_checks.FORCE_TCP):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{host.folder}:/usr/bin:/bin")
    for module in (launch.gpu_devices, launch.gpu_checks):
        monkeypatch.setattr(module, "DRIVER", driver)
    monkeypatch.setattr(launch.gpu_checks, "COMPAT_ROOT", host.folder)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(launch.doctor, "INFINIBAND", host.folder / "infiniband")
    monkeypatch.setitem(sys.modules, "pynvml", host.nvml())
    return host
