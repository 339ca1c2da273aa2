"""Whether a device's memory is free again after an engine is gone."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

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
