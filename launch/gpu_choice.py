"""Which GPUs have room for engines beside the memory that other processes hold."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from launch.gpu_devices import PART, VISIBLE, ask_nvidia_smi, has_free, list_visible_devices, names_gpu
from launch.profile import Profile
from results.records.percent import format_percent


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """The GPUs that engines may take, each as CUDA_VISIBLE_DEVICES names it."""

    devices: tuple[str, ...]
    """All of them. Engines take the first ones."""
    full: tuple[str, ...]
    """Those without room for the engines of one GPU. One that nvidia-smi does not state is not among them."""
    shortage: str
    """What the full ones have free and what engines take; empty where none is full."""
    small: tuple[str, ...] = ()
    """Those into which an engine does not fit, even where all of their memory is free."""

    @property
    def free(self) -> tuple[str, ...]:
        return tuple(device for device in self.devices if device not in self.full and device not in self.small)

    def must_skip(self, gpus: int) -> bool:
        """Whether engines that take this many GPUs in all would take one that is not free, and enough are."""
        return not set(self.devices[:gpus]) <= set(self.free) and len(self.free) >= gpus

    def explain_skipped(self, gpus: int) -> str:
        """A sentence where engines must skip GPUs; else empty."""
        if not self.must_skip(gpus):
            return ""
        why = [f"Other processes hold memory of GPU {', '.join(self.full)}: {self.shortage}."] if self.full else []
        if self.small:
            why.append(f"An engine does not fit into GPU {', '.join(self.small)}, by an estimate.")
        return f"{' '.join(why)} The engines take GPU {', '.join(self.free[:gpus])}."

    def name_free(self, gpus: int) -> dict[str, str]:
        """CUDA_VISIBLE_DEVICES without the full GPUs where engines must skip some; else empty."""
        return {VISIBLE: ",".join(self.free)} if self.must_skip(gpus) else {}


def choose_gpus(
    profile: Profile,
    engines_per_gpu: int = 1,
    environ: Mapping[str, str] = os.environ,
    small: Collection[str] = (),
) -> GpuChoice | None:
    """Which GPUs have room, by their free memory now. `small`: indices of those into which an engine does not fit.

    None where it is not known: no CUDA engine, no `gpu_memory_utilization`, a part of a GPU (MIG), or no nvidia-smi.
    """
    share = profile.engine.gpu_memory_utilization
    if profile.engine.kind != "cuda" or share is None:
        return None
    together = share * engines_per_gpu
    needed = together if together <= 1 else share  # more than one GPU has: not all of them run at once
    rows = ask_nvidia_smi("gpu", ("index", "uuid", "memory.total", "memory.used"), environ.get("PATH", ""))
    try:
        gpus = [(index, uuid, int(total), int(used)) for index, uuid, total, used in rows or ()]
    except ValueError:
        return None
    named = list_visible_devices(environ)
    devices = [index for index, *_ in gpus] if named is None else named
    if not gpus or any(device.startswith(PART) for device in devices):
        return None
    gpu_of = {device: gpu for device in devices for gpu in gpus if names_gpu(device, gpu[0], gpu[1])}
    full = {
        device: f"{(total - used) / 1024:.1f} of {total / 1024:.1f} GiB"
        for device, (_, _, total, used) in gpu_of.items()
        if not has_free(total, used, needed)
    }
    shown = ", ".join(full.values())
    shortage = f"{shown} free, and engines take {format_percent(needed)} of all" if full else ""
    too_small = tuple(device for device, (index, *_) in gpu_of.items() if index in small)
    return GpuChoice(tuple(devices), tuple(full), shortage, too_small)
