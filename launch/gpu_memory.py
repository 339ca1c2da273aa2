"""Whether a device's memory is free again after an engine is gone."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.errors import LaunchError

DRIVER = Path("/proc/driver/nvidia/version")
"""There where the kernel has NVIDIA's driver."""
QUERY = ("--query-gpu=memory.used", "--format=csv,noheader,nounits")
QUERY_TIMEOUT_S = 10.0
IDLE_MIB = 1024
"""An idle GPU shows less than this."""
POLL_S = 1.0


async def wait_for_release(kind: str, wait_s: float) -> str:
    """Wait `wait_s`, then as long again at most while a GPU still holds memory; returns what is known."""
    await asyncio.sleep(wait_s)
    nvidia_smi = shutil.which("nvidia-smi") if kind == "cuda" else None
    if nvidia_smi is None:
        return f"waited {wait_s:g} s"
    used = await asyncio.to_thread(used_mib, nvidia_smi)
    waited = 0.0
    while used is not None and max(used, default=0) > IDLE_MIB and waited < wait_s:
        await asyncio.sleep(POLL_S)
        waited += POLL_S
        used = await asyncio.to_thread(used_mib, nvidia_smi)
    if used is None:
        return f"waited {wait_s:g} s; nvidia-smi did not answer"
    return f"waited {wait_s + waited:g} s; GPU memory in use {'/'.join(map(str, used))} MiB"


def used_mib(nvidia_smi: str) -> tuple[int, ...] | None:
    """Memory in use per GPU, MiB; None where nvidia-smi does not say."""
    try:
        answer = subprocess.run(
            [nvidia_smi, *QUERY], capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=True
        )
        return tuple(int(line) for line in answer.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def second_devices(size: int, environ: Mapping[str, str] = os.environ) -> str:
    """`CUDA_VISIBLE_DEVICES` of a second engine of `size` GPUs beside one on the first; empty = there are too few."""
    named = environ.get("CUDA_VISIBLE_DEVICES")
    nvidia_smi = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if named is not None:
        devices = [device for device in named.split(",") if device]
    else:
        used = used_mib(nvidia_smi) if nvidia_smi else None
        devices = [str(index) for index in range(len(used or ()))]
    return ",".join(devices[size : 2 * size]) if len(devices) >= 2 * size else ""


def name_devices(places: Sequence[int], environ: Mapping[str, str] = os.environ) -> str:
    """`CUDA_VISIBLE_DEVICES` for the GPUs at these places of those that this process may use.

    Raises LaunchError where it may use fewer.
    """
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return ",".join(map(str, places))
    devices = [device for device in named.split(",") if device]
    if max(places) >= len(devices):
        raise LaunchError(
            f"CUDA_VISIBLE_DEVICES={named} names {len(devices)} GPUs, and an engine wants number {max(places) + 1}",
            remedy="name more GPUs there, or let engines share them: `gpus` of the preset",
        )
    return ",".join(devices[place] for place in places)
