"""What connectors written for accelerators need on a CPU build, applied only with TRACON_CPU_CONNECTORS=1.

One function per connector in SHIMS; each changes nothing where it is not needed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping

from . import lmcache_cpu, nixl_cpu


def apply() -> dict[str, str]:
    """Apply every shim that is needed here; returns by connector why its shim failed. The others are still applied."""
    failures: dict[str, str] = {}
    for name, shim in SHIMS.items():
        try:
            if is_cpu_build():
                shim()
        except Exception as error:  # noqa: BLE001 - a connector that is not configured must not stop the engine
            failures[name] = f"{type(error).__name__}: {error}"
    return failures


def is_cpu_build() -> bool:
    import torch

    return not (torch.backends.cuda.is_built() or torch.accelerator.is_available())


def answer_device_index() -> None:
    """Mooncake asks torch for the current accelerator and a CPU build raises: answer 0, which it then ignores.

    Everything else in Mooncake runs on host memory as it is (with `"mooncake_protocol": "tcp"`).
    """
    import torch

    try:
        torch.accelerator.current_device_index()
    except RuntimeError:
        torch.accelerator.current_device_index = lambda: 0


def give_lmcache_blocks() -> None:
    """LMCache has no CPU side for vLLM: supply one that moves whole blocks, as soon as vLLM makes its connector.

    LMCache also needs `PYTHONHASHSEED` set before Python starts, and full chunks that are multiples of the block.
    """
    if importlib.util.find_spec("lmcache") is not None:
        lmcache_cpu.supply_when_made()


def calm_nixl() -> None:
    """NIXL polls one core without a pause and pins the engine's thread to another: a CPU build computes on both."""
    if importlib.util.find_spec("nixl") is not None:
        nixl_cpu.calm_when_made()


SHIMS: Mapping[str, Callable[[], None]] = {
    "mooncake": answer_device_index, "lmcache": give_lmcache_blocks, "nixl": calm_nixl,
}  # fmt: skip
