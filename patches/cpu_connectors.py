"""What connectors written for accelerators need on a CPU build, applied only with TRACON_CPU_CONNECTORS=1.

One function per connector in SHIMS; each looks whether it is needed and changes nothing where it is not.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import lmcache_cpu, nixl_cpu


@dataclass(frozen=True, slots=True)
class ShimOutcome:
    applied: bool
    detail: str
    failed: bool = False


NO_CPU_BUILD = ShimOutcome(applied=False, detail="not needed: this is not a CPU build of torch")


def apply() -> dict[str, ShimOutcome]:
    """Apply every shim that is needed here; one that fails says so and leaves the others alone."""
    outcomes: dict[str, ShimOutcome] = {}
    for name, shim in SHIMS.items():
        try:
            outcomes[name] = shim()
        except Exception as error:  # noqa: BLE001 - a connector that is not configured must not keep the engine from starting
            outcomes[name] = ShimOutcome(applied=False, detail=f"{type(error).__name__}: {error}", failed=True)
    return outcomes


def is_cpu_build() -> bool:
    import torch

    return not (torch.backends.cuda.is_built() or torch.accelerator.is_available())


def answer_device_index() -> ShimOutcome:
    """Mooncake asks torch for the current accelerator and a CPU build raises: answer 0, which it then ignores.

    Everything else in Mooncake runs on host memory as it is (with `"mooncake_protocol": "tcp"`).
    """
    import torch

    if not is_cpu_build():
        return NO_CPU_BUILD
    try:
        torch.accelerator.current_device_index()
    except RuntimeError as error:
        torch.accelerator.current_device_index = _return_first_device
        return ShimOutcome(applied=True, detail=str(error).splitlines()[0])
    return ShimOutcome(applied=False, detail="not needed: torch answers by itself")


def _return_first_device() -> int:
    return 0


def give_lmcache_blocks() -> ShimOutcome:
    """LMCache has no CPU side for vLLM: supply one that moves whole blocks, as soon as vLLM makes its connector.

    It also needs `PYTHONHASHSEED` fixed where Python starts, and only full chunks that are multiples of the block.
    """
    if not is_cpu_build():
        return NO_CPU_BUILD
    if importlib.util.find_spec("lmcache") is None:
        return ShimOutcome(applied=False, detail="not needed: LMCache is not installed")
    lmcache_cpu.supply_when_made()
    return ShimOutcome(applied=True, detail="LMCacheConnectorV1 stores and loads whole blocks")


def calm_nixl() -> ShimOutcome:
    """NIXL polls on a core without a pause and pins the engine's thread to another: on a CPU build both compute."""
    if not is_cpu_build():
        return NO_CPU_BUILD
    if importlib.util.find_spec("nixl") is None:
        return ShimOutcome(applied=False, detail="not needed: NIXL is not installed")
    nixl_cpu.calm_when_made()
    return ShimOutcome(applied=True, detail=f"its progress thread sleeps {nixl_cpu.DELAY_US} us between polls")


SHIMS: Mapping[str, Callable[[], ShimOutcome]] = {
    "mooncake": answer_device_index, "lmcache": give_lmcache_blocks, "nixl": calm_nixl,
}  # fmt: skip
