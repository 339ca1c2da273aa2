"""NVML of the fake host: two H200, busy, the first at its power limit."""

from __future__ import annotations

from types import SimpleNamespace

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
GPUS = (0, 1)


class NVMLError(Exception):
    pass


def nvmlInit() -> None: ...


def nvmlDeviceGetCount() -> int:
    return len(GPUS)


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return GPUS[index]


def nvmlDeviceGetUUID(gpu: int) -> str:
    return f"GPU-{gpu:08x}-beef"


def nvmlDeviceGetMemoryInfo(_gpu: int) -> SimpleNamespace:
    return SimpleNamespace(used=60 << 30, total=140 << 30)


def nvmlDeviceGetUtilizationRates(_gpu: int) -> SimpleNamespace:
    return SimpleNamespace(gpu=97)


def nvmlDeviceGetPowerUsage(_gpu: int) -> int:
    return 698_000


def nvmlDeviceGetClockInfo(_gpu: int, which: int) -> int:
    return {NVML_CLOCK_SM: 1755, NVML_CLOCK_MEM: 3201}[which]


def nvmlDeviceGetTemperature(_gpu: int, _sensor: int) -> int:
    return 65


def nvmlDeviceGetCurrentClocksEventReasons(gpu: int) -> int:
    return 0x4 if gpu == 0 else 0x0
