"""Samples the GPUs once a second while cells are measured, in a thread; writes the run's `gpu.csv`.

NVML (through nvidia-ml-py) answers in microseconds; a call of nvidia-smi takes a core for a tenth of a second or more.
"""

from __future__ import annotations

import csv
import importlib
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from launch.gpu_devices import explain_no_gpu, names_gpu
from results.records.gpu import HEADER, REASON_MARK, UNLIMITED, GpuSample, format_sample, is_of_run
from runners.samplers.cell_sampler import PERIOD_S, CellSampler

IDLE = 0x1
LIMITS = {
    0x2: "clocks set by a user", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake",
    0x100: "display clocks",
}  # fmt: skip
"""NVML's bits of what limits clocks (nvmlClocksEventReason...), but for IDLE: a GPU with nothing to do."""
MIB = 1 << 20
NO_DRIVER = "this host has no NVIDIA driver: no GPU is used"
NO_PACKAGE = "nvidia-ml-py is not in Tracon's environment: `.venv/bin/uv pip install nvidia-ml-py` adds it"
Devices = Sequence[str]
"""The GPUs of one engine, as CUDA_VISIBLE_DEVICES names them."""
OnSamples = Callable[[tuple[GpuSample, ...]], object]
log = logging.getLogger("tracon.gpu")


class GpuSampler(CellSampler):
    """Writes every GPU of the host; `on_samples` gets the samples of those that engines of the run use.

    `list_engines` returns the devices of each running engine; both are called in the sampler's thread. Without a GPU
    the file states the reason. An error ends the samples and nothing else.
    """

    def __init__(
        self,
        path: Path,
        list_engines: Callable[[], Iterable[Devices]],
        on_samples: OnSamples = lambda samples: None,
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        super().__init__(path, period_s=period_s)
        self._list_engines = list_engines
        self._on_samples = on_samples

    def _sample(self) -> None:
        try:
            fresh = not self._path.exists() or self._path.stat().st_size == 0
            with self._path.open("a", newline="", encoding="utf-8", buffering=1) as file:
                rows = csv.writer(file, lineterminator="\n")
                if fresh:
                    rows.writerow(HEADER)
                gpus = open_gpus()
                if isinstance(gpus, str):
                    file.write(f"{REASON_MARK}{gpus}\n")
                    return
                while not self._ended.wait(self._period_s):
                    if not (cell := self.cell):
                        continue
                    samples = gpus.look(cell, self._list_engines())
                    rows.writerows(map(format_sample, samples))
                    if of_run := tuple(filter(is_of_run, samples)):
                        self._on_samples(of_run)
        except Exception as error:  # noqa: BLE001 - NVML raises classes of its own; a run goes on without samples
            log.warning("the GPUs are no longer sampled: %s: %s", type(error).__name__, error)
            with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
                file.write(f"{REASON_MARK}the samples end: {type(error).__name__}: {error}\n")


class Gpus:
    """The GPUs that NVML lists."""

    def __init__(self, nvml: Any) -> None:  # noqa: ANN401 - a module without types
        self._nvml = nvml
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        self._uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in self._handles]

    def __len__(self) -> int:
        return len(self._handles)

    def look(self, cell: str, engines: Iterable[Devices]) -> tuple[GpuSample, ...]:
        """A sample of each. Raises NVML's error where a GPU does not report its memory."""
        t_ns, counts = time.perf_counter_ns(), self._count_engines(engines)
        return tuple(
            self._look_at(handle, index, cell, t_ns, None if counts is None else counts[index])
            for index, handle in enumerate(self._handles)
        )

    def _count_engines(self, engines: Iterable[Devices]) -> Counter[int] | None:
        """How many engines use each GPU; None where a device is not one of these GPUs: a part of one (MIG)."""
        counts: Counter[int] = Counter()
        for device in (device for devices in engines for device in devices):
            gpu = next((gpu for gpu, uuid in enumerate(self._uuids) if names_gpu(device, str(gpu), uuid)), None)
            if gpu is None:
                return None
            counts[gpu] += 1
        return counts

    def _look_at(self, handle: Any, index: int, cell: str, t_ns: int, engines: int | None) -> GpuSample:  # noqa: ANN401
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        watts = self._ask("nvmlDeviceGetPowerUsage", handle)
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
        return GpuSample(
            t_ns=t_ns,
            gpu=index,
            utilisation_percent=self._ask("nvmlDeviceGetUtilizationRates", handle, of="gpu"),
            memory_used_mib=memory.used / MIB,
            clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            power_w=None if watts is None else watts / 1000,
            temperature_c=self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
            memory_total_mib=memory.total / MIB,
            limited_by=None if bits is None else name_limits(int(bits)),
            cell=cell,
            engines=engines,
            others_mib=self._measure_others(handle, memory.used),
        )

    def _measure_others(self, handle: Any, used_bytes: int) -> float | None:  # noqa: ANN401
        """MiB in use beside what processes of the run hold; None where the driver lists none of them."""
        list_processes = getattr(self._nvml, "nvmlDeviceGetComputeRunningProcesses", None)
        if list_processes is None:
            return None
        with suppress(self._nvml.NVMLError):
            own = [process.usedGpuMemory for process in list_processes(handle) if is_of_this_run(process.pid)]
            if own and None not in own:
                others: int = self._read_unreserved(handle, used_bytes) - sum(own)
                return max(0, others) / MIB
        return None

    def _read_unreserved(self, handle: Any, used_bytes: int) -> int:  # noqa: ANN401
        """Bytes in use without what the driver reserves, where NVML states them apart."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        return used_bytes if version is None else int(self._nvml.nvmlDeviceGetMemoryInfo(handle, version).used)

    def _ask(self, function: str, *arguments: Any, of: str = "") -> float | None:
        """The answer, or the field `of` it; None where this GPU, its driver or this nvidia-ml-py does not know."""
        ask = getattr(self._nvml, function, None)
        if ask is None:
            return None
        with suppress(self._nvml.NVMLError):
            answer = ask(*arguments)
            return float(getattr(answer, of) if of else answer)
        return None


def is_of_this_run(pid: int) -> bool:
    """Whether the process descends from this one, as all of an engine does (`launch/guard.py`)."""
    with suppress(psutil.Error):
        return os.getpid() in (parent.pid for parent in psutil.Process(pid).parents())
    return False


def open_gpus() -> Gpus | str:
    """The GPUs of this host, or why none can be sampled."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return NO_DRIVER if explain_no_gpu() else NO_PACKAGE
    try:
        nvml.nvmlInit()
        gpus = Gpus(nvml)
    except nvml.NVMLError as error:
        return NO_DRIVER if explain_no_gpu() else f"NVML does not answer: {error}"
    return gpus if len(gpus) else "NVML lists no GPU"


def name_limits(bits: int) -> str:
    """What limits the clocks, joined by `+`; a bit that has no name here by its number."""
    names = [name for bit, name in LIMITS.items() if bits & bit]
    unknown = bits & ~(IDLE | sum(LIMITS))
    names += [f"{unknown:#x}"] if unknown else []
    return "+".join(names) or UNLIMITED
