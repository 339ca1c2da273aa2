"""Whether the memory that an ended engine held on its GPUs is free again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import psutil

from launch.gpu_devices import PART, ask_nvidia_smi, is_among

IDLE_MIB = 1024
"""An idle GPU shows less than this."""
POLL_S = 1.0


class Holder(Protocol):
    """What is read of an engine of the run."""

    @property
    def held_mib(self) -> Mapping[str, int]:
        """By UUID of GPU, as `measure_held` has it; empty = not known."""

    def alive(self) -> bool: ...


async def wait_for_release(devices: Sequence[str], wait_s: float, engines: Iterable[Holder] = ()) -> str:
    """Wait until the memory that an ended engine held on these GPUs is free, `wait_s` at most; returns what is known.

    `engines`: those of the run, also ended ones. It does not wait for what a living one holds.
    Where no GPU is named, and where nvidia-smi states none of them, it waits `wait_s`.
    """
    if not devices:
        await asyncio.sleep(wait_s)
        return f"waited {wait_s:g} s"
    began = time.monotonic()
    while True:
        used = await asyncio.to_thread(read_used_mib, devices)
        waited_s = time.monotonic() - began
        is_free = bool(used) and await asyncio.to_thread(_is_free, used, _sum_held(engines))
        if is_free or waited_s >= wait_s:
            break
        await asyncio.sleep(min(POLL_S, wait_s - waited_s))
    known = f"GPU memory in use {'/'.join(map(str, used.values()))} MiB" if used else "nvidia-smi did not answer"
    return f"waited {waited_s:.0f} s; {known}"


async def measure_held(devices: Sequence[str], others: Iterable[Holder]) -> dict[str, int]:
    """MiB by UUID of GPU that an engine holds once it is ready: what is in use less what the run's other engines hold.

    Engines that share a GPU start in turn, so no other one takes memory meanwhile. Empty for a part of a GPU: which GPU
    it is a part of is not known.
    """
    if any(device.startswith(PART) for device in devices):
        return {}
    used = await asyncio.to_thread(read_used_mib, devices) if devices else {}
    held = _sum_held(others)
    return {gpu: max(0, mib - held[gpu]) for gpu, mib in used.items()}


def read_used_mib(devices: Sequence[str]) -> dict[str, int]:
    """Memory in use of these GPUs, MiB by UUID; empty where nvidia-smi does not state it."""
    rows = ask_nvidia_smi("gpu", ("index", "uuid", "memory.used")) or ()
    try:
        return {uuid: int(used) for index, uuid, used in rows if is_among(devices, index, uuid)}
    except ValueError:
        return {}


def read_listed_mib() -> Counter[str]:
    """What nvidia-smi states that living processes of any user hold, MiB by UUID of GPU.

    Empty where it lists none of this pid namespace: in a container without the host's, it lists no process, or pids
    that are not valid there. A process whose memory it does not state counts as 0.
    """
    listed: Counter[str] = Counter()
    for row in ask_nvidia_smi("compute-apps", ("gpu_uuid", "pid", "used_memory")) or ():
        with contextlib.suppress(ValueError):  # [N/A], or a sentence in place of a row
            gpu, pid, mib = row
            if psutil.pid_exists(int(pid)):
                listed[gpu] += int(mib)
    return listed


def _is_free(used_mib: Mapping[str, int], held_mib: Mapping[str, int]) -> bool:
    """Whether every GPU shows no more than an idle one beside what others hold: by the list of processes and, on a GPU
    without one, by `held_mib`, what the run's living engines held when they were ready."""
    if max(used_mib.values()) <= IDLE_MIB:
        return True
    listed = read_listed_mib()
    return all(mib - (listed[gpu] or held_mib.get(gpu, 0)) <= IDLE_MIB for gpu, mib in used_mib.items())


def _sum_held(engines: Iterable[Holder]) -> Counter[str]:
    """What the living ones held when they were ready, MiB by UUID of GPU."""
    held: Counter[str] = Counter()
    for engine in engines:
        if engine.alive():
            held.update(engine.held_mib)
    return held
