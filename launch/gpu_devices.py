"""The GPUs of this host: whether there is one, and which an engine takes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from launch.errors import LaunchError
from launch.gpu_memory import used_mib
from launch.profile import Profile

DRIVER = Path("/proc/driver/nvidia/version")
"""There where the kernel has NVIDIA's driver."""
LIST_TIMEOUT_S = 30.0


class NoGpu(LaunchError):
    """A CUDA engine has no GPU to run on."""


def list_gpus() -> list[str] | str:
    """The GPUs nvidia-smi lists, a line each, or why there are none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no nvidia-smi"
    try:
        run = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=LIST_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if run.returncode:
        return (run.stdout + run.stderr).strip() or f"nvidia-smi ended with {run.returncode}"
    return [line for line in run.stdout.splitlines() if line.startswith("GPU ")]


def require_gpu(profile: Profile) -> None:
    """Raises NoGpu where engines of this profile need a GPU and neither the kernel nor nvidia-smi knows of one.

    Either is enough: a container may lack nvidia-smi, and a kernel may have another driver's file (WSL).
    """
    if profile.engine.kind != "cuda" or DRIVER.exists():
        return
    listed = list_gpus()
    if not listed or isinstance(listed, str):
        why = listed if isinstance(listed, str) else "nvidia-smi lists none"
        raise NoGpu(
            f"the engines of profile {profile.name} need an NVIDIA GPU, and this host has none: no NVIDIA driver in "
            f"this kernel; {why}",
            remedy=f"run on a host with a GPU (`tracon doctor --profile {profile.name}` names all that is missing), or "
            "use a CPU profile: --profile cpu-tiny",
        )


def second_devices(size: int, environ: Mapping[str, str] = os.environ) -> str:
    """`CUDA_VISIBLE_DEVICES` of a second engine of `size` GPUs beside one on the first; empty = there are too few."""
    devices = _list_devices(environ)
    return ",".join(devices[size : 2 * size]) if len(devices) >= 2 * size else ""


def name_devices(places: Sequence[int], environ: Mapping[str, str] = os.environ) -> str:
    """`CUDA_VISIBLE_DEVICES` for the GPUs at these places of those that this process may use.

    Raises LaunchError where it may use fewer.
    """
    devices, named = _list_devices(environ), environ.get("CUDA_VISIBLE_DEVICES")
    if named is None and not devices:  # nvidia-smi does not say: the engine finds out
        return ",".join(map(str, places))
    if max(places) >= len(devices):
        whose = "this host has" if named is None else f"CUDA_VISIBLE_DEVICES={named} names"
        raise LaunchError(
            f"{whose} {len(devices)} GPUs, and an engine wants number {max(places) + 1}",
            remedy="use a host with more, name more in CUDA_VISIBLE_DEVICES, or let engines share them: `gpus` of the "
            "preset (`--set gpus=1`)",
        )
    return ",".join(devices[place] for place in places)


def _list_devices(environ: Mapping[str, str]) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; empty where that is not known."""
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device for device in named.split(",") if device]
    nvidia_smi = shutil.which("nvidia-smi", path=environ.get("PATH", ""))
    used = used_mib(nvidia_smi) if nvidia_smi else None
    return [str(index) for index in range(len(used or ()))]
