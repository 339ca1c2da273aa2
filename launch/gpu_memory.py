"""Whether the memory of an engine's GPUs is free again after it is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from launch.gpu_devices import query_gpus

IDLE_MIB = 1024
"""An idle GPU shows less than this."""
POLL_S = 1.0


async def wait_for_release(devices: Sequence[str], wait_s: float, shared_mib: Sequence[int] = ()) -> str:
    """Wait until the memory of these GPUs is free, `wait_s` at most; returns what is known.

    `shared_mib`: memory of each GPU that engines beside the ended one held when it started; empty = none.
    Where no GPU is named, and where nvidia-smi states none of them, that is `wait_s`.
    """
    if not devices:
        await asyncio.sleep(wait_s)
        return f"waited {wait_s:g} s"
    began = time.monotonic()
    while True:
        used = await asyncio.to_thread(read_used_mib, devices)
        waited_s = time.monotonic() - began
        if (used and _is_free(used, shared_mib)) or waited_s >= wait_s:
            break
        await asyncio.sleep(min(POLL_S, wait_s - waited_s))
    known = f"GPU memory in use {'/'.join(map(str, used))} MiB" if used else "nvidia-smi did not answer"
    return f"waited {waited_s:.0f} s; {known}"


def _is_free(used_mib: Sequence[int], shared_mib: Sequence[int]) -> bool:
    """Whether no GPU shows more than an idle one does beside what others hold; figures that are not of the same GPUs
    count as none."""
    others = shared_mib if len(shared_mib) == len(used_mib) else (0,) * len(used_mib)
    return all(used - held <= IDLE_MIB for used, held in zip(used_mib, others, strict=True))


def read_used_mib(devices: Sequence[str]) -> tuple[int, ...]:
    """Memory in use per GPU, MiB; empty where nvidia-smi does not state it."""
    try:
        return tuple(int(used) for _, used in query_gpus(("memory.used",), devices) or ())
    except ValueError:
        return ()
