"""Samples the GPUs once a second while cells are measured, in a thread; writes the run's `gpu.csv`.

NVML (through nvidia-ml-py) answers in microseconds; a call of nvidia-smi takes a core for a tenth of a second and more.
"""

from __future__ import annotations

import csv
import importlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from launch.gpu_devices import DRIVER
from results.records.gpu import HEADER, REASON_MARK, UNLIMITED, GpuSample, format_sample

PERIOD_S = 1.0
IDLE = 0x1
LIMITS = {
    0x2: "clocks set by a user", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
    0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake",
    0x100: "display clocks",
}  # fmt: skip
"""NVML's bits of what limits clocks (nvmlClocksEventReason...), but for IDLE: a GPU with nothing to do."""
MIB = 1 << 20
Tell = Callable[[tuple[GpuSample, ...]], object]
log = logging.getLogger("tracon.gpu")


class GpuSampler:
    """Samples while `cell` is not empty, for the length of a `with` block; `tell` is called with each sample in the
    sampler's thread. Without a GPU the file states the reason. An error ends the samples and nothing else."""

    def __init__(self, path: Path, tell: Tell = lambda samples: None, *, period_s: float = PERIOD_S) -> None:
        self.cell = ""
        """The cell that is measured now."""
        self._path = path
        self._tell = tell
        self._period_s = period_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_gpus, name="gpu-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _sample_gpus(self) -> None:
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
                    samples = gpus.look(cell)
                    rows.writerows(map(format_sample, samples))
                    self._tell(samples)
        except Exception as error:  # noqa: BLE001 - NVML raises classes of its own; a run goes on without samples
            log.warning("the GPUs are not sampled any more: %s: %s", type(error).__name__, error)
            with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
                file.write(f"{REASON_MARK}the samples end: {type(error).__name__}: {error}\n")


class Gpus:
    """The GPUs that NVML lists."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:  # noqa: ANN401 - a module without types
        self._nvml = nvml
        self._handles = handles

    def look(self, cell: str) -> tuple[GpuSample, ...]:
        """A sample of each. Raises NVML's error where a GPU does not answer what every GPU has."""
        t_ns = time.perf_counter_ns()
        return tuple(self._look_at(handle, index, cell, t_ns) for index, handle in enumerate(self._handles))

    def _look_at(self, handle: Any, index: int, cell: str, t_ns: int) -> GpuSample:  # noqa: ANN401
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
        )

    def _ask(self, function: str, *arguments: Any, of: str = "") -> float | None:
        """The answer, or the field `of` it; None where this GPU, its driver or this nvidia-ml-py does not know."""
        ask = getattr(self._nvml, function, None)
        if ask is None:
            return None
        with suppress(self._nvml.NVMLError):
            answer = ask(*arguments)
            return float(getattr(answer, of) if of else answer)
        return None


def open_gpus() -> Gpus | str:
    """The GPUs of this host, or why none can be asked."""
    if not DRIVER.exists():
        return "this host has no NVIDIA driver: no GPU is used"
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return "nvidia-ml-py is not installed beside Tracon: `pip install nvidia-ml-py`"
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        return f"NVML does not answer: {error}"
    return Gpus(nvml, handles) if handles else "NVML lists no GPU"


def name_limits(bits: int) -> str:
    """What limits the clocks, joined by `+`; a bit that has no name here by its number."""
    names = [name for bit, name in LIMITS.items() if bits & bit]
    unknown = bits & ~(IDLE | sum(LIMITS))
    names += [f"{unknown:#x}"] if unknown else []
    return "+".join(names) or UNLIMITED
